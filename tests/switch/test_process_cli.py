# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch`: the commands; what a running switch does is in test_process."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from switch import process
from switch.cli import app
from tests.switch.p4rt import FIXTURES


def test_run_hands_its_arguments_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(process, "run", given.append)
    words = ["-i", "1@eth1", "--no-p4", "--", "--cpu-port", "510"]
    assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    assert given == [words]


def test_stf_tells_what_happened_where_it_is_asked_to() -> None:
    words = ["stf", str(FIXTURES / "forward.json"), str(FIXTURES / "forward.stf")]
    told = CliRunner().invoke(app, [*words, "--trace"]).output.splitlines()
    assert told[0].startswith("packet 1: received on port ")
    assert told[-2].startswith(("packet 2: sent on port ", "packet 2: dropped"))
    assert not any(line.startswith("packet") for line in CliRunner().invoke(app, words).output.splitlines())


def test_stf(tmp_path: Path) -> None:
    program, test = FIXTURES / "forward.json", FIXTURES / "forward.stf"
    good = CliRunner().invoke(app, ["stf", str(program), str(test)])
    assert (good.exit_code, "passed: 2 packets in" in good.output) == (0, True)
    wrong = tmp_path / "wrong.stf"
    wrong.write_text(test.read_text().replace("expect 3", "expect 4"))
    bad = CliRunner().invoke(app, ["stf", str(program), str(wrong)])
    assert (bad.exit_code, "FAILED" in bad.output) == (1, True)
    wrong.write_text("add nothing")
    unknown = CliRunner().invoke(app, ["stf", str(program), str(wrong)])
    assert (unknown.exit_code, f"{wrong}: line 1: the program has no single" in unknown.output) == (1, True)
    swapped = CliRunner().invoke(app, ["stf", str(test), str(program)])
    assert (swapped.exit_code, f"cannot load {test}: the JSON: not valid" in swapped.output) == (1, True)
    wrong.write_bytes(b"\xff\xfe")
    refused = CliRunner().invoke(app, ["stf", str(program), str(wrong)])
    assert (refused.exit_code, "wrong.stf is not text" in refused.output) == (1, True)
    wrong.write_text("\ufeff# as some editors begin a file")
    empty = CliRunner().invoke(app, ["stf", str(program), str(wrong)])
    assert (empty.exit_code, "it says nothing of the program" in empty.output) == (0, True)
