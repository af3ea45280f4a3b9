# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench racks`: what links must carry, what is counted, and that it tells where that differs."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.allreduce.group import Figures, SkippedError
from bench.errors import BenchError
from bench.racks import cases, counts
from bench.racks.cases import BOTH, DOWN, FLAT, LEAVES, SPINE, UP, Carried, Shape, Work
from bench.racks.counts import Reading
from bench.racks.run import (
    Case,
    Found,
    Outcome,
    RelationError,
    Run,
    check_racks,
    check_tree,
    tree_words,
    wrong_links,
)
from controller.cli import app
from topologies import record as records
from topologies.record import new_record
from topologies.targets import Bmv2Target, EmbeddedTarget, Target

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
SHAPE = Shape(leaves=3, spines=2, hosts=2, rate_mbit=100.0)
"""h1, h2 on s1; h3, h4 on s2; h5, h6 on s3; spines s4 and s5."""
FIGURES = Figures((0.2, 0.1, 0.3), {"retransmissions": 0})


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "racks", *arguments])


def node(switch: str, parent: str | None) -> dict[str, Any]:
    return {"switch": switch, "parent": parent}


TREES = {
    FLAT: [node("s1", None)],
    SPINE: [node("s5", None)],
    LEAVES: [node("s2", None), node("s1", "s2"), node("s3", "s2")],
    BOTH: [node("s4", None), node("s1", "s4"), node("s2", "s4"), node("s3", "s4")],
}
PASSES = {
    SPINE: {("s1", UP): 2, ("s1", DOWN): 2, ("s2", UP): 2, ("s2", DOWN): 2, ("s3", UP): 2, ("s3", DOWN): 2},
    LEAVES: {("s1", UP): 1, ("s1", DOWN): 1, ("s2", UP): 2, ("s2", DOWN): 2, ("s3", UP): 1, ("s3", DOWN): 1},
    BOTH: {("s1", UP): 1, ("s1", DOWN): 1, ("s2", UP): 1, ("s2", DOWN): 1, ("s3", UP): 1, ("s3", DOWN): 1},
    FLAT: {},
}
"""Packets of a chunk on the uplinks of each leaf, with TREES: worked out by hand."""


def right(layout: str, packets: int = 10, size: int = 100) -> dict[tuple[str, str], Carried]:
    """What links carry, counted from PASSES."""
    rack = "1" if layout == FLAT else ""
    links = {
        (f"h{host}-s{rack or (host + 1) // 2}", way): (packets, packets * size)
        for host in range(1, 7)
        for way in (UP, DOWN)
    }
    for (leaf, way), passes in PASSES[layout].items():
        links[f"{leaf}-s4", way] = (passes * packets, passes * packets * size)
        links[f"{leaf}-s5", way] = (0, 0)
    return links


def found(layout: str, ratio: float | None, links: dict[tuple[str, str], Carried]) -> Found:
    return Found(Case(layout, ratio, ratio), tuple(TREES[layout]), 32, links, 0, FIGURES)


# ---- arithmetic


def test_uplinks_of_a_leaf_have_together_the_rate_of_its_hosts_by_the_oversubscription() -> None:
    spec = cases.racks_network(Shape(4, 2, 4, 100.0), 8, 50_000)
    uplinks = [link for link in spec.links if link.a.node == "s1"]
    assert sum(link.rate_mbit or 0.0 for link in uplinks) == pytest.approx(4 * 100 / 8)
    assert {link.rate_mbit for link in spec.links if link.a.node.startswith("h")} == {100.0}
    flat = cases.flat_network(Shape(4, 2, 4, 100.0), 50_000)
    assert (len(flat.switches), len(flat.hosts)) == (1, 16)
    for link in (*spec.links, *flat.links):
        assert (link.forth.queue_bytes, link.back.queue_bytes) == (50_000, 50_000)


def test_queues_hold_all_that_windows_let_come() -> None:
    assert SHAPE.window(64) == 32  # two flows meet at a port
    assert Shape(9, 1, 2, 1.0).window(64) == 8
    assert Shape(2, 1, 32, 1.0).window(64) == cases.LEAST_WINDOW
    assert cases.queue_bytes(SHAPE, 32, 256) == 6 * 32 * (52 + 4 * 256)


