# SPDX-License-Identifier: Apache-2.0
"""What the ranks sum: made from a seed, so that the test makes it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Call:
    """One all-reduce: dtype name and number of values."""

    dtype: str
    size: int


def tensor(seed: int, call: int, rank: int, wanted: Call) -> NDArray[Any]:
    """Return a rank's own array: int32 over the whole range, float32 over 12 decades."""
    draw = np.random.default_rng([seed, call, rank])
    if wanted.dtype == "int32":
        return draw.integers(-(2**31), 2**31, wanted.size, dtype=np.int32)
    scale = 10.0 ** draw.integers(-6, 7, wanted.size)
    return (draw.standard_normal(wanted.size) * scale).astype(np.float32)
