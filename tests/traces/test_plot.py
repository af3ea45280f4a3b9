# SPDX-License-Identifier: Apache-2.0
"""Pictures: which files there are, and what is said where none can be drawn. People look at them."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from tests.traces.test_explain import Made, N
from traces import plot
from traces.cli import app
from traces.errors import FilterError, PlotError

GOLDEN = Path(__file__).with_name("fixtures")


def two_jobs(folder: Path) -> Path:
    one, two = Made(job=3), Made(job=4)
    for chunk in range(6):
        one.chunk(chunk, [chunk * 1.0] * N, lost_down=[1])
        two.chunk(chunk, [chunk * 2.0] * N)
    one.capture.packets += two.capture.packets
    return one.capture.write(folder, memberships=False)


def words(path: Path) -> str:
    """The texts of an SVG; matplotlib keeps them in comments."""
    assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")
    return path.read_text()


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said = CliRunner().invoke(
        app,
        [
            "plot",
            str(two_jobs(tmp_path / "caps")),
            "--out",
            str(tmp_path / "out"),
            "--format",
            "svg",
            "--job",
            "3",
        ],
    )
    assert said.exit_code == 0, said.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(["links.svg", *(f"job3-{panel}.svg" for panel in plot.PANELS)])
    assert "note: job 3, epoch 1 of 1, guessed" in said.output
    told = words(tmp_path / "out" / "job3-waterfall.svg")
    assert "members guessed" in told
    assert "time from chunk 0's first contribution on" in told


def test_one_file_of_one_job(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "all.png"
    run = CliRunner().invoke(app, ["plot", str(GOLDEN / "embedded"), "--out", str(out), "--job", "two"])
    assert run.exit_code == 0, run.output
    assert out.read_bytes().startswith(b"\x89PNG")
    caps = two_jobs(tmp_path / "caps")
    run = CliRunner().invoke(app, ["plot", str(caps), "--out", str(out)])
    assert isinstance(run.exception, FilterError)
    assert "--job (3, 4)" in str(run.exception)
    (tmp_path / "file").touch()
    run = CliRunner().invoke(app, ["plot", str(GOLDEN / "embedded"), "--out", str(tmp_path / "file")])
    assert isinstance(run.exception, PlotError)
    assert "cannot be written" in str(run.exception)
    assert isinstance(CliRunner().invoke(app, ["plot", str(caps)]).exception, FilterError)
    run = CliRunner().invoke(app, ["plot", str(caps), "--out", str(tmp_path / "a.gif"), "--job", "3"])
    assert isinstance(run.exception, PlotError)
    assert ".png or .svg" in str(run.exception)


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        plot, "find_spec", lambda name: None if name == "matplotlib" else util.find_spec(name)
    )
    run = CliRunner().invoke(app, ["plot", str(GOLDEN / "bmv2"), "--out", str(tmp_path / "out")])
    assert isinstance(run.exception, PlotError)
    assert ".venv/bin/pip install -e '.[plots]'" in str(run.exception)
    assert not (tmp_path / "out").exists()
