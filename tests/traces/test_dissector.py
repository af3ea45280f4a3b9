# SPDX-License-Identifier: Apache-2.0
"""The dissector in tshark, over captures made here: its fields equal ours, and what it has to find."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from switch.device import SwitchDevice
from tests.traces import made
from tests.traces.worlds import captured_run
from traces.cli import app
from traces.dissector_cli import LUA
from traces.files import read
from traces.table import Category, Problem, Table, concat

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (apt install tshark)")
FIELDS = ("job", "msg_type", "flag", "size", "tensor", "chunk", "version", "slot", "e0", "e1", "elements")


def tshark(
    capture: Path, *options: str, fields: Sequence[str] = (), home: Path | None = None
) -> list[list[str]]:
    """What it prints, a list a packet. `home` has its settings, else there are none."""
    assert TSHARK is not None
    columns = [each for field in fields for each in ("-e", field)]
    script = [] if home else ["-X", f"lua_script:{LUA}"]
    where = {"HOME": str(home or capture.parent), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}
    done = subprocess.run(
        [
            TSHARK,
            *script,
            "-n",
            "-r",
            str(capture),
            *options,
            *(["-T", "fields"] if fields else []),
            *columns,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **where},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua Error" not in done.stdout + done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def columns(table: Table, names: Sequence[str]) -> list[list[int]]:
    return [list(row) for row in zip(*(getattr(table, name).tolist() for name in names), strict=True)]


@needs_tshark
def test_fields_are_ours_and_what_is_sent_again_is_found(device: SwitchDevice, tmp_path: Path) -> None:
    folder = captured_run(device, seed=8, loss=0.15).write(tmp_path)
    path = folder / "s1-h1.pcapng"
    table = concat(list(read(path, values=True)))
    told = tshark(path, fields=["frame.number", *(f"p4reduce.{name}" for name in (*FIELDS, "values"))])
    assert [[int(each) for each in row[:-1]] for row in told] == columns(table, ["number", *FIELDS])
    values = [[int(each) for each in row[-1].split(",")] for row in told]
    assert np.array_equal(values, table.values(np.arange(len(table))))
    # Sent again: the same of one sender, seen before in this file.
    seen: dict[tuple[int, ...], int] = {}
    first = [
        seen.setdefault((kind, place, slot, chunk), number)
        for kind, place, slot, chunk, number in columns(
            table, ["category", "version", "slot", "chunk", "number"]
        )
    ]
    again = {number: at for number, at in zip(table.number.tolist(), first, strict=True) if at != number}
    assert again
    found = tshark(path, "-Y", "p4reduce.again", fields=["frame.number", "p4reduce.first_frame"])
    assert {int(number): int(at) for number, at in found} == again
    up = set(table.number[table.category == Category.CONTRIBUTION].tolist())
    for filter_, which in (("retransmission", again.keys() & up), ("replay", again.keys() - up)):
        assert {
            int(row[0]) for row in tshark(path, "-Y", f"p4reduce.{filter_}", fields=["frame.number"])
        } == which
    slot = tshark(path, "-Y", "p4reduce.slot == 3 && p4reduce.version == 1", fields=["frame.number"])
    assert [int(row[0]) for row in slot] == table.number[(table.slot == 3) & (table.version == 1)].tolist()


@needs_tshark
def test_refusals_have_our_reasons(tmp_path: Path) -> None:
    good = made.one()
    size = bytearray(good)
    size[42] = size[42] & 0xF8 | 2
    kind = bytearray(good)
    kind[42] = 0x20 | kind[42] & 0x0F
    short = made.ip_sum(good[:16] + (len(good) - 4 - 14).to_bytes(2, "big") + good[18:-4])
    options = made.ip_sum(good[:14] + b"\x46" + good[15:34] + b"\1\1\1\1" + good[34:])
    frames = [
        good,
        made.one(udp_src=0xBE07),
        bytes(size),
        bytes(kind),
        short,
        good + b"\0\0",
        options,
        made.one(udp_dst=0xBDFF),
        made.one(udp_dst=0xBF00),
    ]
    path = made.put(tmp_path, made.pcap(frames))
    table = concat(list(read(path)))
    names = ("two_job_ports", "size", "type", "length", "ip_options")
    found = {}
    for number, *told in tshark(
        path, fields=["frame.number", *(f"p4reduce.refused.{name}" for name in names)]
    ):
        found.update({int(number): name for name, there in zip(names, told, strict=True) if there})
    ours = {
        number: Problem(problem).name.lower()
        for number, problem in columns(table, ["number", "problem"])
        if problem
    }
    assert found == ours
    assert sorted(ours) == [2, 3, 4, 5, 6, 7]
    assert [int(row[0]) for row in tshark(path, "-Y", "p4reduce", fields=["frame.number"])] == list(
        range(1, 8)
    )


@needs_tshark
def test_packets_that_are_cut_off_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    whole = made.one()
    lengths = [51, 52, 55, 56, 60, len(whole)]
    enhanced = [made.enhanced(whole[:kept], 1000 * kept, length=len(whole)) for kept in lengths]
    path = made.put(tmp_path, made.section() + made.interface() + b"".join(enhanced), "cut.pcapng")
    fields = ["p4reduce.job", "p4reduce.tensor", "p4reduce.values", "p4reduce.elements"]
    told = [row + [""] * (4 - len(row)) for row in tshark(path, fields=fields)]
    has = [0 if kept < 52 else (kept - 52) // 4 for kept in lengths]
    assert [len(row[2].split(",")) if row[2] else 0 for row in told] == has
    assert [row[0] for row in told] == ["3"] * 6
    assert [row[1] for row in told] == ["", *["5"] * 5]
    assert all(row[3] == "64" for row in told[1:])
    assert (
        tshark(
            path,
            "-Y",
            "_ws.lua.error || p4reduce.refused.size || p4reduce.refused.length",
            fields=["frame.number"],
        )
        == []
    )


@needs_tshark
def test_wrong_checksums_where_wireshark_checks_them(tmp_path: Path) -> None:
    good = made.one()
    path = made.put(tmp_path, made.pcap([good, good[:-1] + bytes([good[-1] ^ 1])]))
    checked = ("-o", "udp.check_checksum:TRUE", "-Y", "p4reduce.refused.checksum")
    assert tshark(path, *checked, fields=["frame.number"]) == [["2"]]
    assert tshark(path, *checked[2:], fields=["frame.number"]) == []


@needs_tshark
def test_ports_outside_the_preferences_are_left_alone(tmp_path: Path) -> None:
    """SwitchML's are 0xBEE0 and more, in our range: whoever captures them says so."""
    frames = [made.one(job=job) for job in (0, 5, 0xDF, 0xE0, 0xE7, 0xFF)]
    path = made.put(tmp_path, made.pcap(frames))
    for options, which in (
        ((), [0, 5, 0xDF, 0xE0, 0xE7, 0xFF]),
        (("-o", "p4reduce.ports:224"), [0, 5, 0xDF]),
        (("-o", "p4reduce.ports:0"), []),
        (("-o", f"p4reduce.first_port:{0xBEE0}", "-o", "p4reduce.ports:16"), [0, 7]),
    ):
        told = tshark(path, *options, "-Y", "p4reduce", fields=["p4reduce.job", "_ws.col.Protocol"])
        assert told == [[str(job), "p4reduce"] for job in which], options


def test_where_it_is_and_installing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    told = CliRunner().invoke(app, ["dissector"])
    assert told.exit_code == 0
    assert told.output.startswith(f"{LUA}\n")
    told = CliRunner().invoke(app, ["dissector", "--install"])
    assert told.exit_code == 0, told.output
    (copy,) = tmp_path.rglob("p4reduce.lua")
    assert copy.read_bytes() == LUA.read_bytes()
    if TSHARK is not None:
        path = made.put(tmp_path, made.pcap([made.one()]))
        assert tshark(path, fields=["p4reduce.tensor"], home=tmp_path) == [["5"]]
