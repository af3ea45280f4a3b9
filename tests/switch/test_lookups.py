# SPDX-License-Identifier: Apache-2.0
"""Tables of 10,000 random entries, some of them taken out again, against numpy that looks at every entry."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from switch.device import Exact, Lpm, MatchValue, Range, SwitchDevice, Ternary
from switch.errors import DuplicateEntry
from tests.switch.programs import pack, unpack
from tests.switch.test_tables import FIELDS, program

ENTRIES = 10_000
PACKETS = 400
LOW = 36  # keys stand in the upper 64 of w's 100 bits
FULL = (1 << 64) - 1

Make = Callable[[random.Random], MatchValue]


def some(r: random.Random) -> int:
    """64 bits, in half of the cases the upper 24 of them only."""
    return r.getrandbits(64) if r.random() < 0.5 else r.getrandbits(24) << 40


def prefix(r: random.Random) -> Lpm:
    return Lpm(some(r) << LOW, r.randint(2, 64))


def masked(masks: list[int]) -> Make:
    def make(r: random.Random) -> Ternary:
        return Ternary(some(r) << LOW, r.choice(masks) << LOW)

    return make


def any_mask(r: random.Random) -> Ternary:
    """As many masks as entries, each of a few bits, so that packets hit."""
    mask = 0
    for _ in range(r.randint(1, 12)):
        mask |= 1 << r.randrange(40, 64)
    return Ternary(some(r) << LOW, mask << LOW)


def narrow(r: random.Random) -> Range:
    low = some(r)
    return Range(low << LOW, min(low + r.getrandbits(r.randint(1, 55)), FULL) << LOW)


def wide(r: random.Random) -> Range:
    low, high = sorted((some(r), some(r)))
    return Range(low << LOW, high << LOW)


KINDS: dict[str, tuple[str, Make]] = {
    "exact": ("exact", lambda r: Exact(some(r) << LOW)),
    "lpm": ("lpm", prefix),
    "ternary of few masks": ("ternary", masked([FULL, FULL << 40 & FULL, 0xFFFF << 40, 0xFF << 48])),
    "ternary of many masks": ("ternary", any_mask),
    "narrow ranges": ("range", narrow),
    "wide ranges": ("range", wide),
}


def bounds(m: MatchValue) -> tuple[int, int, int, int, int]:
    """Value, mask, low, high and prefix length of a match, in the 64 bits."""
    if isinstance(m, Exact):
        return m.value >> LOW, FULL, 0, FULL, 0
    if isinstance(m, Lpm):
        mask = FULL ^ (FULL >> m.prefix_len)
        return m.value >> LOW & mask, mask, 0, FULL, m.prefix_len
    if isinstance(m, Ternary):
        return (m.value & m.mask) >> LOW, m.mask >> LOW, 0, FULL, 0
    return 0, 0, m.low >> LOW, m.high >> LOW, 0


@pytest.mark.parametrize("name", KINDS)
def test_ten_thousand_random_entries(name: str) -> None:
    kind, make = KINDS[name]
    r = random.Random(name)
    rows: list[tuple[int, ...]] = []
    with SwitchDevice.load(program([f"{kind}:w"], max_size=ENTRIES).json) as d:

        def insert(count: int) -> None:
            while len(rows) < count:
                m = make(r)
                # often equal, so that the order of insertion counts, too
                priority = r.randint(1, 300) if kind in ("ternary", "range") else None
                number = r.getrandbits(23)
                try:
                    handle = d.table_insert("t", [m], "hit", [number], priority)
                except DuplicateEntry:
                    continue
                *place, length = bounds(m)
                rows.append((*place, length if kind == "lpm" else priority or 0, number, handle))

        insert(ENTRIES)
        for row in r.sample(rows, 3000):
            d.table_delete("t", row[-1])
            rows.remove(row)
        insert(ENTRIES - 1000)
        keys = [some(r) if r.random() < 0.3 else near(r, r.choice(rows)) for _ in range(PACKETS)]
        got = [
            unpack(FIELDS, out)[3]
            for _, out in d.process([(0, pack(FIELDS, [0, k << LOW, 0, 0])) for k in keys])
        ]
    expected = best(np.array(rows, np.uint64), np.array(keys, np.uint64))
    assert got == expected
    assert sum(n != 0xFFFFFF for n in got) > PACKETS // 3


@pytest.mark.parametrize("step", [1, -1], ids=["each better", "each worse"])
def test_entries_that_come_in_order(step: int) -> None:
    """Values 1 to 3000 lie in as many nested ranges; what is taken out of the middle leaves the others."""
    count = 3000
    with SwitchDevice.load(program(["range:r"], max_size=count).json) as d:
        # entry i has the i lowest values, so the least i that fits is to win
        numbers = list(range(1, count + 1))[::-step]
        handles = {i: d.table_insert("t", [Range(0, i)], "hit", [i], count - i + 1) for i in numbers}
        gone = {*range(700, 1400), *range(1, count, 7)}
        for i in gone:
            d.table_delete("t", handles[i])
        again = {i for i in gone if i % 2}
        for i in sorted(again):
            d.table_insert("t", [Range(0, i)], "hit", [i], count - i + 1)
        there = sorted(set(numbers) - gone | again)
        packets = [(0, pack(FIELDS, [0, 0, v, 0])) for v in range(1, there[-1] + 1)]
        got = [unpack(FIELDS, out)[3] for _, out in d.process(packets)]
    assert got == [there[i] for i in np.searchsorted(there, range(1, there[-1] + 1))]


def near(r: random.Random, row: tuple[int, ...]) -> int:
    """A key that fits the row."""
    value, mask, low, high, *_ = row
    return r.choice([low, high]) if (low, high) != (0, FULL) else value | (some(r) & ~mask & FULL)


def best(rows: np.ndarray, keys: np.ndarray) -> list[int]:
    """The argument of the best row for each key: the largest priority, then the smallest handle."""
    rows = rows[np.lexsort((rows[:, 6], -rows[:, 4].astype(np.int64)))]
    out = []
    for key in keys:
        fits = ((key & rows[:, 1]) == rows[:, 0]) & (rows[:, 2] <= key) & (key <= rows[:, 3])
        out.append(int(rows[np.argmax(fits), 5]) if fits.any() else 0xFFFFFF)
    return out


def test_a_table_that_becomes_empty_starts_again() -> None:
    with SwitchDevice.load(program(["range:r"], max_size=200).json) as d:
        for _ in range(2):
            handles = [d.table_insert("t", [Range(10 * i, 10 * i + 5)], "hit", [i], 1) for i in range(100)]
            packets = [(0, pack(FIELDS, [0, 0, 10 * i, 0])) for i in range(100)]
            assert [unpack(FIELDS, out)[3] for _, out in d.process(packets)] == list(range(100))
            for handle in handles:
                d.table_delete("t", handle)
            assert {unpack(FIELDS, out)[3] for _, out in d.process(packets)} == {0xFFFFFF}
