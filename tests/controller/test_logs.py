# SPDX-License-Identifier: Apache-2.0
"""The controller's log is bounded, and has what came last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from controller.logs import MOST_BYTES

PROGRAM = """
import logging, os, sys
from pathlib import Path
from types import SimpleNamespace
import controller.daemon
import topologies.record

async def serve(*_):
    for i in range(20000):
        logging.getLogger("test").info("line %d of the log, which is %s", i, "long" * 20)
    print("a traceback", file=sys.stderr)

topologies.record.load_default = lambda *_: SimpleNamespace(directory=Path(sys.argv[1]))
controller.daemon.wait_built, controller.daemon.serve = lambda record: record, serve
from controller.controller_cli import app
app([])
"""
"""The command, whose network and daemon are none: it logs 3 MB."""


def logged(folder: Path, to: Path) -> None:
    with to.open("ab") as sink:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)], stderr=sink, stdout=sink, timeout=120, check=True
        )


def numbers(text: str) -> list[int]:
    return [int(line.split("line ")[1].split(" ")[0]) for line in text.splitlines()]


def test_the_log_of_a_network_s_controller_is_bounded(tmp_path: Path) -> None:
    log, before = tmp_path / "controller.log", tmp_path / "controller.log.1"
    logged(tmp_path, log)
    assert {path.name for path in tmp_path.iterdir()} == {log.name, before.name}
    assert log.stat().st_size < MOST_BYTES
    assert MOST_BYTES <= before.stat().st_size < MOST_BYTES + 200
    text = log.read_text()
    assert text.endswith("\na traceback\n")
    found = numbers(before.read_text() + text.removesuffix("a traceback\n"))
    assert found == list(range(found[0], 20000)), "nothing is missing between the two"


def test_a_log_without_room_for_what_was_before_is_bounded_too(tmp_path: Path) -> None:
    (tmp_path / "controller.log.1").mkdir()
    logged(tmp_path, tmp_path / "controller.log")
    assert (tmp_path / "controller.log").stat().st_size < MOST_BYTES


def test_another_file_is_its_owner_s(tmp_path: Path) -> None:
    """As of a controller that somebody starts: `p4reduce controller 2>> mine`."""
    logged(tmp_path, tmp_path / "mine")
    assert numbers((tmp_path / "mine").read_text().removesuffix("a traceback\n")) == list(range(20000))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
