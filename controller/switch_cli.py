# SPDX-License-Identifier: Apache-2.0
"""`p4reduce net switch …`: what the switches of a network hold and count, as its controller reads it."""

from __future__ import annotations

from typing import Any

import typer

from controller.terminal import (
    CommandError,
    JsonOption,
    NetOption,
    SwitchArgument,
    UrlOption,
    print_json,
    print_table,
    reach,
)
from wire.control import ControlClient, at

app = typer.Typer(
    help="A network's switches: list, show, entries, counters.", no_args_is_help=True, add_completion=False
)


@app.command("list")
def switch_list(net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the switches."""
    with reach(net, url) as client:
        found = client.call("GET", "/v1/switches")
    if as_json:
        print_json(found)
        return
    heads = ("switch", "state", "address", "P4Runtime", "ports", "slots", "free", "largest run")
    print_table(
        heads,
        [
            (
                s["name"],
                _state(s),
                s["ip"],
                s["grpc"] or "",
                len(s["ports"]),
                s["slots"],
                s["free"],
                s["largest_run"],
            )
            for s in found
        ],
    )


@app.command("show")
def switch_show(
    switch: SwitchArgument = None, net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Show one switch and who holds its slots."""
    with reach(net, url) as client:
        found = client.call("GET", at("switches", _chosen(client, switch)))
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"switch {found['name']}: {_state(found)}, {found['ip']}, device {found['device_id']}, "
        f"P4Runtime on {found['grpc'] or 'no address yet'}"
    )
    typer.echo(f"ports {', '.join(f'{port}@{interface}' for port, interface in found['ports'].items())}")
    typer.echo(f"{found['slots']} slots, {found['free']} free, the largest run {found['largest_run']}")
    if found["holders"]:
        print_table(
            ("job", "slots", "first", "last"),
            [(h["job"], h["slots"], h["base"], h["base"] + h["slots"] - 1) for h in found["holders"]],
        )


@app.command("entries")
def switch_entries(
    switch: SwitchArgument = None, net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Show all that a switch holds: table entries, multicast groups, clone sessions, rates of jobs."""
    with reach(net, url) as client:
        found = client.call("GET", at("switches", _chosen(client, switch), "entries"))
    if as_json:
        print_json(found)
        return
    for name, rows in found["tables"].items():
        typer.echo(f"{name}: {len(rows)}")
        for row in rows:
            typer.echo(f"  {_pairs(row['key'])} -> {row['action']}({_pairs(row['args'])})")
    for what in ("groups", "sessions"):
        typer.echo(f"{what}: {len(found[what])}")
        for number, copies in found[what].items():
            ports = ", ".join(f"port {port} (id {rid})" for port, rid in copies)
            typer.echo(f"  {number} -> {ports}")
    typer.echo(f"rates: {len(found['rates'])}")
    for job, rate in found["rates"].items():
        typer.echo(f"  job {job} -> {rate / 1e6:g} Mbit/s")


@app.command("counters")
def switch_counters(
    switch: SwitchArgument = None, net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Show what became of each port's packets, and what the switch process itself lost."""
    with reach(net, url) as client:
        found = client.call("GET", at("switches", _chosen(client, switch), "counters"))
    if as_json:
        print_json(found)
        return
    rows: list[tuple[object, ...]] = []
    for port, told in found["ports"].items():
        for what, words in _WHAT.items():
            rows += [
                (port, told["interface"], words, _words(verdict), packets, octets)
                for verdict, (packets, octets) in told[what].items()
            ]
        lost = told["lost"] or {}
        rows += [(port, told["interface"], "lost", _words(kind), n, "") for kind, n in lost.items() if n]
    if rows:
        print_table(("port", "interface", "", "what became of them", "packets", "bytes"), rows)
    else:
        typer.echo("no packet was counted yet")
    if all(told["lost"] is None for told in found["ports"].values()):
        typer.echo("what the switch process itself lost is not known here")


_WHAT = {"in": "in", "out": "out", "faults_in": "fault in", "faults_out": "fault out"}


def _chosen(client: ControlClient, switch: str | None) -> str:
    if switch is not None:
        return switch
    names = [each["name"] for each in client.call("GET", "/v1/network")["switches"]]
    if len(names) != 1:
        raise CommandError("SWITCH", f"say which: {', '.join(names)}")
    return str(names[0])


def _state(switch: dict[str, Any]) -> str:
    if not switch["in_line"]:
        return "not reached"
    return "in line" if switch["primary"] else "backup"


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _words(name: str) -> str:
    return name.replace("_", " ")
