# SPDX-License-Identifier: Apache-2.0
"""The `index` of counters, meters and registers: one cell, or all where it is not set."""

from __future__ import annotations

from typing import Any

from switch.p4runtime.errors import invalid, out_of_range
from switch.p4runtime.p4info import Array


def indices(array: Array, entry: Any) -> range:
    """Return the cells that an entry with an optional `index` field names.

    Raises:
        RpcError: INVALID_ARGUMENT for a negative index, OUT_OF_RANGE beyond the array.
    """
    if not entry.HasField("index"):
        return range(array.size)
    index: int = entry.index.index
    if index < 0:
        raise invalid(f"Index {index} of {array.name} is negative")
    if index >= array.size:
        raise out_of_range(f"Index {index} is beyond {array.name}, which has {array.size} cells")
    return range(index, index + 1)
