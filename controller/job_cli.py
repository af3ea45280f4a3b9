# SPDX-License-Identifier: Apache-2.0
"""`p4reduce job …`: tenants' jobs at a network's controller."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from controller.errors import ControllerError
from controller.terminal import (
    CommandError,
    JobArgument,
    JsonOption,
    NetOption,
    UrlOption,
    bits_per_second,
    complete_hosts,
    complete_jobs,
    complete_tenants,
    name_list,
    print_json,
    print_table,
    rate_words,
    reach,
)
from wire.control import RESTART_SECONDS, ControlClient, RefusedError, UnreachableControllerError, at
from wire.hints import command

app = typer.Typer(
    help="Tenants' jobs: add, list, show, resize, drain, rm, events, quota, tenants.",
    no_args_is_help=True,
    add_completion=False,
)

POLL_SECONDS = 0.3
FOLLOW_SECONDS = 20.0
"""How long the controller is asked to wait for an event."""
AWAY_SECONDS = 30.0
"""How long a controller may be away while its events are followed."""

SlotsOption = Annotated[int | None, typer.Option(help="Slots of its pool, its window W.", show_default=False)]
RateOption = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="What its workers may send together: 200mbit, 1gbit, as tc's rates."),
]


class DrainTimeoutError(ControllerError):
    """A job that has not ended in time; `job` is its name. It goes on draining."""

    def __init__(self, job: str, seconds: float, waits: str) -> None:
        super().__init__(
            f"job {job} has not ended in {seconds:g} s: it waits for {waits}; it goes on draining "
            f"(why: {command(f'explain {job}')}; end it at once: {command(f'job rm {job}')})"
        )
        self.job = job


@app.command("add")
def job_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")],
    workers: Annotated[
        str,
        typer.Option(
            metavar="h1,h2,…", help="Its hosts: rank r runs on the r-th.", autocompletion=complete_hosts
        ),
    ],
    slots: SlotsOption = None,
    rate: RateOption = None,
    tenant: Annotated[
        str, typer.Option(help="Whose quota it counts to.", autocompletion=complete_tenants)
    ] = "default",
    lead: Annotated[
        int | None,
        typer.Option(help="Chunks that an exponent travels ahead; default: W/4.", show_default=False),
    ] = None,
    switches: Annotated[
        str | None,
        typer.Option(
            metavar="s1,s2,…",
            help="Where it may be summed; default: wherever that is best.",
            show_default=False,
        ),
    ] = None,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rent slots for a job; then its workers may join."""
    asked = {"name": name, "workers": name_list("--workers", workers, "h1,h2,…"), "tenant": tenant}
    optional = {
        "slots": slots,
        "lead": lead,
        "rate_bps": None if rate is None else bits_per_second(rate),
        "switches": None if switches is None else name_list("--switches", switches, "s1,s2,…"),
    }
    with reach(net, url) as client:
        job = client.call(
            "POST", "/v1/jobs", asked | {key: value for key, value in optional.items() if value is not None}
        )
        switch = client.call("GET", at("switches", job["switch"]))
    if as_json:
        print_json({"before": None, "after": job})
        return
    last = job["base"] + job["slots"] - 1
    leaves = [node["switch"] for node in job["tree"][1:]]
    below = f", as many of {', '.join(leaves)} below it" if leaves else ""
    typer.echo(
        f"job {name}: absent -> {job['status']}; slots {job['base']} to {last} of {job['switch']} "
        f"({switch['free'] + job['slots']} -> {switch['free']} free){below}, workers {_hosts(job)}, "
        f"rate {rate_words(job['rate_bps'])}"
    )


