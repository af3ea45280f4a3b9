# SPDX-License-Identifier: Apache-2.0
"""Several all-reduces under way: lists of arrays, handles, what fails which of them, and what is counted."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.jobs import Job, begin
from worker import MismatchError, NonFiniteError, NotInJobError, StalledError, UnsupportedError, WorkerError
from worker.handle import Handle
from worker.kernels import Kernels
from worker.operation import Operation
from worker.stats import RoundTrips


def together(job: Job, calls: list[list[list[Any]]]) -> list[list[Operation]]:
    """Begin calls[rank] (each a list of arrays) at once at all ranks, and go on until all have ended."""
    now = job.fabric.clock
    operations = [
        [begin(worker.engine, *arrays, now=now) for arrays in of_rank]
        for worker, of_rank in zip(job.workers, calls, strict=True)
    ]
    while not all(operation.done for of_rank in operations for operation in of_rank):
        wake = [now + 1.0]
        for worker in job.workers:
            worker.transport.send(worker.engine.poll(now))
            worker.engine.on_results(worker.transport.receive(0), now)
            wake.append(worker.engine.wake_at(now))
        now = max(now + 1e-5, min(wake) if not job.fabric.late else 0.0)
    job.fabric.clock = now
    return operations


def values(seed: int, rank: int, size: int, is_float: bool) -> Any:
    rng = np.random.default_rng([seed, rank])
    if is_float:
        return rng.integers(-(2**20), 2**20, size).astype(np.float32)
    return rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32)


def expected(arrays: list[Any]) -> Any:
    return np.sum(arrays, axis=0, dtype=np.int64).astype(arrays[0].dtype)


CALL = st.tuples(st.booleans(), st.lists(st.integers(0, 64 * 6), min_size=1, max_size=4))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 4),
    window=st.integers(1, 12),
    calls=st.lists(CALL, min_size=1, max_size=6),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_many_at_once(
    kernels: Kernels, n: int, window: int, calls: list[Any], loss: float, seed: int, data: Any
) -> None:
    """Floats are whole numbers, whose sums the contract's quantization gives back to within a quantum."""
    faults = {"loss": loss, "duplicate": loss, "reorder": loss, "seed": seed}
    lead = data.draw(st.integers(1, window))
    job = Job(n, faults, timeout=1e9, window=window, lead=lead, kernels=kernels)
    given_ = [
        [[values(seed + 9 * i + j, r, size, is_float) for j, size in enumerate(sizes)]
         for i, (is_float, sizes) in enumerate(calls)]
        for r in range(n)
    ]  # fmt: skip
    results = [[operation.result() for operation in of_rank] for of_rank in together(job, given_)]
    for i, (is_float, sizes) in enumerate(calls):
        for j in range(len(sizes)):
            sums = [of_rank[i][j] for of_rank in results]
            exact = expected([of_rank[i][j] for of_rank in given_])
            np.testing.assert_allclose(sums[0], exact, rtol=0, atol=n * n * 2.0**-10 if is_float else 0)
            assert len({s.tobytes() for s in sums}) == 1
    assert {w.engine.first_missing for w in job.workers} == {job.workers[0].engine.next_chunk}


@pytest.mark.parametrize("is_float", [False, True])
def test_no_bubble_between_small_tensors(is_float: bool) -> None:
    """16 calls of 2 chunks need the round trips that 32 chunks need, not two or three each."""
    job = Job(1, window=256, lead=64)
    [worker] = job.workers
    operations = [begin(worker.engine, values(i, 0, 128, is_float)) for i in range(16)]
    rounds = 0
    while not all(operation.done for operation in operations):
        worker.transport.send(worker.engine.poll(rounds * 0.001))
        worker.engine.on_results(worker.transport.receive(0), rounds * 0.001 + 0.0005)
        rounds += 1
    assert rounds <= (4 if is_float else 2)
    assert worker.stats.retransmissions == 0


def test_a_list_of_floats_pays_for_its_lead_once() -> None:
    job = Job(2, window=64, lead=8)
    arrays = [[values(i, r, 64 * (i % 3), True) for i in range(30)] for r in range(2)]
    [one, other] = together(job, [[arrays[0]], [arrays[1]]])
    for i, (a, b) in enumerate(zip(one[0].result(), other[0].result(), strict=True)):
        np.testing.assert_allclose(a, arrays[0][i] + arrays[1][i], atol=0.01)
        assert a.tobytes() == b.tobytes()
    assert job.workers[0].stats.packets_sent == 1 + 8 + 30


def in_threads(job: Job, call: Any) -> list[Any]:
    with ThreadPoolExecutor(len(job.workers)) as pool:
        return [f.result(30) for f in [pool.submit(call, r, w) for r, w in enumerate(job.workers)]]


