# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is when ranks are silent: a part of the network that is gone for good, else their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from topologies import processes
from topologies.errors import NetworkError
from topologies.ranks import RankError, Ranks
from topologies.record import NetRecord, new_record, with_host
from topologies.spec import star

SLEEPER = ["-n", "1", "import time; time.sleep(60)"]


def test_silent_ranks_are_ended_by_what_is_dead_and_not_by_what_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(record: NetRecord, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, **options)

    monkeypatch.setattr(processes, "host_popen", here)
    monkeypatch.setattr("topologies.ranks.START_LIMIT_S", 0.1)
    record = new_record("ranks", star(1), target="embedded", elements=64, slots=1024, root=tmp_path)
    # Neither switch nor controller run, and their daemon, that is us, will start them again.
    record = replace(with_host(record, "h1", process=record.owner), state="up")
    record.claim()
    with Ranks(record, ["h1"], "timeit", [SLEEPER]) as ranks:
        with pytest.raises(RankError, match=r"rank 0 on h1: no rank said anything for 1.1 s"):
            list(ranks.heard(0.5))
        replace(record, given_up=("switch s1",)).save()
        with pytest.raises(NetworkError, match="ranks: switch s1 died while the ranks were at work"):
            list(ranks.heard(30))


ECHO = "import sys; [print(line, end='', flush=True) for line in sys.stdin]"


def test_ranks_answer_what_they_are_told_or_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(record: NetRecord, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, **options)

    monkeypatch.setattr(processes, "host_popen", here)
    record = new_record("ranks", star(2), target="embedded", elements=64, slots=1024, root=tmp_path)
    record.claim()
    # `timeit` runs the statement: an echo, and one that ends at its second line.
    once = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); sys.exit(1)"
    arguments = [["-n", "1", "-r", "1", ECHO], ["-n", "1", "-r", "1", once]]
    with Ranks(record, ["h1", "h2"], "timeit", arguments) as ranks:
        ranks.tell(a=1)
        assert ranks.answers(30) == [{"a": 1}, {}]
        ranks.tell(a=2)
        with pytest.raises(RankError, match="rank 1 on h2: its process ended with code 1"):
            ranks.answers(30)
    with Ranks(record, ["h1"], "timeit", arguments[:1]) as ranks:
        with pytest.raises(RankError, match=r"rank 0 on h1: no answer in 0.1 s \(waiting for ranks \[0\]\)"):
            ranks.answers(0.1)
