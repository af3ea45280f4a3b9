# SPDX-License-Identifier: Apache-2.0
"""A run's figures, for people and for programs: each beside its bounds and its peers of the same run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.terminal import print_table

from .bounds import ring_mbit, switch_mbit
from .cells import GLOO, ITEM_BYTES, OURS, SMALL_BYTES, Place
from .environment import environment
from .group import Figures
from .run import Outcome, Result, words_of_link, words_of_size

Print = Callable[[str], None]
NAMES = ("dtype", "loss", "size", "workers")


def ratios(result: Result, outcome: Outcome) -> dict[str, float]:
    """Return what a cell's goodput is as a multiple of other figures; those that are there.

    `bound`: of what header bytes leave of the link; `ring`: of a perfect ring's bound; `gloo`: of Gloo's
    goodput; `numpy`: of a sum in one process; and `pingpong`, its time by a datagram's round trip.
    """
    ours = result.figures(OURS)
    mbit = result.mbit_per_s()
    if ours is None or mbit is None:
        return {}
    cell = result.cell
    others = {
        "bound": switch_mbit(cell, result.elements, result.lead),
        "ring": ring_mbit(cell),
        "gloo": result.mbit_per_s(GLOO),
        "numpy": numpy_mbit(result, outcome),
    }
    found = {name: mbit / other for name, other in others.items() if other}
    if ping := outcome.pings.get(cell.place):
        found["pingpong"] = ours.median / ping
    return found


def numpy_mbit(result: Result, outcome: Outcome) -> float | None:
    """Return the goodput of numpy's sum of the cell's arrays in one process, Mbit/s; None if not known."""
    cell = result.cell
    seconds = outcome.sums.get((cell.dtype, cell.place.workers, cell.nbytes))
    return None if seconds is None else 8e-6 * cell.nbytes / seconds


def tree(outcome: Outcome) -> dict[str, Any]:
    """Return all of a run as JSON holds it; times in seconds, rates in Mbit/s."""
    return {
        "environment": environment(),
        "cells": [_cell_tree(result, outcome) for result in outcome.results],
        "pingpong": [{**asdict(place), "seconds": seconds} for place, seconds in outcome.pings.items()],
        "absent": outcome.absent,
        "notes": outcome.notes,
    }


def _cell_tree(result: Result, outcome: Outcome) -> dict[str, Any]:
    cell = result.cell
    return {
        **asdict(cell.place),
        "dtype": cell.dtype,
        "bytes": cell.nbytes,
        "loss": cell.loss,
        "elements": result.elements,
        "window": result.window,
        "lead": result.lead,
        "bound_mbit": switch_mbit(cell, result.elements, result.lead),
        "ring_bound_mbit": ring_mbit(cell),
        "numpy_mbit": numpy_mbit(result, outcome),
        "ways": {
            way: _figures_tree(result, way, found) if isinstance(found, Figures) else {"skipped": found}
            for way, found in result.by.items()
        },
        "ratios": ratios(result, outcome),
    }


def _figures_tree(result: Result, way: str, found: Figures) -> dict[str, Any]:
    return {
        "mbit_per_s": result.mbit_per_s(way),
        "melements_per_s": 1e-6 * result.cell.nbytes / ITEM_BYTES / found.median,
        "seconds": {"median": found.median, "min": min(found.seconds), "max": max(found.seconds)},
        "calls": len(found.seconds),
        "counts": dict(found.counts),
        "in_flight": found.in_flight,
        "limited": found.limited,
        "round_trips": None if found.trips is None else dict(zip(("p50", "p99"), found.trips, strict=True)),
    }


def print_all(outcome: Outcome, say: Print) -> None:
    """Print a table for each target and link, one of latencies, and what was not measured."""
    groups: dict[tuple[str, float | None], list[Result]] = {}
    for result in outcome.results:
        groups.setdefault((result.cell.place.target, result.cell.place.link_mbit), []).append(result)
    for (target, link_mbit), results in groups.items():
        _print_goodput(target, link_mbit, results, outcome)
        _print_behaviour(target, link_mbit, results)
    _print_latency(outcome)
    for result in outcome.results:
        for way, found in result.by.items():
            if isinstance(found, str):
                say(f"not measured: {_words(result)}, {way}: {found}")
    for what, why in outcome.absent.items():
        say(f"{what} was not measured: {why}")
    for note in outcome.notes:
        say(note)


def _print_goodput(target: str, link_mbit: float | None, results: list[Result], outcome: Outcome) -> None:
    shown = sorted((result for result in results if any(map(result.figures, result.by))), key=_order)
    if not shown:
        return
    shaped = link_mbit is not None
    rows = []
    for result in shown:
        by, ours = ratios(result, outcome), result.figures(OURS)
        limits = (_share(by.get("bound")), _times(by.get("ring"))) if shaped else (_share(by.get("numpy")),)
        rows.append(
            (
                *_names(result),
                _milliseconds(ours),
                _rate(result.mbit_per_s()),
                *limits,
                _rate(result.mbit_per_s(GLOO)),
                _times(by.get("gloo")),
            )
        )
    limits = ("of bound", "× ring") if shaped else ("of numpy's",)
    heads = (*NAMES, "ms (least, most)", "Mbit/s", *limits)
    title = (
        f"{target}, links {words_of_link(link_mbit)}, {shown[0].elements} values a packet: goodput a worker"
    )
    print_table(title, (*heads, "Gloo Mbit/s", "× Gloo"), rows, left=1)


def _print_behaviour(target: str, link_mbit: float | None, results: list[Result]) -> None:
    rows = []
    for result in sorted(results, key=_order):
        ours = result.figures(OURS)
        if ours is not None and ours.in_flight is not None and ours.limited is not None:
            middle, late = ours.trips or (math.nan, math.nan)
            rows.append(
                (
                    *_names(result),
                    f"{ours.in_flight:,.0f} of {result.window}",
                    f"{100 * ours.limited:.0f} %",
                    f"{1e3 * middle:.3g} ({1e3 * late:.3g})",
                    f"{100 * ours.resent:.2g} %",
                )
            )
    if rows:
        heads = ("packets in flight", "window full", "round trip ms (p99)", "resent")
        title = f"{target}, links {words_of_link(link_mbit)}: how the workers did it"
        print_table(title, (*NAMES, *heads), rows, left=1)


def _print_latency(outcome: Outcome) -> None:
    by_place: dict[Place, list[Result]] = {}
    for result in outcome.results:
        small = result.cell.nbytes <= SMALL_BYTES and not result.cell.loss
        if small and result.figures(OURS) and result.cell.place in outcome.pings:
            by_place.setdefault(result.cell.place, []).append(result)
    rows = []
    for place, results in by_place.items():
        for result in results:
            ours, peer = result.figures(OURS), result.figures(GLOO)
            rows.append(
                (
                    place.target,
                    words_of_link(place.link_mbit),
                    str(place.workers),
                    f"{words_of_size(result.cell.nbytes)} {result.cell.dtype}",
                    f"{1e6 * ours.median:,.0f}" if ours else "",
                    f"{1e6 * outcome.pings[place]:,.0f}",
                    _times(ratios(result, outcome).get("pingpong")),
                    f"{1e6 * peer.median:,.0f}" if peer else "",
                )
            )
    if rows:
        heads = ("target", "links", "workers", "all-reduce", "µs", "ping-pong µs", "× ping-pong", "Gloo µs")
        print_table("latency: median time of a small all-reduce", heads, rows)


def _order(result: Result) -> tuple[str, float, int, int]:
    cell = result.cell
    return cell.dtype, cell.loss, cell.nbytes, cell.place.workers


def _names(result: Result) -> tuple[str, ...]:
    """Return what tells a row from others of its table, as NAMES calls it."""
    cell = result.cell
    return cell.dtype, f"{100 * cell.loss:g} %", words_of_size(cell.nbytes), str(cell.place.workers)


def _words(result: Result) -> str:
    cell = result.cell
    lost = f", {100 * cell.loss:g} % lost" if cell.loss else ""
    return (
        f"{cell.place.target}, {words_of_link(cell.place.link_mbit)}, {cell.place.workers} workers, "
        f"{words_of_size(cell.nbytes)} {cell.dtype}{lost}"
    )


def _milliseconds(found: Figures | None) -> str:
    if found is None:
        return ""
    low, middle, high = (
        f"{1e3 * value:,.3g}" if value < 1 else f"{1e3 * value:,.0f}"
        for value in (min(found.seconds), found.median, max(found.seconds))
    )
    return f"{middle} ({low}, {high})"


def _rate(mbit: float | None) -> str:
    return "" if mbit is None else f"{mbit:,.1f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} %"
