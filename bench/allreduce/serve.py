# SPDX-License-Identifier: Apache-2.0
"""What ranks of every kind do: reduce what the parent asks for, again and again, and verify each result."""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.child import say

from .data import Sum, data

TOGETHER_BYTES = 1 << 20
"""Small arrays are reduced one right after the other, as many as fit here, then verified together."""


class Collective(Protocol):
    """A way to all-reduce."""

    quantized: bool
    """Whether sums go through the switch."""

    def load(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """Prepare what is not measured: afterwards `reduce` can be called with the same arrays."""

    def reduce(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """Put the sum of all ranks' `mine` into `out`."""

    def barrier(self) -> None:
        """Wait for the other ranks."""

    def counts(self) -> dict[str, float]:
        """Return sums of what the rank counts so far; serve() tells how much each grew."""

    def trips(self) -> dict[str, float | None]:
        """Return what the rank knows of round trips since the last call."""


def serve(collective: Collective, rank: int, n: int) -> None:
    """Answer the parent's lines until it closes our standard input.

    A line asks for `calls` all-reduces of `size` values of `dtype`. The answer has their `seconds`, whether
    they came in `series` without barriers between, the `counts` and `trips` of all of them, `crc` of each
    result, and `wrong`, how many are not numpy's sum.
    """
    for line in sys.stdin:
        asked = json.loads(line)
        say(**_measure(collective, rank, n, asked["dtype"], asked["size"], asked["calls"]))


def _measure(collective: Collective, rank: int, n: int, dtype: str, size: int, calls: int) -> dict[str, Any]:
    mine = data(dtype, rank, size)
    wanted = Sum(dtype, n, quantized=collective.quantized)
    outs = np.ones((min(calls, max(1, TOGETHER_BYTES // mine.nbytes)), size), mine.dtype)
    seconds: list[float] = []
    crcs: list[int] = []
    wrong = 0
    counts: Counter[str] = Counter()
    collective.trips()  # those of before
    while len(seconds) < calls:
        rows = outs[: calls - len(seconds)]
        for row in rows:
            collective.load(mine, row)
        collective.barrier()  # nobody's clock starts while another rank still compares
        before = collective.counts()
        for row in rows:
            start = perf_counter()
            collective.reduce(mine, row)
            seconds.append(perf_counter() - start)
        counts.update({name: value - before[name] for name, value in collective.counts().items()})
        wrong += sum(not wanted.is_it(row) for row in rows)
        crcs += [zlib.crc32(row) for row in rows]
    return {
        "seconds": seconds,
        "series": len(outs) > 1,
        "counts": counts,
        "trips": collective.trips(),
        "crc": crcs,
        "wrong": wrong,
    }
