# SPDX-License-Identifier: Apache-2.0
"""Floats to summable integers and back, many at a time (protocol.md, Numbers; SwitchML, NSDI 2021, 3.7).

A chunk's scale is one exponent E with 2^E > max|x| over all n workers. Each worker sends
q = rint(x * (2^31-1) / (n * 2^E)), so n of them fit an int32; the sum is scaled back.
The operations are done in this order in float64, so that anybody can recompute every bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED

QUANTUM = float(2**31 - 1)
"""The largest sum that an int32 holds."""
LIMIT = np.float32(2.0**127)
"""Values of this magnitude have no int8 exponent above them."""


def chunk_exponents(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return each chunk's smallest exponent E >= -128 with 2^E > max|x|, and whether the chunk can be sent.

    rows: (k, elements) float32. Returns (k,) int8 and (k,) bool; a chunk with NaN, infinity or
    |x| >= 2^127 is False and has exponent -128.
    """
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))  # NaN wins both
    sendable = largest < LIMIT
    _, exponents = np.frexp(np.where(sendable, largest, np.float32(0)))
    exponents = np.where(largest == 0, EXPONENT_UNUSED, np.maximum(exponents, EXPONENT_UNUSED))
    exponents[~sendable] = EXPONENT_UNUSED
    return exponents.astype(np.int8), sendable


def scales(exponents: NDArray[np.int8], workers: int) -> NDArray[np.float64]:
    """Return n * 2^E, exact in float64, as a column (k, 1) to broadcast over chunks."""
    scale: NDArray[np.float64] = np.ldexp(np.float64(workers), exponents.astype(np.int32))
    return scale[:, np.newaxis]


def quantize(rows: NDArray[np.float32], exponents: NDArray[np.int8], workers: int, out: NDArray[Any]) -> None:
    """Write rint(x * (2^31-1) / (n * 2^E)), half to even, to `out`.

    rows: (k, elements) float32 with |x| < 2^E; exponents: (k,) int8; out: (k, elements), an integer
    type of 32 bits in either byte order.
    """
    scaled = np.multiply(rows, QUANTUM, dtype=np.float64)
    scaled /= scales(exponents, workers)
    np.rint(scaled, out=scaled)
    out[...] = scaled


def dequantize(sums: NDArray[Any], exponents: NDArray[np.int8], workers: int) -> NDArray[np.float32]:
    """Return float32(sum * (n * 2^E) / (2^31-1)), (k, elements); beyond float32 infinity, as numpy's sum.

    sums: (k, elements) of a 32-bit integer type in either byte order; exponents: (k,) int8.
    """
    scaled = np.multiply(sums, scales(exponents, workers), dtype=np.float64)
    scaled /= QUANTUM
    with np.errstate(over="ignore", under="ignore"):  # infinity, denormals and 0 are results
        result: NDArray[np.float32] = scaled.astype(np.float32)
    return result
