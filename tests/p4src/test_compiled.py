# SPDX-License-Identifier: Apache-2.0
"""What is committed under p4src/compiled/ was made from the sources beside it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from p4src.compile import SOURCES, compile_form, out_of_date, p4c_version
from p4src.forms import COMPILED, FORMS, STAMP, Form, FormError, form
from wire import constants
from wire.verdicts import p4_constants


def test_sources_and_stamp_agree() -> None:
    stamp = json.loads(STAMP.read_text())
    assert not out_of_date(), "p4src/*.p4 changed since: run `make p4` (it needs p4c)"
    assert re.fullmatch(r"\d+(\.\d+)+", stamp["p4c"])


def test_verdicts_are_numbered_once() -> None:
    assert (SOURCES / "verdicts.p4").read_text() == p4_constants(), "run `make p4`"


def test_numbers_that_p4_and_python_share() -> None:
    text = (SOURCES / "constants.p4").read_text()
    found = dict(re.findall(r"const \S+\s+(\w+) = (\w+);", text))
    assert int(found["CPU_PORT"]) == constants.CPU_PORT
    assert int(found["JOBS"]) == constants.JOBS
    assert int(found["SWITCH_TTL"]) == constants.TTL
    assert int(found["MSG_CONTRIBUTION"]) == constants.MSG_CONTRIBUTION
    assert int(found["MSG_RESULT"]) == constants.MSG_RESULT
    assert int(found["SESSION_INGRESS_DUPLICATE"]) == constants.SESSION_INGRESS_DUPLICATE


@pytest.mark.parametrize("which", FORMS, ids=lambda f: f.name)
def test_forms_have_the_numbers_that_they_are_named_for(which: Form) -> None:
    program = json.loads(which.json_path.read_text())
    registers = {r["name"].rsplit(".", 1)[1]: r for r in program["register_arrays"]}
    sums = [r for name, r in registers.items() if name.startswith("sum_v")]
    assert len(sums) == which.elements
    assert {(r["size"], r["bitwidth"]) for r in sums} == {(2 * which.slots, 32)}
    assert (registers["state"]["size"], registers["state"]["bitwidth"]) == (2 * which.slots, 136)


def test_nothing_else_is_in_compiled_and_no_path_of_a_machine() -> None:
    names = {f.json_path.name for f in FORMS} | {f.p4info_path.name for f in FORMS} | {STAMP.name}
    assert {p.name for p in COMPILED.iterdir()} == names
    for which in FORMS:
        text = which.json_path.read_text()
        assert text.count("\n") == 1
        paths = re.findall(r'"filename":"([^"]*)"', text)
        assert {Path(p).name for p in paths} == set(paths)


def test_an_unknown_form_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(FormError, match="no program for 128 elements and 1024 slots: there are 64 elements"):
        form(128, 1024)


@pytest.mark.slow
@pytest.mark.parametrize("which", FORMS, ids=lambda f: f.name)
def test_p4c_makes_the_same_again(which: Form, tmp_path: Path) -> None:
    p4c = shutil.which("p4c-bm2-ss")
    if p4c is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    version = json.loads(STAMP.read_text())["p4c"]
    if p4c_version(p4c) != version:
        pytest.skip(f"compiled/ was made by p4c {version}, this is {p4c_version(p4c)}")
    program, p4info = compile_form(which, p4c, tmp_path)
    assert program == which.json_path.read_text()
    assert p4info == which.p4info_path.read_text()
