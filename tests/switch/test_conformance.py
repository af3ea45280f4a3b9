# SPDX-License-Identifier: Apache-2.0
"""p4c's public test programs, where they are at hand: each .stf file against the device in process."""

from pathlib import Path

import pytest

from switch.device import SwitchDevice
from switch.stf import StfRunner

HERE = Path(__file__).parent
PROGRAMS = HERE.parents[2] / "shared" / "conformance"
NAMES = sorted(p.parent.name for p in PROGRAMS.glob("*/*.stf"))


@pytest.mark.parametrize(
    "name", NAMES or [pytest.param("none", marks=pytest.mark.skip("../shared/conformance is absent"))]
)
def test_public_program(name: str) -> None:
    folder = PROGRAMS / name
    with SwitchDevice.load(folder / f"{name}.json") as device:
        result = StfRunner(device).run((folder / f"{name}.stf").read_text())
        log = device.log()
    assert result.passed, (result.failures, log)
    assert result.sent > 0


def test_own_program() -> None:
    with SwitchDevice.load(HERE / "fixtures" / "forward.json") as device:
        result = StfRunner(device).run((HERE / "fixtures" / "forward.stf").read_text())
    assert result.passed, result.failures
