# SPDX-License-Identifier: Apache-2.0
"""What finds differences: packets that parse, entries that are taken and hit, and small cases."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from switch.device import SwitchDevice
from tests.switch.differential.compare import Case, Comparison
from tests.switch.differential.packets import Shapes, random_packet
from tests.switch.differential.sides import InProcess, Packets, Program, push, state, write
from tests.switch.differential.values import Values


class Faulty(InProcess):
    """Changes the last byte of what leaves port 2 after a packet that begins with 7 has come in."""

    name = "faulty"

    @property
    def quiet_s(self) -> float:
        return 0.0

    @quiet_s.setter
    def quiet_s(self, seconds: float) -> None:
        """Each run of a case begins with this."""
        self.seven = False

    def put(self, port: int, frame: bytes, wanted: int = 0) -> Packets:
        self.seven |= frame[0] >> 4 == 7
        out = super().put(port, frame)
        return [(p, f[:-1] + bytes([f[-1] ^ 1])) if self.seven and p == 2 else (p, f) for p, f in out]

    def start(self) -> None:
        raise AssertionError("it has not ended")

    def has_ended(self) -> bool:
        return False


@pytest.fixture(scope="module")
def ours() -> Iterator[InProcess]:
    side = InProcess()
    yield side
    side.close()


def test_packets_reach_every_state() -> None:
    shapes = Shapes(json.loads(Program("headers").json))
    r = random.Random(5)
    values = Values(r, shapes.constants)
    frames = [random_packet(shapes, r, values, 1) for _ in range(2000)]
    errors = []
    with SwitchDevice.load(Program("headers").json) as d:
        for frame in frames:
            ((_, out),) = d.process([(1, frame)])
            errors.append(out[14])
    # All but NoMatch and ParserTimeout, which v1model's switches do not raise.
    assert set(errors) == {0, 1, 3, 4, 6, 7, 8}
    assert errors.count(0) > 500


@pytest.mark.parametrize("program", ["tables", "flow"])
def test_entries_are_taken_and_hit(program: str, ours: InProcess) -> None:
    case = Case.random(Program(program), 3, 200)
    push(ours, case.program)
    codes = write(ours, case.updates)
    assert codes.count("OK") > 0.8 * len(codes)
    out = [ours.put(port, frame) for port, frame in case.packets]
    assert sum(map(bool, out)) > 50
    assert any("packet_count: " in line for line in state(ours, case.program.info))


def test_a_case_is_a_function_of_its_seed() -> None:
    one, two, three = (Case.random(Program("tables"), seed, 5) for seed in (1, 1, 2))
    assert (one.updates, one.packets) == (two.updates, two.packets)
    assert one.packets != three.packets


def test_a_difference_is_made_small(ours: InProcess) -> None:
    faulty = Faulty()
    try:
        comparison = Comparison(ours, faulty)
        found = comparison.run(Case.random(Program("tables"), 1, 100))
    finally:
        faulty.close()
    assert found is not None
    assert len(found.case.packets) <= 2
    assert found.case.packets[0][1][0] >> 4 == 7
    told = str(found)
    assert "tables, seed 1" in told
    assert "faulty" in told
    assert f"in  {found.case.packets[-1][0]} {found.case.packets[-1][1].hex()}" in told
