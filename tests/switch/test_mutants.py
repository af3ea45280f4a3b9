# SPDX-License-Identifier: Apache-2.0
"""Programs with random damage are refused with the construct named, or run; no other error comes out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from switch.build import build
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import LoadError
from switch.load import load_program
from tests.switch.everything import everything
from tests.switch.mutants import mutant

FORWARD = Path(__file__).parent / "fixtures" / "forward.json"
COMPILED = Path(__file__).parents[2] / "p4src" / "compiled" / "p4reduce_64x1024.json"
PROGRAMS = {
    "forward": FORWARD.read_text,
    "everything": lambda: everything().json,
    "p4reduce": COMPILED.read_text,
}


def run(text: str, seeds: range) -> Counter[str]:
    """Load, check and emit a mutant for each seed; how many were refused, and how many run."""
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        damaged, what = mutant(text, seed)
        try:
            emit_program(load_program(damaged))
            outcomes["runs"] += 1
        except LoadError as e:
            outcomes["refused"] += bool(e.construct and str(e).encode())
        except Exception as e:
            raise AssertionError(what) from e
    return outcomes


@pytest.mark.parametrize(("name", "count"), [("forward", 150), ("everything", 250), ("p4reduce", 15)])
def test_mutants(name: str, count: int) -> None:
    outcomes = run(PROGRAMS[name](), range(count))
    assert outcomes.total() == count
    assert outcomes["refused"] > count / 2
    assert outcomes["runs"] > count / 20


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_many_mutants(name: str) -> None:
    count = 500 if name == "p4reduce" else 5000
    assert run(PROGRAMS[name](), range(1000, 1000 + count)).total() == count


def test_mutants_of_the_same_code_start() -> None:
    """Damage in what the device itself reads (entries, sizes, names)."""
    text = FORWARD.read_text()
    source = emit_program(load_program(text))
    library, started = build(source), 0
    for seed in range(2000, 2150):
        damaged, what = mutant(text, seed)
        try:
            program = load_program(damaged)
            if emit_program(program) != source:
                continue
        except LoadError:
            continue
        try:
            SwitchDevice(program, library).close()
        except Exception as e:
            raise AssertionError(what) from e
        started += 1
    assert started > 10
