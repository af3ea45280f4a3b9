# SPDX-License-Identifier: Apache-2.0
"""A hint is a command that works where it is read."""

import os
from pathlib import Path

import pytest

from wire.hints import command


def test_a_command_is_told_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/p4reduce"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr("sys.argv", [str(program), "net", "status"])
    assert command("net down") == "bin/p4reduce net down"
    monkeypatch.setenv("SUDO_UID", "1000")
    assert command("net down") == "sudo bin/p4reduce net down"
    monkeypatch.setenv("PATH", str(program.parent))
    assert command("net down") == "sudo p4reduce net down"
