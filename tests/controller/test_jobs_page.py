# SPDX-License-Identifier: Apache-2.0
"""docs/jobs.md: its commands are run one after the other, and print what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from controller import cli
from tests.controller.office import LIMIT_S, TOKEN, Member, Office
from tests.controller.served import Served
from wire import constants
from wire.errors import P4ReduceError
from worker.memory import reduce_together

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"
ELSEWHERE = ("p4reduce net up", "p4reduce controller", "p4reduce --install")
"""Commands that other tests run: they need a network, or do not end."""


def steps() -> list[tuple[str, str]]:
    """The page's blocks: (kind, text)."""
    return re.findall(r"```(console|py)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """A console block's commands, each with the output that is shown under it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield line, shown


def same(text: str) -> str:
    """Without what differs from run to run: epochs, ages, times of day, and the width of columns."""
    text = re.sub(r"\b1\d{9}\b", "EPOCH", text)
    text = re.sub(r"\b\d+\.\d s\b", "T s", text)
    text = re.sub(r"([ ━─])\1+", r"\1", text)
    text = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def matches(printed: str, shown: str) -> bool:
    """Whether a command printed what the page shows; there, a line of ... stands for any lines, or none."""
    pattern = re.escape(same(shown)).replace(re.escape("...\n"), r"(?s:.*\n)?")
    pattern = pattern.replace(re.escape("..."), "(?s:.*)")
    return re.fullmatch(pattern, same(printed)) is not None


def run(line: str, office: Office) -> str:
    if line.startswith("curl "):
        line = line.replace("/run/p4reduce", str(office.record.root))
        return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
    done = CliRunner().invoke(cli.app, line.split()[1:], prog_name="p4reduce")
    if isinstance(done.exception, P4ReduceError):
        return f"{done.output}error: {done.exception}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def work(office: Office) -> None:
    """What the page's program does in three hosts: one all-reduce of 1,000 ones."""
    members = [Member(office, "alice", rank, 40001 + rank) for rank in range(3)]
    with office.client() as client:
        for step in (Member.join, Member.enter):
            for member in members:
                step(member, client)
        found = reduce_together(
            office.fabric, [member.worker for member in members], [np.ones(1000, np.float32)] * 3
        )
        assert [float(np.asarray(result)[0]) for result in found] == [3.0] * 3
    office.attend(members)


def settle(office: Office) -> None:
    """Wait until alice's workers are in the epoch that her new slots need: a reader types more slowly."""
    until = time.monotonic() + LIMIT_S
    with office.client() as client:
        while (job := client.call("GET", "/v1/jobs/alice"))["status"] != "running" or job["slots"] != 128:
            assert time.monotonic() < until, job
            time.sleep(0.01)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    monkeypatch.setattr(constants, "RUN_ROOT", tmp_path)
    monkeypatch.setenv("P4REDUCE_TOKEN", TOKEN)
    monkeypatch.setattr("sys.argv", ["p4reduce"])
    served = Served(1)
    try:
        with Office(tmp_path, served, name="star", hosts=4, slots=16384) as office:
            for kind, text in steps():
                if kind == "py":
                    compile(text, "sum.py", "exec")
                    work(office)
                    continue
                for line, shown in commands(text):
                    if line.startswith("p4reduce job drain"):
                        settle(office)
                    if not line.startswith(ELSEWHERE):
                        printed = run(line, office)
                        assert matches(printed, shown), f"$ {line}\n{printed}"
    finally:
        served.close()
