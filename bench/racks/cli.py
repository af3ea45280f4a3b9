# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench racks`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import terminal
from bench.allreduce import options
from bench.allreduce.group import CELL_LIMIT_S
from bench.errors import BenchError
from wire.constants import MAX_WORKERS

from .cases import BOTH, DOWN, FLAT, LEAVES, SPINE, UP, WORDS, Shape, Work

if TYPE_CHECKING:
    from .run import Found, Outcome, Run

BUDGET_S, QUICK_BUDGET_S = 1.0, 0.2
LIMIT_S, QUICK_LIMIT_S = 6 * 60.0, 60.0
QUICK_CASE_S = 6.0
USUAL, QUICK = (4, 2, 4, "1,2,4,8"), (2, 1, 2, "1,4")
"""Leaves, spines, hosts of a leaf, oversubscriptions."""
USUAL_BYTES = {"embedded": "1MiB", "bmv2": "64KiB"}
QUICK_BYTES = {"embedded": "256KiB", "bmv2": "64KiB"}
ELEMENTS = 256
ORDER = (FLAT, SPINE, LEAVES, BOTH)
"""Of rows and columns."""
LISTED = 4
"""More links that are alike are not all named."""


def bench_racks(
    leaves: Annotated[int | None, typer.Option(min=2, help="Leaf switches, the racks; usual: 4.")] = None,
    spines: Annotated[
        int | None, typer.Option(min=1, help="Spine switches, of which a job uses one; usual: 2.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=2, help="Hosts of a leaf, a worker on each; usual: 4.")
    ] = None,
    oversubscription: Annotated[
        str | None,
        typer.Option(help="Rate of a leaf's hosts by that of its uplinks, each at least 1; usual: 1,2,4,8."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Bytes of each worker's array; usual: 1MiB, bmv2 64KiB.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or int32.")] = "float32",
    rate: Annotated[str, typer.Option(help="Rate of a host's link.")] = "100mbit",
    switch: Annotated[str | None, typer.Option(help="embedded or bmv2; default: embedded.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="2 leaves of 2 hosts, a spine, 1:1 and 4:1, in a minute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bytes on each link, time and slots of an all-reduce, by where it is summed, and how slow uplinks are.

    One flat switch, and a leaf-spine network that sums at the spine only, at the leaves only, at both. With
    leaves that sum the core carries a packet for each rack instead of one for each worker: the counters must
    show just that, else it ends with an error.
    """
    from topologies.targets import choose

    from .run import Run, check_racks

    target = choose(switch).name
    if quick and any(given is not None for given in (leaves, spines, hosts, oversubscription, size)):
        raise typer.BadParameter("it has sizes of its own: give no other", param_hint="--quick")
    usual = QUICK if quick else USUAL
    leaves, spines, hosts = leaves or usual[0], spines or usual[1], hosts or usual[2]
    ratios = options.words("--oversubscription", oversubscription or usual[3], _ratio)
    if leaves * hosts > MAX_WORKERS:
        raise typer.BadParameter(
            f"{leaves} leaves of {hosts} hosts: a flat switch takes {MAX_WORKERS} workers",
            param_hint="--hosts",
        )
    link = options.link("--rate", rate)
    if link is None:
        raise typer.BadParameter(
            "uplinks are slower by a ratio: give a rate like 100mbit", param_hint="--rate"
        )
    nbytes = options.nbytes("--size", size or (QUICK_BYTES if quick else USUAL_BYTES)[target])
    shape = Shape(leaves, spines, hosts, link)
    work = Work(target, options.dtype("--dtype", dtype), nbytes, ELEMENTS)
    with terminal.progress() as (say, bar):
        run = Run(
            shape,
            work,
            ratios,
            budget_s=QUICK_BUDGET_S if quick else BUDGET_S,
            case_s=QUICK_CASE_S if quick else CELL_LIMIT_S,
            limit_s=QUICK_LIMIT_S if quick else LIMIT_S,
            say=say,
            progress=bar("cases"),
        )
        try:
            run.all()
        except BaseException:  # a signal, a wrong sum, a link that carried something else
            if run.outcome.found and not as_json:
                say("it ended early; what was measured until then:")
                _print(run)
            raise
    if as_json:
        typer.echo(json.dumps(tree(run), indent=1))
    else:
        _print(run)
    held = check_racks(target, shape, run.outcome)
    missing = [f"{ratio:g}:1" for ratio in ratios if ratio not in held]
    if missing:
        raise BenchError(
            target, f"at {', '.join(missing)} core bytes were not compared: not all was measured, see above"
        )
    if not as_json:
        typer.echo(
            f"core bytes of {WORDS[BOTH]} are those of {WORDS[SPINE]} by {hosts}, the workers of a rack, "
            f"exactly, up and down, at {', '.join(f'{ratio:g}:1' for ratio in held)}"
        )


def _ratio(option: str, text: str) -> float:
    """Return an oversubscription like 4 or 4:1."""
    try:
        ratio = float(text.removesuffix(":1"))
    except ValueError:
        ratio = 0.0
    if not 1 <= ratio <= 1000:
        raise typer.BadParameter(
            f"{text!r} is no oversubscription like 4 or 4:1, at least 1", param_hint=option
        )
    return ratio


def tree(run: Run) -> dict[str, Any]:
    """Return all of a run as JSON holds it; times in seconds, rates in Mbit/s."""
    from bench.allreduce.environment import environment

    return {
        "environment": environment(),
        **asdict(run.shape),
        **asdict(run.work),
        "cases": [_case_tree(one) for one in run.outcome.found],
        "skipped": [{**asdict(case), "why": why} for case, why in run.outcome.skipped.items()],
    }


def _case_tree(one: Found) -> dict[str, Any]:
    from .run import tree_words

    seconds = one.figures.seconds
    return {
        **asdict(one.case),
        "tree": tree_words(one.tree),
        "switches": list(one.tree),
        "slots": one.slots,
        "core_bytes": {way: one.core(way) for way in (UP, DOWN)},
        "links": [
            {"link": link, "way": way, "packets": packets, "bytes": octets}
            for (link, way), (packets, octets) in one.links.items()
        ],
        "seconds": {"median": one.figures.median, "min": min(seconds), "max": max(seconds)},
        "again": one.again,
        "calls": len(seconds),
        "counts": dict(one.figures.counts),
    }


def _place(one: Found) -> tuple[float, int]:
    return one.case.oversubscription or 0.0, ORDER.index(one.case.layout)


def _print(run: Run) -> None:
    from bench.allreduce.run import words_of_size

    from .run import tree_words, words

    shape, work, outcome = run.shape, run.work, run.outcome
    flat = outcome.at(FLAT, None)
    rows = [
        (
            "" if one.case.oversubscription is None else f"{one.case.oversubscription:g}:1",
            WORDS[one.case.layout],
            tree_words(one.tree),
            "" if one.case.uplink_mbit is None else f"{one.case.uplink_mbit:g}",
            f"{one.slots:,}",
            f"{one.core(UP):,}",
            f"{one.core(DOWN):,}",
            f"{1e3 * one.figures.median:.1f} "
            f"({1e3 * min(one.figures.seconds):.1f}, {1e3 * max(one.figures.seconds):.1f})",
            "" if flat is None else f"{one.figures.median / flat.figures.median:.2f}",
        )
        for one in sorted(outcome.found, key=_place)
    ]
    title = (
        f"{work.target}: {words_of_size(work.nbytes)} {work.dtype} of {shape.workers} workers, "
        f"{shape.leaves} leaves of {shape.hosts} hosts at {shape.rate_mbit:g} Mbit/s, spines: {shape.spines}"
    )
    heads = (
        *("", "summed at", "tree", "Mbit/s each", "slots", "core bytes up", "down"),
        *("ms (least, most)", "× flat"),
    )
    terminal.print_table(title, heads, rows, left=3)
    _print_links(outcome)
    for case, why in outcome.skipped.items():
        typer.echo(f"not measured: {words(case)}: {why}")


def _print_links(outcome: Outcome) -> None:
    """Print what links carried, those alike in one row. It is the same at every oversubscription."""
    columns: dict[str, Found] = {}
    for one in outcome.found:
        columns.setdefault(one.case.layout, one)
    layouts = [layout for layout in ORDER if layout in columns]
    by_name = {
        layout: {(_short(link), way): found[1] for (link, way), found in columns[layout].links.items()}
        for layout in layouts
    }
    names = dict.fromkeys(name for layout in reversed(layouts) for name, _ in by_name[layout])
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        found = [by_name[layout].get((name, way)) for layout in layouts for way in (UP, DOWN)]
        cells = tuple("" if octets is None else f"{octets:,}" for octets in found)
        alike.setdefault(cells, []).append(name)
    heads = ["link", *(f"{WORDS[layout]}, {way}" for layout in layouts for way in (UP, DOWN))]
    rows = [(_listed(links), *cells) for cells, links in alike.items()]
    terminal.print_table("bytes on each link, of an all-reduce and its barrier", heads, rows, left=1)


def _short(link: str) -> str:
    """Return a host's name for its link, which is not to the same switch in each network; else the link's."""
    node, _, _ = link.partition("-")
    return node if node.startswith("h") else link


def _listed(links: list[str]) -> str:
    if len(links) <= LISTED:
        return ", ".join(links)
    return f"{links[0]}, {links[1]}, ... {links[-1]} ({len(links)})"
