# SPDX-License-Identifier: Apache-2.0
"""The engine over the in-memory transport and the reference switch, on a virtual clock."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.jobs import Job, begin, memberships
from wire.packet import payload_dtype
from wire.verdicts import Verdict
from worker import MismatchError, NonFiniteError, NotInJobError, StalledError, UnsupportedError
from worker.calls import header_packets
from worker.engine import Engine
from worker.memory import reduce_together


def int_sum(arrays):
    return np.sum(arrays, axis=0, dtype=np.int64).astype(np.int32)


def float_sum(arrays, elements):
    """The contract's float sum, chunk by chunk, in Python integers and floats."""
    n, shape = len(arrays), arrays[0].shape
    flat = [a.reshape(-1).tolist() for a in arrays]
    out = []
    for start in range(0, len(flat[0]), elements):
        chunk = [f[start : start + elements] for f in flat]
        largest = max(abs(x) for row in chunk for x in row)
        e = max(-128, math.frexp(largest)[1]) if largest else -128
        scale = math.ldexp(float(n), e)
        for column in zip(*chunk, strict=True):
            total = sum(round(x * float(2**31 - 1) / scale) for x in column)
            value = total * scale / float(2**31 - 1)
            with np.errstate(over="ignore"):
                out.append(np.float32(value))
            if np.isfinite(out[-1]):
                exact = sum(map(Fraction, column))
                quantum = Fraction(scale) / (2**31 - 1)
                bound = n * quantum * (Fraction(1, 2) + Fraction(1, 2**20)) + Fraction(
                    float(np.spacing(abs(out[-1])))
                )
                assert abs(Fraction(float(out[-1])) - exact) <= bound
    return np.array(out, np.float32).reshape(shape)


def check(arrays, results, elements=64):
    for result in results:
        if isinstance(result, Exception):
            raise result
    expected = float_sum(arrays, elements) if arrays[0].dtype == np.float32 else int_sum(arrays)
    for result in results:
        assert result.dtype == arrays[0].dtype
        assert result.shape == arrays[0].shape
        np.testing.assert_array_equal(result, expected)


def random_arrays(rng, n, dtype, shape):
    if dtype == np.int32:
        return [rng.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32) for _ in range(n)]
    magnitude = 10.0 ** rng.integers(-44, 38)
    return [(rng.uniform(-1, 1, shape) * magnitude).astype(np.float32) for _ in range(n)]


@st.composite
def jobs(draw):
    window = draw(st.integers(1, 8))
    share = st.floats(0, 0.3)
    tensor = st.tuples(st.sampled_from([np.int32, np.float32]), st.integers(0, 64 * 12))
    return {
        "n": draw(st.integers(1, 5)),
        "window": window,
        "lead": draw(st.integers(1, window)),
        "g0": draw(st.sampled_from([0, 2**32 - 9, 2**32 - 40, 2**31 - 15, 2**64 - 2**20])),
        "t0": draw(st.sampled_from([0, 254, 2**32 - 1])),
        "tensors": draw(st.lists(tensor, min_size=1, max_size=4)),
        "faults": {
            "loss": draw(share),
            "duplicate": draw(share),
            "reorder": draw(share),
            "corrupt": draw(st.sampled_from([0, 0.05])),
            "seed": draw(st.integers(0, 2**32)),
        },
    }


def run_job(case, elements=64, switch=None, kernels=None):
    n, seed = case["n"], case["faults"]["seed"]
    job = Job(
        n,
        case["faults"],
        timeout=1e4,
        switch=switch,
        kernels=kernels,
        elements=elements,
        window=case["window"],
        lead=case["lead"],
        g0=case["g0"],
        t0=case["t0"],
    )
    rng = np.random.default_rng(seed)
    for dtype, size in case["tensors"]:
        arrays = random_arrays(rng, n, dtype, size)
        check(arrays, job.all_reduce(*arrays), elements)
    chunks = {len(t.answered) for t in job.transports}
    assert len(chunks) == 1, "all ranks count chunks alike"


