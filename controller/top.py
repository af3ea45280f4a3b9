# SPDX-License-Identifier: Apache-2.0
"""`p4reduce top`: jobs and switches, live.

Rates come from two readings of /metrics; of a rank's progress the controller knows what its worker told last,
some seconds ago at most.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from controller.terminal import PIPE_WIDTH, NetOption, UrlOption, print_json, reach
from wire.columns import uncut
from wire.control import ControlClient

app = typer.Typer(add_completion=False)

INTERVAL_SECONDS = 1.0
REPEATED = ("duplicate", "replayed", "stale")
"""Verdicts of packets that a worker had sent before."""

Key = tuple[str, str, str]
"""Of a counter: its name, the job or switch, and the rank or port ("" for those of a whole job)."""


@dataclass(frozen=True)
class Reading:
    """What the controller told at one time."""

    at: float
    network: dict[str, Any]
    jobs: list[dict[str, Any]]
    counts: Mapping[Key, Mapping[str, float]]
    """By verdict, reason or kind ("" for a counter without)."""

    def sum(self, name: str, of: str, part: str, kinds: Collection[str] | None = None) -> float:
        """Return the sum of a counter over these kinds, or over all."""
        found = self.counts.get((f"p4reduce_{name}_total", of, part), {})
        return sum(value for kind, value in found.items() if kinds is None or kind in kinds)


def counts_of(page: str) -> dict[Key, dict[str, float]]:
    """Return the counters of a page in Prometheus' text format."""
    found: dict[Key, dict[str, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples if family.type == "counter" else ():
            labels = sample.labels
            of, part = labels.get("job") or labels["switch"], labels.get("rank") or labels.get("port", "")
            kind = next((labels[name] for name in ("verdict", "reason", "kind") if name in labels), "")
            cells = found.setdefault((sample.name, of, part), {})
            cells[kind] = cells.get(kind, 0.0) + sample.value
    return found


def read(client: ControlClient) -> Reading:
    """Ask a controller. Raises ControlError."""
    network, jobs = client.call("GET", "/v1/network"), client.call("GET", "/v1/jobs")
    page, at = client.text("/metrics"), time.monotonic()
    return Reading(at, network, jobs, counts_of(page))


def job_rows(before: Reading, now: Reading) -> list[tuple[str, ...]]:
    """Return the rows of JOB_HEADS, one a rank; a job's own columns are in its first."""
    rows: list[tuple[str, ...]] = []
    for job in now.jobs:
        name = job["name"]
        most = max((rank["first_missing"] for rank in job["ranks"] if rank["joined"]), default=0)
        own: tuple[str, ...] = (name, job["status"], str(job["epoch"] or ""), str(job["slots"]))
        for rank in job["ranks"]:
            part = str(rank["rank"])
            progress = ("absent", "", "")
            if rank["joined"]:
                first = rank["first_missing"]
                progress = (str(rank["begun"]), str(first), str(most - first))
            goodput = _rate(before, now, "worker_goodput_bytes", name, part)
            packets = _more(before, now, "worker_packets", name, part)
            again = _more(before, now, "worker_packets", name, part, REPEATED)
            share = f"{100 * again / packets:.1f} %" if packets else ""
            rows.append(
                (*own, f"{rank['rank']} {rank['host']}", *progress, f"{8 * goodput / 1e6:.1f} Mbit/s", share)
            )
            own = ("", "", "", "")
        refused = _rate(before, now, "job_refused_packets", name, "")
        rows[-len(job["ranks"])] += (f"{refused:.0f}",)
    return rows


JOB_HEADS = (
    "job",
    "status",
    "epoch",
    "slots",
    "rank",
    "begun",
    "first missing",
    "lag",
    "goodput",
    "sent again",
    "refused/s",
)
SWITCH_HEADS = ("switch", "state", "slots", "free", "largest run", "refused/s", "lost/s")


def switch_rows(before: Reading, now: Reading) -> list[tuple[str, ...]]:
    """Return the rows of SWITCH_HEADS."""
    rows = []
    for switch in now.network["switches"]:
        rates = [
            sum(_rate(before, now, name, switch["name"], port) for port in switch["ports"])
            for name in ("switch_port_refused_packets", "switch_port_lost_packets")
        ]
        rows.append(
            (
                switch["name"],
                "in line" if switch["in_line"] else "not reached",
                *(str(switch[key]) for key in ("slots", "free", "largest_run")),
                *(f"{rate:.0f}" for rate in rates),
            )
        )
    return rows


def _more(
    before: Reading, now: Reading, name: str, of: str, part: str, kinds: Collection[str] | None = None
) -> float:
    return max(0.0, now.sum(name, of, part, kinds) - before.sum(name, of, part, kinds))


def _rate(before: Reading, now: Reading, name: str, of: str, part: str) -> float:
    return _more(before, now, name, of, part) / max(1e-9, now.at - before.at)


def picture(before: Reading, now: Reading) -> Group:
    """Return both tables."""
    jobs = uncut(Table(*JOB_HEADS, title=f"jobs of network {now.network['name']}", title_justify="left"))
    for row in job_rows(before, now):
        jobs.add_row(*row)
    switches = uncut(Table(*SWITCH_HEADS, title="switches", title_justify="left"))
    for row in switch_rows(before, now):
        switches.add_row(*row)
    return Group(jobs, switches)


@app.command("top")
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end, as into a pipe.")] = False,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one picture as JSON: the tables' cells, and end.")
    ] = False,
) -> None:
    """Show jobs and switches, live; q or Ctrl-C ends it."""
    with reach(net, url) as client:
        before = read(client)
        if as_json:
            time.sleep(INTERVAL_SECONDS)
            now = read(client)
            tables = (
                ("jobs", JOB_HEADS, job_rows(before, now)),
                ("switches", SWITCH_HEADS, switch_rows(before, now)),
            )
            print_json(
                {
                    name: [dict(zip_longest(heads, row, fillvalue="")) for row in rows]
                    for name, heads, rows in tables
                }
            )
            return
        if once or not sys.stdout.isatty():
            time.sleep(INTERVAL_SECONDS)
            width = None if sys.stdout.isatty() else PIPE_WIDTH
            Console(width=width, markup=False, highlight=False).print(picture(before, read(client)))
            return
        # Live paints nothing when it is entered: Ctrl-C would leave its screen behind.
        with _keys() as key, Live(screen=True, auto_refresh=False) as live:
            try:
                live.update(picture(before, before), refresh=True)
                while key(INTERVAL_SECONDS) != "q":
                    now = read(client)
                    live.update(picture(before, now), refresh=True)
                    before = now
            except KeyboardInterrupt:
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits for a key so many seconds at most; without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    file = sys.stdin.fileno()
    kept = termios.tcgetattr(file)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([file], [], [], seconds)
        return os.read(file, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(file)
        yield key
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, kept)
