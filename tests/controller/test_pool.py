# SPDX-License-Identifier: Apache-2.0
"""The slot pool against a list of slots, and numbers given out in a cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import ExhaustedError, PoolFullError
from controller.pool import Numbers, SlotPool

SIZE = 24


def first_fit(slots: list[str | None], length: int) -> int | None:
    for first in range(len(slots) - length + 1):
        if all(s is None for s in slots[first : first + length]):
            return first
    return None


def longest_run(slots: list[str | None]) -> int:
    marks = "".join("." if s is None else "x" for s in slots)
    return max(map(len, marks.split("x")))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, SIZE + 2)), max_size=60))
def test_it_does_what_a_list_of_slots_does(steps: list[tuple[bool, int]]) -> None:
    pool = SlotPool(SIZE)
    slots: list[str | None] = [None] * SIZE
    held: list[tuple[int, int]] = []
    for i, (allocate, x) in enumerate(steps):
        if allocate or not held:
            expected = first_fit(slots, x)
            if expected is None:
                with pytest.raises(PoolFullError) as raised:
                    pool.allocate(x, "late")
                assert (raised.value.free, raised.value.largest) == (slots.count(None), longest_run(slots))
                assert sum(n for _, n in raised.value.holders) == SIZE - slots.count(None)
            else:
                assert pool.allocate(x, f"job {i}") == expected
                slots[expected : expected + x] = [f"job {i}"] * x
                held.append((expected, x))
        else:
            first, length = held.pop(x % len(held))
            pool.release(first)
            slots[first : first + length] = [None] * length
        assert (pool.free, pool.largest_run) == (slots.count(None), longest_run(slots))
        assert sorted((first, length) for _, first, length in pool.holders()) == sorted(held)


def test_a_refusal_says_what_would_fit() -> None:
    pool = SlotPool(10)
    pool.allocate(4, "job 1")
    pool.allocate(2, "job 2")
    pool.allocate(3, "job 3")
    pool.release(4)
    with pytest.raises(PoolFullError) as raised:
        pool.allocate(5, "job 4")
    assert str(raised.value) == (
        "5 slots do not fit: 3 are free, 2 of them in one run; job 1 holds 4, job 3 holds 3; "
        "ask for at most 2"
    )


def test_what_was_never_rented_is_not_taken_back() -> None:
    pool = SlotPool(4)
    with pytest.raises(KeyError):
        pool.release(0)
    with pytest.raises(ValueError):
        pool.allocate(0, "x")
    with pytest.raises(ValueError):
        SlotPool(0)


def test_numbers_cycle_and_are_never_in_use_twice() -> None:
    numbers = Numbers("ids", 5)
    assert numbers.take(2) == [1, 2]
    numbers.give_back([1])
    assert numbers.take(3) == [3, 4, 5]  # 1 is free, but was in use last
    with pytest.raises(ExhaustedError, match="all 5 ids are in use"):
        numbers.take(2)
    assert numbers.take(1) == [1]
    numbers.give_back([3])
    assert numbers.take(1) == [3]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=50))
def test_no_number_is_live_twice(steps: list[tuple[bool, int]]) -> None:
    numbers = Numbers("ids", 9)
    live: list[list[int]] = []
    for take, count in steps:
        used = {n for group in live for n in group}
        if not take and live:
            numbers.give_back(live.pop(count % len(live)))
        elif count <= 9 - len(used):
            taken = numbers.take(count)
            assert len(set(taken)) == count
            assert not used & set(taken)
            assert all(1 <= n <= 9 for n in taken)
            live.append(taken)
        else:
            with pytest.raises(ExhaustedError):
                numbers.take(count)
