# SPDX-License-Identifier: Apache-2.0
"""What is measured: cells, each an all-reduce of one size and dtype at a place, and sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

OURS = "p4reduce"
GLOO = "gloo"
NUMPY = "numpy"
PINGPONG = "pingpong"
PEERS = (GLOO, NUMPY, PINGPONG)

DTYPES = ("float32", "int32")
ITEM_BYTES = 4
"""Of each of these."""
KIB, MIB = 1 << 10, 1 << 20
USUAL_BYTES = {"embedded": 4 * MIB, "bmv2": 256 * KIB}
"""A second or less an all-reduce on each target's unshaped links."""

DEFAULT_LIMIT_S = 15 * 60.0
QUICK_LIMIT_S = 60.0
SMALL_BYTES = 4 * KIB
"""Of an all-reduce that shows latency: four packets."""


@dataclass(frozen=True)
class Place:
    """A star: the switch target, its hosts with a worker each, and the rate of every link, None unshaped."""

    target: str
    workers: int
    link_mbit: float | None


@dataclass(frozen=True)
class Cell:
    """An all-reduce to be measured."""

    place: Place
    dtype: str
    nbytes: int
    """Of each worker's array."""
    loss: float = 0.0
    """Share of the packets that the switch drops, each way, at every port."""


def cells_of(
    targets: Iterable[str],
    workers: Iterable[int],
    links: Iterable[float | None],
    sizes: Sequence[int] | None,
    dtypes: Sequence[str],
    losses: Sequence[float],
) -> list[Cell]:
    """Return all combinations, place by place; `sizes` in bytes, or those usual at each target."""
    return [
        Cell(Place(target, count, link), dtype, nbytes, loss)
        for target, link, count in product(targets, links, workers)
        for loss, nbytes, dtype in product(losses, sizes or [USUAL_BYTES[target]], dtypes)
    ]


def default_cells(targets: Sequence[str]) -> list[Cell]:
    """Return a set that shows how goodput depends on workers, links, sizes and loss, for 15 minutes at most.

    Each dependence at the usual values of the others: all combinations would take days.
    """
    counts = (2, 4, 8, 16)
    found: list[Cell] = []
    if "embedded" in targets:
        ours = ["embedded"]
        found += cells_of(ours, counts, [None, 100.0], [4 * MIB], DTYPES, [0.0])
        found += cells_of(ours, counts, [None, 100.0], [SMALL_BYTES], DTYPES, [0.0])
        found += cells_of(ours, [4], [100.0], [4 * MIB], DTYPES, [0.0001, 0.001, 0.01, 0.05])
        found += cells_of(ours, [4], [None, 100.0], [64 * KIB, MIB, 64 * MIB], DTYPES, [0.0])
        found += cells_of(ours, [4], [None], [256 * MIB], DTYPES, [0.0])
        found += cells_of(ours, counts, [10.0], [MIB], DTYPES, [0.0])
        found += cells_of(ours, counts, [1000.0], [4 * MIB], DTYPES, [0.0])
    if "bmv2" in targets:
        slow = ["bmv2"]
        found += cells_of(slow, [2, 4, 8], [None], [256 * KIB], DTYPES, [0.0])
        found += cells_of(slow, [4], [None], [SMALL_BYTES], DTYPES, [0.0])
        found += cells_of(slow, [4], [10.0], [256 * KIB], DTYPES, [0.0, 0.01])
    return by_place(found)


def quick_cells(targets: Sequence[str]) -> list[Cell]:
    """Return a few cells of the first target, for a minute at most."""
    first = targets[:1]
    usual = [USUAL_BYTES[target] for target in first]
    found = cells_of(first, [4], [100.0], [SMALL_BYTES, *usual], DTYPES, [0.0])
    found += cells_of(first, [4], [100.0], usual, DTYPES, [0.01])
    found += cells_of(first, [4], [None], [SMALL_BYTES, *usual], DTYPES, [0.0])
    return by_place(found)


def by_place(cells: Iterable[Cell]) -> list[Cell]:
    """Return each cell once, those of a place together; of a place by loss, small arrays first."""
    unique = list(dict.fromkeys(cells))
    order = {place: i for i, place in enumerate(dict.fromkeys(cell.place for cell in unique))}
    return sorted(unique, key=lambda cell: (order[cell.place], cell.loss, cell.nbytes))
