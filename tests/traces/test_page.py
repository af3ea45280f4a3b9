# SPDX-License-Identifier: Apache-2.0
"""The page to zoom into: its data are the packets', it is bounded, and it needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from switch.device import SwitchDevice
from tests.traces import made
from tests.traces.worlds import captured_run
from traces import page
from traces.cli import app
from traces.errors import TraceFileError
from traces.files import expand, merged
from traces.table import Category, concat

GOLDEN = Path(__file__).with_name("fixtures")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def drawn(out: Path, *files: Path) -> str:
    run = CliRunner().invoke(app, ["plot", *map(str, files), "--html", str(out)])
    assert run.exit_code == 0, run.output
    return out.read_text()


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of each time that the captures are read; what is no terminal shows nothing of it."""
    words = ["plot", str(GOLDEN / "embedded"), "--html", str(tmp_path / "page.html")]
    run = CliRunner().invoke(app, words)
    assert (run.exit_code, run.stderr) == (0, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for one,
    monkeypatch.setenv("TERM", "xterm")  # and not for a dumb one
    run = CliRunner().invoke(app, words)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run.stderr)
    assert re.search(r"reading +━+ +100%", shown)
    assert re.search(r"packets of the page +━+ +100%", shown)
    assert run.stdout == f"{tmp_path / 'page.html'}\n"


def data(text: str) -> dict[str, Any]:
    (told,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_each_packet_is_there_in_field_terms(target: str, tmp_path: Path) -> None:
    text = drawn(tmp_path / "page.html", GOLDEN / target)
    found, table = data(text), concat(list(merged(expand([GOLDEN / target]))))
    packets = found["packets"]
    assert (found["stride"], found["shown"], found["seen"]) == (1, len(table), len(table))
    assert packets["t"] == (table.time - table.time[0]).tolist()
    ours = table.category != Category.OTHER
    for name in ("chunk", "slot", "version", "tensor", "flag", "e0", "e1"):
        told = [value for value, is_ours in zip(packets[name], ours, strict=True) if is_ours]
        assert told == getattr(table, name)[ours].tolist()
    kinds = Counter(found["kinds"][kind] for kind in packets["kind"])
    assert kinds["other"] == (~ours).sum()
    assert kinds["sent again"] > 0
    # Each chunk is in one slot; of 30 chunks all have their result.
    (slots,) = found["slots"]
    assert slots["label"] == found["occupancy"][0]["label"] == "two, s1"
    assert sorted(life[2] for life in slots["lives"]) == list(range(30))
    assert all(begin < end for *_, begin, end in slots["lives"])
    assert not re.search(r"\b(src|href|url|import|fetch)\b\s*[=(]|https?:", text)


def test_a_long_capture_is_thinned_by_whole_chunks(
    device: SwitchDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = captured_run(device, seed=2, loss=0.1, calls=6).write(tmp_path / "caps")
    table = concat(list(merged(expand([folder]))))
    monkeypatch.setattr(page, "MOST_PACKETS", len(table) // 3)
    found = data(drawn(tmp_path / "page.html", folder))
    assert found["stride"] in (4, 8)
    assert found["seen"] == len(table)
    kept = table.chunk[table.chunk % found["stride"] == 0]
    assert Counter(found["packets"]["chunk"]) == Counter(kept.tolist())
    assert found["shown"] == len(kept) <= len(table) // 3


def test_what_is_seen_at_both_ends_is_not_sent_again(device: SwitchDevice, tmp_path: Path) -> None:
    capture = captured_run(device, seed=2, loss=0.05)
    often = Counter((e.end, e.parsed().msg_type, e.parsed().chunk) for e in capture.packets)
    expected = Counter({"contribution": 0, "sent again": 0, "result": 0, "result again": 0})
    for (_, kind, _), many in often.items():
        first, again = ("contribution", "sent again") if kind == 1 else ("result", "result again")
        expected += Counter({first: 1, again: many - 1})
    for memberships in (True, False):
        folder = capture.write(tmp_path / str(memberships), memberships=memberships)
        found = data(drawn(tmp_path / "page.html", folder))
        assert Counter(found["kinds"][kind] for kind in found["packets"]["kind"]) == expected


def test_of_a_file_that_breaks_off_it_shows_what_was_readable(tmp_path: Path) -> None:
    whole = (GOLDEN / "bmv2" / "s1-h1.pcapng").read_bytes()
    path, out = tmp_path / "s1-h1.pcapng", tmp_path / "page.html"
    path.write_bytes(whole[: len(whole) // 2])
    run = CliRunner().invoke(app, ["plot", str(path), "--html", str(out)])
    assert isinstance(run.exception, TraceFileError)
    assert "breaks off" in str(run.exception)
    assert data(out.read_text())["seen"] == run.exception.number - 1  # type: ignore[operator]


def test_names_in_files_do_not_get_out_of_the_data(tmp_path: Path) -> None:
    name = made.option(2, b"</script><script>alert(1)</script>")
    parts = made.section() + made.interface(name) + made.enhanced(made.one(), 0)
    text = drawn(tmp_path / "page.html", made.put(tmp_path, parts, "odd.pcapng"))
    assert "alert(1)<" not in text
    assert "</script><script>alert(1)</script>" in data(text)["words"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to run the page in (apt install chromium)")
def test_the_page_runs(tmp_path: Path) -> None:
    drawn(tmp_path / "page.html", GOLDEN / "bmv2")
    assert CHROMIUM is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [CHROMIUM, *options, (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert '<h1 id="title">job 0 (two), n = 2, W = 8 then 6' in done.stdout, done.stderr
    assert "contribution (64)" in done.stdout
    # The view has its size: all was drawn.
    assert re.search(r'<canvas id="view"[^>]* style="width: \d+px; height: \d{3,}px;"', done.stdout)
