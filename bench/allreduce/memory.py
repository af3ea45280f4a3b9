# SPDX-License-Identifier: Apache-2.0
"""The limit that memory sets: one process sums the ranks' arrays with numpy."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from .cells import ITEM_BYTES
from .data import data
from .group import available_bytes

REPEATS = 5
BUDGET_S = 0.5


def sum_seconds(dtype: str, n: int, nbytes: int) -> float | None:
    """Return the median seconds in which numpy sums n arrays of `nbytes` into another one.

    None where memory does not hold them.
    """
    if (n + 1) * nbytes > 0.5 * available_bytes():
        return None
    arrays = [data(dtype, rank, nbytes // ITEM_BYTES) for rank in range(n)]
    total = arrays[0].copy()  # its memory is there before the clock starts
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < BUDGET_S:
        start = perf_counter()
        np.copyto(total, arrays[0])
        for array in arrays[1:]:
            total += array
        seconds.append(perf_counter() - start)
    return median(seconds)
