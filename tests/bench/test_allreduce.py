# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce`: options, what it reports, what it verifies, and that it leaves nothing."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bench.allreduce import gloo, options, report, serve
from bench.allreduce.bounds import packets, ring_mbit, switch_mbit
from bench.allreduce.cells import Cell, Place, by_place, cells_of, default_cells, quick_cells
from bench.allreduce.data import PERIOD, Sum, data, period
from bench.allreduce.group import Figures, Group, SkippedError
from bench.allreduce.run import Outcome, Result, Run, words_of_size
from bench.errors import WrongSumError
from controller.cli import app
from topologies import jobs, manager
from topologies import record as records
from topologies.errors import NetworkError
from topologies.record import NetRecord, new_record
from topologies.spec import star
from topologies.targets import Target

TINY = ["bench", "allreduce", "--elements", "64", "--sizes", "2KiB", "--peers", "none", "--json", "-"]
MIB = 1 << 20
COUNTS = {
    "packets_sent": 20,
    "retransmissions": 1,
    "seconds": 0.5,
    "packet_seconds": 12.0,
    "limited_seconds": 0.125,
}


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def cell(dtype: str = "int32", nbytes: int = MIB, workers: int = 4, link: float | None = 100.0) -> Cell:
    return Cell(Place("embedded", workers, link), dtype, nbytes)


def result(ours: Figures | str, of: Cell | None = None, **others: Figures | str) -> Result:
    return Result(of or cell(), 256, 256, 64, {"p4reduce": ours, **others})


# ---- figures


def test_goodput_is_that_of_the_median_and_ratios_are_to_what_the_same_run_measured() -> None:
    of = cell(nbytes=1_000_000)
    found = result(Figures((0.5, 0.2, 0.3)), of, gloo=Figures((0.6,)))
    assert found.mbit_per_s() == pytest.approx(8 / 0.3)
    assert found.mbit_per_s("gloo") == pytest.approx(8 / 0.6)
    outcome = Outcome([found], {of.place: 0.1}, {("int32", 4, 1_000_000): 0.003})
    ratios = report.ratios(found, outcome)
    # N = ceil(1,000,000 / 1024) chunks and one header packet; 131,072 bytes pass at once.
    assert ratios["bound"] == pytest.approx(8 / 0.3 / (100 * 1e6 / ((977 + 1) * 1076 - 131_072)))
    assert ratios["ring"] == pytest.approx(8 / 0.3 / (100 * 1e6 / (1.5e6 - 131_072)))
    assert ratios["gloo"] == pytest.approx(2.0)
    assert ratios["numpy"] == pytest.approx(0.01)
    assert ratios["pingpong"] == pytest.approx(3.0)
    assert report.ratios(result("skipped", of), outcome) == {}


def test_packets_are_headers_chunks_and_what_goes_ahead_for_floats() -> None:
    # ceil(4n / elements) + N (+ min(lead, N) for floats), protocol.md
    assert packets(cell("int32", 4 * MIB, workers=2), 256, 64) == 1 + 4096
    assert packets(cell("float32", 4 * MIB, workers=64), 64, 16) == 4 + 16384 + 16
    assert packets(cell("float32", 4, workers=2), 64, 16) == 1 + 1 + 1


def test_large_arrays_get_the_share_of_the_link_that_headers_leave() -> None:
    huge = cell("int32", 1 << 40)
    assert switch_mbit(huge, 256, 64) == pytest.approx(100 * 1024 / (52 + 1024), rel=1e-5)
    assert ring_mbit(huge) == pytest.approx(100 / 1.5, rel=1e-5)
    for bound in (
        switch_mbit(cell(link=None), 256, 64),
        ring_mbit(cell(link=None)),
        ring_mbit(cell(workers=1)),
    ):
        assert bound is None
    assert switch_mbit(cell(nbytes=4096), 256, 64) is None  # it passes at once


def test_a_skipped_cell_says_why_in_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome([result("too slow", gloo=Figures((1.0,)))], absent={"bmv2": "not here"})
    lines: list[str] = []
    report.print_all(outcome, lines.append)
    assert lines[0] == "not measured: embedded, 100 Mbit/s, 4 workers, 1 MiB int32, p4reduce: too slow"
    assert lines[1] == "bmv2 was not measured: not here"
    assert "8.4" in capsys.readouterr().out  # Gloo's 2^20 bytes a second
    (tree,) = report.tree(outcome)["cells"]
    assert tree["ways"]["p4reduce"] == {"skipped": "too slow"}
    assert tree["ways"]["gloo"]["mbit_per_s"] == pytest.approx(8 * MIB / 1e6)