@settings(max_examples=30, deadline=None)
@given(jobs())
def test_sums_are_exact_under_faults(kernels, case):
    run_job(case, kernels=kernels)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(jobs())
def test_sums_are_exact_under_faults_long(kernels, case):
    run_job(case, kernels=kernels)


@pytest.mark.parametrize("elements", [64, 256])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_packet_counts_without_loss(kernels, elements, dtype):
    """H + N packets for ints, H + B + N for floats, each sent once."""
    n, size, lead = 3, 5 * elements + 1, 4
    job = Job(n, window=16, lead=lead, elements=elements, kernels=kernels)
    arrays = random_arrays(np.random.default_rng(1), n, dtype, size)
    check(arrays, job.all_reduce(*arrays), elements)
    expected = 1 + 6 + (min(lead, 6) if dtype == np.float32 else 0)
    for worker in job.workers:
        stats = worker.stats
        assert (stats.packets_sent, stats.packets_received, stats.retransmissions) == (expected, expected, 0)
        assert stats.bytes_sent == expected * (10 + 4 * elements)
        assert (stats.all_reduces, stats.elements) == (1, size)


def test_header_packets():
    assert [header_packets(n, 64) for n in (1, 16, 17, 64)] == [1, 1, 2, 4]
    assert [header_packets(n, 256) for n in (64, 65)] == [1, 2]


@pytest.mark.parametrize("n", [17, 40])
def test_many_ranks_have_several_headers(n):
    job = Job(n, window=4, lead=1)
    arrays = [np.full(3, r, np.int32) for r in range(n)]
    check(arrays, job.all_reduce(*arrays))
    assert job.workers[0].stats.packets_sent == -(-4 * n // 64) + 1


def test_first_packets_say_what_the_contract_says():
    member = memberships(3, window=12, lead=2, g0=2**32 + 5, t0=300)[1]
    engine = Engine(member)
    array = np.zeros((2, 65), np.float32)
    array[0, 0], array[1, 64] = 0.75, -3.0
    begin(engine, array)
    first = engine.poll(0.0)
    assert first.dtype == payload_dtype(64)
    assert first["kind"].tolist() == [0x19, 0x11, 0x11]  # 1 header, then B = 2 packets without values
    assert first["tensor"].tolist() == [300 % 256] * 3
    assert first["chunk"].tolist() == [5, 6, 7]
    numbers = [2**32 + 5, 2**32 + 6, 2**32 + 7]
    assert first["place"].tolist() == [g % 12 | (g // 12 % 2) << 15 for g in numbers]
    header = first["values"][0]
    assert header[:4].tolist() == [0] * 4
    assert header[4:7].tolist() == [1 << 8 | 1, 130, 300]
    assert not header[8:].any()
    assert first["e0"].tolist() == [-128, 0, -128]
    assert first["e1"].tolist() == [-128] * 3
    assert not first["values"][1:].any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (64,), (65,), (5, 7, 11)])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_shapes(kernels, shape, dtype):
    job = Job(2, kernels=kernels)
    arrays = random_arrays(np.random.default_rng(2), 2, dtype, shape)
    arrays = [np.asarray(a, dtype) for a in arrays]
    check(arrays, job.all_reduce(*arrays))
    if 0 in shape:
        assert job.workers[0].stats.packets_sent == 1


def test_non_contiguous_and_read_only_arrays():
    job = Job(2)
    rng = np.random.default_rng(3)
    arrays = [a[::2, ::-3].T for a in random_arrays(rng, 2, np.float32, (20, 30))]
    arrays[1].flags.writeable = False
    before = [a.copy() for a in arrays]
    check(arrays, job.all_reduce(*arrays))
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros(3, np.int64), np.zeros(3, ">i4"), np.zeros(3, ">f2"), np.zeros(3, "U1")],
)
def test_other_dtypes_are_refused_and_the_rank_stays_in_step(array):
    job = Job(1)
    [refused] = job.all_reduce(array)
    assert isinstance(refused, UnsupportedError)
    assert str(array.dtype) in str(refused)
    assert isinstance(job.all_reduce(np.zeros(1, np.int32), op="max")[0], UnsupportedError)
    check([np.arange(3, dtype=np.int32)], job.all_reduce(np.arange(3, dtype=np.int32)))


