# SPDX-License-Identifier: Apache-2.0
"""The capture that bench trace makes, and that it believes no program that prints something else."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench.errors import BenchError
from bench.trace import REPEATED, ROUND, WORKERS, measured, write_capture
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
