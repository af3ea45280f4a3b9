# SPDX-License-Identifier: Apache-2.0
"""What a rank takes from one epoch into the next (docs/protocol.md, Epochs: the keep rule)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wire.packet import Packets

Ranges = list[tuple[int, int]]
"""Runs of chunk numbers, first and last of each."""


class Kept:
    """Chunks first..end-1 (offsets as the engine counts): their packets, and whose results are known.

    A packet is wanted until it has been sent again, a chunk's knowledge until all of them have results
    in the new epoch. The packets of chunks that were `held` back have never been sent, and are not filled.
    """

    def __init__(
        self, first: int, packets: Packets, known: NDArray[np.bool_], held: NDArray[np.bool_]
    ) -> None:
        self.first, self.end = first, first + len(known)
        self._packets, self._known, self._held = packets, known, held

    def packets(self, first: int, end: int) -> Packets:
        """Return the packets of chunks first..end-1, a view."""
        return self._packets[first - self.first : end - self.first]

    def held(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return for each of chunks first..end-1, all of them kept, whether it was held back."""
        return self._held[first - self.first : end - self.first]

    def drop_packets(self) -> None:
        """All have been sent again: they lie in the new epoch's ring."""
        self._packets = self._packets[:0].copy()

    def known(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return for each of chunks first..end-1 whether its result is known; those not kept are not."""
        known = np.zeros(max(0, end - first), np.bool_)
        low, high = max(first, self.first), min(end, self.end)
        if low < high:
            known[low - first : high - first] = self._known[low - self.first : high - self.first]
        return known

    def learn(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Note results that came; return which of them were not known before."""
        kept = offsets < self.end
        at = np.where(kept, offsets - self.first, 0)
        fresh = ~(kept & self._known[at])
        self._known[at[kept]] = True
        return fresh


def nothing_kept(packets: Packets) -> Kept:
    """Return what a rank keeps before its first change; `packets` gives the dtype."""
    return Kept(0, packets[:0].copy(), np.zeros(0, np.bool_), np.zeros(0, np.bool_))


def runs(numbers: Iterable[int]) -> Ranges:
    """Return ascending numbers as runs of consecutive ones."""
    found: Ranges = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
