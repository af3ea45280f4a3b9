# SPDX-License-Identifier: Apache-2.0
"""p4c's public test programs, where they are at hand: each .stf file against the device in process."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switch import build
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import SwitchError
from switch.load import load_program
from switch.stf import StfRunner

HERE = Path(__file__).parent
PROGRAMS = HERE.parents[2] / "shared" / "conformance"
NAMES = sorted(p.parent.name for p in PROGRAMS.glob("*/*.stf"))
OWN = sorted(p.stem for p in (HERE / "fixtures").glob("*.stf"))


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> None:
    """What the chosen tests need, compiled on all cores: one after the other it is half of a cold run."""

    def compile_one(name: str) -> None:
        with contextlib.suppress(SwitchError):  # the test of this program tells
            build.build(emit_program(load_program((PROGRAMS / name / f"{name}.json").read_text())))

    items = [i for i in request.session.items if i.path == Path(__file__) and isinstance(i, pytest.Function)]
    names = {i.callspec.params["name"] for i in items if hasattr(i, "callspec")}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, names & set(NAMES)))


ABSENT = [
    pytest.param(
        "none",
        marks=pytest.mark.skip(
            "p4c's public test programs are not part of this repository, and not in ../shared/conformance "
            "(NAME/NAME.json and NAME.stf): the other tests of the switch bring their own programs"
        ),
    )
]
every_program = pytest.mark.parametrize("name", NAMES or ABSENT)
some_programs = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if i % 5 else []) for i, n in enumerate(NAMES)] or ABSENT,
)
"""One in five, the others in the slow set."""


@every_program
@pytest.mark.usefixtures("compiled")
def test_public_program(name: str) -> None:
    check(name)


@pytest.mark.slow
@every_program
@pytest.mark.usefixtures("compiled")
def test_public_program_as_users_compile_it(name: str) -> None:
    assert "-O3" in build.FLAGS
    check(name)


def check(name: str) -> None:
    folder = PROGRAMS / name
    with SwitchDevice.load(folder / f"{name}.json") as device:
        result = StfRunner(device).run((folder / f"{name}.stf").read_text())
        log = device.log()
    assert result.passed, (result.failures, log)
    assert result.sent > 0


@pytest.mark.parametrize("name", OWN)
def test_own_program(name: str) -> None:
    with SwitchDevice.load(HERE / "fixtures" / f"{name}.json") as device:
        result = StfRunner(device).run((HERE / "fixtures" / f"{name}.stf").read_text())
    assert result.passed, result.failures