@pytest.mark.parametrize("layout", [FLAT, SPINE, LEAVES, BOTH])
def test_each_link_carries_what_passes_by_the_tree(layout: str) -> None:
    root = TREES[layout][0]["switch"]
    flows = SHAPE.flows(layout, root)
    assert {key: len(each) for key, each in flows.items() if key[0].startswith("s")} == PASSES[layout]
    links = right(layout)
    assert wrong_links(links, flows, 10, 100) == []
    links["h3-s1" if layout == FLAT else "h3-s2", DOWN] = (9, 900)
    assert wrong_links(links, flows, 10, 100) == ["down to h3 9 packets of 900 bytes, not 10 of 1,000"]


def test_packets_count_the_barrier() -> None:
    # H = ceil(4 * 6 / 256) = 1 header packet and N = 2048 / 1024 chunks, floats as many ahead as the lead
    # says, N at most; the barrier is one value: a header packet and a chunk.
    work = Work("embedded", "int32", 2048, 256)
    assert work.packets(SHAPE, 8) == (1 + 2) + (1 + 1)
    assert replace(work, dtype="float32").packets(SHAPE, 8) == (1 + 2 + 2) + (1 + 1)


def test_no_all_reduce_is_quicker_than_its_slowest_link() -> None:
    work = Work("embedded", "int32", 1 << 20, 256)
    octets = (1 + 1024 + 2) * 1076
    for layout, passes in ((SPINE, 2), (BOTH, 1)):
        flows = SHAPE.flows(layout, "s4")
        least = cases.least_seconds(work, SHAPE, 8, flows, 25.0)
        assert least == pytest.approx(8 * (passes * octets - 131_072) / 25e6)
    least = cases.least_seconds(work, SHAPE, 8, SHAPE.flows(FLAT, "s1"), None)
    assert least == pytest.approx(8 * (octets - 131_072) / 100e6)


# ---- trees


@pytest.mark.parametrize("layout", [FLAT, SPINE, LEAVES, BOTH])
def test_another_tree_than_the_one_asked_for_is_an_error(layout: str) -> None:
    assert check_tree("embedded", SHAPE, layout, TREES[layout]) == TREES[layout][0]["switch"]
    for other, tree in TREES.items():
        if other != layout:
            with pytest.raises(BenchError, match=re.escape(f"the job's tree is {tree_words(tree)}: that is")):
                check_tree("embedded", SHAPE, layout, tree)


def test_trees_in_words() -> None:
    assert tree_words(TREES[BOTH]) == "s4(s1 s2 s3)"
    assert tree_words([node("s7", None), node("s5", "s7"), node("s1", "s5"), node("s2", "s7")]) == (
        "s7(s5(s1) s2)"
    )


# ---- counters


def test_what_was_sent_again_is_taken_off_along_its_way() -> None:
    # h3's contributions came 2 times again, and it got one result again: its packets pass its own link, with
    # the spine alone its leaf's uplink too. Leaf s3 sent 3 again: with leaves alone they pass s2's link.
    again = {("h3", UP): (2, 200), ("h3", DOWN): (1, 100)}
    links = right(SPINE)
    for link, way, more in (("h3-s2", UP, 2), ("h3-s2", DOWN, 1), ("s2-s4", UP, 2), ("s2-s4", DOWN, 1)):
        packets, octets = links[link, way]
        links[link, way] = (packets + more, octets + 100 * more)
    assert Reading(links, again).first(SHAPE.flows(SPINE, "s5")) == right(SPINE)

    links = right(LEAVES)
    for link, way in (("s3-s4", UP), ("s2-s4", DOWN)):
        packets, octets = links[link, way]
        links[link, way] = (packets + 3, octets + 300)
    assert Reading(links, {("s3", UP): (3, 300)}).first(SHAPE.flows(LEAVES, "s2")) == right(LEAVES)


class Controller:
    """Tells counters as the controller's API does."""

    def __init__(self) -> None:
        plain = {
            "absorbed": [5, 500],
            "arp_answered": [2, 84],
            "not_admitted": [1, 60],
            "duplicate": [1, 100],
        }
        down = {"result_stored": [6, 600], "result_unexpected": [1, 100]}
        self.ports: dict[str, dict[str, Any]] = {
            "s1": {"1": plain, "2": {}, "3": down},
            "s2": {"1": {}, "2": {}, "3": {"routed": [4, 400]}},
            "s3": {"1": {"partial_sent": [6, 600]}, "2": {}},
        }

    def call(self, method: str, path: str) -> Any:
        assert method == "GET"
        if path == "/v1/jobs/one/counters":
            ranks = [{"rank": 0, "host": "h1", "verdicts": {"absorbed": [5, 500], "duplicate": [1, 100]}}]
            return {"ranks": ranks, "leaves": {"s1": {"replayed": [1, 100]}}, "refused": {}}
        switch = path.split("/")[3]
        return {"ports": {port: {"in": verdicts} for port, verdicts in self.ports[switch].items()}}


