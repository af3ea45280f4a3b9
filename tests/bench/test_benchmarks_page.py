# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md: its commands choose cells, its columns are those of the tables, its figures follow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.allreduce import report
from bench.allreduce.cells import Cell
from bench.allreduce.data import PERIOD
from bench.allreduce.group import Figures
from bench.allreduce.run import Outcome, Run
from tests.bench.test_allreduce import COUNTS, cell, invoke, result
from topologies.record import new_record
from topologies.spec import star
from topologies.targets import Bmv2Target, EmbeddedTarget

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^p4reduce (bench allreduce[^#\n]*)", PAGE, re.MULTILINE))
def test_the_page_s_commands_choose_cells(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: list[Cell] = []
    monkeypatch.chdir(tmp_path)
    for kind in (EmbeddedTarget, Bmv2Target):
        monkeypatch.setattr(kind, "missing", lambda self: None)
    monkeypatch.setattr(Run, "all", lambda self, cells, running: chosen.extend(cells))
    monkeypatch.setattr("bench.allreduce.plots.check", lambda: None)
    monkeypatch.setattr(
        "topologies.record.load",
        lambda name: new_record(name, star(3), target="bmv2", elements=64, slots=1024, root=tmp_path),
    )
    done = invoke(*line.split())
    assert done.exit_code == 0, done.output
    wanted = {"--workers 2,8": 2 * 2 * 2 * 2 * 2 * 2, "--workers 2,4,8,16": 4 * 2 * 2, "--net": 2}
    for option, count in wanted.items():
        if f"{option} " in line:
            assert len(chosen) == count
    assert chosen


def test_the_page_explains_every_column_and_its_figures_follow_from_the_formulas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for link in (None, 100.0):
        small = cell(nbytes=4096, link=link)
        report.print_all(
            Outcome([result(Figures((1.0,), COUNTS, (0.001, 0.002)), small)], {small.place: 1.0}),
            lambda _: None,
        )
    heads = {head.strip() for line in capsys.readouterr().out.splitlines() for head in line.split("┃")[1:-1]}
    known = {
        "dtype",
        "loss",
        "size",
        "workers",
        "target",
        "links",
        "all-reduce",
        "µs",
        "ping-pong µs",
        "Gloo µs",
    }
    for head in heads - known:
        assert head in PAGE, head
    for elements, share in ((256, "95.2 %"), (64, "83.1 %")):
        assert share == f"{100 * 4 * elements / (52 + 4 * elements):.1f} %"
        assert share in PAGE
    rates = ", ".join(f"{100 * n / (2 * (n - 1)):.0f}" for n in (2, 4, 8, 16))
    assert f"{rates} Mbit/s at 2, 4, 8, 16 workers" in PAGE
    assert f"{PERIOD:,} values" in PAGE