@app.command("list")
def job_list(net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List all jobs."""
    with reach(net, url) as client:
        jobs = client.call("GET", "/v1/jobs")
    if as_json:
        print_json(jobs)
    elif not jobs:
        typer.echo(f"there is no job; add one with: {command('job add NAME --workers h1,h2')}")
    else:
        heads = ("job", "status", "tenant", "workers", "hosts", "switch", "slots", "rate", "epoch")
        print_table(heads, [_line(job) for job in jobs])


@app.command("show")
def job_show(
    name: JobArgument,
    tree: Annotated[bool, typer.Option("--tree", help="Show where it is summed alone.")] = False,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job, its ranks, and the tree of switches that sum for it."""
    with reach(net, url) as client:
        job = client.call("GET", at("jobs", name))
    if as_json:
        print_json(job["tree"] if tree else job)
        return
    if tree:
        print_tree(job)
        return
    last = job["base"] + job["slots"] - 1
    typer.echo(f"job {name}: {job['status']}{', ' + job['change'] if job['change'] else ''}")
    typer.echo(
        f"number {job['number']}, tenant {job['tenant']}, slots {job['base']} to {last} of {job['switch']} "
        f"(W {_wanted(job)}), lead {job['lead']}, rate {rate_words(job['rate_bps'])}"
    )
    typer.echo(f"epoch {job['epoch'] or 'none yet'}, from chunk {job['g0']} and all-reduce {job['t0']} on")
    heads = ("rank", "host", "UDP port", "epoch", "all-reduces", "first missing", "next chunk", "lease left")
    print_table(heads, [_rank_line(rank) for rank in job["ranks"]])
    if len(job["tree"]) > 1:
        print_tree(job)


def print_tree(job: dict[str, Any]) -> None:
    """Print a job's switches, the root first, each with its slots and whose packets it sums."""
    from rich.console import Console
    from rich.tree import Tree

    ranks = {rank["host"]: rank["rank"] for rank in job["ranks"]}
    drawn: dict[str, Tree] = {}
    for node in job["tree"]:
        words = f"{node['switch']}  slots {node['base']} to {node['base'] + job['slots'] - 1}"
        above = drawn.get(node["parent"])
        drawn[node["switch"]] = Tree(words) if above is None else above.add(words)
        if node["hosts"]:
            workers = ", ".join(
                f"{host} (rank {ranks[host]})" if host in ranks else host for host in node["hosts"]
            )
            drawn[node["switch"]].add(workers)
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(drawn[job["switch"]])


@app.command("resize")
def job_resize(
    name: JobArgument,
    slots: SlotsOption = None,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="As for job add; none ends the limit.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="h1,h2,…", help="Its hosts from now on, all of them.", autocompletion=complete_hosts
        ),
    ] = None,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a job's slots, rate or workers while it runs."""
    given = {
        "slots": slots,
        "workers": None if workers is None else name_list("--workers", workers, "h1,h2,…"),
    }
    asked: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if rate is not None:
        asked["rate_bps"] = None if rate == "none" else bits_per_second(rate)
    if not asked:
        raise CommandError(f"job resize {name}", "say what is to change: --slots, --rate or --workers")
    with reach(net, url) as client:
        before = client.call("GET", at("jobs", name))
        after = client.call("PATCH", at("jobs", name), asked)
    if as_json:
        print_json({"before": before, "after": after})
        return
    changes = [
        f"{what} {old} -> {new}"
        for what, old, new in (
            ("slots", before["wanted_slots"], after["wanted_slots"]),
            ("rate", rate_words(before["rate_bps"]), rate_words(after["rate_bps"])),
            ("workers", _hosts(before), _hosts(after)),
        )
        if old != new
    ]
    if not changes:
        typer.echo(f"job {name}: nothing changes, it is so already")
        return
    later = ""
    if after["status"] != "running" or after["slots"] != after["wanted_slots"]:
        later = ", with its next epoch" if "slots" in asked or "workers" in asked else ""
    typer.echo(f"job {name}: {'; '.join(changes)}{later}")


@app.command("drain")
def job_drain(
    name: JobArgument,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = 60.0,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a job finish the all-reduces that it has begun, and wait until it has ended."""
    until = time.monotonic() + timeout
    with reach(net, url, patience=RESTART_SECONDS) as client:  # who waits outlasts a controller's restart
        before = client.call("GET", at("jobs", name))
        client.call("POST", at("jobs", name, "drain"), {})
        told, last = "", before
        while (job := _find(client, name)) is not None and job["created"] == before["created"]:
            last, waits = job, _late(job)
            if waits != told and not as_json:
                typer.echo(f"job {name}: {job['status']}, waits for {waits}")
            told = waits
            if time.monotonic() > until:
                raise DrainTimeoutError(name, timeout, waits)
            time.sleep(POLL_SECONDS)
    if as_json:
        print_json({"before": before, "after": None})
    else:
        typer.echo(f"job {name}: {before['status']} -> ended, {last['slots']} slots are free again")


def _late(job: dict[str, Any]) -> str:
    """Name the ranks that a job's end waits for: those behind the others, else all that are there."""
    there = [rank for rank in job["ranks"] if rank["joined"]]
    most = max((rank["begun"] for rank in there), default=0)
    late = [rank for rank in there if rank["begun"] < most] or there
    names = ", ".join(f"rank {rank['rank']} on {rank['host']}" for rank in late)
    return names or "its entries to be withdrawn"


@app.command("rm")
def job_rm(
    name: JobArgument, net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """End a job at once; its workers are told."""
    with reach(net, url) as client:
        before = client.call("GET", at("jobs", name))
        client.call("DELETE", at("jobs", name))
    if as_json:
        print_json({"before": before, "after": None})
    else:
        typer.echo(f"job {name}: {before['status']} -> removed, {before['slots']} slots are free again")


@app.command("events")
def job_events(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Of this job alone.", autocompletion=complete_jobs, show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those to come.")] = False,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --follow an object a line.")
    ] = False,
) -> None:
    """Show what happened, oldest first."""
    with reach(net, url) as client:
        found = client.call("GET", "/v1/events", job=name)
        if name is not None and not found and not follow:
            client.call("GET", at("jobs", name))  # who has no events may be no job: then this says so
        if as_json and not follow:
            print_json(found)
            return
        for event in following(client, found, name) if follow else found:
            typer.echo(json.dumps(event) if as_json else _event_line(event))
        if not found and not follow:
            typer.echo(f"nothing has happened{f' to job {name}' if name else ''} yet", err=True)


