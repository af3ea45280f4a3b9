# SPDX-License-Identifier: Apache-2.0
"""Quantization against the contract's formula in Python floats and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from worker.quantize import chunk_exponents, dequantize, quantize

finite_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
sendable_rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 6)),
    elements=finite_float32.filter(lambda x: abs(x) < 2.0**127),
)


def exponent_by_search(values) -> int:
    largest = max(Fraction(float(v)) if v >= 0 else -Fraction(float(v)) for v in values)
    e = -128
    while Fraction(2) ** e <= largest:
        e += 1
    return e


@settings(max_examples=100, deadline=None)
@given(sendable_rows)
def test_exponent_is_the_smallest_above(rows):
    exponents, sendable = chunk_exponents(rows)
    assert sendable.all()
    assert exponents.tolist() == [exponent_by_search(row) for row in rows]


@settings(max_examples=100, deadline=None)
@given(sendable_rows, st.integers(1, 256), st.integers(0, 3))
def test_quantize_and_back(rows, workers, slack):
    exponents = np.minimum(chunk_exponents(rows)[0].astype(int) + slack, 127).astype(np.int8)
    q = np.zeros(rows.shape, ">i4")
    quantize(rows, exponents, workers, q)
    for row, e, quanta in zip(rows, exponents, q, strict=True):
        # Python's round() rounds half to even, its floats are float64.
        scale = math.ldexp(float(workers), int(e))
        assert quanta.tolist() == [round(float(x) * float(2**31 - 1) / scale) for x in row]
        assert all(abs(workers * int(v)) <= 2**31 - 1 for v in quanta)
        back = dequantize(quanta[np.newaxis], np.array([e], np.int8), workers)[0]
        with np.errstate(over="ignore"):
            expected = np.array([int(v) * scale / float(2**31 - 1) for v in quanta]).astype(np.float32)
        np.testing.assert_array_equal(back, expected)


def test_what_cannot_be_sent():
    rows = np.zeros((6, 3), np.float32)
    rows[0, 1], rows[1, 2], rows[2, 0], rows[3, 1] = np.nan, np.inf, -np.inf, 2.0**127
    rows[4, 1] = np.nextafter(np.float32(2.0**127), np.float32(0))
    exponents, sendable = chunk_exponents(rows)
    assert sendable.tolist() == [False, False, False, False, True, True]
    assert exponents.tolist() == [-128, -128, -128, -128, 127, -128]


def test_smallest_subnormal_has_the_least_exponent():
    rows = np.full((1, 2), np.float32(2.0**-149))
    assert chunk_exponents(rows)[0].tolist() == [-128]
    assert chunk_exponents(np.full((1, 2), np.float32(2.0**-129)))[0].tolist() == [-128]
    assert chunk_exponents(np.full((1, 2), np.float32(2.0**-128)))[0].tolist() == [-127]


def test_sum_beyond_float32_is_infinite_as_numpys():
    q = np.full((1, 2), 2**31 - 1, np.int32)
    assert dequantize(q, np.array([127], np.int8), 4).tolist() == [[np.inf, np.inf]]
    assert dequantize(-q, np.array([127], np.int8), 4).tolist() == [[-np.inf, -np.inf]]
