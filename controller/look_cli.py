# SPDX-License-Identifier: Apache-2.0
"""`p4reduce slots` and `p4reduce explain`: what a job does right now."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from controller.terminal import (
    JobArgument,
    JsonOption,
    NetOption,
    UrlOption,
    print_json,
    print_table,
    reach,
)
from wire.columns import uncut
from wire.control import at

app = typer.Typer(add_completion=False)

FOLLOW_SECONDS = 1.0
HEADS = ("slot", "version", "epoch", "chunk", "contributed", "missing", "age")
OTHER_LINES = 6
"""Lines of a terminal beside a table's rows."""


@app.command("slots")
def slots(
    name: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Look again every second.")] = False,
    net: NetOption = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow a list a line.")] = False,
) -> None:
    """Show the slots of a job's epoch: chunk, who has contributed, who is missing, age.

    The age is how long looks have found a slot as it is: 0 at the first.
    """
    with reach(net, url) as client:
        path = at("jobs", name, "slots")
        if not follow:
            found = client.call("GET", path)
            if as_json:
                print_json(found)
            else:
                _print(name, found)
        elif as_json or not sys.stdout.isatty():
            while True:
                found = client.call("GET", path)
                if as_json:
                    typer.echo(json.dumps(found))
                else:
                    _print(name, found)
                time.sleep(FOLLOW_SECONDS)
        else:
            from rich.live import Live

            with Live(screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_table(name, client.call("GET", path), live.console.height), refresh=True)
                    time.sleep(FOLLOW_SECONDS)


@app.command("explain")
def explain(
    name: JobArgument, net: NetOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Say in plain words why a job does not progress, or that it does."""
    with reach(net, url) as client:
        told = client.call("GET", at("jobs", name, "explain"))
    if as_json:
        print_json(told)
    else:
        typer.echo(told["text"])


def _print(name: str, found: list[dict[str, Any]]) -> None:
    typer.echo(_summary(name, found))
    if found:
        print_table(HEADS, [_row(slot) for slot in found])


def _summary(name: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"job {name}: no slot is in use in its present epoch"
    done = sum(slot["done"] for slot in found)
    return (
        f"job {name}: {len(found)} slot versions in use (two a slot), {done} complete, "
        f"{len(found) - done} wait for contributions"
    )


def _table(name: str, found: list[dict[str, Any]], height: int) -> Any:
    """Return a table of as many slots as fit: those that wait come first."""
    from rich.table import Table

    table = uncut(Table(*HEADS, title=_summary(name, found), title_justify="left"))
    for slot in sorted(found, key=lambda slot: (slot["done"], slot["chunk"]))[: max(1, height - OTHER_LINES)]:
        table.add_row(*map(str, _row(slot)))
    return table


def _row(slot: dict[str, Any]) -> tuple[object, ...]:
    missing = "none: complete" if slot["done"] else _missing(slot)
    places = [slot[key] for key in ("slot", "version", "epoch", "chunk")]
    return *places, _ranks(slot["seen"]), missing, f"{slot['age_seconds']:.1f} s"


def _missing(slot: dict[str, Any]) -> str:
    """Say which ranks have not contributed, and which leaves' partials have not come."""
    leaves = [f"partial of {leaf}" for leaf in slot["lacking"]]
    return ", ".join([*map(str, slot["missing"]), *leaves]) or "none"


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
