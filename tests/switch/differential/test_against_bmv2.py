# SPDX-License-Identifier: Apache-2.0
"""Random entries and packets give the same on the embedded switch in process and on each target as a process.

The target bmv2 is the point of it; the embedded switch as a process shows that its sockets add nothing.
random(), meters and timestamps are in none of the programs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.switch.differential.compare import Count, run
from tests.switch.differential.compile import NAMES
from tests.switch.differential.sides import AsProcess, InProcess
from topologies.targets import Target

pytestmark = pytest.mark.root

CASES = {"bmv2": 3, "embedded": 1}
PACKETS = 200
MANY = {"bmv2": 60, "embedded": 10}


@pytest.fixture(scope="module")
def ours() -> Iterator[InProcess]:
    side = InProcess()
    yield side
    side.close()


@pytest.fixture(scope="module")
def other(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsProcess]:
    side = AsProcess(target, tmp_path_factory.mktemp(target.name))
    yield side
    side.close()


def compared(count: Count, cases: int) -> None:
    assert count.cases == cases
    assert count.packets_in > cases * PACKETS / 2
    assert count.packets_out > count.packets_in / 10


@pytest.mark.parametrize("program", NAMES)
def test_a_few_cases(program: str, ours: InProcess, other: AsProcess) -> None:
    cases = CASES[other.name]
    compared(run(program, ours, other, range(cases), PACKETS), cases)


@pytest.mark.slow
@pytest.mark.parametrize("program", NAMES)
def test_many_cases(program: str, ours: InProcess, other: AsProcess) -> None:
    cases = MANY[other.name]
    compared(run(program, ours, other, range(1000, 1000 + cases), PACKETS), cases)