INT, FLOAT = np.zeros(70, np.int32), np.zeros(70, np.float32)


@pytest.mark.parametrize(
    ("calls", "differing"),
    [
        ([INT, FLOAT, INT], [1]),
        ([INT, INT, np.zeros(700, np.int32)], [2]),
        ([INT.reshape(7, 10), INT.reshape(10, 7), INT.reshape(10, 7)], [0]),
        ([INT, FLOAT], [0, 1]),
        ([INT, FLOAT, INT.reshape(10, 7)], [0, 1, 2]),
        ([np.zeros(0, np.int32), np.zeros(6400, np.float32), np.zeros(0, np.int32)], [1]),
    ],
)
def test_mismatch_is_an_error_at_all_ranks(calls, differing):
    job = Job(len(calls), {"loss": 0.2, "reorder": 0.2, "seed": 5})
    outcomes = job.all_reduce(*calls)
    for outcome in outcomes:
        assert isinstance(outcome, MismatchError)
        assert outcome.ranks == differing
        for rank in differing:
            assert f"rank {rank} called sum of {calls[rank].size} {calls[rank].dtype}" in str(outcome)
    assert all(isinstance(o, NotInJobError) for o in job.all_reduce(*calls))
    begun = {w.engine.begun for w in job.workers}
    assert begun == {1}
    job.new_epoch(g0=max(w.engine.next_chunk for w in job.workers), t0=1)
    arrays = random_arrays(np.random.default_rng(6), len(calls), np.float32, 200)
    check(arrays, job.all_reduce(*arrays))
    assert job.workers[0].stats.all_reduces == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float32(2.0**127)])
def test_non_finite_values_raise_at_all_ranks_which_stay_in_step(kernels, bad):
    job = Job(3, {"loss": 0.1, "seed": 8}, kernels=kernels)
    arrays = random_arrays(np.random.default_rng(7), 3, np.float32, 300)
    arrays[1][130] = bad
    outcomes = job.all_reduce(*arrays)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, NonFiniteError)
        assert (outcome.chunks, outcome.first_element, outcome.own) == (1, 128, rank == 1)
    arrays[1][130] = 1.0
    check(arrays, job.all_reduce(*arrays))


def test_values_at_the_edge_of_float32_sum_to_infinity(kernels):
    job = Job(4, kernels=kernels)
    top = np.nextafter(np.float32(2.0**127), np.float32(0))
    arrays = [np.array([top, -top, 1], np.float32)] * 4
    results = job.all_reduce(*arrays)
    check(arrays, results)
    assert results[0][:2].tolist() == [np.inf, -np.inf]


def test_stalled_says_what_is_missing():
    job = Job(2, window=8, lead=4, g0=100)
    late = job.workers[0]
    [error] = reduce_together(job.fabric, [late], [np.zeros(64 * 20, np.int32)])
    assert isinstance(error, StalledError)
    assert str(error).endswith("then call again.")
    assert (error.first, error.missing, error.total) == (100, 4, 21)
    assert error.retransmissions == late.stats.retransmissions > 10
    for part in ("30 s", "10.0.0.254:48643", "the job's chunk 100 (packet 1 of 21 of", "4 chunk(s)"):
        assert part in str(error)
    with pytest.raises(NotInJobError, match="timed out"):
        begin(late.engine, INT)