def test_packets_count_where_they_come_in_and_what_leaves_to_hosts_where_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = cases.racks_network(Shape(2, 1, 2, 100.0), 1, 50_000)
    record = new_record("bench-x", spec, target="bmv2", elements=64, slots=1024, root=tmp_path)
    for switch in record.switches:
        for port, interface in switch.ports.items():
            folder = tmp_path / "net" / interface / "statistics"
            folder.mkdir(parents=True)
            (folder / "tx_packets").write_text(f"{8 * port}\n")
            (folder / "tx_bytes").write_text(f"{800 * port}\n")
    monkeypatch.setattr(counts, "INTERFACES", tmp_path / "net")
    found = counts.read(record, Controller(), "one")  # type: ignore[arg-type]
    assert found.links["h1-s1", UP] == (5 + 1, 600)
    assert found.links["h1-s1", DOWN] == (8 - 2, 800 - 84)  # two answers to ARP
    assert found.links["h2-s1", UP] == (0, 0)
    assert found.links["h2-s1", DOWN] == (16, 1600)
    assert found.links["s1-s3", UP] == (6, 600)
    assert found.links["s1-s3", DOWN] == (6 + 1, 700)
    assert found.links["s2-s3", DOWN] == (4, 400)
    assert found.again == {
        ("h1", UP): (1, 100),
        ("h1", DOWN): (0, 0),
        ("s1", UP): (1, 100),
        ("s1", DOWN): (1, 100),
    }
    assert set(found.since(found).links.values()) == {(0, 0)}


# ---- the relation


def test_core_bytes_fall_by_the_workers_of_a_rack_or_it_is_an_error() -> None:
    outcome = Outcome([found(layout, 2.0, right(layout)) for layout in (LEAVES, SPINE, BOTH)])
    outcome.found.append(found(SPINE, 4.0, right(SPINE)))  # there is no other to compare it with
    assert check_racks("embedded", SHAPE, outcome) == [2.0]
    for way in (UP, DOWN):
        links = right(SPINE)
        links["s1-s4", way] = (21, 2100)
        wrong = Outcome([found(SPINE, 2.0, links), found(BOTH, 2.0, right(BOTH))])
        with pytest.raises(RelationError, match=rf"6,100 bytes {way} .* 3,000 .*not 2 times as many"):
            check_racks("embedded", SHAPE, wrong)


class Ranks:
    """All-reduce in place of a job; each sends so many packets again."""

    job = "one"

    def __init__(self, *resent: int) -> None:
        self._resent = list(resent)

    def ask(self, dtype: str, nbytes: int, calls: int, limit_s: float) -> Figures:
        return Figures((0.1,), {"retransmissions": self._resent.pop(0)})


def counted(monkeypatch: pytest.MonkeyPatch, group: Ranks, *rounds: dict[tuple[str, str], Carried]) -> Any:
    """Count all-reduces whose links carry this."""
    nothing = dict.fromkeys(right(BOTH), (0, 0))
    readings = iter([reading for links in rounds for reading in (Reading(nothing, {}), Reading(links, {}))])
    monkeypatch.setattr(counts, "settled", lambda *_: next(readings))
    work = Work("embedded", "int32", 4, 256)
    run = Run(SHAPE, work, [1.0], 0.0, 20.0, 60.0, say=lambda _: None, progress=lambda _: None)
    flows = SHAPE.flows(BOTH, "s4")
    until = time.monotonic() + 1000
    return run._count(None, None, group, flows, 10, until)  # type: ignore[arg-type]


def test_an_all_reduce_with_losses_is_not_counted_and_wrong_links_without_any_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine = right(BOTH, size=52 + 4 * 256)
    wrong = {**fine, ("s3-s4", UP): (11, 11 * 1076)}
    assert counted(monkeypatch, Ranks(0), fine) == (fine, 0)
    assert counted(monkeypatch, Ranks(1, 0), wrong, fine) == (fine, 0)
    with pytest.raises(SkippedError, match="packets were lost in each all-reduce"):
        counted(monkeypatch, Ranks(1, 1, 1, 1, 1), wrong, wrong, wrong, wrong, wrong)
    with pytest.raises(RelationError, match=r"up from s3 11 packets of 11,836 bytes, not 10 of 10,760"):
        counted(monkeypatch, Ranks(0), wrong)


