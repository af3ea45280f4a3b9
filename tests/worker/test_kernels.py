# SPDX-License-Identifier: Apache-2.0
"""The C kernels give numpy's bits: anywhere, and on purpose where rounding is about to go the other way."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.worker.jobs import memberships
from wire.packet import payload_dtype
from worker.calls import DTYPES
from worker.kernels import Kernels, NumpyKernels, Stream, Tensors
from worker.native import NativeKernels, best_kernels
from worker.quantize import chunk_exponents
from worker.ring import NEVER, PARKED, Ring

QUANTUM = 2**31 - 1
NUMPY = NumpyKernels()
BITS = st.integers(0, 2**32 - 1)
FLOATS = ["float32", "float16", "bfloat16", "float64"]


@pytest.fixture(scope="module")
def native() -> NativeKernels:
    return NativeKernels()


def packets(count: int, elements: int, fill: int = 0) -> Any:
    made = np.zeros(count, payload_dtype(elements))
    made.view(np.uint8)[:] = fill  # what is not written must stay
    return made


def floats(bits: Any) -> Any:
    return np.asarray(bits, np.uint32).view(np.float32)


def chunks_of(values: Any, elements: int) -> int:
    return -(-int(values.size) // elements)


def stream(tensors: Tensors, dtype: str, headers: int, ahead: int, workers: int) -> Stream:
    return Stream(
        elements=tensors.elements,
        chunks=tensors.end,
        dtype=DTYPES[dtype],
        headers=headers,
        ahead=ahead,
        kind=0x1B,
        tensor=255,
        chunk=2**32 - 2,
        workers=workers,
        divisor=workers,
    )


def filled(
    kernels: Kernels, arrays: list[Any], elements: int, at: int, workers: int, slack: int
) -> list[Any]:
    """All that is written of the packets from position `at` on; the second time with exponents known."""
    source = Tensors.in_turn(arrays, elements)
    of = stream(source, arrays[0].dtype.name, 2, 3, workers)
    first, second = packets(of.length - at, elements, 0xA5), packets(of.length - at, elements, 0xA5)
    kernels.fill(of, source, first, at)
    of.exponents[:] = np.minimum(largest_exponents(source) + slack, 127)
    of.unsendable[:: slack + 1] = 0
    kernels.fill(of, source, second, at)
    if arrays[0].dtype != np.float32:
        return [first, second, of.own_unsendable]
    ints = Tensors.in_turn([array.view(np.int32) for array in arrays], elements)
    of_ints = stream(ints, "int32", 2, 0, workers)
    third = packets(max(0, of_ints.length - at), elements, 0xA5)
    kernels.fill(of_ints, ints, third, at)
    return [first, second, third, of.own_unsendable]


def largest_exponents(source: Tensors) -> Any:
    with np.errstate(all="ignore"):
        rows = source.rows(0, source.end, np.float32)
    return chunk_exponents(rows)[0].astype(int)


def quantized(kernels: Kernels, values: Any, elements: int, exponents: Any, workers: int) -> Any:
    source = Tensors.in_turn([values], elements)
    of = stream(source, "float32", 0, source.end, workers)
    of.exponents[:], of.unsendable[:] = exponents, 0
    made = packets(source.end, elements)
    kernels.fill(of, source, made, source.end)
    return made["values"]


def delivered(
    kernels: Kernels,
    sums: Any,
    exponents: Any,
    size: int,
    ahead: int,
    workers: int,
    dtype: str = "float32",
) -> list[Any]:
    """All that is written from packets whose place is their index but for some that are not picked."""
    elements = sums["values"].shape[1]
    values, ints = np.full(size, 7, dtype), np.full(size, 7, np.int32)
    target = Tensors.in_turn(np.split(values, [size // 3]), elements)
    sums = sums[: target.end + ahead]
    of = stream(target, dtype, 0, ahead, workers)
    of.exponents[:] = np.resize(exponents, target.end)
    picked = np.arange(len(sums))[:: 2 if len(sums) > 3 else 1].copy()
    with np.errstate(all="ignore"):
        kernels.deliver(of, target, sums, picked, picked.copy())
    to = Tensors.in_turn([ints], elements)
    within = picked[picked < to.end].copy()
    kernels.deliver(stream(to, "int32", 1, 0, workers), to, sums, within, within + 1)
    return [of.exponents, of.unsendable, values, ints]


def same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


def ring_in_use(rng: Any, window: int, base: int) -> tuple[Ring, int, int]:
    """Some window of chunks sent, some of them answered, parked or sent again; the first without, the end."""
    ring = Ring(memberships(1, window=window, lead=1)[0], base)
    first = int(rng.integers(0, 3 * window))
    end = first + int(rng.integers(0, window + 1))
    rows = ring.rows(max(0, end - 2 * window), min(end, 2 * window))
    offsets = np.arange(max(0, end - 2 * window), end)
    ring.offset[rows] = offsets
    ring.packets["chunk"][rows] = (base % 2**32 + offsets) % 2**32
    sent = ring.rows(first, end - first)
    ring.deadline[sent] = rng.choice([NEVER, PARKED, 1.0, 2.0], end - first)
    ring.sent_at[:] = rng.integers(0, 5, 2 * window)
    ring.tries[:] = rng.integers(1, 3, 2 * window)
    return ring, first, end


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 20), st.sampled_from([0, 1, 2**32 - 7, 2**64 - 2**20]), st.integers(0, 2**32))
def test_taking_results(native: NativeKernels, window: int, base: int, seed: int) -> None:
    rings = [ring_in_use(np.random.default_rng(seed), window, base) for _ in range(2)]
    (ring, first, end), rng = rings[0], np.random.default_rng(seed)
    results = ring.packets[rng.integers(0, 2 * window, int(rng.integers(1, 40)))]
    results["kind"] = np.where(rng.random(len(results)) < 0.9, 0x21, rng.integers(0, 256, len(results)))
    results["kind"] |= np.where(rng.random(len(results)) < 0.2, 8, 0).astype(np.uint8)
    odd = rng.random(len(results)) < 0.1
    results["place"][odd] = rng.integers(0, 2**16, int(odd.sum()))
    results["chunk"][rng.random(len(results)) < 0.1] += 1
    highest = first - 1 + int(rng.integers(0, 3))
    kernels: tuple[Kernels, Kernels] = (NUMPY, native)
    answers = [k.take(r, results, highest, first, end) for k, (r, _, _) in zip(kernels, rings, strict=True)]
    assert [a.tolist() for a in answers[0][:2]] == [a.tolist() for a in answers[1][:2]]
    assert answers[0][2:] == answers[1][2:]
    assert rings[0][0].deadline.tobytes() == rings[1][0].deadline.tobytes()
    for at, offset in zip(*(a.tolist() for a in answers[1][:2]), strict=True):
        assert results["chunk"][at] == (base + offset) % 2**32
    assert len(set(answers[1].offsets.tolist())) == len(answers[1].offsets)


@st.composite
def tensors(draw: Any) -> Any:
    """A tensor of some magnitude: normal, tiny, huge, zero, or any bits at all."""
    elements = draw(st.sampled_from([64, 256]))
    size = draw(st.integers(1, 4 * elements))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["uniform", "bits", "zeros", "few"]))
    if kind == "bits":
        values = floats(rng.integers(0, 2**32, size, dtype=np.uint32))
    elif kind == "zeros":
        values = floats(rng.integers(0, 2, size, dtype=np.uint32) << 31)
    else:
        with np.errstate(all="ignore"):
            values = np.ldexp(rng.uniform(-1, 1, size), int(rng.integers(-150, 129))).astype(np.float32)
        if kind == "few":
            values = np.where(rng.random(size) < 0.02, values, np.float32(0))
    special = draw(hnp.arrays(np.uint32, draw(st.integers(0, 3)), elements=BITS))
    for bits in special:
        values[rng.integers(size)] = floats(bits)
    return elements, values


@settings(max_examples=150, deadline=None)
@given(tensors(), st.integers(1, 256), st.integers(0, 3), st.sampled_from(FLOATS), st.data())
def test_filling(native: NativeKernels, tensor: Any, workers: int, slack: int, dtype: str, data: Any) -> None:
    elements, values = tensor
    with np.errstate(all="ignore"):
        values = values.astype(dtype)
    if dtype == "float64":
        values *= data.draw(st.sampled_from([1.0, 1 + 2.0**-25, 2.0**-30, 2.0**200]))
    at = data.draw(st.integers(0, chunks_of(values, elements) + 3))
    borders = sorted(data.draw(st.lists(st.integers(0, values.size), max_size=4)))
    arrays = np.split(values, borders)
    with np.errstate(all="ignore"):
        expected = filled(NUMPY, arrays, elements, at, workers, slack)
    same(filled(native, arrays, elements, at, workers, slack), expected)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([64, 256]),
    st.integers(1, 256),
    st.integers(0, 2**32),
    st.sampled_from([1, 2**8, 2**24, 2**31]),
    st.sampled_from(FLOATS),
    st.data(),
)
def test_delivering(
    native: NativeKernels, elements: int, workers: int, seed: int, most: int, dtype: str, data: Any
) -> None:
    rng = np.random.default_rng(seed)
    size = data.draw(st.integers(1, 4 * elements))
    ahead = data.draw(st.integers(0, chunks_of(np.zeros(size), elements)))
    sums = packets(chunks_of(np.zeros(size), elements) + ahead + 1, elements)
    sums["values"] = rng.integers(-most, most, sums["values"].shape)
    sums["values"][rng.random(sums["values"].shape) < 0.02] = -(2**31)
    low, high = (-30, 20) if dtype == "float16" and data.draw(st.booleans()) else (-128, 128)
    sums["e0"] = rng.integers(low, high, len(sums))
    sums["e1"] = np.where(rng.random(len(sums)) < 0.1, 0, -128)
    exponents = rng.integers(low, high, len(sums)).astype(np.int8)
    expected = delivered(NUMPY, sums, exponents, size, ahead, workers, dtype)
    same(delivered(native, sums, exponents, size, ahead, workers, dtype), expected)


@pytest.mark.parametrize(
    ("dtype", "bits", "least", "beyond"),
    [("float16", 11, -24, 2.0**16), ("bfloat16", 8, -133, 2.0**128)],
)
def test_every_sum_between_two_halves_is_rounded_to_even(
    kernels: Kernels, dtype: str, bits: int, least: int, beyond: float
) -> None:
    """And those next to it. Chunks of one binade: there 31 bits give back any float32."""
    for e in range(least, round(math.log2(beyond)) + 1):  # 2^(e-1) <= x < 2^e
        ulp = 2.0 ** max(e - bits, least)
        low = np.arange(2.0 ** (e - 1) // ulp, 2.0**e / ulp) * ulp
        middle = (low + ulp / 2).astype(np.float32)
        below, above = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
        values = np.concatenate([low.astype(np.float32), below, middle, above])
        values = np.concatenate([values, -values]).astype(np.float64)
        scale = max(e - 1, -128)  # two workers
        sums = packets(chunks_of(values, 256), 256)
        quanta = np.zeros((len(sums), 256))
        quanta.reshape(-1)[: values.size] = np.rint(values * QUANTUM / 2.0 ** (scale + 1))
        sums["values"] = quanta
        sums["e0"], sums["e1"] = scale, -128
        target = np.zeros(values.size, dtype)
        tensors = Tensors.in_turn([target], 256)
        every = np.arange(len(sums))
        kernels.deliver(stream(tensors, dtype, 0, 0, 2), tensors, sums, every, every)
        rounded = np.rint(values / ulp) * ulp
        rounded[np.abs(rounded) >= beyond] *= np.inf
        np.testing.assert_array_equal(target.astype(np.float64), rounded)


def test_every_half_is_sent_as_the_float32_that_it_is(kernels: Kernels) -> None:
    """A float16's by struct, a bfloat16's as the first half of a float32."""
    bits = np.arange(2**16, dtype=np.uint16)
    as_float32 = {
        "float16": np.array(struct.unpack(f"{len(bits)}e", bits.tobytes())).astype(np.float32),
        "bfloat16": floats(bits.astype(np.uint32) << 16),
    }
    for dtype, expected in as_float32.items():
        halves = bits.view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        assert isinstance(halves, np.ndarray)
        one, other = (filled(kernels, [values], 64, 0, 3, 0)[:2] for values in (halves, expected))
        same(one, other)


def test_every_exponent_and_number_of_workers(native: NativeKernels) -> None:
    rng = np.random.default_rng(3)
    exponents = np.arange(-128, 128).astype(np.int8)
    sums = packets(256, 64)
    for workers in range(1, 257):
        sums["values"] = rng.integers(-(2**31), 2**31, (256, 64))
        sums["values"][:, :8] = [0, 1, -1, 2**31 - 1, -(2**31), 2, -3, 2**30]
        sums["e0"], sums["e1"] = exponents, -128
        same(
            delivered(native, sums, exponents, 256 * 64, 0, workers),
            delivered(NUMPY, sums, exponents, 256 * 64, 0, workers),
        )
        values = np.ldexp(rng.uniform(-1, 1, (256, 64)), exponents[:, np.newaxis]).astype(np.float32)
        values = np.clip(values, -np.float32(2.0**126), np.float32(2.0**126)).reshape(-1)
        one, other = (quantized(k, values, 64, exponents, workers) for k in (native, NUMPY))
        assert one.tobytes() == other.tobytes()


def equal_sums(native: NativeKernels, sums: list[int], workers: int, exponents: list[int]) -> None:
    made = packets(-(-2 * len(sums) // 64), 64)
    flat = np.zeros(made["values"].size, np.int64)
    flat[: 2 * len(sums)] = [*sums, *(-q for q in sums)]
    made["values"] = flat.reshape(-1, 64)
    for e in exponents:
        made["e0"], made["e1"] = e, -128
        of = np.full(len(made), e, np.int8)
        expected = delivered(NUMPY, made, of, flat.size, 0, workers)
        same(delivered(native, made, of, flat.size, 0, workers), expected)


def nearest_midpoints(workers: int) -> list[int]:
    """Sums whose scaled value lies next to half way between two float32s, and their neighbours."""
    found = []
    for odd in range(2**25 - 1, 2**25 - 1001, -2):  # a midpoint has 25 bits, of which the last is 1
        for shift in range(6, 6 + workers.bit_length()):
            q = Fraction(odd * 2**shift * QUANTUM, workers * 2**31)
            if q <= QUANTUM and abs(q - round(q)) <= q / 2**46:
                found += [round(q) - 1, round(q), round(q) + 1]
    return found


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 100, 255])
def test_sums_next_to_where_float32_rounds_the_other_way(native: NativeKernels, workers: int) -> None:
    sums = nearest_midpoints(workers)
    assert sums
    equal_sums(native, sums, workers, [-97, -96, -95, -94, 0, 90, 119, 120, 127])


def test_denormal_sums_where_a_product_is_not_the_quotient(native: NativeKernels) -> None:
    """See the proof in kernel.c: T = c (2^31-1) + 2^(9+k), n divides T."""
    other = 0
    for k in range(8):
        for c in range(2**k, 2 ** (k + 1)):
            total = c * QUANTUM + 2 ** (9 + k)
            for workers in range(1, 257):
                sum_, rest = divmod(total, workers)
                if rest == 0 and sum_ <= QUANTUM:
                    equal_sums(native, [sum_], workers, [-128, -127, -126, -120, -100])
                    scaled = np.float64(sum_ * (workers * 2.0**-128))
                    quotient, product = scaled / QUANTUM, scaled * (1.0 / QUANTUM)
                    other += int(np.float32(quotient) != np.float32(product))
    assert other == 2


def equal_quanta(native: NativeKernels, values: Any, workers: int) -> Any:
    zeros = np.zeros(chunks_of(values, 256), np.int8)
    one, other = (quantized(k, values, 256, zeros, workers) for k in (native, NUMPY))
    assert one.tobytes() == other.tobytes()
    return one.reshape(-1)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 7, 24, 255])
def test_values_next_to_a_half_quantum(native: NativeKernels, workers: int) -> None:
    rng = np.random.default_rng(workers)
    halves = np.concatenate([np.arange(256), rng.integers(0, QUANTUM // workers, 2**14)]) + 0.5
    around = (halves * workers / QUANTUM).astype(np.float32)
    below, above = np.nextafter(around, np.float32(0)), np.nextafter(around, np.float32(1))
    values = np.concatenate([below, around, above])
    values = np.minimum(np.concatenate([values, -values]), np.nextafter(np.float32(1), np.float32(0)))
    quanta = equal_quanta(native, values, workers)
    sample = rng.integers(0, values.size, 200)
    expected = [round(float(values[i]) * float(QUANTUM) / workers) for i in sample]
    assert quanta[sample].tolist() == expected


def test_a_value_where_a_product_is_not_the_quotient(native: NativeKernels) -> None:
    """x (2^31-1) rounds to a multiple of n (h + 1/2) where x has 24 bits and lies next to 1/2."""
    values = ((2**23 + np.arange(-512, 512)) / 2**24).astype(np.float32)
    other = 0
    for workers in range(1, 257):
        equal_quanta(native, values, workers)
        scaled = values.astype(np.float64) * QUANTUM
        other += int((np.rint(scaled / workers) != np.rint(scaled * (1.0 / workers))).sum())
    assert other == 1


def test_without_a_compiler_numpy_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"no C compiler 'no-such-compiler'.*apt install"):
        assert best_kernels().name == "numpy"
    monkeypatch.delenv("CC")
    assert best_kernels().name == "C"
