# SPDX-License-Identifier: Apache-2.0
"""What is drawn, as data: computed here from the packets one by one, or known as the test made them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.traces.captures import START, Capture
from tests.traces.test_explain import MS, Made, N
from tests.traces.two_levels import TwoLevels
from tests.traces.worlds import captured_run
from tests.worker.world import Tensors
from traces.errors import FilterError
from traces.series import Series, collect
from traces.timeline import BINS, Histogram, Timeline

GOLDEN = Path(__file__).with_name("fixtures")
times = st.lists(st.integers(0, 10**7), min_size=1, max_size=60).map(sorted)


@settings(max_examples=40, deadline=None)
@given(times, st.integers(1, 5))
def test_bins_hold_what_was_added_however_often_they_grew(at: list[int], amount: int) -> None:
    line = Timeline(START)
    for time in at:
        line.add("x", [START + time], amount)
    assert line.bins <= BINS
    edges = line.edges
    assert edges[-2] <= at[-1] < edges[-1]
    assert line.sums("x").tolist() == (np.histogram(at, edges)[0] * amount).tolist()
    line.coarsen(7)
    assert line.bins <= 7
    assert line.sums("x").sum() == len(at) * amount


@settings(max_examples=40, deadline=None)
@given(times, st.randoms(use_true_random=False))
def test_a_level_is_its_integral_over_each_bin(at: list[int], random: object) -> None:
    changes = [1 if i % 3 else 2 for i in range(len(at))]
    line = Timeline(START)
    half = len(at) // 2
    line.step("x", [START + time for time in at[:half]], changes[:half])
    line.step("x", [START + time for time in at[half:]], changes[half:])
    mean, most = line.levels("x")
    begins, ends = line.edges[:-1], line.edges[1:]
    area = sum(np.clip(ends - time, 0, line.width) * change for time, change in zip(at, changes, strict=True))
    assert np.allclose(mean, area / line.width)
    level = [sum(c for t, c in zip(at, changes, strict=True) if t < end) for end in ends]
    assert most.tolist() == level  # it only ever rises
    assert begins[0] == 0


def test_steps_at_one_time_are_one() -> None:
    line = Timeline(0)
    line.step("x", [10, 20, 20, 30], [1, 1, -1, -1])
    assert line.levels("x")[1].tolist() == [1]
    assert line.levels("x")[0].tolist() == [20 / 1000]


def test_percentiles_are_right_to_a_bin() -> None:
    lengths = np.random.default_rng(1).lognormal(13, 1.5, 4000).astype(np.int64)
    histogram = Histogram()
    histogram.add(lengths)
    for share in (0.1, 0.5, 0.99):
        assert np.isclose(histogram.percentile(share), np.quantile(lengths, share), rtol=10 ** (1 / 40) - 1)
    histogram.add([0, 10**13])
    assert (histogram.counts[0] > 0, histogram.counts[-1]) == (True, 1)


def series(capture: Capture, folder: Path, **asked: object) -> Series:
    return collect([capture.write(folder)], **asked)  # type: ignore[arg-type]


def busy(ends: str) -> Made:
    run = Made(window=8, ends=ends)
    for chunk in range(60):
        sent = [chunk * 0.7 + 0.11 * rank for rank in range(N)]
        lost_up = [1] if chunk % 9 == 4 else []
        lost_down = [2] if chunk % 13 == 5 else []
        run.chunk(chunk, sent, lost_up=lost_up, lost_down=lost_down, switch=0.05)
    return run


@pytest.mark.parametrize("ends", ["h", "s", "hs"])
def test_a_run_of_which_all_is_known(ends: str, tmp_path: Path) -> None:
    run = busy(ends)
    found = series(run.capture, tmp_path)
    (job,) = found.jobs
    packets = sorted(run.capture.packets, key=lambda each: each.time)
    assert found.start == START + packets[0].time
    first = packets[0].time
    of = {f"h{rank + 1}": f"h{rank + 1}-s1" if "h" in ends else f"s1-h{rank + 1}" for rank in range(N)}
    done: dict[str, dict[int, int]] = {host: {} for host in of}
    again: dict[str, list[int]] = {host: [] for host in of}
    waited: dict[str, list[int]] = {host: [] for host in of}
    for host, end in of.items():
        sent: dict[int, int] = {}
        for each in packets:
            if each.end != end:
                continue
            frame = each.parsed()
            if frame.msg_type == 1:
                if frame.chunk in sent:
                    again[host].append(each.time - first)
                sent[frame.chunk] = each.time
            elif frame.chunk not in done[host]:
                done[host][frame.chunk] = each.time - first
                waited[host].append(each.time - sent[frame.chunk])
    seconds = np.diff(found.edges) / 1e9
    for host in of:
        bits = np.histogram(list(done[host].values()), found.edges)[0] * 64 * 32
        assert np.allclose(job.goodput[host], bits / seconds)
        assert job.again[host].tolist() == np.histogram(again[host], found.edges)[0].tolist()
        assert job.rtt[host].total == len(waited[host]) == 60
        middle = sorted(waited[host])[29]
        assert np.isclose(job.rtt[host].percentile(0.5), middle, rtol=0.06)
        assert job.sent[host] == 60 + len(again[host])
    # Chunks under way: from the first contribution anywhere to the first result anywhere.
    lives: dict[int, list[int]] = {}
    for each in packets:
        frame = each.parsed()
        life = lives.setdefault(frame.chunk, [each.time - first])
        if frame.msg_type == 2 and len(life) == 1:
            life.append(each.time - first)
    begins, ends_ = found.edges[:-1], found.edges[1:]
    area = sum(np.maximum(np.minimum(ends_, b) - np.maximum(begins, a), 0) for a, b in lives.values())
    assert np.allclose(job.occupancy["s1"][0], area / np.diff(found.edges))
    most = max(sum(a <= time < b for a, b in lives.values()) for time, _ in lives.values())
    assert job.occupancy["s1"][1].max() == most


def test_links_both_ways(device: SwitchDevice, tmp_path: Path) -> None:
    capture = captured_run(device, seed=3, loss=0.2)
    found = series(capture, tmp_path)
    seconds = np.diff(found.edges) / 1e9
    expected = {}
    for host in ("h1", "h2", "h3"):
        # What is lost on the way is seen at its sender's end alone.
        for flow, end in ((f"{host} → s1", f"{host}-s1"), (f"s1 → {host}", f"s1-{host}")):
            sent = [each for each in capture.packets if each.end == end and each.way == 2]
            at = [each.time + START - found.start for each in sent]
            sizes = [8 * len(each.frame) for each in sent]
            expected[flow] = np.histogram(at, found.edges, weights=sizes)[0] / seconds
    assert found.links.keys() == expected.keys()
    for flow, rates in expected.items():
        assert np.allclose(found.links[flow], rates), flow


def test_the_waterfall_has_each_packet_of_its_chunks(tmp_path: Path) -> None:
    run = Made(window=8)
    ends = [
        run.chunk(chunk, [1.0 * chunk, 1.0 * chunk + 0.2, 1.0 * chunk], lost_down=[0]) for chunk in range(20)
    ]
    (job,) = series(run.capture, tmp_path, chunks=range(5, 8)).jobs
    assert list(job.waterfall) == [5, 6, 7]
    for chunk, row in job.waterfall.items():
        assert list(row) == ["h1", "h2", "h3"]
        assert row["h2"].sends == [chunk * MS + MS // 5]
        # Down 0.31 ms after it was complete, and 5 ms later it was asked for again.
        assert row["h1"].sends == [
            chunk * MS,
            pytest.approx((chunk + 0.2 + 0.1 + 0.01 + 0.1 + 5) * MS, abs=1),
        ]
        assert row["h1"].result == pytest.approx(ends[chunk] * MS, abs=1)
    (job,) = series(run.capture, tmp_path, chunks=range(50, 60)).jobs
    assert "no chunk of 50 to 59 was captured" in job.notes


def test_two_jobs_are_two_and_each_can_be_had_alone(tmp_path: Path) -> None:
    one, two = Made(job=3), Made(job=4)
    for chunk in range(10):
        one.chunk(chunk, [chunk * 1.0] * N)
        two.chunk(chunk, [chunk * 2.0] * N)
    one.capture.packets += two.capture.packets
    one.capture.epochs += two.capture.epochs
    found = series(one.capture, tmp_path)
    assert [job.job for job in found.jobs] == [3, 4]
    assert [job.sent for job in found.jobs] == [{f"h{r + 1}": 10 for r in range(N)}] * 2
    (job,) = collect([tmp_path], jobs=["4"]).jobs
    assert job.job == 4
    assert job.title.startswith("job 4 (job), n = 3, W = 16, 64 values a packet, tensor")
    with pytest.raises(FilterError, match=r"job 9.*jobs: 3, 4"):
        collect([tmp_path], jobs=["9"])


def test_without_memberships_it_says_what_it_guessed(device: SwitchDevice, tmp_path: Path) -> None:
    capture = captured_run(device, seed=5, loss=0.1)
    told = series(capture, tmp_path / "told")
    guessed = collect([capture.write(tmp_path / "guessed", memberships=False)])
    assert any("guessed" in note for note in guessed.notes)
    (job,), (known,) = guessed.jobs, told.jobs
    assert job.guessed
    assert "members guessed" in job.title
    assert sorted(job.sent) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    # Guessed members have no links of known names: they are seen at the switch's end.
    assert sum(known.sent.values()) >= 3 * len(known.waterfall)
    assert all(job.rtt[host].total for host in job.sent)


def test_a_tree_has_levels(tmp_path: Path) -> None:
    world = TwoLevels(3, racks=2, per=2, loss=0.1, duplicate=0.0, double=0.0)
    world.start(3, Tensors(3, 4, 4), 4, 3, window=4, lead=1, g0=0)
    world.run()
    (job,) = series(world.capture, tmp_path).jobs
    assert list(job.occupancy) == ["s1", "s2", "s3"]
    assert list(job.goodput) == ["h1", "h2", "h3", "h4"]
    assert list(job.sent) == ["h1", "h2", "h3", "h4", "s2", "s3"]
    for member, end in (("h3", "h3-s3"), ("s3", "s3-s1")):
        sent = [each.parsed().chunk for each in world.capture.packets if each.end == end and each.way == 2]
        # At a leaf's end of its uplink and at a host's own: what it sent.
        assert job.sent[member] == len(sent)
        assert job.again[member].sum() == len(sent) - len(set(sent)) > 0
    assert job.windows == [4]
    assert max(most.max() for _, most in job.occupancy.values()) <= 4
    assert all(most[-1] == 0 or mean[-1] < most[-1] for mean, most in job.occupancy.values())


def test_the_switches_own_captures(device: SwitchDevice, tmp_path: Path) -> None:
    """A file a direction, in microseconds, without names of links."""
    capture = captured_run(device, seed=3, loss=0.1)
    found = collect([capture.write_ways(tmp_path / "ways")])
    (job,), (known,) = (
        found.jobs,
        series(
            capture,
            tmp_path / "ends",
        ).jobs,
    )
    assert set(found.links) == {f"s1-h{rank + 1} {way}" for rank in range(3) for way in ("in", "out")}
    at_switch = Counter(e.end for e in capture.packets if e.end[0] == "s" and e.way == 1)
    assert job.sent == {f"h{rank + 1}": at_switch[f"s1-h{rank + 1}"] for rank in range(3)}
    assert job.title == known.title


def test_nothing_of_ours(tmp_path: Path) -> None:
    capture = Capture()
    capture.write(tmp_path, ends=["s1-h1"], memberships=False)
    found = collect([tmp_path])
    assert (found.jobs, found.packets) == ([], 0)
    assert any("no packet" in note for note in found.notes)


@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_golden_captures(target: str) -> None:
    """Three all-reduces of two workers: 300 and 400 float32 (with a lead of 2) and 700 int32; 64 a packet."""
    (job,) = collect([GOLDEN / target]).jobs
    chunks = sum(1 + -(-n // 64) + lead for n, lead in ((300, 2), (700, 0), (400, 2)))  # a header each
    assert chunks == 30
    assert (job.windows, job.ranks, sorted(job.tensors)) == ([8, 6], [2, 2], [0, 1, 2])
    assert sorted(job.waterfall) == list(range(chunks))
    assert all(
        row[host].sends and row[host].result for row in job.waterfall.values() for host in ("h1", "h2")
    )


def test_a_job_that_had_ended_before_is_left_out(tmp_path: Path) -> None:
    run, over = Made(job=3), Made(job=4)
    for chunk in range(5):
        run.chunk(chunk, [chunk * 1.0] * N)
    run.capture.epochs += over.capture.epochs
    folder = [run.capture.write(tmp_path)]
    series = collect(folder)
    assert [job.job for job in series.jobs] == [3]
    assert [note for note in series.notes if "none of its packets" in note and "job 4" in note]
    assert [job.job for job in collect(folder, jobs=["4"]).jobs] == [4]  # who asks for it gets it
