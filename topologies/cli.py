# SPDX-License-Identifier: Apache-2.0
"""`p4reduce net …`: networks and their switches."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from controller import switch_cli
from controller.terminal import CommandError, NetOption, complete_hosts, complete_networks, print_table
from topologies import link_cli, links, look_cli, rootless
from topologies import record as records
from topologies.errors import NetworkError, RecordError
from topologies.record import CONTROLLER, NetRecord
from wire.constants import NET_VARIABLE, TOKEN
from wire.errors import P4ReduceError
from wire.hints import command

app = typer.Typer(
    help="Networks: up, status, link, exec, shell, cli, switch, draw, doctor, down.", no_args_is_help=True
)
app.add_typer(switch_cli.app, name="switch")
app.command("link")(link_cli.net_link)
app.command("draw")(look_cli.net_draw)
app.command("doctor")(look_cli.net_doctor)


@app.command("up")
def net_up(
    topology: Annotated[
        str,
        typer.Argument(
            help="star, racks, leaf-spine, tree, fat-tree, dumbbell; or a file: NAME.yaml, or p4lang's "
            "topology.json."
        ),
    ],
    hosts: Annotated[
        int | None, typer.Option(help="Hosts on a star's switch, or on each leaf.", show_default=False)
    ] = None,
    leaves: Annotated[
        int | None, typer.Option(help="Leaves of leaf-spine; default: 4.", show_default=False)
    ] = None,
    spines: Annotated[
        int | None, typer.Option(help="Spines of leaf-spine; default: 2.", show_default=False)
    ] = None,
    fanout: Annotated[
        int | None, typer.Option(help="Switches below each of a tree's; default: 2.", show_default=False)
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Of each host's link: 1gbit, 200mbit, …", show_default=False)
    ] = None,
    bottleneck_rate: Annotated[
        str | None, typer.Option(help="Of each link between switches.", show_default=False)
    ] = None,
    switch: Annotated[
        str | None, typer.Option(help="embedded or bmv2; default: $P4REDUCE_SWITCH, else embedded.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The network's name; default: the topology's, or the file's.")
    ] = None,
    elements: Annotated[int, typer.Option(help="Values in a packet, 64 or 256.")] = 256,
    pcap: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Capture every link into this folder.")
    ] = None,
    super_packets: Annotated[
        bool, typer.Option("--super-packets/--no-super-packets", help="Many packets at once (embedded only).")
    ] = True,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the controller's API on TCP too, by token.")
    ] = None,
) -> None:
    """Bring a network up; it runs until `net down`."""
    from topologies import manager
    from topologies.builders import describe
    from topologies.quantities import with_option
    from topologies.spec import PLAIN

    sizes = {"hosts": hosts, "leaves": leaves, "spines": spines, "fanout": fanout}
    rates = {
        name: None if text is None else with_option(PLAIN, "rate", text, option).rate_mbit
        for name, option, text in (
            ("rate_mbit", "--rate", rate),
            ("bottleneck_rate_mbit", "--bottleneck-rate", bottleneck_rate),
        )
    }
    spec = describe(topology, **sizes, **rates)
    record = manager.up(
        spec,
        name=name or spec.topology,
        target=switch,
        elements=elements,
        pcap=pcap,
        super_packets=super_packets,
        listen=listen,
        say=typer.echo,
    )
    first, last = record.hosts[0], record.hosts[-1]
    option = f" --net {record.name}" if len(records.names()) > 1 else ""
    typer.echo(
        f"network {record.name} is up: {_span(record)}, {record.elements} elements, {record.slots} slots"
    )
    typer.echo(f"try:  {command('net status')}")
    typer.echo(f"      {command(f'net exec{option} {first.name} ping -c 3 {last.ip}')}")
    typer.echo(f"      {command(f'train --net {record.name}')}")
    workers = ",".join(dict.fromkeys([first.name, last.name]))
    typer.echo(f"      {command(f'job add{option} NAME --workers {workers}')}")
    if listen is not None:
        typer.echo(f"API:  http://{listen}, for who has the token in {record.directory / TOKEN}")
        if rootless.inside():
            typer.echo("      in your own namespaces alone; for other machines bring it up as root")
    typer.echo(f"end:  {command(f'net down{option}')}")


@app.command("down")
def net_down(
    name: Annotated[str | None, typer.Argument(hidden=True)] = None,
    net: NetOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All networks of p4reduce.")] = False,
) -> None:
    """Take a network down, also one that crashed: what its record names, and nothing else."""
    from topologies import manager

    if name is not None:
        raise RecordError(name, f"say which network by its option: {command(f'net down --net {name}')}")
    chosen, failures = records.load_all() if everything else ([records.load_default(net)], [])
    if not chosen and not failures:
        typer.echo("no network runs")
    errors: list[P4ReduceError] = [*failures]
    for record in chosen:
        try:
            manager.down(record)
        except P4ReduceError as error:
            errors.append(error)
        else:
            typer.echo(f"network {record.name} is down")
    _raise_all(errors)


@app.command("status")
def net_status(
    net: Annotated[
        str | None,
        typer.Option("--net", metavar="NAME", help="This one alone.", autocompletion=complete_networks),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the networks that run, or one, and say which of their processes have died."""
    found, failures = records.load_all() if net is None else ([records.load(net)], [])
    if as_json:
        typer.echo(json.dumps([_summary(record) for record in found], indent=1))
        _raise_all(failures)
        return
    if not found:
        _raise_all(failures)
        typer.echo(f"no network runs; start one with: {command('net up star')}")
        return
    heads = ("network", "topology", "state", "controller", "target", "hosts", "switches", "links", "elements")
    print_table(
        (*heads, "slots"),
        [
            (
                record.name,
                record.topology,
                _state(record),
                _controller(record),
                record.target,
                _some([host.name for host in record.hosts]),
                _some([switch.name for switch in record.switches]),
                _links(record),
                record.elements,
                record.slots,
            )
            for record in found
        ],
    )
    for record in found:
        for line in links.described(record, record.links):
            typer.echo(f"{record.name}: {line}")
        for line in _troubles(record):
            typer.echo(f"{record.name}: {line}")
    _raise_all(failures)


