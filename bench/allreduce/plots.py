# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: goodput over workers, over size and over loss, each way, with the bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.errors import MissingError

from .bounds import ring_mbit, switch_mbit
from .cells import GLOO, OURS, Cell
from .run import Outcome, Result, words_of_link, words_of_size

COLOURS = {"float32": "tab:blue", "int32": "tab:green"}
MARKS = {OURS: ("o", "-"), GLOO: ("s", "--")}
NAMES = {OURS: "p4reduce", GLOO: "Gloo's ring"}
PANEL = (4.8, 3.8)
"""Inches of one panel."""
COLUMNS = 2


@dataclass(frozen=True)
class Axis:
    """What a picture goes over: a field of its cells, and how it is called."""

    name: str
    title: str
    words: Callable[[Any], str]
    unit: str
    """What follows a value where the axis is not named beside."""


AXES = (
    Axis("workers", "workers", str, " workers"),
    Axis("size", "array of each worker", words_of_size, ""),
    Axis("loss", "packets lost each way", lambda share: f"{100 * share:g} %", " lost"),
)
Panels = dict[tuple[str, "float | None"], list[Result]]


def check() -> None:
    """Raise MissingError unless pictures can be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingError("--plots", "matplotlib is not installed: .venv/bin/pip install matplotlib")


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw NAME.png for each axis that the run has two points of; return the files.

    A panel for each target and link, of the cells that differ in the axis and dtype alone: where there are
    several such sets, of the longest, without loss, with the largest arrays.
    """
    files = []
    for axis in AXES:
        panels = panels_of(outcome.results, axis)
        if panels:
            files.append(folder / f"{axis.name}.png")
            _draw(files[-1], panels, axis)
    return files


def _fields(cell: Cell) -> dict[str, Any]:
    return {"workers": cell.place.workers, "size": cell.nbytes, "loss": cell.loss}


def _rest(cell: Cell, axis: Axis) -> dict[str, Any]:
    return {name: value for name, value in _fields(cell).items() if name != axis.name}


def panels_of(results: Sequence[Result], axis: Axis) -> Panels:
    """Return the cells of each panel, in the axis' order."""

    def at(result: Result) -> Any:
        return _fields(result.cell)[axis.name]

    def rank(members: list[Result]) -> tuple[float, ...]:
        cell = members[0].cell
        return len({at(member) for member in members}), -cell.loss, cell.nbytes, cell.place.workers

    places: dict[tuple[str, float | None], dict[tuple[Any, ...], list[Result]]] = {}
    for result in results:
        if result.figures(OURS) is not None:
            place = (result.cell.place.target, result.cell.place.link_mbit)
            rest = tuple(_rest(result.cell, axis).values())
            places.setdefault(place, {}).setdefault(rest, []).append(result)
    found: Panels = {}
    for place, sets in places.items():
        longest = max(sets.values(), key=rank)
        if len({at(member) for member in longest}) > 1:
            found[place] = sorted(longest, key=at)
    return found


def _draw(path: Path, panels: Panels, axis: Axis) -> None:
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), dpi=120, layout="constrained")
    for number, ((target, link_mbit), results) in enumerate(panels.items(), 1):
        panel = figure.add_subplot(rows, columns, number)
        values = sorted({_fields(result.cell)[axis.name] for result in results})
        _lines(panel, results, axis, values)
        panel.set_xticks(range(len(values)), [axis.words(value) for value in values])
        panel.set_xlabel(axis.title)
        panel.set_ylabel("goodput a worker, Mbit/s")
        panel.margins(y=0.08)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        others = [other for other in AXES if other.name != axis.name]
        rest = _rest(results[0].cell, axis)
        common = ", ".join(other.words(rest[other.name]) + other.unit for other in others)
        panel.set_title(f"{target}, links {words_of_link(link_mbit)}: {common}", fontsize=9)
        panel.legend(fontsize=7, handlelength=3.5)
    figure.savefig(path)


def _lines(panel: Any, results: Sequence[Result], axis: Axis, values: Sequence[Any]) -> None:
    """Draw a line for each way and dtype, and the bounds, which are those of float32 where it is there."""

    def place(result: Result) -> int:
        return values.index(_fields(result.cell)[axis.name])

    dtypes = [dtype for dtype in COLOURS if any(result.cell.dtype == dtype for result in results)]
    for way, (marker, style) in MARKS.items():
        for dtype in dtypes:
            shown = [r for r in results if r.cell.dtype == dtype and r.mbit_per_s(way) is not None]
            if shown:
                panel.plot(
                    [place(result) for result in shown],
                    [result.mbit_per_s(way) for result in shown],
                    marker=marker,
                    linestyle=style,
                    color=COLOURS[dtype],
                    label=f"{NAMES[way]}, {dtype}",
                )
    bounded = [result for result in results if result.cell.dtype == dtypes[0]]
    lines = (
        ("bound of headers", ":", [switch_mbit(r.cell, r.elements, r.lead) for r in bounded]),
        ("bound of a ring", "-.", [ring_mbit(r.cell) for r in bounded]),
    )
    for label, style, heights in lines:
        known = [(place(r), height) for r, height in zip(bounded, heights, strict=True) if height is not None]
        if known:
            panel.plot(*zip(*known, strict=True), linestyle=style, marker="x", color="grey", label=label)
