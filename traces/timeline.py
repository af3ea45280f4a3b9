# SPDX-License-Identifier: Apache-2.0
"""What happened over time, in bins that grow with the capture: memory stays bounded, however long it is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .verify_columns import NEVER

BINS = 1024
"""At most; when they are full each two become one."""
FIRST_WIDTH = 1000
"""ns of a bin at first."""
DECADE = 40
"""Bins of a histogram for each power of ten, of"""
DECADES = (3, 12)
"""ns: from 1 µs to 1000 s."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Timeline:
    """Sums and levels over time by key, all in the same bins; `start` in ns is where the first begins."""

    def __init__(self, start: int) -> None:
        self.start, self.width = start, FIRST_WIDTH
        self.latest = start
        self._sums: dict[Hashable, Ints] = {}
        self._steps: dict[Hashable, Ints] = {}
        """Of each level (3, BINS): its change, its integral over time from 0 at the bin's begin (level * ns),
        and the most that it was just after a step, -1 where there was none."""
        self._level: dict[Hashable, int] = {}

    @property
    def bins(self) -> int:
        """How many are used."""
        return (self.latest - self.start) // self.width + 1

    @property
    def edges(self) -> Ints:
        """Where the bins begin, and the last one ends, in ns after `start`."""
        return np.arange(self.bins + 1) * self.width

    def _place(self, times: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """Return each time's bin, and ns to its end; what is before the start is at the start."""
        after = np.maximum(np.asarray(times, np.int64) - self.start, 0)
        self.latest = max(self.latest, self.start + int(after.max(initial=0)))
        while self.bins > BINS:
            self._fold()
        return after // self.width, self.width - after % self.width

    def add(self, key: Hashable, times: Sequence[int] | Ints, amounts: Any) -> None:
        """Add amounts (one, or as many as times) at times in ns."""
        at, _ = self._place(times)
        np.add.at(self._sums.setdefault(key, np.zeros(BINS, np.int64)), at, amounts)

    def step(self, key: Hashable, times: Sequence[int] | Ints, changes: Sequence[int]) -> None:
        """Change a level at times, which must not fall from one to the next, or call to call."""
        at, left = self._place(times)
        if key not in self._steps:
            self._steps[key] = np.zeros((3, BINS), np.int64)
            self._steps[key][2] = -1
        delta, area, most = self._steps[key]
        change = np.asarray(changes, np.int64)
        level = self._level.get(key, 0) + np.cumsum(change)
        np.add.at(delta, at, change)
        np.add.at(area, at, change * left)
        # Of steps at one time only what comes of all of them was ever the level.
        last = np.diff(np.asarray(times, np.int64), append=NEVER) > 0
        np.maximum.at(most, at[last], level[last])
        if len(level):
            self._level[key] = int(level[-1])

    def _fold(self) -> None:
        def halve(values: Ints) -> Ints:
            return np.concatenate([values, np.zeros(BINS - len(values), np.int64)])

        for key, sums in self._sums.items():
            self._sums[key] = halve(sums[::2] + sums[1::2])
        for key, (delta, area, most) in self._steps.items():
            folded = np.zeros((3, BINS), np.int64)
            folded[0] = halve(delta[::2] + delta[1::2])
            folded[1] = halve(area[::2] + delta[::2] * self.width + area[1::2])
            folded[2] = -1
            folded[2, : BINS // 2] = np.maximum(most[::2], most[1::2])
            self._steps[key] = folded
        self.width *= 2

    def coarsen(self, bins: int) -> None:
        """Have at most so many bins."""
        while self.bins > max(1, bins):
            self._fold()

    def sums(self, key: Hashable) -> Ints:
        """Return what was added in each bin."""
        return self._sums.get(key, np.zeros(BINS, np.int64))[: self.bins]

    def rates(self, key: Hashable) -> Floats:
        """Return what was added in each bin, a second; the last bin is as wide as the others."""
        rates: Floats = self.sums(key) / (self.width / 1e9)
        return rates

    def levels(self, key: Hashable) -> tuple[Floats, Ints]:
        """Return a level's mean over each bin, and the most that it was in it."""
        delta, area, most = self._steps.get(key, np.zeros((3, BINS), np.int64))[:, : self.bins]
        before = np.concatenate([[0], np.cumsum(delta)[:-1]])
        return before + area / self.width, np.maximum(before, most)


class Histogram:
    """How often times of each length were, in bins of equal ratio."""

    def __init__(self) -> None:
        self.counts = np.zeros((DECADES[1] - DECADES[0]) * DECADE, np.int64)

    def add(self, times: Sequence[int] | Ints) -> None:
        """Count times in ns; those out of range as the least or the greatest."""
        logs = np.log10(np.maximum(np.asarray(times, np.float64), 1)) - DECADES[0]
        at = np.clip((logs * DECADE).astype(np.int64), 0, len(self.counts) - 1)
        np.add.at(self.counts, at, 1)

    @property
    def edges(self) -> Floats:
        """Where the bins begin, and the last one ends, in ns."""
        edges: Floats = 10 ** (DECADES[0] + np.arange(len(self.counts) + 1) / DECADE)
        return edges

    @property
    def total(self) -> int:
        """How many were counted."""
        return int(self.counts.sum())

    def percentile(self, share: float) -> float:
        """Return the length in ns that a share (0 to 1) of the times is within: the middle of its bin."""
        at = int(np.searchsorted(np.cumsum(self.counts), share * self.total))
        at = min(at, len(self.counts) - 1)
        return float(np.sqrt(self.edges[at] * self.edges[at + 1]))