def test_handles_and_lists() -> None:
    job = Job(2, {"loss": 0.02, "seed": 3}, window=32, lead=8)
    floats, ints = np.arange(3000, dtype=np.float32), np.arange(500, dtype=np.int32).reshape(50, 10)

    def call(rank: int, worker: Any) -> None:
        told: list[tuple[int, int]] = []
        first = worker.all_reduce_async(floats, progress=lambda *at: told.append(at))
        second = worker.all_reduce_async([floats[:5], ints, np.zeros(0, np.float16), ints[:0], ints[3]])
        out = np.zeros_like(ints)
        third = worker.all_reduce_async(ints, out=out)
        assert third.result() is out
        assert first.done
        assert second.wait(0.0)
        np.testing.assert_array_equal(out, 2 * ints)
        np.testing.assert_allclose(first.result(), 2 * floats, atol=1e-3)
        a, b, c, d, e = second.result()
        np.testing.assert_allclose(a, 2 * floats[:5], atol=1e-3)
        np.testing.assert_array_equal(b, 2 * ints)
        assert (c.shape, c.dtype, d.shape) == ((0,), np.float16, (0, 10))
        np.testing.assert_array_equal(e, 2 * ints[3])
        assert worker.all_reduce([]) == []
        mixed = worker.all_reduce((ints, floats), op="sum", out=(None, floats.copy()))
        np.testing.assert_array_equal(mixed[0], 2 * ints)
        assert not told or told[-1] <= (3000, 3000)
        worker.all_reduce(floats, progress=lambda *at: told.append(at))
        assert told[-1] == (3000, 3000)
        assert first.stats.packets_sent >= 1 + 8 + 47
        assert third.stats.rtt_p50 is not None
        total = worker.stats
        assert 0 < total.window_mean <= 8
        assert 0 <= total.window_limited <= 1
        assert total.all_reduces == 1 + 4 + 1 + 2 + 1  # a list is as many as it has runs of one type

    in_threads(job, call)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16, ml_dtypes.bfloat16])
def test_arrays_of_every_kind_in_a_list(kernels: Kernels, dtype: Any) -> None:
    """Small whole numbers: every type holds them, and their sums."""
    job = Job(2, {"loss": 0.1, "reorder": 0.1, "seed": 5}, kernels=kernels)

    def call(rank: int, worker: Any) -> None:
        base = (np.arange(6 * 70) % 50).astype(dtype).reshape(6, 70)
        frozen = base.copy()
        frozen.flags.writeable = False
        arrays = [base.T, frozen[::2, 3:], np.array(7, dtype), base[:0], base[1].copy(), base[:, 5:9].copy()]
        wide = np.full((6, 4, 2), 9).astype(dtype)
        outs = [None, None, None, None, arrays[4], wide[..., 1]]
        sums = [(2 * array.astype(np.float64)).astype(dtype) for array in arrays]
        handle = worker.all_reduce_async(arrays, out=outs)
        results = handle.result()
        assert results[4] is arrays[4]
        assert (wide[..., 0].astype(int) == 9).all()
        for result, exact in zip([*results[:5], wide[..., 1]], sums, strict=True):
            assert (result.dtype, result.shape) == (exact.dtype, exact.shape)
            np.testing.assert_allclose(result.astype(float), exact.astype(float), atol=1e-6)

    in_threads(job, call)


def test_a_result_that_is_not_awaited_for_ever() -> None:
    job = Job(2)
    handle = job.workers[0].all_reduce_async(np.zeros(3, np.int32))
    assert not handle.wait(0.0)
    with pytest.raises(TimeoutError, match=r"not ended in 0.01 s; wait again"):
        handle.result(0.01)
    other = job.workers[1].all_reduce(np.ones(3, np.int32))
    assert handle.result().tolist() == other.tolist() == [1, 1, 1]


def test_a_time_out_of_its_own() -> None:
    job = Job(2)
    handles: list[Handle] = [
        job.workers[0].all_reduce_async(np.zeros(64 * i, np.int32), timeout=t)
        for i, t in ((1, None), (2, 0.05), (3, None))
    ]
    for handle in handles:
        with pytest.raises(StalledError, match=r"no result for 0.05 s") as caught:
            handle.result()
        assert caught.value.first == 0
    with pytest.raises(NotInJobError, match="timed out"):
        job.workers[0].all_reduce(np.zeros(3, np.int32), timeout=0.1)


def test_a_mismatch_ends_what_was_begun_after_it_and_nothing_before() -> None:
    job = Job(2, {"loss": 0.2, "reorder": 0.2, "seed": 7})
    ints, floats = np.arange(900, dtype=np.int32), np.zeros(300, np.float32)
    calls: Any = [[[ints], [ints], [floats]], [[ints], [floats], [floats]]]
    for first, second, third in together(job, calls):
        np.testing.assert_array_equal(first.result()[0], 2 * ints)
        with pytest.raises(MismatchError, match="rank 1 called sum of 300 float32"):
            second.result()
        with pytest.raises(NotInJobError, match="an all_reduce did not match"):
            third.result()
    job.new_epoch()
    [[again], _] = together(job, [[[ints]], [[ints]]])
    np.testing.assert_array_equal(again.result()[0], 2 * ints)


def test_lists_that_are_cut_differently_differ() -> None:
    job = Job(2)
    flat = np.zeros(10, np.int32)
    for [operation] in together(job, [[[flat[:4], flat[4:]]], [[flat]]]):
        with pytest.raises(MismatchError):
            operation.result()