def _troubles(record: NetRecord) -> list[str]:
    """Say which processes have ended, and what to do."""
    found = []
    if record.dead():
        down = command(f"net down --net {record.name}")
        found.append(f"{', '.join(record.dead())} died; logs: {record.directory}; clean up with: {down}")
    if CONTROLLER in record.given_up and CONTROLLER in record.dead():
        resume = command(f"controller --net {record.name}")
        found.append(f"{CONTROLLER} is started no more; running jobs go on, and are kept again by: {resume}")
    if record.restarting():
        found.append(f"{', '.join(record.restarting())} ended and will be started again")
    return found


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def net_exec(
    host: Annotated[str, typer.Argument(help="The host: h1, h2, …", autocompletion=complete_hosts)],
    argv: Annotated[list[str], typer.Argument(metavar="CMD...", help="The command and its arguments.")],
    net: NetOption = None,
) -> None:
    """Run a command in a host; its exit code is ours. Options of ours go before HOST."""
    from topologies.processes import host_argv

    if argv[0].startswith("-") and argv[0] != "--":  # mnexec would take it for one of its own
        first = command("net exec --net NAME HOST CMD")
        raise CommandError(f"net exec {host} {argv[0]}", f"options go before the host: {first}")
    record = records.load_default(net)
    whole = host_argv(record, host, argv)
    os.environ[NET_VARIABLE] = record.name
    try:
        os.execvp(whole[0], whole)
    except FileNotFoundError:
        raise NetworkError(
            host, "mnexec is missing: apt-get install --no-install-recommends mininet"
        ) from None


@app.command("shell")
def net_shell(
    host: Annotated[str, typer.Argument(help="The host: h1, h2, …", autocompletion=complete_hosts)],
    net: NetOption = None,
) -> None:
    """Open a shell in a host; its prompt says which."""
    net_exec(host, ["env", f"PS1={host}:\\w\\$ ", *_shell()], net)


def _shell() -> list[str]:
    bash = shutil.which("bash")
    # Without the user's own start-up files, which would set another prompt.
    return [bash, "--norc", "--noprofile", "-i"] if bash else ["sh", "-i"]


@app.command("cli")
def net_cli(net: NetOption = None) -> None:
    """Open Mininet's own command line on a network that runs: nodes, net, pingall, h1 CMD, iperf, …"""
    record = records.load_default(net)
    from topologies import mininet_cli

    os.environ[NET_VARIABLE] = record.name
    mininet_cli.run(record)


def _raise_all(errors: Sequence[P4ReduceError]) -> None:
    """Tell all errors but the last, and raise that one: one bad network does not hide the others."""
    for error in errors[:-1]:
        typer.echo(f"error: {error}", err=True)
    if errors:
        raise errors[-1]


def _span(record: NetRecord) -> str:
    first, last = record.hosts[0], record.hosts[-1]
    hosts = first.name if first == last else f"{first.name} to {last.name} ({first.ip} to {last.ip})"
    if len(record.switches) == 1:
        (switch,) = record.switches
        return f"{hosts} on {switch.name} ({record.target}, {switch.ip})"
    top, end = record.switches[0], record.switches[-1]
    between = sum(link.a.node not in {host.name for host in record.hosts} for link in record.links)
    return (
        f"{hosts} on {len(record.switches)} switches, {top.name} to {end.name} ({record.target}), "
        f"{between} link{'s' * (between != 1)} between them"
    )


def _some(names: Sequence[str]) -> str:
    """Return the one, or the first and the last with their number."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"


def _links(record: NetRecord) -> str:
    down = sum(link.down for link in record.links)
    return f"{len(record.links)}, {down} down" if down else str(len(record.links))


def _state(record: NetRecord) -> str:
    if not record.owner.alive():
        return "crashed"
    if record.dead():
        return "broken"
    return "restarting" if record.restarting() else record.state


def _controller(record: NetRecord) -> str:
    if CONTROLLER in record.given_up:
        return "given up"
    return "running" if record.controller is not None and record.controller.alive() else "not running"


def _summary(record: NetRecord) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(record.to_json())
    dead, restarting = record.dead(), record.restarting()
    return {
        **tree,
        "state": _state(record),
        "dead": dead,
        "restarting": restarting,
        "directory": str(record.directory),
    }
