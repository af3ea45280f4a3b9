# SPDX-License-Identifier: Apache-2.0
"""`p4reduce top`: its rates, and that it ends cleanly on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.top import JOB_HEADS, SWITCH_HEADS, Reading, counts_of, job_rows, switch_rows
from tests.controller.office import TOKEN, Office
from tests.controller.served import Served
from wire.constants import TOKEN_VARIABLE

LIMIT_S = 60.0
PROGRAM = [sys.executable, "-c", "from controller.cli import main; main()", "top"]


def reading(at: float, page: str) -> Reading:
    """One job of three ranks, of which the last has not joined."""
    ranks: list[dict[str, Any]] = [
        {"rank": 0, "host": "h1", "joined": True, "begun": 7, "first_missing": 812},
        {"rank": 1, "host": "h2", "joined": True, "begun": 6, "first_missing": 800},
        {"rank": 2, "host": "h3", "joined": False},
    ]
    job = {"name": "a", "status": "running", "epoch": 5, "slots": 8, "ranks": ranks}
    ports = {"1": "x", "2": "y"}
    slots = {"slots": 1024, "free": 1016, "largest_run": 1000}
    switch = {"name": "s1", "in_line": True, "ports": ports, **slots}
    return Reading(at, {"name": "t", "switches": [switch]}, [job], counts_of(page))


def lines(name: str, **values: float) -> str:
    """A counter in Prometheus' text format, its samples as labels='value'."""
    samples = "".join(f"{name}_total{{{labels}}} {value}\n" for labels, value in values.items())
    return f"# TYPE {name}_total counter\n{samples}"


def test_rates_are_differences_over_time() -> None:
    rank0, port2 = 'job="a",rank="0"', 'switch="s1",port="2"'
    before = reading(
        10.0,
        lines("p4reduce_worker_goodput_bytes", **{rank0: 1e6})
        + lines("p4reduce_worker_packets", **{rank0 + ',verdict="absorbed"': 100})
        + lines("p4reduce_switch_port_refused_packets", **{port2 + ',reason="no_route"': 5}),
    )
    refused = {port2 + ',reason="no_route"': 25, 'switch="s1",port="1",reason="malformed"': 10}
    now = reading(
        12.0,
        lines("p4reduce_worker_goodput_bytes", **{rank0: 2e6})
        + lines(
            "p4reduce_worker_packets",
            **{rank0 + ',verdict="absorbed"': 175, rank0 + ',verdict="stale"': 25},
        )
        + lines("p4reduce_job_refused_packets", **{'job="a",reason="not_admitted"': 60})
        + lines("p4reduce_switch_port_refused_packets", **refused)
        + lines("p4reduce_switch_port_lost_packets", **{port2 + ',kind="rx_dropped"': 8}),
    )
    rows = [dict(zip(JOB_HEADS, row, strict=False)) for row in job_rows(before, now)]
    assert [row["rank"] for row in rows] == ["0 h1", "1 h2", "2 h3"]
    assert [row["begun"] for row in rows] == ["7", "6", "absent"]
    assert [row["lag"] for row in rows] == ["0", "12", ""]
    assert rows[0]["goodput"] == "4.0 Mbit/s"  # 10^6 bytes in 2 s
    assert rows[0]["sent again"] == "25.0 %"  # 25 of 100 packets
    assert rows[1]["sent again"] == ""
    assert rows[0]["refused/s"] == "30"
    (switch,) = (dict(zip(SWITCH_HEADS, row, strict=True)) for row in switch_rows(before, now))
    assert (switch["refused/s"], switch["lost/s"]) == ("15", "4")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    served = Served(1)
    try:
        with Office(tmp_path_factory.mktemp("o"), served) as made:
            made.add("alpha", [7301], slots=8)
            yield made
    finally:
        served.close()


def test_json_is_one_picture(office: Office) -> None:
    words = [*PROGRAM, "--url", office.url, "--json"]
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=True)
    told = json.loads(done.stdout)
    (row,) = told["jobs"]
    assert list(row) == list(JOB_HEADS)
    assert (row["job"], row["status"], row["slots"], row["rank"]) == ("alpha", "running", "8", "0 h1")
    (switch,) = told["switches"]
    assert list(switch) == list(SWITCH_HEADS)
    assert (switch["switch"], switch["state"]) == ("s1", "in line")


@pytest.mark.parametrize("end", ["q", "interrupt"])
def test_a_terminal_is_left_as_it_was(office: Office, end: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
    child = subprocess.Popen(
        [*PROGRAM, "--url", office.url], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    try:
        said = read_until(ours, b"alpha")
        assert b"running" in said
        if end == "q":
            os.write(ours, b"q")
        else:
            child.send_signal(signal.SIGINT)
        said = read_until(ours, b"\x1b[?1049l")  # the screen of before is back
        assert child.wait(LIMIT_S) == 0
        assert b"Traceback" not in said
        assert termios.tcgetattr(theirs) == before
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)


def read_until(file: int, wanted: bytes) -> bytes:
    said = b""
    until = time.monotonic() + LIMIT_S
    while wanted not in said:
        ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
        assert ready, said
        said += os.read(file, 65536)
    return said