# ---- sums


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("size", [100, PERIOD + 100])
def test_only_numpys_sum_is_accepted(n: int, size: int) -> None:
    exact = np.sum([data("int32", rank, size).astype(object) for rank in range(n)], axis=0)
    wrapped = ((exact + 2**31) % 2**32 - 2**31).astype(np.int32)
    assert Sum("int32", n, quantized=True).is_it(wrapped)
    wrapped[-1] ^= 1
    assert not Sum("int32", n, quantized=True).is_it(wrapped)
    floats = np.sum([data("float32", rank, size).astype(np.float64) for rank in range(n)], axis=0)
    for quantized in (True, False):
        good = floats.astype(np.float32)
        assert Sum("float32", n, quantized=quantized).is_it(good)
        good[size // 2] += 1e-4
        assert not Sum("float32", n, quantized=quantized).is_it(good)


def test_ranks_contribute_their_period_again_and_again() -> None:
    mine = data("float32", 2, 2 * PERIOD + 5)
    assert np.array_equal(mine[:PERIOD], period("float32", 2))
    assert np.array_equal(mine[PERIOD:], np.concatenate([mine[:PERIOD], mine[:5]]))
    assert not np.array_equal(mine[:100], data("float32", 3, 100))


class Alone:
    """A collective of one rank, which adds `error` to the last value of its third result."""

    quantized = True

    def __init__(self, error: int = 0) -> None:
        self.error, self.calls, self.barriers = error, 0, 0

    def load(self, mine: Any, out: Any) -> None:
        pass

    def reduce(self, mine: Any, out: Any) -> None:
        self.calls += 1
        out[:] = mine
        out[-1] += self.error if self.calls == 3 else 0

    def barrier(self) -> None:
        self.barriers += 1

    def counts(self) -> dict[str, float]:
        return {"packets_sent": 10 * self.calls, "retransmissions": self.calls}

    def trips(self) -> dict[str, float | None]:
        return {"p50": 0.5}


@pytest.mark.parametrize(("nbytes", "barriers"), [(4096, 1), (2 * MIB, 5)], ids=["series", "one by one"])
def test_a_rank_answers_with_every_call_and_counts_wrong_results(
    nbytes: int, barriers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = json.dumps({"dtype": "int32", "size": nbytes // 4, "calls": 5})
    for error in (0, 1):
        monkeypatch.setattr(sys, "stdin", io.StringIO(asked + "\n"))
        collective = Alone(error)
        serve.serve(collective, 0, 1)
        answer = json.loads(capsys.readouterr().out)
        assert len(answer["seconds"]) == len(answer["crc"]) == 5
        assert answer["counts"] == {"packets_sent": 50, "retransmissions": 5}
        assert answer["trips"] == {"p50": 0.5}
        assert answer["wrong"] == error
        assert len(set(answer["crc"])) == 1 + error
        assert collective.barriers == barriers
        assert answer["series"] == (barriers == 1)


class Scripted(Group):
    """Ranks that answer what a test says."""

    kind = "p4reduce"
    exact_alike = True

    def __init__(self, record: NetRecord, answers: list[dict[str, Any]]) -> None:
        super().__init__(record, ["h1", "h2"])
        self._answers = answers
        self.asked: list[int] = []

    def start(self) -> None:
        self._ranks = self  # type: ignore[assignment]

    def tell(self, **fields: Any) -> None:
        self.asked.append(fields["calls"])

    def answers(self, limit_s: float) -> list[dict[str, Any]]:
        return [
            {**a, "seconds": a["seconds"] * self.asked[-1], "crc": a["crc"] * self.asked[-1]}
            for a in self._answers
        ]


def answer(seconds: float = 0.1, crc: int = 7, wrong: int = 0, series: bool = False) -> dict[str, Any]:
    told = {"seconds": [seconds], "crc": [crc], "wrong": wrong, "series": series}
    return {**told, "counts": COUNTS, "trips": {"p50": seconds / 100, "p99": seconds / 10}}


@pytest.fixture
def record(tmp_path: Path) -> NetRecord:
    return new_record("bench-x", star(2), target="embedded", elements=64, slots=1024, root=tmp_path)


def test_the_first_all_reduce_decides_how_many_follow(record: NetRecord) -> None:
    group = Scripted(record, [answer(0.1), answer(0.2)])
    found = group.measure(cell(), 1.0, 0.0)
    assert group.asked == [1, 5]  # 1 s of 0.2 s each
    assert found == Figures((0.2,) * 5, {name: 2 * count for name, count in COUNTS.items()}, (0.0015, 0.02))
    assert (found.resent, found.in_flight, found.limited) == (0.05, 24.0, 0.25)
    series = Scripted(record, [answer(0.1, series=True), answer(0.2, series=True)])
    assert series.measure(cell(), 0.0, 0.0).median == pytest.approx(0.15)
    assert series.asked == [1, 3]  # three at least


def test_what_would_take_too_long_is_not_begun(record: NetRecord) -> None:
    group = Scripted(record, [answer(1.0), answer(1.0)])
    with pytest.raises(SkippedError) as caught:
        group.measure(cell(), 1.0, 13.0)  # the least that the link allows
    assert caught.value.why == "one would take 13 s"
    group.measure(cell(), 1.0, 0.0)
    with pytest.raises(SkippedError, match="one would take 16 s"):
        group.measure(cell(nbytes=16 * MIB), 1.0, 0.0)
    assert len(group.asked) == 2


def test_wrong_sums_end_the_run(record: NetRecord) -> None:
    with pytest.raises(WrongSumError, match=r"some are not numpy's sum \(by rank: {1: 2}\)"):
        Scripted(record, [answer(), answer(wrong=2)]).measure(cell(), 1.0, 0.0)
    with pytest.raises(WrongSumError, match="have not the same bits on every rank"):
        Scripted(record, [answer(), answer(crc=8)]).measure(cell(), 1.0, 0.0)


# ---- choices


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4", 4), ("65536", 65536), ("256KiB", 262144), ("4MiB", 4 << 20), ("1 GiB", 1 << 30)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert options.nbytes("--sizes", text) == nbytes
    assert options.nbytes("--sizes", words_of_size(nbytes)) == nbytes


def test_links_and_losses_are_read() -> None:
    assert options.words("--links", "10mbit,1gbit,unshaped", options.link) == [10.0, 1000.0, None]
    assert options.words("--loss", "0,0.01%,5", options.loss) == [0.0, 0.0001, 0.05]
    assert options.peers("--peers", "none") == []
    assert options.peers("--peers", "numpy,gloo") == ["numpy", "gloo"]
    with pytest.raises(typer.BadParameter, match="names one thing twice"):
        options.words("--links", "1000mbit,1gbit", options.link)


@pytest.mark.parametrize(
    "words",
    [
        ["--sizes", "0"],
        ["--sizes", "4KiB,6"],
        ["--sizes", "4MB"],
        ["--sizes", "much"],
        ["--dtypes", "float64"],
        ["--dtypes", "int32,int32"],
        ["--workers", "0"],
        ["--workers", "2,65"],
        ["--links", "100"],
        ["--links", "0mbit"],
        ["--loss", "60%"],
        ["--loss", "some"],
        ["--targets", "tofino"],
        ["--peers", "nccl"],
        ["--quick", "--workers", "2"],
        ["--json", "/nowhere/at/all.json"],
    ],
    ids=" ".join,
)
def test_bad_options_are_usage_errors(words: list[str]) -> None:
    assert invoke("bench", "allreduce", *words).exit_code == 2


def test_cells_of_a_place_stay_together_small_and_lossless_first() -> None:
    cells = cells_of(["embedded"], [2, 4], [None, 10.0], [8, 4], ["int32"], [0.01, 0.0])
    assert len(cells) == 16
    ordered = by_place([*cells, *cells])
    assert len(ordered) == 16
    assert [(c.loss, c.nbytes) for c in ordered[:4]] == [(0.0, 4), (0.0, 8), (0.01, 4), (0.01, 8)]
    assert len(dict.fromkeys(c.place for c in ordered)) == 4
    assert [c.place for c in ordered] == [
        p for p in dict.fromkeys(c.place for c in ordered) for _ in range(4)
    ]


def test_the_sets_have_what_they_promise() -> None:
    cells = default_cells(["embedded", "bmv2"])
    assert {c.place.workers for c in cells} == {2, 4, 8, 16}
    assert {c.place.link_mbit for c in cells} == {None, 10.0, 100.0, 1000.0}
    assert {c.loss for c in cells} == {0.0, 0.0001, 0.001, 0.01, 0.05}
    assert {c.dtype for c in cells} == {"float32", "int32"}
    assert {c.place.target for c in cells} == {"embedded", "bmv2"}
    assert min(c.nbytes for c in cells) == 4 << 10
    assert max(c.nbytes for c in cells) == 256 << 20
    assert {c.place.target for c in quick_cells(["bmv2"])} == {"bmv2"}


def test_a_run_begins_nothing_that_its_time_does_not_allow() -> None:
    said: list[str] = []
    run = Run(peers=[], budget_s=1.0, limit_s=1.0, elements=256, say=said.append, progress=lambda _: None)
    outcome = run.all([cell(), cell("float32")])
    assert [r.by for r in outcome.results] == [{"p4reduce": "the set's 1 s were over"}] * 2
    assert said == []


def test_a_network_that_does_not_come_up_costs_its_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def up(spec: Any, **_: Any) -> NetRecord:
        raise NetworkError("bench-x", "no memory" if len(spec.hosts) == 4 else "no luck")

    monkeypatch.setattr(manager, "up", up)
    run = Run(peers=[], budget_s=1.0, limit_s=None, elements=64, say=lambda _: None, progress=lambda _: None)
    outcome = run.all([cell(), cell("float32"), cell(workers=2)])
    assert [r.by["p4reduce"] for r in outcome.results] == ["bench-x: no memory"] * 2 + ["bench-x: no luck"]


def test_what_was_measured_is_shown_when_it_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_cells(self: Run, cells: Any, running: Any) -> None:
        self.outcome.results.append(result(Figures((1.0,), COUNTS, (0.001, 0.002))))
        raise SystemExit(143)

    monkeypatch.setattr(Run, "all", all_cells)
    done = invoke("bench", "allreduce", "--targets", "embedded")
    assert done.exit_code == 143
    assert "goodput a worker" in done.stdout
    assert "it ended early" in done.stderr


# ---- whole runs


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.allreduce.cli.BUDGET_S", 0.05)


@pytest.mark.root
@pytest.mark.usefixtures("short")
def test_it_measures_each_target_and_leaves_nothing(target: Target, tmp_path: Path) -> None:
    done = invoke(*TINY, "--workers", "2", "--targets", target.name, "--loss", "0,10", "--links", "100mbit")
    tree = json.loads(done.stdout)
    assert tree.keys() == {"environment", "cells", "pingpong", "absent", "notes"}
    assert [(c["target"], c["loss"], c["dtype"]) for c in tree["cells"]] == [
        (target.name, loss, dtype) for loss in (0.0, 0.1) for dtype in ("float32", "int32")
    ]
    for measured in tree["cells"]:
        assert (measured["workers"], measured["elements"], measured["bytes"]) == (2, 64, 2048)
        assert measured["link_mbit"] == 100.0
        assert measured["ways"].keys() == {"p4reduce"}
    ours = [c["ways"]["p4reduce"] for c in tree["cells"]]
    # Of 2 ranks and each call: a header packet, 8 chunks, and for floats 8 exponents ahead of them.
    plain = [(w["counts"]["packets_sent"] - w["counts"]["retransmissions"]) / w["calls"] for w in ours]
    assert plain[:2] == [2 * (1 + 8 + 8), 2 * (1 + 8)]
    assert sum(w["counts"]["retransmissions"] for w in ours[2:]) > 0
    assert not [name for name in records.names() if name.startswith("bench-")]


@pytest.mark.root
@pytest.mark.usefixtures("short")
def test_a_running_network_is_used_and_stays(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"allreduce-{os.getpid()}"
    with manager.network(star(3), name=name, target=target.name, elements=64) as record:
        # The switch runs: its program need not be found again.
        monkeypatch.setattr(type(target), "missing", lambda _: "absent")
        monkeypatch.setattr(gloo, "missing", lambda: "there is none")
        # Twice: the job is gone after the first.
        for workers in ([], ["--workers", "2"]):
            peers = ["--peers", "gloo,pingpong,numpy"] if workers else []
            done = invoke(*TINY, "--net", name, "--dtypes", "int32", *workers, *peers)
            assert done.exit_code == 0
            tree = json.loads(done.stdout)
            assert [c["workers"] for c in tree["cells"]] == [2 if workers else 3]
            assert tree["notes"] == []
        assert tree["absent"] == {"gloo": "there is none"}
        assert tree["pingpong"][0]["seconds"] > 0
        assert tree["cells"][0]["ratios"].keys() == {"numpy", "pingpong"}
        with jobs.control_of(record) as control:
            jobs.set_faults(control, jobs.switch_ends(record, ["h1"]), drop=0.3)
        done = invoke(*TINY[:-2], "--net", name, "--dtypes", "int32")
        counts = re.search(rf"network {name} has faults set: (\d+) dropped packets meanwhile\n", done.stdout)
        assert counts is not None
        assert int(counts[1]) > 0
        assert f"{target.name}, links unshaped, 64 values a packet" in done.stdout
        for words in (["--elements", "256"], ["--links", "10mbit"], ["--loss", "1"], ["--workers", "4"]):
            assert invoke("bench", "allreduce", "--net", name, *words).exit_code == 2
        assert records.load(name).dead() == []
        assert records.load(name) == record


@pytest.mark.root
@pytest.mark.usefixtures("short")
@pytest.mark.skipif(gloo.missing() is not None, reason=str(gloo.missing()))
def test_gloo_is_measured_on_the_same_links() -> None:
    words = [*TINY[:-4], "--peers", "gloo", "--json", "-", "--workers", "2", "--targets", "embedded"]
    (first, second) = json.loads(invoke(*words).stdout)["cells"]
    for measured in (first, second):
        assert measured["ways"]["gloo"]["mbit_per_s"] > 0
        assert measured["ratios"].keys() == {"gloo"}
