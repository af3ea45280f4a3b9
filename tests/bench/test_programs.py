# SPDX-License-Identifier: Apache-2.0
"""The bench's own program was compiled from the source beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.work import PROGRAMS
from switch.device import Exact, SwitchDevice


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c is not here")
def test_the_program_is_that_of_its_source(tmp_path: Path) -> None:
    base = tmp_path / "l2"
    command = [
        *("p4c-bm2-ss", "--std", "p4-16", "-o", f"{base}.json", "--p4runtime-files", f"{base}.p4info.txtpb"),
        "l2.p4",
    ]
    subprocess.run(command, cwd=PROGRAMS, check=True, timeout=120)
    assert json.loads(Path(f"{base}.json").read_text()) == json.loads((PROGRAMS / "l2.json").read_text())
    assert Path(f"{base}.p4info.txtpb").read_text() == (PROGRAMS / "l2.p4info.txtpb").read_text()


def test_no_path_of_a_machine_is_in_it() -> None:
    names = set(re.findall(r'"filename":"([^"]*)"', (PROGRAMS / "l2.json").read_text()))
    assert {Path(name).name for name in names} == names


def test_it_forwards_by_destination() -> None:
    frame = bytes.fromhex("020000000002 020000000001 0800") + bytes(46)
    with SwitchDevice.load(PROGRAMS / "l2.json") as device:
        assert device.process([(1, frame)]) == []
        device.table_insert("ingress.l2", [Exact(0x020000000002)], "ingress.forward", [7])
        assert device.process([(1, frame)]) == [(7, frame)]
