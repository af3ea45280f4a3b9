# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace show`: captured packets, one line each, also live."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from . import show
from .errors import FilterError, TraceFileError
from .files import FORMATS, expand, merged
from .live import Watched, watch
from .members import load
from .model import Model
from .names import source
from .table import Table
from .terminal import FormatOption, NetOption, until_closed

BATCH = 2048
"""Packets that are put into words at once."""


def trace_show(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES...", help="Captures, or folders of them.", show_default=False),
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Of this job: name or number.")] = None,
    slot: Annotated[str | None, typer.Option(metavar="N", help="Of this slot, or of slots N-M.")] = None,
    chunk: Annotated[str | None, typer.Option(metavar="N", help="Of this chunk, or of chunks N-M.")] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="h1,…", help="From or to these: hosts, ranks or addresses.")
    ] = None,
    link: Annotated[str | None, typer.Option(metavar="h1-s1,…", help="On these links.")] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="KIND,…", help=f"Of these kinds: {', '.join(show.Only)}.".replace("Only.", "")),
    ] = None,
    follow: Annotated[
        str | None, typer.Option(metavar="LINK", help="Live: a link of a running network, or an interface.")
    ] = None,
    net: NetOption = None,
    format_: FormatOption = "p4reduce",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Show packets in field terms: time, link, job, worker, chunk, slot.version, values, verdict."""
    if format_ not in FORMATS:
        raise FilterError(f"--format {format_}", f"there are {' and '.join(FORMATS)}")
    if as_json and as_csv:
        raise FilterError("--json --csv", "give one of them")
    if bool(files) == bool(follow):
        raise FilterError("trace show", "name captures, or a link to --follow")
    if net is not None and not follow:
        raise FilterError(f"--net {net}", "goes with --follow: captures have their memberships beside them")
    write = show.json_writer() if as_json else show.csv_writer() if as_csv else show.text_writer()
    with ExitStack() as stack:
        if follow:
            watched: Watched | None = stack.enter_context(watch(follow, net, format_))
            assert watched is not None
            model, tables = Model(watched.epochs), watched.tables()
        else:
            watched, (model, tables) = None, _opened(files or [], format_)
        wanted = _filter(model, job, slot, chunk, worker, link, only)
        if watched is None:
            _check_workers(model, wanted)
        stack.enter_context(until_closed())
        _print(tables, model, wanted, write, watched)


def _opened(files: list[Path], format_: str) -> tuple[Model, Iterator[Table]]:
    paths = expand(files)
    model = Model(load(files) if format_ == "p4reduce" else [], ends=map(source, paths))
    return model, merged(paths, values=True, format=format_)


def _print(
    tables: Iterator[Table], model: Model, wanted: show.Filter, write: show.Writer, watched: Watched | None
) -> None:
    failure: TraceFileError | None = None
    start: int | None = None
    found = 0
    ends: set[str] = set()
    try:
        for table in tables:
            ends.update(each.end for each in table.sources)
            if watched is not None:
                model.learn(watched.epochs)
            start = int(table.time[0]) if start is None else start
            table = show.ours(table, model.switches)
            table = table.take(wanted.alone(table))
            judged = model.judge(table)
            rows = wanted.rows(table, judged, model)
            found += len(rows)
            for first in range(0, len(rows), BATCH):
                told = list(show.packets(table, judged, model, rows[first : first + BATCH]))
                sys.stdout.write(write(told, start))
            if watched is not None:
                sys.stdout.flush()
    except TraceFileError as error:
        failure = error
    except KeyboardInterrupt:
        if watched is None:
            raise
    sys.stdout.flush()
    if failure is not None:
        raise failure
    if watched is not None:
        return
    links, workers = ", ".join(sorted(model.links)), ", ".join(_hosts(model)) or "unknown"
    for each in sorted((wanted.links or set()) - model.links - ends):
        raise FilterError(f"--link {each}", f"no such link is in these captures; there is {links}")
    if not found:
        typer.echo(f"no such packet is in these captures; links: {links}; workers: {workers}", err=True)


def _hosts(model: Model) -> list[str]:
    return list(dict.fromkeys(host for host, _ in model.names))


def _check_workers(model: Model, wanted: show.Filter) -> None:
    """Raise FilterError for a worker that no membership knows; any address may be one."""
    known = {name for host, rank in model.names for name in (host, str(rank))}
    for each in wanted.workers or ():
        if each not in known and show.place(each) is None:
            hosts = ", ".join(_hosts(model))
            have = f"there is {hosts}" if hosts else "without memberships give an address, as 10.0.0.1"
            raise FilterError(f"--worker {each}", f"no such worker is in these captures; {have}")


def _filter(
    model: Model,
    job: str | None,
    slot: str | None,
    chunk: str | None,
    worker: str | None,
    link: str | None,
    only: str | None,
) -> show.Filter:
    jobs = None
    if job is not None:
        by_name = {name: number for number, name in model.job_names.items()}
        jobs = frozenset({show.job_number(by_name, "--job", job)})
    workers = None if worker is None else tuple(worker.split(","))
    for each in workers or ():
        show.place(each)
    kinds = None
    if only is not None:
        try:
            kinds = tuple(show.Only(each) for each in only.split(","))
        except ValueError:
            raise FilterError(
                f"--only {only}", f"there are {', '.join(k.value for k in show.Only)}"
            ) from None
    return show.Filter(
        jobs=jobs,
        slots=None if slot is None else show.numbers("--slot", slot),
        chunks=None if chunk is None else show.numbers("--chunk", chunk),
        workers=workers,
        links=None if link is None else frozenset(link.split(",")),
        only=kinds,
    )
