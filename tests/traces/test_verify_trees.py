# SPDX-License-Identifier: Apache-2.0
"""Captures of racks: partials go up, results come down by the leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.captures import Capture, Captured
from tests.traces.test_verify import checked
from tests.traces.test_verify_planted import add, change, named, some
from tests.traces.two_levels import TwoLevels
from tests.worker.world import Tensors
from traces.explain import explain
from traces.ladder import columns, life
from traces.verify_findings import Rule

CHUNK = 2**32 - 2
"""In the middle of the run, on the wire."""


def run(seed: int, racks: int, per: int, changes: int = 0, **faults: float) -> Capture:
    world = TwoLevels(seed, racks=racks, per=per, **{"loss": 0.0, "duplicate": 0.0, "double": 0.0, **faults})
    n = racks * per
    world.start(3, Tensors(seed, n, 4), n, 3, window=1 + seed % 6, lead=1, g0=2**32 - 9)
    for _ in range(changes):
        before = world.steps + world.random.randrange(400)
        world.run(lambda before=before: world.steps >= before or world.finished)
        world.same_members(1 + world.random.randrange(6), wipe=False)
    world.catch_up()
    world.run()
    return world.capture


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    racks=st.integers(1, 3),
    per=st.integers(1, 2),
    changes=st.integers(0, 2),
    shares=st.tuples(*[st.sampled_from([0.0, 0.1, 0.25])] * 3, st.sampled_from([0.0, 0.05])),
    data=st.data(),
)
def test_correct_runs_conform(
    seed: int, racks: int, per: int, changes: int, shares: tuple[float, ...], data: Any
) -> None:
    faults = dict(zip(("loss", "duplicate", "double", "corrupt"), shares, strict=True))
    capture = run(seed, racks, per, changes, **faults)
    every = sorted({packet.end for packet in capture.packets})
    ends = data.draw(st.just(every) | st.lists(st.sampled_from(every), min_size=1, unique=True))
    told = data.draw(st.booleans())
    found = checked(capture, ends=ends, memberships=told, duplicates=faults["double"] > 0)
    assert not found.total, "\n".join(map(str, found.violations[:5]))


@pytest.fixture
def capture() -> Capture:
    return run(3, 2, 2)


def partials(capture: Capture) -> list[Captured]:
    """Leaf s2's, at both ends."""
    found = some(capture, False, chunk=CHUNK)
    return [each for each in found if each.end in ("s2-s1", "s1-s2")]


def only(capture: Capture, fault: Captured, *rules: Rule, **kwargs: Any) -> None:
    found = checked(capture, **kwargs)
    assert {each.rule for each in found.violations} == set(rules)
    packets = {(each.source.path.name, each.number) for each in found.violations[0].packets}
    assert named(capture, fault) in packets


def test_a_partial_that_is_no_sum(capture: Capture) -> None:
    packets = partials(capture)
    fault = change(capture, packets, values=(1, *packets[0].parsed().values[1:]))
    only(capture, fault, Rule.SUM)


def test_partials_that_differ(capture: Capture) -> None:
    first, *_ = packets = partials(capture)
    fault = add(capture, packets[-1].but(values=(1, *first.parsed().values[1:])), time=packets[-1].time + 1)
    only(capture, fault, Rule.COPIES)


def test_a_result_of_a_leaf_before_the_roots(capture: Capture) -> None:
    """The root's is two milliseconds late: no leaf could have had it."""
    results = some(capture, True, chunk=CHUNK)
    above = [each for each in results if each.end in ("s2-s1", "s1-s2")]
    leaf = [each for each in results if each.end.startswith("s2-h")]
    for each in above:
        capture.packets.remove(each)
        add(capture, each, time=max(each.time for each in leaf) + 2_000_000)
    found = checked(capture)
    assert Rule.EARLY in {each.rule for each in found.violations}
    assert {named(capture, each) for each in leaf} <= {
        (each.packets[0].source.path.name, each.packets[0].number) for each in found.violations
    }


def test_a_wrong_total_where_the_uplinks_were_not_captured(capture: Capture) -> None:
    results = some(capture, True, chunk=CHUNK)
    fault = change(capture, results, values=(1, *results[0].parsed().values[1:]))
    ends = sorted({each.end for each in capture.packets if each.end.startswith("h")})
    found = checked(capture, ends=ends)
    assert {each.rule for each in found.violations} == {Rule.SUM}
    assert len(found.violations[0].packets) == 5
    assert fault.frame


def test_a_chunk_of_racks_as_a_ladder(capture: Capture, tmp_path: Path) -> None:
    found = life([capture.write(tmp_path)], "job", chunk=range(CHUNK, CHUNK + 1))
    assert columns(found.events) == ["h1", "h2", "h3", "h4", "s2", "s3", "s1"]
    assert {each.what for each in found.events} == {"contribution", "partial", "result"}
    at_root = [
        each.verdict for each in found.events if each.end in ("s1-s2", "s1-s3") and each.what == "partial"
    ]
    assert {"absorbed", "completed"} <= set(at_root)


def test_racks_are_explained_by_their_workers(capture: Capture, tmp_path: Path) -> None:
    (limit,) = [each for each in explain([capture.write(tmp_path)]).findings if each.limits]
    sent: dict[tuple[str, int], int] = {}
    got: dict[tuple[str, int], int] = {}
    for each in sorted(capture.packets, key=lambda packet: packet.time):
        if each.end.startswith("h"):
            frame = each.parsed()
            (sent if frame.msg_type == 1 else got).setdefault((each.end, frame.chunk), each.time)
    again = {key[1] for key in sent if len(some(capture, False, chunk=key[1], end=key[0])) > 1}
    lives = [got[key] - sent[key] for key in sent if key[1] not in again or 2 * len(again) > len(sent) / 4]
    assert limit.numbers["chunk_life_ms"] == round(float(np.median(lives)) / 1e6, 3)


def test_a_partial_of_a_host(capture: Capture) -> None:
    """It has the leaf's address and port, and comes from a host's link."""
    fault = add(capture, partials(capture)[0], end="s3-h4", way=0)
    only(capture, fault, Rule.LINKS)