def test_nan_fails_its_own_call_alone() -> None:
    job = Job(2, {"loss": 0.1, "seed": 2})
    good, bad = np.ones(300, np.float32), np.ones(300, np.float32)
    bad[200] = np.nan
    calls = [[[good], [good, bad], [good]], [[good], [good, good], [good]]]
    for rank, (first, second, third) in enumerate(together(job, calls)):
        assert first.result()[0].tolist() == third.result()[0].tolist() == [2.0] * 300
        with pytest.raises(NonFiniteError, match="elements 492 to") as caught:
            second.result()
        assert caught.value.own == (rank == 0)


def test_a_list_is_refused_before_anything_is_begun() -> None:
    [worker] = Job(1).workers
    base = np.zeros(100, np.int32)
    for arrays, out, says in (
        ([base, np.zeros(3)], None, "cast=True"),
        ([base, base], [base], "2 arrays with 1 in out"),
        ([base], 5, "out is a int; pass a list"),
        (base, [base], "out is a list; pass a numpy array"),
        ([base[:50], base[50:]], [base[50:], base[:50]], "overlaps"),
        ([base, base], [base, None], "overlaps"),
        ([base.copy(), base], [base, base[:100]], "overlaps"),
        ([base, base.view(np.float32)], [base, base.view(np.float32)], "overlaps"),
        ([[1, 2], ["a"]], None, "int64"),
    ):
        with pytest.raises(UnsupportedError, match=says):
            worker.all_reduce_async(arrays, out=out)
    assert worker.engine.begun == 0
    frozen = base.copy()
    frozen.flags.writeable = False
    assert worker.all_reduce([frozen, base[::2]])[1].shape == (50,)


def test_closing_fails_what_is_under_way() -> None:
    job = Job(2)
    handle = job.workers[0].all_reduce_async(np.zeros(3, np.int32))
    job.workers[0].close()
    with pytest.raises(WorkerError, match="it was closed"):
        handle.result()


def test_threads_wait_for_their_own() -> None:
    """Whoever drives carries on for all."""
    job = Job(2, window=8, lead=4)
    arrays = [np.full(64 * 40, i, np.int32) for i in range(6)]

    def call(rank: int, worker: Any) -> None:
        handles = [worker.all_reduce_async(array) for array in arrays]
        results: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda i=i: results.update({i: handles[i].result()})) for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        for i in range(6):
            np.testing.assert_array_equal(results[i], 2 * arrays[i])

    in_threads(job, call)


def test_an_error_of_the_callback_ends_it() -> None:
    job = Job(1)

    def fail(summed: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.workers[0].all_reduce(np.zeros(64 * 100, np.int32), progress=fail)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=200))
def test_percentiles(times: list[float]) -> None:
    trips = RoundTrips()
    for time in times:
        trips.add(time)
    for percent in (50, 90, 99):
        found = trips.percentile(percent)
        true = np.percentile(times, percent, method="inverted_cdf")
        assert found is not None
        assert true / 1.1 < found < true * 1.1


def test_out_is_filled_once_the_handle_is_done() -> None:
    """Also where it is not contiguous: `result` is not needed for it, and does not write to it any more."""
    job = Job(2)
    wide = np.zeros((2, 30, 2), np.int32)
    calls = [
        job.workers[r].all_reduce_async(np.arange(30, dtype=np.int32), out=wide[r, :, 0]) for r in (0, 1)
    ]
    assert all(handle.wait() for handle in reversed(calls))
    assert wide[0, :, 0].tolist() == list(range(0, 60, 2))
    wide[0] = 7
    assert calls[0].result().tolist() == [7] * 30


def test_a_progress_callback_may_wait_for_another_handle() -> None:
    job = Job(2)
    waited: list[bool] = []

    def call(rank: int, worker: Any) -> None:
        other = worker.all_reduce_async(np.ones(64 * 40, np.int32))
        worker.all_reduce(np.ones(64 * 40, np.int32), progress=lambda *_: waited.append(other.wait(5)))

    in_threads(job, call)
    assert waited
    assert all(waited)


def test_progress_is_told_to_who_waits() -> None:
    [worker] = Job(1).workers
    told: list[tuple[int, int]] = []
    handle = worker.all_reduce_async(np.ones(64, np.int32), progress=lambda *at: told.append(at))
    assert not told
    handle.wait()
    assert told[-1] == (64, 64)


@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_work_does_not_grow_with_the_square_of_a_list(dtype: Any) -> None:
    """Lines of Python that numpy's part of the work executes, for lists of 200 and of 800 small arrays."""

    def lines(count: int) -> int:
        [worker] = Job(1, window=64, lead=16).workers
        executed = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal executed
            executed += event == "line"
            return trace if frame.f_globals["__name__"] == "worker.kernels" else None

        sys.settrace(trace)
        try:
            results = worker.all_reduce([np.full(3, 5, dtype)] * count)
        finally:
            sys.settrace(None)
        assert all(result.tolist() == [5.0] * 3 for result in results)
        return executed

    lines(10)
    assert lines(800) < 6 * lines(200)
