# SPDX-License-Identifier: Apache-2.0
"""Pictures of `bench allreduce`: which cells are in which panel, and that files are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.allreduce import plots
from bench.allreduce.cells import Cell, Place
from bench.allreduce.group import Figures
from bench.allreduce.run import Outcome, Result
from bench.errors import MissingError

WORKERS, SIZE, LOSS = plots.AXES


def result(workers: int = 4, link: float | None = 100.0, nbytes: int = 1 << 20, loss: float = 0.0) -> Result:
    figures = Figures((0.1 * workers,))
    by: dict[str, Figures | str] = {"p4reduce": figures, "gloo": figures}
    return Result(Cell(Place("embedded", workers, link), "float32", nbytes, loss), 256, 256, 64, by)


def test_a_panel_has_cells_that_differ_in_its_axis_alone() -> None:
    results = [
        result(2),
        result(8),
        result(4),
        result(4, nbytes=4096),
        result(4, link=None),
        result(4, loss=0.01),
    ]
    (panel,) = plots.panels_of(results, WORKERS).items()
    assert panel[0] == ("embedded", 100.0)
    assert [r.cell.place.workers for r in panel[1]] == [2, 4, 8]
    (panel,) = plots.panels_of(results, SIZE).items()
    assert [r.cell.nbytes for r in panel[1]] == [4096, 1 << 20]
    (panel,) = plots.panels_of(results, LOSS).items()
    assert [r.cell.loss for r in panel[1]] == [0.0, 0.01]
    skipped = [Result(r.cell, 256, 0, 0, {"p4reduce": "why"}) for r in results]
    assert plots.panels_of(skipped, WORKERS) == {}


def test_files_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = Outcome(
        [result(2), result(4), result(2, link=None), result(4, link=None), result(4, nbytes=4096)]
    )
    assert [path.name for path in plots.draw(outcome, tmp_path)] == ["workers.png", "size.png"]
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match="matplotlib is not installed"):
        plots.check()