def test_stalled_tells_the_jobs_chunk_number_from_the_packet_of_its_all_reduce():
    job = Job(2, window=8, lead=4, g0=100)
    arrays = [np.zeros(64 * 20, np.int32)] * 2
    check(arrays, job.all_reduce(*arrays))
    late = job.workers[0]
    lost = begin(late.engine, arrays[0], now=0.0)
    begin(late.engine, INT, now=0.0, timeout=5.0)
    packets = late.engine.poll(0.0)
    assert packets["chunk"].tolist() == [121, 122, 123, 124]
    answers = packets[:2].copy()
    answers["kind"] ^= 0x30
    answers["values"][0][:4], answers["values"][0][4:8] = lost._own_call, lost._own_call
    late.engine.on_results(answers, 0.1)
    late.engine.poll(6.0)  # the second call's time-out, and what is awaited belongs to the first
    error = late.engine.failure
    assert isinstance(error, StalledError)
    assert (error.seconds, error.first, error.position, error.total) == (5.0, 123, 3, 21)
    assert "the first is the job's chunk 123 (packet 3 of 21 of its all-reduce)" in str(error)


def test_a_late_peer_costs_few_packets_and_no_estimate():
    job = Job(2, window=64, lead=16, timeout=100.0)
    arrays = random_arrays(np.random.default_rng(9), 2, np.int32, 64 * 300)
    check(arrays, job.all_reduce(*arrays))
    early, late = job.workers
    sent = early.stats.packets_sent
    now = start = job.fabric.clock
    operations = [begin(early.engine, arrays[0], now=now)]
    while now < start + 20:
        early.transport.send(early.engine.poll(now))
        now = max(now + 1e-6, early.engine.wake_at(now))
    assert early.stats.packets_sent - sent < 16 + 20 / 0.03
    operations.append(begin(late.engine, arrays[1], now=now))
    started = now
    while not all(operation.done for operation in operations):
        for worker in job.workers:
            worker.transport.send(worker.engine.poll(now))
            worker.engine.on_results(worker.transport.receive(0), now)
        now += 1e-5
    assert now - started < 0.1
    check(arrays, [operation.result()[0] for operation in operations])


def exchange(workers, now):
    for worker in workers:
        worker.transport.send(worker.engine.poll(now))
    return [worker.transport.receive(0) for worker in workers]


def test_a_lost_chunk_is_sent_again_at_once():
    job = Job(1, window=64, lead=16)
    [worker] = job.workers
    engine = worker.engine
    begin(engine, np.arange(64 * 200, dtype=np.int32))
    now = 0.0
    for _ in range(3):
        now += 0.001
        [results] = exchange(job.workers, now)
        engine.on_results(results, now + 0.0005)
    [results] = exchange(job.workers, now := now + 0.001)
    engine.on_results(np.delete(results, [3, 7]), now + 0.0005)
    assert engine.wake_at(now + 0.0005) < now + 0.001, "before any time-out"
    again = engine.poll(now + 0.001)
    lost = results["chunk"][[3, 7]].tolist()
    assert again["chunk"][:2].tolist() == lost
    assert worker.stats.retransmissions == 2
    worker.transport.send(again)
    engine.on_results(worker.transport.receive(0), now + 0.002)
    in_flight = len(engine.poll(now + 0.002))
    assert 12 <= in_flight <= 15, "less than 16"


def test_what_is_merely_late_costs_one_packet():
    """The process, or the switch, was held up: all results come after the time-out."""
    job = Job(1, window=64, lead=16)
    [worker] = job.workers
    engine = worker.engine
    begin(engine, np.arange(64 * 200, dtype=np.int32))
    now = 0.0
    for _ in range(5):
        [results] = exchange(job.workers, now)
        engine.on_results(results, now + 0.0001)
        now += 0.0002
    late = exchange(job.workers, now)[0].copy()
    for _ in range(10):
        now += 0.002
        assert len(engine.poll(now)) <= 1
    assert 1 <= worker.stats.retransmissions <= 5
    engine.on_results(late, now)
    assert len(engine.poll(now)) == len(late) == 16, "the window is as it was"


