# SPDX-License-Identifier: Apache-2.0
"""The life of a chunk and of a slot, of a run whose packets come when the test says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.traces.captures import START
from tests.traces.test_explain import MS, Made
from traces.cli import app
from traces.errors import FilterError
from traces.ladder import Event, cells, columns, life


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Chunk 1: rank 1's first contribution is lost on the link, rank 2's result too."""
    run = Made(window=4)
    run.chunk(0, [0.0, 0.0, 0.0])
    run.chunk(1, [1.0, 1.15, 1.22], lost_up=[1], lost_down=[2])
    for chunk in range(2, 6):
        run.chunk(chunk, [20.0 + chunk] * 3)
    return run.capture.write(tmp_path)


def told(events: list[Event]) -> list[tuple[float, str, str, str]]:
    return [(round((each.time - START) / MS, 3), each.end, each.what, each.verdict) for each in events]


def test_a_chunk_over_all_links(folder: Path) -> None:
    found = life([folder], "job", chunk=range(1, 2))
    assert found.more == 0
    assert told(found.events) == [
        (1.0, "h1-s1", "contribution", ""),
        (1.1, "s1-h1", "contribution", "absorbed"),
        (1.15, "h2-s1", "contribution", ""),
        (1.22, "h3-s1", "contribution", ""),
        (1.32, "s1-h3", "contribution", "absorbed"),
        (6.15, "h2-s1", "contribution", ""),
        (6.25, "s1-h2", "contribution", "completed"),
        (6.26, "s1-h1", "result", ""),
        (6.26, "s1-h2", "result", ""),
        (6.26, "s1-h3", "result", ""),
        (6.36, "h1-s1", "result", ""),
        (6.36, "h2-s1", "result", ""),
        (11.36, "h3-s1", "contribution", ""),
        (11.46, "s1-h3", "contribution", "replayed"),
        (11.47, "s1-h3", "result", "result again"),
        (11.57, "h3-s1", "result", ""),
    ]
    assert [each.time for each in found.events if each.again] == [
        START + round(time * MS) for time in (6.15, 11.36, 11.46)
    ]
    assert columns(found.events) == ["h1", "h2", "h3", "s1"]
    assert cells(found.events[0], "1") == {"h1": "1 sent"}
    assert cells(found.events[1], "1") == {"h1": "1 -->", "s1": "absorbed"}
    assert cells(found.events[13], "1") == {"h3": "1 again -->", "s1": "replayed"}


def test_a_slot_through_its_chunks(folder: Path) -> None:
    found = life([folder], "3", slot=range(1, 2))
    assert {(each.chunk, each.version) for each in found.events} == {(1, 0), (5, 1)}
    few = life([folder], "3", slot=range(1, 2), most=5)
    assert few.events == found.events[:5]
    assert few.more == len(found.events) - 5


def test_the_switches_ends_alone(folder: Path) -> None:
    files = sorted(folder.glob("s1-*.pcapng"))
    found = life(files, "job", chunk=range(1, 2))
    assert len(found.events) == 8
    assert [each.verdict for each in found.events if each.what == "contribution"] == [
        *("absorbed", "absorbed", "completed", "replayed")
    ]


def test_the_commands(folder: Path) -> None:
    run = CliRunner().invoke(app, ["chunk", "job", "1", str(folder)])
    assert run.exit_code == 0, run.output
    assert len([line for line in run.output.splitlines() if "pcapng #" in line]) == 16
    run = CliRunner().invoke(app, ["slot", "job", "1", str(folder), "--json", "--rows", "3"])
    answer = json.loads(run.output)
    assert len(answer["events"]) == 3
    assert answer["more"] > 0
    for words, why in (
        (["chunk", "3", "99"], "chunk 99 of job 3: these captures have no packet of it: .* chunks 0 to 5"),
        (
            ["slot", "3", "7-9", "--json"],
            "slot 7-9 of job 3: .* no packet of it: the job's are of slots 0 to 3",
        ),
        (["chunk", "4", "0"], "chunk 0 of job 4: these captures have no packet of the job"),
    ):
        refused = CliRunner().invoke(app, [*words, str(folder)])
        assert (type(refused.exception), refused.output) == (FilterError, "")
        assert re.search(why, str(refused.exception))
    with pytest.raises(FilterError, match="the captures know job"):
        life([folder], "other", chunk=range(1, 2))
