# SPDX-License-Identifier: Apache-2.0
"""The packets of the last 2W chunks: when each was sent, and until when it may wait for its result."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wire.constants import MSG_RESULT
from wire.membership import Membership
from wire.packet import Packets, kind, payload_dtype

NEVER = np.inf
"""Deadline of a row that awaits no result."""
PARKED = 1e300
"""Deadline of a row that lacks its result and does not await it: it is held back, or others are fetched."""


class Ring(ctypes.Structure):
    """Empty rows for an epoch. Chunk offsets count from `base`, whose number may exceed 63 bits.

    A chunk g (number, not offset) lies in row g mod 2W, which is its slot and version too (g mod W,
    (g div W) mod 2), so a result finds its row by what it says on the wire. C sees a struct ring (kernel.h).
    """

    window: int
    """W."""
    result_kind: int
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("_packets", "_offset", "_deadline", "_sent_at", "_tries", "_held")
        ),
        *((name, ctypes.c_size_t) for name in ("window", "stride", "base")),
        ("result_kind", ctypes.c_uint32),
    )

    def __init__(self, membership: Membership, base: int) -> None:
        w, elements = membership.window, membership.elements
        rows = 2 * w
        self.packets: Packets = np.zeros(rows, payload_dtype(elements))
        self.packets["place"] = self.places = np.arange(rows) % w | np.arange(rows) // w << 15
        self.offset = np.full(rows, -1, np.int64)
        self.deadline = np.full(rows, NEVER)
        self.sent_at = np.zeros(rows)
        self.tries = np.zeros(rows, np.int32)
        self.held = np.zeros(rows, np.bool_)
        """Passed over, and not sent yet: the exponent of these values is not known."""
        arrays = (self.packets, self.offset, self.deadline, self.sent_at, self.tries, self.held)
        super().__init__(
            *(array.ctypes.data for array in arrays),
            *(w, self.packets.itemsize, base % rows),
            kind(MSG_RESULT, 0, elements),
        )

    def row(self, offset: int) -> int:
        """Return the row of a chunk."""
        row: int = (self.base + offset) % len(self.packets)
        return row

    def rows(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the rows of `count` chunks from offset `first`."""
        return (self.row(first) + np.arange(count)) % len(self.packets)

    def parts(self, first: int, end: int) -> Iterator[slice]:
        """Yield the rows of chunks first..end-1, which are at most all, as slices."""
        while first < end:
            row = self.row(first)
            k = min(end - first, len(self.packets) - row)
            yield slice(row, row + k)
            first += k

    def first_awaited(self, first: int, end: int) -> int:
        """Return the least of chunks first..end-1 that lacks its result, or `end`."""
        while first < end:
            row = self.row(first)
            k = min(end - first, len(self.packets) - row)
            awaiting = np.isfinite(self.deadline[row : row + k])
            if awaiting.any():
                return first + int(awaiting.argmax())
            first += k
        return first
