# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench …`: benchmarks that print a table, each against a peer measured in the same run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bench.allreduce import Cell
    from bench.switch import Rate
    from topologies.record import NetRecord

app = typer.Typer(help="Benchmarks and comparisons, each prints a table.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@app.command("switch")
def bench_switch(
    elements: Annotated[
        int | None,
        typer.Option(help="Only sums of packets with so many values, 64 or 256; default: all."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers that contribute.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each rate is measured.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Packets a second and the time to load a program: the embedded switch, and bmv2 where present.

    The same program, entries and packets for each, in turns. Over veth pairs (needs root) a sender in C
    keeps a window of packets under way; what comes back is compared, sums also show in the switch's counters.
    """
    from bench import pipeline, switch
    from bench.work import SLOTS, Aggregation, Forwarding, Work
    from p4src.forms import form
    from wire.constants import ELEMENT_CHOICES

    form_of_loads = form(elements or max(ELEMENT_CHOICES), SLOTS)  # also refuses other numbers of values
    works: list[Work] = [Aggregation(e, workers) for e in ([elements] if elements else ELEMENT_CHOICES)]
    if elements is None:
        works.insert(0, Forwarding())
    absent = switch.missing()
    rates: dict[Work, dict[str, Rate]] = {}
    with _progress() as (say, bar):
        loads = pipeline.load_times(form_of_loads, say)
        for work in works:
            with ExitStack() as stack:
                columns = [column for column in switch.COLUMNS if column not in absent]
                say(f"{_words(work.name)}: loading the program into {len(columns)} switches")
                switches = [stack.enter_context(switch.opened(column, work)) for column in columns]
                bars = [bar(f"{_words(work.name)}, {switch.COLUMNS[column].title}") for column in columns]
                rates[work] = {rate.column: rate for rate in switch.measure(switches, seconds, bars)}
    if as_json:
        tree = {
            "workers": workers,
            "rows": {
                work.name: {
                    "ports": work.ports,
                    "frame_bytes": work.frame_bytes,
                    "targets": {column: _rate_tree(rate) for column, rate in found.items()},
                    "ratios": switch.ratios(found),
                }
                for work, found in rates.items()
            },
            "pipeline": {"program": form_of_loads.name, "seconds": loads},
            "absent": absent,
        }
        typer.echo(json.dumps(tree, indent=1))
        return
    titles = {column: chosen.title for column, chosen in switch.COLUMNS.items() if column not in absent}
    title = f"packets a second (× {switch.PEER}), sums of {workers} workers"
    rows = [
        (
            f"{_words(work.name)}, {work.frame_bytes:,} bytes",
            *(_rate_cell(found[column], switch.ratios(found).get(column)) for column in titles),
        )
        for work, found in rates.items()
    ]
    _print_table(title, ("", *titles.values()), rows, left=1)
    over_veth = {column: words for column, words in titles.items() if switch.COLUMNS[column].over_veth}
    if over_veth:
        rows = [
            (_words(work.name), *(_shares_cell(found[column]) for column in over_veth))
            for work, found in rates.items()
        ]
        heads = ("sender waits, switch's processors, sent again", *over_veth.values())
        _print_table("who is the bottleneck", heads, rows, left=1)
    times = ", ".join(f"{what.replace('_', ', ')} {took:.2f} s" for what, took in loads.items())
    typer.echo(f"SetForwardingPipelineConfig of {form_of_loads.name}: {times}")
    _print_absent({switch.COLUMNS[column].title: why for column, why in absent.items()})


@app.command("allreduce")
def bench_allreduce(
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Workers, each in its own host; default 4, or NAME's hosts."),
    ] = None,
    elements: Annotated[
        int | None, typer.Option(help="Values in a packet, 64 or 256; default 256, or NAME's.")
    ] = None,
    switch: Annotated[
        str | None, typer.Option(help="embedded or bmv2; default: each that is present.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Bytes of each worker's array, as 256KiB or 4MiB; default: 4MiB, bmv2 256KiB."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, int32 or both with a comma.")] = "float32,int32",
    net: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A network that runs; default: a star of its own, then taken down."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Goodput of each worker on unshaped links; every result is compared with numpy's sum."""
    from bench import allreduce

    dtypes = dtype.split(",")
    if not set(dtypes) <= set(allreduce.DTYPES) or len(set(dtypes)) != len(dtypes):
        raise typer.BadParameter(f"one or both of {','.join(allreduce.DTYPES)}", param_hint="--dtype")
    nbytes = None if size is None else _bytes(size)
    absent: dict[str, str] = {}
    cells: list[Cell] = []

    with _progress() as (say, bar):

        def measure(record: NetRecord, count: int) -> None:
            hosts = [host.name for host in record.hosts][:count]
            wanted = nbytes or allreduce.DEFAULT_BYTES[record.target]
            cells.extend(allreduce.measure(record, hosts, dtypes, wanted, say, bar(record.target)))

        if net is not None:
            record, count = _running(net, switch, elements, workers)
            measure(record, count)
        else:
            from topologies import manager
            from topologies.spec import star

            count = workers or 4
            for name in _present(switch, absent):
                with manager.network(
                    star(count),
                    name="bench",
                    target=name,
                    elements=256 if elements is None else elements,
                    say=say,
                ) as record:
                    measure(record, count)
    ratios = allreduce.ratios(cells, "bmv2")
    if as_json:
        tree = {"cells": [_cell_tree(cell) for cell in cells], "absent": absent, "ratios": ratios}
        typer.echo(json.dumps(tree, indent=1))
        return
    rows = [
        (
            cell.target,
            cell.dtype,
            _size(cell.nbytes),
            f"{1e3 * cell.median:.1f} ({1e3 * min(cell.seconds):.1f}, {1e3 * max(cell.seconds):.1f})",
            f"{cell.mbit_per_s:,.1f}",
            f"{cell.melements_per_s:,.3f}",
            f"{cell.retransmissions:,} of {cell.packets:,}",
            f"{ratios[cell.target][cell.dtype]:.1f}" if cell.target in ratios else "",
        )
        for cell in cells
    ]
    heads = (
        *("target", "dtype", "size", "ms: median (min, max)", "Mbit/s a worker", "M values/s"),
        *("retransmissions", "× bmv2"),
    )
    title = f"{cells[0].workers} workers, {cells[0].elements} values a packet, results as numpy's"
    _print_table(title, heads, rows)
    _print_absent(absent)


@app.command("controller")
def bench_controller(
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Jobs.")] = 256,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers of each job.")] = 8,
    switch: Annotated[
        str | None, typer.Option(help="embedded or bmv2; default: each that is present.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Jobs added a second, the time to be back after kill -9, and memory of the controller daemon."""
    from bench import controller
    from topologies.targets import choose

    absent: dict[str, str] = {}
    found = []
    with _progress() as (say, bar):
        for name in _present(switch, absent):
            found.append(controller.measure(choose(name), jobs, workers, say, bar(name)))
    if as_json:
        tree = [{**asdict(one), "adds_per_s": one.adds_per_s, "add_median": one.add_median} for one in found]
        typer.echo(json.dumps({"targets": tree, "absent": absent}, indent=1))
        return
    rows = [
        (
            one.target,
            f"{one.adds_per_s:,.0f}",
            f"{1e3 * one.add_median:.1f} ({1e3 * max(one.adds):.1f})",
            f"{1e3 * median(one.begins):.1f} ({1e3 * max(one.begins):.1f})",
            f"{one.restart:.2f}",
            f"{one.reinstall:.2f}",
            f"{one.rss_mb:.0f}",
        )
        for one in found
    ]
    heads = (
        *("target", "adds/s", "ms an add: median (max)", "ms to begin an epoch: median (max)"),
        *("s to reconcile", "s to install all again", "MB"),
    )
    _print_table(f"{jobs} jobs of {workers} workers on one switch", heads, rows)
    add, back = controller.ADD_LIMIT_S, controller.RECONCILE_LIMIT_S
    typer.echo(f"aims: an add below {1e3 * add:.0f} ms, all reconciled below {back:.0f} s")
    _print_absent(absent)


@app.command("isolation")
def bench_isolation(
    workers: Annotated[int, typer.Option(min=1, max=63, help="Workers of the job that is measured.")] = 2,
    elements: Annotated[int, typer.Option(help="Values in a packet, 64 or 256.")] = 256,
    switch: Annotated[str | None, typer.Option(help="embedded or bmv2; default: embedded.")] = None,
    size: Annotated[str, typer.Option(help="Bytes of each worker's array.")] = "2MiB",
    link: Annotated[float, typer.Option(min=1, help="Rate of each link, Mbit/s.")] = 100.0,
    rate: Annotated[float, typer.Option(min=1, help="What the flooding job may send, Mbit/s.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each flood has its turn.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """A job's all-reduce alone, and beside a host that floods the switch, by kinds of flood."""
    from bench import isolation
    from topologies import manager
    from topologies.targets import choose

    target, nbytes = choose(switch).name, _bytes(size)
    with _progress() as (say, bar):
        options: dict[str, Any] = {"name": "bench-isolation", "target": target, "elements": elements}
        with manager.network(isolation.network(workers, link), **options, say=say) as record:
            found = isolation.measure(record, nbytes, round(1e6 * rate), rounds, say, bar(target))
    ratios = isolation.ratios(found)
    if as_json:
        floods = {beside.flood: {**asdict(beside), "ratio": ratios[beside.flood]} for beside in found}
        tree = {"target": target, "workers": workers, "link_mbit": link, "bytes": nbytes, "floods": floods}
        typer.echo(json.dumps(tree, indent=1))
        return
    rows = [
        (
            isolation.words(beside.flood),
            f"{beside.mbit_per_s:,.0f}" if beside.packets_per_s else "",
            f"{beside.packets_per_s:,.0f}" if beside.packets_per_s else "",
            ", ".join(
                f"{name.replace('_', ' ')} {100 * share:.1f} %" for name, share in beside.verdicts.items()
            ),
            f"{1e3 * beside.median:.1f} ({1e3 * min(beside.seconds):.1f}, {1e3 * max(beside.seconds):.1f})",
            f"{ratios[beside.flood]:.3f}",
        )
        for beside in found
    ]
    heads = ("beside", "Mbit/s", "packets/s", "of them", "ms: median (min, max)", "× alone")
    title = f"{target}: {workers} workers reduce {size} over {link:g} Mbit/s links"
    _print_table(title, heads, rows, left=1)
    typer.echo(f"aim: at most {isolation.LIMIT:g} times the time alone")


def _present(switch: str | None, absent: dict[str, str]) -> list[str]:
    """Return the targets to measure; note in `absent` those that cannot run here. TargetError if none can."""
    from topologies.targets import choose, targets

    if switch is not None:
        return [choose(switch).name]
    for target in targets().values():
        missing = target.missing()
        if missing is not None:
            absent[target.name] = missing
    present = [name for name in targets() if name not in absent]
    return present or [choose().name]


def _running(
    net: str, switch: str | None, elements: int | None, workers: int | None
) -> tuple[NetRecord, int]:
    """Return a running network and how many of its hosts take part; what was asked must agree with it."""
    from topologies.record import load

    record = load(net)
    for option, wanted, there in (
        ("--switch", switch, record.target),
        ("--elements", elements, record.elements),
    ):
        if wanted not in (None, there):
            raise typer.BadParameter(f"network {net} runs with {there}", param_hint=option)
    if workers is not None and workers > len(record.hosts):
        raise typer.BadParameter(f"network {net} has {len(record.hosts)} hosts", param_hint="--workers")
    return record, workers or len(record.hosts)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size like 65536, 256KiB or 4MiB", param_hint="--size")
    nbytes = int(match[1]) * _UNITS[match[2]]
    if nbytes < 4 or nbytes % 4:
        raise typer.BadParameter("values have 4 bytes: a multiple of 4, at least 4", param_hint="--size")
    return nbytes


def _size(nbytes: int) -> str:
    unit = next(unit for unit in reversed(_UNITS) if nbytes % _UNITS[unit] == 0)
    return f"{nbytes // _UNITS[unit]} {unit}"


def _words(name: str) -> str:
    return name.replace("_", " of ")


def _rate_cell(rate: Rate, ratio: float | None) -> str:
    return f"{rate.packets_per_s:,.0f}" + ("" if ratio is None else f" ({ratio:,.3g}×)")


def _shares_cell(rate: Rate) -> str:
    return f"{100 * (rate.sender_idle or 0):.0f} %, {rate.switch_cpus or 0:.2f}, {rate.resent:,}"


def _rate_tree(rate: Rate) -> dict[str, Any]:
    return {
        "packets_per_s": rate.packets_per_s,
        "packets": rate.packets,
        "answers": rate.answers,
        "seconds": rate.seconds,
        "window": rate.window,
        "resent": rate.resent,
        "packets_per_cpu_s": rate.packets_per_cpu_s,
        "sender_idle": rate.sender_idle,
        "switch_cpus": rate.switch_cpus,
    }


def _cell_tree(cell: Cell) -> dict[str, Any]:
    return {
        "target": cell.target,
        "dtype": cell.dtype,
        "workers": cell.workers,
        "elements": cell.elements,
        "bytes": cell.nbytes,
        "seconds": {"median": cell.median, "min": min(cell.seconds), "max": max(cell.seconds)},
        "mbit_per_s": cell.mbit_per_s,
        "melements_per_s": cell.melements_per_s,
        "packets": cell.packets,
        "retransmissions": cell.retransmissions,
    }


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[str], Callable[[float], None]]]]:
    """Show steps and a bar for each target on stderr, so that stdout has the table or JSON alone."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Without a terminal all it ever draws is an empty line at the end.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def say(line: str) -> None:
            console.print(line, highlight=False, soft_wrap=True)

        def bar(what: str) -> Callable[[float], None]:
            task = progress.add_task(f"measuring {what}", total=1.0)
            return lambda share: progress.update(task, completed=share)

        yield say, bar


def _print_table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int = 2) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*row)
    # Piped, a table is not cut to 80 columns.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _print_absent(absent: dict[str, str]) -> None:
    for target, why in absent.items():
        typer.echo(f"{target} was not measured: {why}")
