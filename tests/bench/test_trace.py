# SPDX-License-Identifier: Apache-2.0
"""The capture that bench trace makes, and that it believes no program that prints something else."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import trace
from bench.errors import BenchError
from bench.trace import HEADS, REPEATED, ROUND, WORKERS, check_room, measured, write_capture
from traces.files import merged
from traces.members import load
from traces.model import Model, Verdict
from traces.table import UdpChecksum, concat


def test_the_capture_is_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "s1-h1.pcap"
    packets, repeated = write_capture(path, 10_000, 64)
    table = concat(list(merged([path])))
    twice = round(ROUND * REPEATED * WORKERS)
    assert (packets, repeated) == (2 * ROUND * WORKERS + twice, twice)
    assert len(table) == packets
    assert (table.udp_checksum == UdpChecksum.RIGHT).all()
    judged = Model(load([path])).judge(table)
    assert judged.again.sum() == repeated
    counts = np.bincount(judged.verdict, minlength=12)
    assert counts[Verdict.COMPLETED] == ROUND
    assert counts[Verdict.ABSORBED] == ROUND * (WORKERS - 1)
    assert counts[Verdict.DUPLICATE] == repeated
    assert counts[Verdict.RESULT] == ROUND * WORKERS


def test_other_output_than_wanted_is_no_measurement() -> None:
    program = [sys.executable, "-c", "print(1); print(2)"]
    told = measured("two", program, 10, 2)
    assert told.packets == 10
    assert told.rate == 10 / told.seconds
    with pytest.raises(BenchError, match="two: it printed 2 lines, not 3"):
        measured("two", program, 10, 3)
    with pytest.raises(BenchError, match="two: it failed: no"):
        measured("two", [sys.executable, "-c", "raise SystemExit('no')"], 10, 0)


def test_memory_is_the_program_s_own() -> None:
    ours = np.ones(200 << 20, np.uint8)  # it would be counted by what a child inherits: ru_maxrss
    script = "import time; kept = bytearray(b'1') * (100 << 20); time.sleep(0.5); print(len(kept))"
    told = measured("100 MB", [sys.executable, "-c", script], 10, 1)
    assert len(ours) == 200 << 20
    assert 100 < told.memory_mb < 150


def test_a_program_that_hangs_or_is_given_up_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trace, "START_SECONDS", 0.5)
    with pytest.raises(BenchError, match="hangs: it was not done with 10 packets in 1 s and was ended"):
        measured("hangs", [sys.executable, "-c", "import time; time.sleep(60)"], 10, 0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "wait4", interrupted)
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); os.close(1); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        measured("given up", [sys.executable, "-c", script], 10**9, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_capture_that_has_no_room_is_not_begun(tmp_path: Path) -> None:
    check_room(tmp_path, 1, 64)
    # 16 bytes of the record, 52 of headers, four for each value.
    gigabytes = 10**17 * (16 + 52 + 4 * 256) / 1e9
    with pytest.raises(BenchError, match=re.escape(f"the capture has {gigabytes:.1f} GB")):
        check_room(tmp_path, 10**17, 256)


def test_the_page_explains_the_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    part = page[page.index("## bench trace") :]
    explained = set(re.findall(r"^\| (.+?) \|", part, re.MULTILINE))
    assert set(HEADS) - {"program", "seconds"} <= explained
