# SPDX-License-Identifier: Apache-2.0
"""Was every all-reduce the exact integer sum of the quantized gradients? Computed again from the gradients.

Nothing of the worker's engine is used here: the numbers follow from the contract alone (docs/protocol.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 2.0**31 - 1


@dataclass(frozen=True)
class Evidence:
    """What one rank kept: gradients, outputs (all-reduces, parameters) and raw sums (chunks, elements)."""

    gradients: NDArray[np.float32]
    outputs: NDArray[np.float32]
    sums: NDArray[np.int32]


def chunk_rows(flat: NDArray[np.float32], elements: int) -> NDArray[np.float64]:
    """Return a vector as float64 rows of one packet each, filled up with zeros."""
    rows = np.zeros(-(-flat.size // elements) * elements)
    rows[: flat.size] = flat
    return rows.reshape(-1, elements)


def expected(gradients: NDArray[np.float32], elements: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return what an all-reduce of (ranks, parameters) must give: int32 sums by chunk, float32 outputs."""
    n, size = gradients.shape
    rows = np.stack([chunk_rows(g, elements) for g in gradients])
    largest = np.abs(rows).max(axis=(0, 2))
    exponents = np.where(largest > 0, np.maximum(np.frexp(largest)[1], -128), -128)
    step = np.ldexp(float(n), exponents)[:, np.newaxis]
    quantized = np.rint(rows * LARGEST / step).astype(np.int64)
    sums = quantized.sum(axis=0).astype(np.int32)
    outputs = (sums * step / LARGEST).astype(np.float32)
    return sums, outputs.reshape(-1)[:size]


def wrong_all_reduces(ranks: list[Evidence], elements: int, lead: int) -> list[str]:
    """Return a sentence for each all-reduce and rank that is not exact, bit for bit; [] if all are."""
    n = len(ranks)
    all_reduces, size = ranks[0].gradients.shape
    chunks = -(-size // elements)
    before = -(-4 * n // elements) + min(lead, chunks)  # header packets, and exponents without values
    wrong = []
    for a in range(all_reduces):
        sums, outputs = expected(np.stack([r.gradients[a] for r in ranks]), elements)
        first = a * (before + chunks) + before
        for rank, evidence in enumerate(ranks):
            if not np.array_equal(evidence.sums[first : first + chunks], sums):
                wrong.append(f"all-reduce {a}: rank {rank}'s integer sums are not those of the gradients")
            elif evidence.outputs[a].tobytes() != outputs.tobytes():
                wrong.append(f"all-reduce {a}: rank {rank}'s floats are not those of the integer sums")
    return wrong