@pytest.mark.parametrize(
    "words",
    [
        ["--oversubscription", "0.5"],
        ["--oversubscription", "2,2"],
        ["--oversubscription", "many"],
        ["--hosts", "1"],
        ["--leaves", "1"],
        ["--leaves", "9", "--hosts", "8"],
        ["--rate", "unshaped"],
        ["--size", "5"],
        ["--dtype", "float64"],
        ["--quick", "--leaves", "3"],
    ],
    ids=" ".join,
)
def test_bad_options_are_usage_errors(words: list[str]) -> None:
    assert invoke(*words).exit_code == 2


def test_what_was_not_compared_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(self: Run) -> None:
        self.outcome.found += [found(layout, 2.0, right(layout)) for layout in (SPINE, LEAVES, BOTH)]
        self.outcome.found.append(found(FLAT, None, right(FLAT)))
        self.outcome.skipped[Case(BOTH, 4.0, 25.0)] = "no time"

    monkeypatch.setattr(Run, "all", measured)
    sizes = ["--leaves", "3", "--hosts", "2", "--switch", "embedded"]
    done = invoke(*sizes, "--oversubscription", "2:1")
    assert done.exit_code == 0, done.output
    assert "are those of spine only by 2, the workers of a rack, exactly, up and down, at 2:1" in done.stdout
    assert "not measured: both, 4:1, uplinks of 25 Mbit/s: no time" in done.stdout
    assert "s4(s1 s2 s3)" in done.stdout
    done = invoke(*sizes, "--oversubscription", "2,4")
    assert isinstance(done.exception, BenchError)
    assert "at 4:1 core bytes were not compared" in str(done.exception)


@pytest.mark.parametrize("line", re.findall(r"^p4reduce bench racks([^#\n]*)", PAGE, re.MULTILINE))
def test_the_page_s_commands_choose_cases(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Run] = []
    for kind in (EmbeddedTarget, Bmv2Target):
        monkeypatch.setattr(kind, "missing", lambda self: None)
    monkeypatch.setattr(Run, "all", lambda self: chosen.append(self))
    assert isinstance(invoke(*line.split()).exception, BenchError)  # nothing was measured
    assert chosen


def test_the_page_s_core_bytes_follow_from_the_sizes() -> None:
    shape, work = Shape(4, 2, 4, 100.0), Work("embedded", "float32", 1 << 20, 256)
    packets = work.packets(shape, lead=128 // 4)
    assert f"{packets:,} packets of\n1,076 bytes for each flow" in PAGE
    for layout, root, switches in ((SPINE, "s5", 1), (LEAVES, "s1", 4), (BOTH, "s5", 5)):
        flows = shape.flows(layout, root)
        passes = sum(len(each) for (node, way), each in flows.items() if way == UP and node.startswith("s"))
        octets = passes * packets * 1076
        assert f"| {cases.WORDS[layout]} | {128 * switches} | {octets:,} |" in PAGE


@pytest.mark.root
def test_links_of_a_real_network_carry_what_they_must(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.racks.cli.BUDGET_S", 0.01)
    words = ["--leaves", "2", "--spines", "1", "--hosts", "2", "--oversubscription", "2", "--size", "8KiB"]
    done = invoke(*words, "--dtype", "int32", "--switch", target.name, "--json")
    assert done.exit_code == 0, done.output
    tree = json.loads(done.stdout)
    assert tree["skipped"] == []
    shown = {case["layout"]: case for case in tree["cases"]}
    assert {layout: case["tree"] for layout, case in shown.items()} == {
        FLAT: "s1",
        SPINE: "s3",
        BOTH: "s3(s1 s2)",
        LEAVES: "s1(s2)",
    }
    window = shown[FLAT]["slots"]
    assert [shown[layout]["slots"] for layout in (SPINE, LEAVES, BOTH)] == [window, 2 * window, 3 * window]
    # A header packet and 8 chunks, and the barrier's two packets; two racks of two workers.
    once = (1 + 8 + 2) * (52 + 4 * 256)
    each = {SPINE: 2 * 2, LEAVES: 2, BOTH: 2, FLAT: 0}
    for layout, passes in each.items():
        assert shown[layout]["core_bytes"] == {UP: passes * once, DOWN: passes * once}
        hosts = [link for link in shown[layout]["links"] if link["link"].startswith("h")]
        assert {(link["way"], link["bytes"]) for link in hosts} == {(UP, once), (DOWN, once)}
        assert len(hosts) == 2 * 4
    assert not [name for name in records.names() if name.startswith("bench-racks")]
