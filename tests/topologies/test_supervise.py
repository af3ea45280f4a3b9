# SPDX-License-Identifier: Apache-2.0
"""When a process that ended is started again, and when it is given up."""

from __future__ import annotations

from topologies.errors import TargetError
from topologies.processes import LoggedProcess
from topologies.supervise import MOST, WITHIN_S, Keeper, Kept


class FakeChild(LoggedProcess):
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Part:
    """What a Keeper is told of one process; `starts` has the time of each start."""

    def __init__(self) -> None:
        self.child = FakeChild()
        self.starts: list[float] = []
        self.given_up: list[str] = []
        self.failing = 0
        self.now = 0.0
        kept = Kept("switch s1", lambda: self.child, self.start)
        self.keeper = Keeper([kept], self.given_up.append)

    def start(self) -> None:
        if self.failing:
            self.failing -= 1
            raise TargetError("bmv2", "no such file")
        self.child = FakeChild()
        self.starts.append(self.now)

    def run(self, until: float) -> None:
        while self.now < until:
            self.now += 0.125
            self.keeper.look(self.now)


def test_it_is_started_at_once_and_then_after_pauses_that_double() -> None:
    part = Part()
    wanted = []
    for pause in (0, 0.5, 1, 2, 4):
        part.run(part.now + 1)
        part.child.code = -9
        wanted.append(part.now + 0.125 + pause)
        part.run(part.now + 5)
    assert part.starts == wanted
    assert part.given_up == []
    part.child.code = -9
    part.run(part.now + 2 * WITHIN_S)
    assert part.given_up == ["switch s1"]
    assert len(part.starts) == MOST


def test_ends_of_long_ago_do_not_count() -> None:
    part = Part()
    for _ in range(2 * MOST):
        part.child.code = 1
        part.run(part.now + WITHIN_S / 4)  # four in that time
    assert part.given_up == []
    assert len(part.starts) == 2 * MOST


def test_a_start_that_fails_is_an_end_too() -> None:
    part = Part()
    part.child.code, part.failing = 1, 2
    part.run(10)
    assert part.starts == [0.125 + 0.5 + 1]
    part.child.code, part.failing = 1, MOST
    part.run(60)
    assert part.given_up == ["switch s1"]
