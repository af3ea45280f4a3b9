# SPDX-License-Identifier: Apache-2.0
"""A short run of tests.switch.fuzz under AddressSanitizer and UBSan, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from switch.build import compiler
from switch.errors import BuildError

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "forward": ROOT / "tests" / "switch" / "fixtures" / "forward.json",
    "p4reduce": ROOT / "p4src" / "compiled" / "p4reduce_64x1024.json",
}
ARP = "ffffffffffff0200000000010806000108000604000102000000000101020304000000000000"


def sanitizer() -> str | None:
    """Path of libasan, where the compiler has it."""
    try:
        command = [*compiler(), "-print-file-name=libasan.so"]
    except BuildError:
        return None
    path = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return path.strip() if os.path.isabs(path.strip()) else None


@pytest.mark.skipif(sanitizer() is None, reason="the compiler has no AddressSanitizer")
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_packets(name: str) -> None:
    env = {**os.environ, "LD_PRELOAD": sanitizer() or "", "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.switch.fuzz", str(PROGRAMS[name]), "2000", "1", ARP]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
