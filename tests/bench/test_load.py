# SPDX-License-Identifier: Apache-2.0
"""The prepared contributions: right on the wire, and still right after their chunk numbers went up."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load import Load, advance
from tests.bench.members import memberships
from tests.dataplane.frames import Frame

WINDOW = 4


def load(n: int = 3, elements: int = 64) -> Load:
    return Load(memberships(n, window=WINDOW, elements=elements))


@pytest.mark.parametrize("elements", [64, 256])
def test_payloads_say_on_the_wire_what_the_contract_wants(elements: int) -> None:
    made = load(elements=elements)
    first = 7 * WINDOW
    payloads = made.payloads(first, 2)
    assert payloads.shape == (2, 3, WINDOW)
    for window in range(2):
        for rank in range(3):
            for i in range(WINDOW):
                chunk = first + window * WINDOW + i
                head = struct.pack(
                    ">BBIHbb",
                    1 << 4 | {64: 1, 256: 3}[elements],
                    0,
                    chunk,
                    chunk // WINDOW % 2 << 15 | i,
                    -128,
                    -128,
                )
                values = struct.pack(f">{elements}i", *made.values[rank, i].tolist())
                assert payloads[window, rank, i].tobytes() == head + values


def test_sums_are_modulo_2_32() -> None:
    made = load(n=9)
    wide = made.values.astype(object).sum(axis=0)
    assert (made.sums == (wide + 2**31) % 2**32 - 2**31).all()
    assert (wide != made.sums).any(), "values that wrap around"


def test_frames_are_what_their_workers_would_send() -> None:
    made = load()
    frames = made.frames(0, 2)
    for rank in range(3):
        parsed = Frame.parse(frames[1, rank, 2].tobytes())
        assert (parsed.ip_src, parsed.udp_src, parsed.udp_dst) == (f"10.0.0.{rank + 1}", 4000 + rank, 0xBE05)
        assert (parsed.chunk, parsed.slot, parsed.version) == (WINDOW + 2, 2, 1)


@given(st.integers(0, 2**29), st.integers(1, 2**29))
def test_advanced_frames_are_those_built_anew(first: int, steps: int) -> None:
    made = load(n=1)
    frames = made.frames(2 * WINDOW * first, 1)
    advance(frames, 2 * WINDOW * steps)
    assert frames.tobytes() == made.frames(2 * WINDOW * (first + steps) % 2**32, 1).tobytes()


def test_an_advanced_checksum_is_never_written_as_zero() -> None:
    # Over 2^16 chunk numbers in a row every checksum occurs, 0xFFFF for a computed 0 among them.
    made = Load(memberships(1, window=1, elements=64))
    frames = made.frames(0, 1)
    seen = set()
    for _ in range(1 << 16):
        advance(frames, 2)
        seen.add(int(frames["udp_checksum"][0, 0, 0]))
    assert 0 not in seen
    assert 0xFFFF in seen
    Frame.parse(frames[0, 0, 0].tobytes())
    assert np.array_equal(frames, made.frames(2 << 16, 1))
