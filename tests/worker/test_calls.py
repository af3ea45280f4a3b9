# SPDX-License-Identifier: Apache-2.0
"""What people call: element types, operations, `out`, and arrays of every kind."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tests.worker.jobs import Job, begin, memberships
from wire.packet import Packets
from worker import MismatchError, NonFiniteError, UnsupportedError, Worker
from worker.calls import Call
from worker.kernels import Kernels

ELEMENTS = 64
QUANTUM = 2**31 - 1


def scaled_sums(arrays: Any, divisor: int) -> Any:
    """The contract's float sum or mean of float32 arrays (n, size), chunk by chunk, in numpy's float64."""
    n, size = arrays.shape
    out = np.zeros(size, np.float32)
    for start in range(0, size, ELEMENTS):
        part = arrays[:, start : start + ELEMENTS].astype(np.float64)
        e = max(-128, math.frexp(np.abs(part).max())[1]) if part.any() else -128
        quanta = np.rint(part * float(QUANTUM) / (n * 2.0**e)).sum(axis=0)
        with np.errstate(over="ignore", under="ignore"):
            out[start : start + ELEMENTS] = (quanta * (divisor * 2.0**e) / QUANTUM).astype(np.float32)
    return out


def outputs(outcomes: list[Any]) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def normal(n: int, shape: Any, dtype: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    return [np.asarray(rng.standard_normal(shape), np.float32).astype(dtype) for _ in range(n)]


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_floats(kernels: Kernels, dtype: Any, op: str) -> None:
    job = Job(3, {"loss": 0.1, "reorder": 0.2, "seed": 4}, kernels=kernels)
    arrays = normal(3, (7, 61), dtype)
    flat = np.stack(arrays).reshape(3, -1).astype(np.float32)
    expected = scaled_sums(flat, 1 if op == "mean" else 3).astype(dtype)
    for result in outputs(job.all_reduce(*arrays, op=op, cast=dtype == np.float64)):
        assert (result.dtype, result.shape) == (np.dtype(dtype), (7, 61))
        assert result.reshape(-1).tobytes() == expected.tobytes()
    exact = np.stack(arrays).astype(np.float64).sum(axis=0) / (3 if op == "mean" else 1)
    assert np.allclose(result.astype(np.float64), exact, rtol=2.0**-7, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float64]),
    st.integers(1, 5),
    st.lists(st.integers(0, 200), min_size=1, max_size=3),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from(["new", "out", "in place"]),
    st.integers(-150, 125),
    st.integers(0, 2**32),
)
def test_other_floats_are_those_of_float32_sums(
    kernels: Kernels, dtype: Any, n: int, sizes: list[int], op: str, to: str, magnitude: int, seed: int
) -> None:
    """Of any magnitude, denormals and sums beyond the dtype among them."""
    rng = np.random.default_rng(seed)
    job = Job(n, {"loss": 0.02, "reorder": 0.1, "seed": seed}, kernels=kernels)
    magnitude = magnitude if dtype != np.float16 else magnitude % 42 - 26
    for size in sizes:
        made = np.ldexp(rng.uniform(-1, 1, (n, size)), magnitude)
        with np.errstate(over="ignore", under="ignore"):
            arrays = made.astype(dtype)
            expected = scaled_sums(arrays.astype(np.float32), 1 if op == "mean" else n).astype(dtype)
        outs = {"new": None, "out": list(np.empty_like(arrays)), "in place": list(arrays)}[to]
        for result in outputs(job.all_reduce(*arrays, op=op, outs=outs, cast=True)):
            assert result.tobytes() == expected.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(-140, 120), st.data())
def test_float32_is_within_the_contracts_bound(kernels: Kernels, n: int, magnitude: int, data: Any) -> None:
    """n/2 quanta and a rounding to float32, with the exact sum as a fraction."""
    draw = st.floats(-1, 1, width=32)
    arrays = [data.draw(hnp.arrays(np.float32, 70, elements=draw, fill=draw)) for _ in range(n)]
    arrays = [np.ldexp(a, magnitude).astype(np.float32) for a in arrays]
    results = outputs(Job(n, kernels=kernels).all_reduce(*arrays))
    for start in (0, ELEMENTS):
        part = slice(start, start + ELEMENTS)
        largest = max(float(np.abs(a[part]).max()) for a in arrays)
        quantum = n * Fraction(2) ** max(-128, math.frexp(largest)[1] if largest else -128) / QUANTUM
        for i, value in enumerate(results[0][part], start):
            exact = sum((Fraction(float(a[i])) for a in arrays), Fraction(0))
            # a float64's rounding of each x (2^31-1) is below 2^-20 quanta
            bound = n * quantum * (Fraction(1, 2) + Fraction(1, 2**20))
            bound += Fraction(float(np.spacing(np.abs(value)))) / 2
            assert abs(Fraction(float(value)) - exact) <= bound
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_what_other_floats_cannot_hold(kernels: Kernels, dtype: Any) -> None:
    job = Job(2, kernels=kernels)
    big = np.full(3, ml_dtypes.finfo(dtype).max, dtype)
    outcomes = job.all_reduce(big, big, cast=True)
    if dtype == np.float16:
        assert all(np.isposinf(r).all() for r in outputs(outcomes))
    else:  # 2^127, or no float32 either
        assert all(isinstance(o, NonFiniteError) for o in outcomes)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        bad = np.array([1, value, 2], dtype)
        for rank, outcome in enumerate(job.all_reduce(np.ones(3, dtype), bad, cast=True)):
            assert isinstance(outcome, NonFiniteError)
            assert outcome.own == (rank == 1)
    assert outputs(job.all_reduce(np.ones(3, dtype), np.ones(3, dtype), cast=True))[0].tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16])
@pytest.mark.parametrize("shape", [(0,), (), (2, 0), (64,), (5, 31)])
def test_out(kernels: Kernels, dtype: Any, shape: Any) -> None:
    job = Job(2, {"loss": 0.1, "duplicate": 0.2, "seed": 1}, kernels=kernels)
    arrays = [np.asarray(100 * a, dtype) for a in normal(2, shape, np.float32)]
    expected = outputs(job.all_reduce(*arrays))[0].copy()
    outs = [np.ones(shape, dtype), np.ones(shape, dtype)]
    results = outputs(job.all_reduce(*arrays, outs=outs))
    assert all(r is o for r, o in zip(results, outs, strict=True))
    in_place = [a.copy() for a in arrays]
    outputs(job.all_reduce(*in_place, outs=in_place))
    strided = [np.full((*shape, 2), 9, dtype) for _ in arrays]
    outputs(job.all_reduce(*arrays, outs=[s[..., 1] for s in strided]))
    for result in (*outs, *in_place, *(s[..., 1] for s in strided)):
        assert result.tobytes() == expected.tobytes()
    assert all((s[..., 0] == 9).all() for s in strided)


def unaligned(array: NDArray[Any]) -> NDArray[Any]:
    raw = bytearray(array.nbytes + 1)
    copy = np.frombuffer(raw, np.uint8)[1:].view(array.dtype)
    assert not copy.flags.aligned
    copy[:] = array
    return copy


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16"])
def test_unaligned_arrays(kernels: Kernels, dtype: str) -> None:
    """C never sees them: there they are not defined."""
    array = unaligned(np.arange(100).astype(dtype))
    call = Call([array], "sum", [array], False)
    assert all(of.flags.aligned for of in call.sources + call.targets)
    result = outputs(Job(1, kernels=kernels).all_reduce(array, outs=[array]))[0]
    assert result is array
    assert result.tolist() == pytest.approx(list(range(100)), abs=0.01)


def test_in_place_where_the_array_is_not_contiguous(kernels: Kernels) -> None:
    job = Job(2, kernels=kernels)
    arrays = [np.arange(300, dtype=np.int32).reshape(10, 30).T[:, ::2] for _ in range(2)]
    expected = 2 * arrays[0]
    for result, array in zip(outputs(job.all_reduce(*arrays, outs=arrays)), arrays, strict=True):
        assert result is array
        np.testing.assert_array_equal(array, expected)


ONES = np.ones(70, np.float32)
FROZEN = ONES.copy()
FROZEN.flags.writeable = False
BOTH = np.zeros(100, np.float32)


@pytest.mark.parametrize(
    ("array", "op", "out", "says"),
    [
        (ONES, "max", None, "'max' is not known; use one of sum, mean"),
        (ONES, None, None, "None is not known"),
        (np.ones(3, np.int32), "mean", None, "mean of int32.*divide"),
        (np.ones(3), "sum", None, "cast=True"),
        (np.ones(3, np.int64), "sum", None, "int64 is not supported; convert"),
        (np.ones(3, np.complex64), "sum", None, "complex64"),
        (np.ones(3, np.bool_), "sum", None, "bool"),
        (["a"], "sum", None, "<U1"),
        (ONES, "sum", FROZEN, "read-only"),
        (ONES, "sum", np.ones(71, np.float32), r"shape \(71,\)"),
        (ONES, "sum", np.ones(70, np.int32), "out is int32"),
        (ONES, "sum", [0.0] * 70, "out is a list"),
        (BOTH[:70], "sum", BOTH[1:71], "overlaps"),
    ],
)
def test_what_is_refused_and_the_rank_stays_in_step(array: Any, op: Any, out: Any, says: str) -> None:
    job = Job(1)
    with pytest.raises(UnsupportedError, match=says):
        job.workers[0].all_reduce(array, op, out=out)
    assert job.workers[0].engine.begun == 0
    [result] = outputs(job.all_reduce(FROZEN))
    np.testing.assert_array_equal(result, ONES)


def test_ranks_that_differ_in_type_or_operation_hear_of_it() -> None:
    job = Job(3)
    for outcome in job.all_reduce(ONES, ONES.astype(np.float16), ONES):
        assert isinstance(outcome, MismatchError)
        assert outcome.ranks == [1]
        assert "rank 1 called sum of 70 float16" in str(outcome)
        assert "the others called sum of 70 float32" in str(outcome)


def test_sum_and_mean_differ() -> None:
    job = Job(2)
    operations = []
    for i, worker in enumerate(job.workers):
        operations.append(begin(worker.engine, ONES, op="mean" if i else "sum"))
        worker.transport.send(worker.engine.poll(0.0))
    for worker, operation in zip(job.workers, operations, strict=True):
        worker.engine.on_results(worker.transport.receive(0), 0.0)
        with pytest.raises(MismatchError, match=r"rank 0 called sum of 70 float32.*rank 1 called mean of 70"):
            operation.result()


class Mirror:
    """A job of one rank, whose switch answers at once with what it was sent."""

    native = None

    def __init__(self) -> None:
        self._sent: list[Packets] = []

    def send(self, packets: Packets) -> None:
        answers = packets.copy()
        answers["kind"] ^= 0x30
        self._sent.append(answers)

    def receive(self, timeout: float) -> Packets:
        return self._sent.pop(0)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_memory_does_not_grow_with_the_tensor(kernels: Kernels, dtype: str) -> None:
    """Beyond input and output: the ring of 2W packets, a few bytes a chunk, and what a burst needs."""
    [member] = memberships(1, window=256, lead=64, elements=256)
    mib = 64 if kernels.name == "C" else 16
    array = (np.arange(mib << 18) % 1000).astype(dtype)
    expected = array.copy()
    out = array if dtype == "float32" else np.empty_like(array)
    ring = 2 * 256 * 1034
    tracemalloc.start()
    try:
        with Worker(member, Mirror(), kernels=kernels) as worker:
            result = worker.all_reduce(array, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result is out
    np.testing.assert_array_equal(result, expected)
    chunks = array.size // 256
    assert peak < ring + 3 * chunks + (4 << 20)  # 0.3 MiB, and now and then 2 of the interpreter's
