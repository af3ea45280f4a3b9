# SPDX-License-Identifier: Apache-2.0
"""`p4reduce net link …`: the links of a network that runs, shown and changed."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer

from controller.terminal import CommandError, JsonOption, NetOption, complete_links, print_json, print_table
from topologies import links, quantities
from topologies import record as records
from topologies.errors import NetworkError
from topologies.parts import LinkRecord
from topologies.record import NetRecord
from wire.hints import command

_SHARE = "Percent of the packets, as 1%."


def net_link(
    link: Annotated[
        str | None,
        typer.Argument(
            metavar="[LINK]",
            help="By its ends, s1-s2 or h1-s1; with ports where there are several: s1:3-s2:1.",
            autocompletion=complete_links,
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="As 50mbit, or none.")] = None,
    delay: Annotated[str | None, typer.Option(help="As 5ms, of each packet.")] = None,
    loss: Annotated[str | None, typer.Option(help=_SHARE)] = None,
    duplicate: Annotated[str | None, typer.Option(help=_SHARE)] = None,
    corrupt: Annotated[str | None, typer.Option(help=_SHARE)] = None,
    queue: Annotated[str | None, typer.Option(help="Bytes that wait for the rate at most, as 64kb.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="Change the way from there alone.")
    ] = None,
    down: Annotated[
        bool | None, typer.Option("--down/--up", help="Take both ends down, or up again.")
    ] = None,
    net: NetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all links, or one; or change what one does, while the network runs."""
    record = records.load_default(net)
    asked = {
        word: text
        for word, text in {
            "rate": rate,
            "delay": delay,
            "loss": loss,
            "duplicate": duplicate,
            "corrupt": corrupt,
            "queue": queue,
        }.items()
        if text is not None
    }
    changes = bool(asked) or down is not None
    if link is None and (changes or source is not None):
        raise CommandError("net link", "say which link to change, as s1-s2; without options it shows all")
    chosen = list(record.links) if link is None else [links.find(record, link)]
    if changes:
        record = change(record, chosen[0], asked, source, down)
        chosen = [links.find(record, str(link))]
    elif source is not None:
        raise CommandError(f"--from {source}", "say what to change there: --rate, --delay, --loss, …")
    if as_json:
        print_json([_told(record, each) for each in chosen])
        return
    heads = ("link", "ports", "state", "from", "does", "back from", "does")
    print_table(heads, [_row(record, each) for each in chosen])
    for line in links.described(record, chosen):
        typer.echo(line)


def change(
    record: NetRecord, link: LinkRecord, asked: dict[str, str], source: str | None, down: bool | None
) -> NetRecord:
    """Change a link of a network that is up; return its record. `asked` are texts by quantities.WAY's words.

    Raises CommandError for what cannot be, NetworkError, ControlError or StatsSocketError for what failed.
    """
    if source is not None and source not in (link.a.node, link.b.node):
        raise CommandError(f"--from {source}", f"{link.name} has the ends {link.a.node} and {link.b.node}")
    # One change at a time, of what the link does then: two commands at once may each change a part of it.
    return records.update(record.name, partial(_changed, link, asked, source, down), record.root)


def _changed(
    link: LinkRecord, asked: dict[str, str], source: str | None, down: bool | None, record: NetRecord
) -> NetRecord:
    if not record.owner.alive():
        again = command(f"net down --net {record.name}")
        raise NetworkError(record.name, f"the network has crashed: {again} removes what it left")
    if record.state != "up":
        raise NetworkError(record.name, f"the network is {record.state}: its links change while it is up")
    link = next(each for each in record.links if (each.a, each.b) == (link.a, link.b))
    forth, back = link.forth, link.back
    for word, text in asked.items():
        if source in (None, link.a.node):
            forth = quantities.with_option(forth, word, text)
        if source in (None, link.b.node):
            back = quantities.with_option(back, word, text)
    new = replace(link, forth=forth, back=back, down=link.down if down is None else down)
    links.check(record, [new])
    links.apply(record, link, new)
    if down is not None and down == link.down:
        links.set_state(record, new, down)  # somebody else may have changed it: ip link set
    return records.with_link(record, new)


def _row(record: NetRecord, link: LinkRecord) -> tuple[str, ...]:
    return (
        link.name,
        f"{link.a.port}-{link.b.port}",
        _state(record, link),
        link.a.node,
        quantities.words(link.forth),
        link.b.node,
        quantities.words(link.back),
    )


def _state(record: NetRecord, link: LinkRecord) -> str:
    return "up" if links.is_up(record, link) else "down"


def _told(record: NetRecord, link: LinkRecord) -> dict[str, Any]:
    return {"name": link.name, **asdict(link), "state": _state(record, link)}
