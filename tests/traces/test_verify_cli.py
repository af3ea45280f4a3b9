# SPDX-License-Identifier: Apache-2.0
"""The command, and the golden captures of both targets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from switch.device import SwitchDevice
from tests.traces.captures import Capture
from tests.traces.test_verify_planted import W, wrong_sum
from tests.traces.worlds import captured_run
from traces.cli import app
from traces.members import FILE
from traces.verify_findings import Rule

FIXTURES = Path(__file__).with_name("fixtures")


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


@pytest.fixture
def capture(device: SwitchDevice) -> Capture:
    return captured_run(device, window=W, loss=0.1)


def test_exit_codes(capture: Capture, tmp_path: Path) -> None:
    good = capture.write(tmp_path / "good")
    run = verify(good)
    assert run.exit_code == 0, run.output
    assert f"no violation in {len(capture.packets)} packets" in run.output
    wrong_sum(capture)
    bad = capture.write(tmp_path / "bad")
    run = verify(bad)
    assert run.exit_code == 1
    (line,) = [line for line in run.output.splitlines() if line.startswith("sum: ")]
    assert "protocol.md, The slot's state machine" in line
    assert "h1-s1.pcapng #" in line
    assert verify(tmp_path / "nothing").exit_code == 2


def test_json(capture: Capture, tmp_path: Path) -> None:
    wrong_sum(capture)
    run = verify(capture.write(tmp_path), "--json", "--first", 0)
    told = json.loads(run.output)
    assert run.exit_code == 1
    assert (told["conforms"], told["violations"], told["by_rule"]) == (False, 1, {"sum": 1})
    assert (told["first"], told["error"]) == ([], None)
    (first,) = json.loads(verify(tmp_path, "--json").output)["first"]
    assert (first["rule"], first["job"], first["epoch"]) == ("sum", 3, capture.epochs[0].epoch)
    assert set(first["packets"][0]) == {"file", "number"}


def test_what_was_readable_is_judged(capture: Capture, tmp_path: Path) -> None:
    wrong_sum(capture)
    folder = capture.write(tmp_path)
    path = folder / "s1-h3.pcapng"
    path.write_bytes(path.read_bytes()[:-300])
    run = verify(folder)
    assert run.exit_code == 2
    assert "sum: " in run.output
    assert "error: " in run.output
    assert "s1-h3.pcapng" in run.output


def test_memberships_that_cannot_be_read(capture: Capture, tmp_path: Path) -> None:
    folder = capture.write(tmp_path)
    (folder / FILE).write_text("{}")
    run = verify(folder)
    assert run.exit_code == 2
    assert FILE in run.output


@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_golden_captures_conform(target: str) -> None:
    """Recorded while the switch dropped, duplicated and corrupted."""
    run = verify(FIXTURES / target, "--duplicates", "--json")
    told = json.loads(run.output)
    assert (run.exit_code, told["conforms"]) == (0, True)
    # Of 32 chunks each (docs beside them), one epoch ends and one begins among them.
    assert told["checked"]["sums"] >= 22
    assert not [why for why in told["unchecked"] if "gap" in why or "not told" in why]
    files = verify(*sorted((FIXTURES / target).glob("*.pcapng")), "--duplicates")
    assert files.exit_code == 0
    assert "say --duplicates" in verify(FIXTURES / target).output


def test_memberships_tell_of_duplicates(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "embedded", tmp_path / "caps"))
    assert verify(folder).exit_code == 1
    told = json.loads((folder / FILE).read_text())
    for epoch in told["epochs"]:
        epoch["duplicates"] = True
    (folder / FILE).write_text(json.dumps(told))
    assert verify(folder).exit_code == 0


def test_the_pages_have_all_rules() -> None:
    docs = Path(__file__).parents[2] / "docs"
    headings = {
        line[3:] for line in (docs / "protocol.md").read_text().splitlines() if line.startswith("## ")
    }
    page = (docs / "traces.md").read_text()
    table = page[page.index("| rule |") : page.index("- Packets with a wrong UDP checksum")]
    named = {
        name.strip() for line in table.splitlines() if line for name in line.split("|")[1].split(",")[:3]
    }
    for rule in Rule:
        assert rule.section in headings
        assert rule.value in named