def following(
    client: ControlClient, found: list[dict[str, Any]], job: str | None
) -> Iterator[dict[str, Any]]:
    """Yield events `found` and those that come; a controller may be away for AWAY_SECONDS."""
    after, heard = 0, time.monotonic()
    while True:
        for event in found:
            after = event["id"]
            yield event
        try:
            found = client.call("GET", "/v1/events", wait=FOLLOW_SECONDS, after=after, job=job)
            heard = time.monotonic()
        except UnreachableControllerError:
            if time.monotonic() - heard > AWAY_SECONDS:
                raise
            found = []
            time.sleep(POLL_SECONDS)


@app.command("quota")
def job_quota(
    tenant: Annotated[
        str, typer.Argument(metavar="TENANT", help="The tenant.", autocompletion=complete_tenants)
    ],
    slots: Annotated[str, typer.Argument(metavar="SLOTS", help="How many slots it may have, or none.")],
    net: NetOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set how many slots a tenant's jobs may have together; what they have stays."""
    if slots != "none" and not re.fullmatch("[0-9]{1,9}", slots):
        raise CommandError(f"SLOTS {slots}", "give a number of up to nine digits, or none for no limit")
    with reach(net, url) as client:
        before = _tenant(client.call("GET", "/v1/tenants"), tenant)
        quota = None if slots == "none" else int(slots)
        after = _tenant(client.call("PUT", at("tenants", tenant), {"quota": quota}), tenant)
    if as_json:
        print_json({"before": before, "after": after})
        return
    old, new = (_limit(each) for each in (before, after))
    typer.echo(f"tenant {tenant}: quota of slots {old} -> {new}, {after['used']} in use")


@app.command("tenants")
def job_tenants(net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List tenants with their quotas."""
    with reach(net, url) as client:
        found = client.call("GET", "/v1/tenants")
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("there is no tenant yet")
    else:
        print_table(("tenant", "quota", "slots in use"), [(t["name"], _limit(t), t["used"]) for t in found])


def _find(client: ControlClient, name: str) -> dict[str, Any] | None:
    try:
        job: dict[str, Any] = client.call("GET", at("jobs", name))
    except RefusedError as error:
        if error.status != 404:
            raise
        return None
    return job


def _tenant(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((each for each in found if each["name"] == name), {"name": name, "quota": None, "used": 0})


def _limit(tenant: dict[str, Any]) -> str:
    return "none" if tenant["quota"] is None else str(tenant["quota"])


def _hosts(job: dict[str, Any]) -> str:
    return ", ".join(rank["host"] for rank in job["ranks"])


def _wanted(job: dict[str, Any]) -> str:
    if job["slots"] == job["wanted_slots"]:
        return str(job["slots"])
    return f"{job['slots']}, {job['wanted_slots']} with its next epoch"


def _line(job: dict[str, Any]) -> tuple[object, ...]:
    there = sum(rank["joined"] for rank in job["ranks"])
    return (
        job["name"],
        job["status"],
        job["tenant"],
        f"{there} of {len(job['ranks'])}",
        _hosts(job),
        ", ".join(node["switch"] for node in job["tree"]),
        _wanted(job),
        rate_words(job["rate_bps"]),
        job["epoch"] or "",
    )


def _rank_line(rank: dict[str, Any]) -> tuple[object, ...]:
    if not rank["joined"]:
        return rank["rank"], rank["host"], "absent", "", "", "", "", ""
    told = [rank[key] for key in ("udp_port", "epoch", "begun", "first_missing", "next_chunk")]
    return rank["rank"], rank["host"], *told, f"{rank['lease_left']:.1f} s"


def _event_line(event: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    job = f"{event['job']}: " if event["job"] else ""
    return f"{when}  {event['kind']:<10}  {job}{event['text']}"
