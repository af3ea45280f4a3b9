# SPDX-License-Identifier: Apache-2.0
"""A switch's slots, rented in contiguous runs: first fit, with coalescing of what comes back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from controller.errors import ExhaustedError, PoolFullError


class SlotPool:
    """Slots 0..size-1. Not thread-safe."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one slot, not {size}")
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)]  # (first, length), ascending, never adjacent
        self._held: dict[int, tuple[int, str]] = {}  # by first slot: length, owner

    @property
    def free(self) -> int:
        """Number of free slots."""
        return sum(length for _, length in self._free)

    @property
    def largest_run(self) -> int:
        """Length of the longest run of free slots."""
        return max((length for _, length in self._free), default=0)

    def holders(self) -> list[tuple[str, int, int]]:
        """Return (owner, first slot, length) of every run in use, by first slot."""
        return [(owner, first, length) for first, (length, owner) in sorted(self._held.items())]

    def allocate(self, length: int, owner: str, at: int | None = None) -> int:
        """Rent the first run of free slots that is long enough, or the one at `at`; return its first slot.

        Raises PoolFullError, which says what would fit and who holds the rest.
        """
        if length < 1:
            raise ValueError(f"a run has at least one slot, not {length}")
        for i, (first, free) in enumerate(self._free):
            begin = first if at is None else at
            if first <= begin and begin + length <= first + free:
                around = [(first, begin - first), (begin + length, first + free - begin - length)]
                self._free[i : i + 1] = [run for run in around if run[1]]
                self._held[begin] = (length, owner)
                return begin
        holders = [(holder, slots) for holder, _, slots in self.holders()]
        raise PoolFullError(length, self.free, self.largest_run, holders)

    def release(self, first: int) -> None:
        """Give back the run that begins at `first`; KeyError if none is rented there."""
        length, _ = self._held.pop(first)
        i = bisect_left(self._free, (first, 0))
        if i < len(self._free) and self._free[i][0] == first + length:
            length += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == first:
            i -= 1
            first, before = self._free.pop(i)
            length += before
        self._free.insert(i, (first, length))


class Numbers:
    """Numbers 1..last, given out in a cycle: one given back is the last to be given out again."""

    def __init__(self, what: str, last: int) -> None:
        self._what = what
        self._last = last
        self._next = 1
        self._used: set[int] = set()

    def take(self, count: int) -> list[int]:
        """Return `count` numbers that are not in use; if there are too few, none is taken: ExhaustedError."""
        if count > self._last - len(self._used):
            raise ExhaustedError(self._what, self._last)
        taken: list[int] = []
        while len(taken) < count:
            if self._next not in self._used:
                self._used.add(self._next)
                taken.append(self._next)
            self._next = self._next % self._last + 1
        return taken

    def claim(self, numbers: Iterable[int]) -> None:
        """Mark numbers as in use that were taken before; the cycle goes on after the greatest."""
        for number in numbers:
            self._used.add(number)
            self._next = max(self._next, number % self._last + 1)

    def give_back(self, numbers: list[int]) -> None:
        """Make numbers free again."""
        self._used.difference_update(numbers)
