# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace slot` and `trace chunk`: what happened to one, as a ladder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from wire.columns import uncut

from .errors import FilterError
from .files import FORMATS
from .ladder import Event, Life, cells, columns, life
from .show import numbers
from .terminal import FilesArgument, FormatOption, until_closed

PIPE_WIDTH = 160
"""Columns of a ladder that no terminal cuts."""

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name or number.", show_default=False)]
RowsOption = Annotated[int, typer.Option(min=1, help="Packets to show, the first ones.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def trace_slot(
    job: JobArgument,
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Slot, or slots N-M.", show_default=False)],
    files: FilesArgument,
    rows: RowsOption = 1000,
    format_: FormatOption = "p4reduce",
    as_json: JsonOption = False,
) -> None:
    """Follow a slot through its chunks: contributions, what the switch made of them, results."""
    _check(format_)
    found = life(files, job, slot=numbers("SLOT", slot), most=rows, format=format_)
    _show(found, f"slot {slot} of job {job}", lambda event: f"{event.chunk}.v{event.version}", as_json)


def trace_chunk(
    job: JobArgument,
    chunk: Annotated[str, typer.Argument(metavar="CHUNK", help="Chunk, or chunks N-M.", show_default=False)],
    files: FilesArgument,
    rows: RowsOption = 1000,
    format_: FormatOption = "p4reduce",
    as_json: JsonOption = False,
) -> None:
    """Follow a chunk over all links: contributions, what the switch made of them, results."""
    _check(format_)
    found = life(files, job, chunk=numbers("CHUNK", chunk), most=rows, format=format_)
    _show(found, f"chunk {chunk} of job {job}", lambda event: str(event.chunk), as_json)


def _check(format_: str) -> None:
    if format_ not in FORMATS:
        raise FilterError(f"--format {format_}", f"there are {' and '.join(FORMATS)}")


def _show(found: Life, what: str, label: Callable[[Event], str], as_json: bool) -> None:
    if not found.events and found.failure is None:
        kind = what.split()[0]
        there = found.there
        have = f"it: the job's are of {kind}s {there[0]} to {there[-1]}" if there else "the job"
        raise FilterError(what, f"these captures have no packet of {have}")
    with until_closed():
        if as_json:
            told = [event.as_json() for event in found.events]
            typer.echo(json.dumps({"events": told, "more": found.more}, indent=1))
        elif found.events:
            _print_ladder(found, label)
            if found.more:
                typer.echo(f"… and {found.more} packets more (--rows {len(found.events) + found.more})")
    if found.failure is not None:
        raise found.failure


def _print_ladder(found: Life, label: Callable[[Event], str]) -> None:
    from rich.console import Console
    from rich.table import Table

    heads = columns(found.events)
    table = uncut(Table("ms", *heads, "packet", box=None, padding=(0, 2, 0, 0)))
    start = found.events[0].time
    for event in found.events:
        texts = cells(event, label(event))
        table.add_row(
            f"{(event.time - start) / 1e6:.6f}",
            *(texts.get(head, "") for head in heads),
            f"{event.path.name} #{event.number}",
        )
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width, markup=False, highlight=False).print(table)
