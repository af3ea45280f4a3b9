# SPDX-License-Identifier: Apache-2.0
"""Random numbers that table entries and packets have in common, so that the ones match the others."""

from __future__ import annotations

import random
from collections.abc import Sequence


class Values:
    """Numbers by width; a few of each width come up again and again, and those that the program knows."""

    def __init__(self, r: random.Random, known: Sequence[int] = ()) -> None:
        self._r = r
        self._known = known
        self._pools: dict[int, list[int]] = {}

    def draw(self, width: int) -> int:
        """A number of `width` bits: one of the pool, near one of it, at an end of the range, or any."""
        if width == 0:
            return 0
        r, top = self._r, (1 << width) - 1
        pool = self._pools.get(width)
        if pool is None:
            pool = self._pools[width] = [r.getrandbits(width) for _ in range(6)]
        kind = r.random()
        if kind < 0.1 and self._known:
            # Programs compare parts of values too.
            number = r.choice(self._known) & top
            return r.choice((number, r.choice(pool) >> number.bit_length() << number.bit_length() | number))
        if kind < 0.4:
            return r.choice(pool)
        if kind < 0.55:
            return (r.choice(pool) + r.choice((-1, 1, 2))) & top
        if kind < 0.65:
            return r.choice(pool) ^ 1 << r.randrange(width)
        if kind < 0.8:
            half = 1 << width - 1
            return r.choice((0, 1, 2, 3, half, half - 1, half + 1, top, top - 1)) & top
        if kind < 0.85:
            return r.randrange(min(top, 300) + 1)
        return r.getrandbits(width)