def test_a_rank_may_leave_after_its_last_all_reduce():
    """The other's results are all lost once; the switch replays them although rank 0 is gone."""
    job = Job(2, window=8, lead=8)
    arrays = random_arrays(np.random.default_rng(10), 2, np.int32, 64 * 7)
    a, b = (w.engine for w in job.workers)
    mine, other = begin(a, arrays[0]), begin(b, arrays[1])
    job.workers[0].transport.send(a.poll(0.0))
    job.workers[1].transport.send(b.poll(0.0))
    a.on_results(job.workers[0].transport.receive(0), 0.0)
    job.fabric.receive(2, 0)  # lost
    assert mine.done
    job.workers[0].close()
    now = 0.0
    while not other.done:
        now = max(now + 1e-6, b.wake_at(now))
        job.workers[1].transport.send(b.poll(now))
        b.on_results(job.workers[1].transport.receive(0), now)
    check(arrays, [mine.result()[0], other.result()[0]])
    assert job.switch.counts[2, Verdict.REPLAYED] == 8


def test_strays_and_duplicates_are_counted_and_change_nothing():
    job = Job(1, window=4, lead=4)
    worker = job.workers[0]
    array = np.arange(64 * 3, dtype=np.int32)
    operation = begin(worker.engine, array)
    worker.transport.send(worker.engine.poll(0.0))
    good = worker.transport.receive(0).copy()
    assert len(good) == 4
    wrong = np.repeat(good[:1], 5)
    wrong["kind"][0] = 0x19  # a contribution
    wrong["kind"][1] = 0x2B  # 256 elements
    wrong["place"][2] = 4  # beyond the pool
    wrong["place"][3] ^= 1 << 15  # other version
    wrong["chunk"][4] += 4  # a later chunk of the slot
    wrong["values"] = 99
    worker.engine.on_results(wrong, 0.0)
    assert worker.engine.first_missing == 0
    worker.engine.on_results(np.repeat(good, 2), 0.0)
    assert operation.done
    worker.engine.on_results(good, 0.0)
    np.testing.assert_array_equal(operation.result()[0], array)
    assert (worker.stats.strays, worker.stats.duplicates) == (3, 2 + 4 + 4)


def test_workers_in_threads_over_memory():
    job = Job(3, {"loss": 0.05, "reorder": 0.1, "seed": 13}, window=32, lead=8, timeout=60.0)
    arrays = random_arrays(np.random.default_rng(14), 3, np.float32, 3000)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(w.all_reduce, a) for w, a in zip(job.workers, arrays, strict=True)]
        check(arrays, [future.result(timeout=120) for future in futures])


def test_an_interrupted_call_leaves_the_job():
    job = Job(1)
    worker = job.workers[0]

    class Interrupting:
        native = None

        def send(self, packets):
            raise KeyboardInterrupt

        def receive(self, timeout):
            return INT[:0]

        def close(self):
            pass

    worker.transport = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        worker.all_reduce(INT)
    with pytest.raises(NotInJobError, match="KeyboardInterrupt"):
        worker.all_reduce(INT)


def test_the_window_moves_with_the_least_missing_chunk_alone():
    (member,) = memberships(1, window=4, lead=4)
    engine = Engine(member)
    begin(engine, np.zeros(64 * 40, np.int32))
    sent = engine.poll(0.0).copy()
    assert sent["chunk"].tolist() == [0, 1, 2, 3], "the send rule"
    sent["kind"] = sent["kind"] & 0x0F | 2 << 4  # as results
    engine.on_results(sent[1:], 0.001)
    assert len(engine.poll(0.001)) == 0, "the send rule"
    engine.on_results(sent[:1], 0.002)
    assert engine.poll(0.002)["chunk"].tolist() == [4, 5, 6, 7], "the send rule"
