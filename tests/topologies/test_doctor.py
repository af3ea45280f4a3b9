# SPDX-License-Identifier: Apache-2.0
"""`net doctor`: each lack is found, and told with its remedy."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli import app
from topologies import doctor, preflight
from topologies.doctor import BAD, LACKS, OK, Finding
from topologies.record import new_record
from topologies.spec import star


def by_what(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.what, []).append(finding)
    return found


def test_missing_commands_are_told_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    found = by_what(doctor.examine(tmp_path / "none", said.append))
    assert {finding.state for finding in found["commands"]} == {BAD}
    assert any("apt-get install --no-install-recommends mininet" in f.text for f in found["commands"])
    assert [f.state for f in found["tshark"]] == [LACKS]
    assert "apt-get install tshark" in found["tshark"][0].text
    assert found["kernel"][0].state == LACKS
    assert found["C compiler"][0].state == BAD
    assert len(said) == sum(map(len, found.values()))
    assert any(line.startswith("BAD    commands: mnexec is missing") for line in said)


def test_a_bmv2_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "simple_switch_grpc"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for script, told in (
        ("#!/bin/sh\necho libboost.so is missing >&2; exit 127", "(libboost.so is missing): install"),
        ("#!/nonexistent/sh", "No such file"),
        ("#!/bin/sh\necho 1.15.0", "simple_switch_grpc 1.15.0"),
    ):
        program.write_text(script + "\n")
        program.chmod(0o755)
        (found,) = by_what(list(doctor._targets()))["bmv2"]
        assert (found.state == OK) == (told == "simple_switch_grpc 1.15.0")
        assert told in found.text


def test_stale_state_is_found_by_its_record(tmp_path: Path) -> None:
    record = new_record("gone", star(1), target="embedded", elements=64, slots=1, root=tmp_path)
    replace(record, owner=replace(record.owner, start=0)).claim()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/net.json").write_text("{")
    dead, living = 1 << 23, os.getpid()  # more than the kernel counts to
    for draft in (f".old.removed.{dead}", f".new.{dead}", f".now.removed.{living}"):
        (tmp_path / draft).mkdir()
    found = by_what(list(doctor._networks(tmp_path)))
    assert [(f.state, "net down --net gone" in f.text) for f in found["network gone"]] == [(BAD, True)]
    assert [f.state for f in found["network odd"]] == [BAD]
    stale = [finding.text.partition(": rm -r ")[2] for finding in found["stale state"]]
    assert stale == [f"{tmp_path}/.new.{dead}", f"{tmp_path}/.old.removed.{dead}"]


def test_a_kernel_without_netem_is_told_who_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "root_problems", list)
    monkeypatch.setattr(preflight, "veth_problems", list)
    monkeypatch.setattr(preflight, "qdiscs", lambda: ("tbf",))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(doctor, "_packets", lambda: iter(()))
    found = by_what(list(doctor._kernel()))
    assert [found[name][0].state for name in ("htb", "tbf", "netem")] == [LACKS, OK, LACKS]
    assert "made by the switch instead: modprobe sch_netem" in found["netem"][0].text


@pytest.mark.root
def test_a_packet_comes_through() -> None:
    found = by_what(list(doctor._packets()))
    assert found["self-test packet"] == [
        Finding("self-test packet", OK, "sent over a veth pair, taken by a packet socket")
    ]
    assert not Path("/sys/class/net/probe0").exists()


def test_the_exit_code_tells_of_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, code in ((OK, 0), (LACKS, 0), (BAD, 1)):
        findings = [Finding("x", state, "y")]
        monkeypatch.setattr(doctor, "examine", lambda say, findings=findings: findings)
        done = CliRunner().invoke(app, ["net", "doctor", "--json"])
        assert done.exit_code == code
        assert json.loads(done.output) == [{"what": "x", "state": state, "text": "y"}]


def test_the_last_line_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for states, last in (
        ([OK], "0 problems, 0 warnings"),
        ([LACKS], "0 problems, 1 warning (networks run all the same)"),
        ([BAD, LACKS, LACKS], "1 problem, 2 warnings"),
    ):
        findings = [Finding("x", state, "y") for state in states]
        monkeypatch.setattr(doctor, "examine", lambda say, findings=findings: findings)
        assert CliRunner().invoke(app, ["net", "doctor"]).output == f"{last}\n"
