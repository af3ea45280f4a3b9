# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from topologies import preflight
from topologies.errors import PreflightError


def test_missing_commands_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = preflight.tool_problems()
    assert len(problems) == len(preflight.TOOLS)
    assert any(
        "mnexec" in text and "apt-get install --no-install-recommends mininet" in text for text in problems
    )
    assert ["cc is missing" in text for text in preflight.compiler_problems()] == [True]


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "brokencc"
    broken.write_text("#!/bin/sh\necho 'stdint.h: no such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    (problem,) = preflight.compiler_problems()
    assert "stdint.h: no such file" in problem
    assert "libc6-dev" in problem


@pytest.mark.parametrize("command", ["cc -DSOME=1", "env LC_ALL=C cc", " "])
def test_a_compiler_of_several_words(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("CC", command)
    assert preflight.compiler_problems() == []


def test_a_compiler_that_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc '-DX")
    (problem,) = preflight.compiler_problems()
    assert "is not a command" in problem


def test_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable:    2048000 kB\n")
    assert preflight.available_memory_mb(meminfo) == 2000
    assert preflight.available_memory_mb(tmp_path / "none") is None
    assert preflight.memory_problems(1) == []
    (problem,) = preflight.memory_problems(10**9)
    assert "needs 1000000000 MB" in problem
    assert preflight.memory_mb(10, 64, 100) == 10 * 100 + 64 * 4 + 250


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.space_problems(tmp_path / "not/yet") == []
    monkeypatch.setattr(preflight, "FOLDER_MB", 1 << 40)
    (problem,) = preflight.space_problems(tmp_path / "not/yet")
    assert f"MB of room in {tmp_path} and" in problem


def test_all_problems_come_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightError, match="sudo") as caught:
        preflight.check(10**9)
    assert len(caught.value.problems) == 1 + len(preflight.TOOLS) + 1


@pytest.mark.root
def test_a_veth_probe_leaves_nothing() -> None:
    assert preflight.veth_problems() == []
    assert not Path("/sys/class/net/probe0").exists()
