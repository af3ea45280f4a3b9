# SPDX-License-Identifier: Apache-2.0
"""What ranks contribute, and whether a result is numpy's sum of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PERIOD = 65_537
"""Values after which an array repeats: verifying 256 MiB of 16 ranks needs no 4 GiB. It is a prime, so that
no two chunks of an array are alike before 65,537 of them."""
ROWS = 16
"""Periods that are compared at once."""
LARGEST = 2.0**31 - 1


def period(dtype: str, rank: int) -> NDArray[Any]:
    """Return PERIOD values of a rank, of normal distribution or over all of int32."""
    rng = np.random.default_rng(rank)
    if dtype == "float32":
        return rng.standard_normal(PERIOD, np.float32)
    return rng.integers(-(2**31), 2**31, PERIOD, dtype=np.int32)


def data(dtype: str, rank: int, size: int) -> NDArray[Any]:
    """Return what a rank contributes: `size` values, its period again and again."""
    return np.resize(period(dtype, rank), size)


class Sum:
    """What a sum over n ranks' data must be: exact for int32, for floats within a bound.

    `quantized` is the bound of sums through the switch: half a quantum, n·2^E/(2^31-1), a rank
    (docs/protocol.md, Numbers) and float32's rounding. Else it is that of n-1 additions in float32.
    """

    def __init__(self, dtype: str, n: int, *, quantized: bool) -> None:
        wide = np.float64 if dtype == "float32" else np.int64
        total: NDArray[Any] = np.zeros(PERIOD, wide)
        absolute: NDArray[Any] = np.zeros(PERIOD, wide)
        for rank in range(n):
            mine = period(dtype, rank).astype(wide)
            total = total + mine
            absolute = np.maximum(absolute, np.abs(mine)) if quantized else absolute + np.abs(mine)
        self._exact = dtype == "int32"
        self._total = total.astype(np.int32) if self._exact else total
        if quantized:
            quantum = n * 2.0 ** np.frexp(float(absolute.max()))[1] / LARGEST
            self._bound = n / 2 * quantum + np.abs(total) * 2.0**-24
        else:
            self._bound = n * 2.0**-24 * absolute

    def is_it(self, result: NDArray[Any]) -> bool:
        """Say whether a one-dimensional result of any size is that sum."""
        whole = result.size // PERIOD * PERIOD
        rows = result[:whole].reshape(-1, PERIOD)
        parts = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
        return all(self._near(part) for part in [*parts, result[whole:]])

    def _near(self, part: NDArray[Any]) -> bool:
        total, bound = self._total[: part.shape[-1]], self._bound[: part.shape[-1]]
        if self._exact:
            return bool((part == total).all())
        return bool((np.abs(part - total) <= bound).all())
