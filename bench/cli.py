# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench …`: benchmarks that print a table, each against a peer measured in the same run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import terminal
from bench.allreduce import options
from bench.allreduce.cli import bench_allreduce
from bench.racks.cli import bench_racks
from bench.trace import bench_trace

if TYPE_CHECKING:
    from bench.switch import Rate

app = typer.Typer(help="Benchmarks and comparisons, each prints a table.", no_args_is_help=True)
app.command("allreduce")(bench_allreduce)
app.command("racks")(bench_racks)
app.command("trace")(bench_trace)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("switch")
def bench_switch(
    elements: Annotated[
        int | None,
        typer.Option(help="Only sums of packets with so many values, 64 or 256; default: all."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers that contribute.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each rate is measured.")] = 4.0,
    as_json: JsonOption = False,
) -> None:
    """Packets a second and the time to load a program: the embedded switch, and bmv2 where present.

    The same program, entries and packets for each, in turns. Over veth pairs (needs root) a sender in C
    keeps a window of packets under way; what comes back is compared, sums also show in the switch's counters.
    Rates are means; how many times bmv2's is the median over rounds in which each switch has a short turn,
    since the speed of a machine that others share changes by the second.
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
    with terminal.progress() as (say, bar):
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
    beside = f" (as a multiple of {switch.PEER}'s)" if switch.PEER in titles else ""
    title = f"packets a second{beside}, sums of {workers} workers"
    rows = [
        (
            f"{_words(work.name)}, {work.frame_bytes:,} bytes",
            *(_rate_cell(found[column], switch.ratios(found).get(column)) for column in titles),
        )
        for work, found in rates.items()
    ]
    terminal.print_table(title, ("", *titles.values()), rows, left=1)
    rows = [
        (_words(work.name), words, *_shares_cells(found[column]))
        for work, found in rates.items()
        for column, words in titles.items()
        if switch.COLUMNS[column].over_veth
    ]
    if rows:
        heads = ("", "switch", "sender waits", "switch's processors", "sent again")
        terminal.print_table("who is the bottleneck", heads, rows)
    times = ", ".join(f"{what.replace('_', ', ')} {took:.2f} s" for what, took in loads.items())
    typer.echo(f"SetForwardingPipelineConfig of {form_of_loads.name}: {times}")
    terminal.print_absent({switch.COLUMNS[column].title: why for column, why in absent.items()})


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
    with terminal.progress() as (say, bar):
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
    terminal.print_table(f"{jobs} jobs of {workers} workers on one switch", heads, rows)
    add, back = controller.ADD_LIMIT_S, controller.RECONCILE_LIMIT_S
    typer.echo(f"aims: an add below {1e3 * add:.0f} ms, all reconciled below {back:.0f} s")
    terminal.print_absent(absent)


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
    from bench import isolation, names
    from topologies import manager
    from topologies.targets import choose

    target, nbytes = choose(switch).name, options.nbytes("--size", size)
    with terminal.progress() as (say, bar):
        spec, name = isolation.network(workers, link), names.fresh("isolation")
        with manager.network(spec, name=name, target=target, elements=elements, say=say) as record:
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
    terminal.print_table(title, heads, rows, left=1)
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


def _words(name: str) -> str:
    return name.replace("_", " of ")


def _rate_cell(rate: Rate, ratio: float | None) -> str:
    return f"{rate.packets_per_s:,.0f}" + ("" if ratio is None else f" ({ratio:,.3g}×)")


def _shares_cells(rate: Rate) -> tuple[str, str, str]:
    idle, busy = 100 * (rate.sender_idle or 0), rate.switch_cpus or 0
    return f"{idle:.0f} %", f"{busy:.2f}", f"{rate.resent:,} of {rate.packets:,}"


def _rate_tree(rate: Rate) -> dict[str, Any]:
    return {
        "packets_per_s": rate.packets_per_s,
        "packets": rate.packets,
        "answers": rate.answers,
        "seconds": rate.seconds,
        "window": rate.window,
        "turns": rate.turns,
        "resent": rate.resent,
        "packets_per_cpu_s": rate.packets_per_cpu_s,
        "sender_idle": rate.sender_idle,
        "switch_cpus": rate.switch_cpus,
    }
