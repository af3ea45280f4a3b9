# SPDX-License-Identifier: Apache-2.0
"""Cutting super-packets up (runtime/io_super.c), against frames built singly."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.switch.flows import ACK, CWR, DONT_FRAGMENT, ECE, FIN, PSH, TCP, UDP, Flow
from tests.switch.supers import ECN, MOST, SLACK, TCPV4, TCPV6, UDP_L4, Cut, cut, super_library


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return super_library()


def kind_of(flow: Flow) -> int:
    if flow.protocol == UDP:
        return UDP_L4
    return (TCPV6 if flow.v6 else TCPV4) | (ECN if flow.flags & CWR else 0)


def pieces(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]


tags = st.lists(
    st.tuples(st.sampled_from([b"\x81\x00", b"\x88\xa8"]), st.binary(min_size=2, max_size=2)).map(b"".join),
    max_size=2,
).map(tuple)
words = st.integers(0, 10).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n))
flows = st.builds(
    Flow,
    protocol=st.sampled_from([TCP, UDP]),
    v6=st.booleans(),
    tags=tags,
    tos=st.integers(0, 255),
    ident=st.integers(0, 0xFFFF),
    fragment=st.sampled_from([0, DONT_FRAGMENT]),
    ip_options=words,
    ports=st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)),
    seq=st.integers(0, 2**32 - 1),
    ack=st.integers(0, 2**32 - 1),
    flags=st.sampled_from([ACK, ACK | PSH, ACK | FIN | PSH, ACK | CWR, ACK | CWR | ECE]),
    tcp_options=words,
)
sizes = st.one_of(st.integers(1, 40), st.integers(1, 9000), st.sampled_from([1448, 1034, 266]))


@given(
    flow=flows, size=sizes, count=st.integers(0, 70), rest=st.integers(1, 9000), seed=st.integers(0, 2**32)
)
def test_segments_are_what_a_cable_would_carry(
    lib: ctypes.CDLL, flow: Flow, size: int, count: int, rest: int, seed: int
) -> None:
    count = min(count, (MOST - flow.headers) // size - 1)
    payload = random.Random(seed).randbytes(max(count, 0) * size + min(rest, size))
    parts = pieces(payload, size)
    wanted = [
        flow.at(index, index * size, index == len(parts) - 1).frame(part) for index, part in enumerate(parts)
    ]
    assert cut(lib, flow.frame(payload, partial=True), kind_of(flow), size) == wanted


@given(flow=flows, size=st.integers(1, 99), count=st.integers(2, 9), to=st.integers(1, 8))
def test_segments_may_be_skipped(lib: ctypes.CDLL, flow: Flow, size: int, count: int, to: int) -> None:
    payload = random.Random(size).randbytes(count * size)
    frame = flow.frame(payload, partial=True)
    wanted = cut(lib, frame, kind_of(flow), size)
    assert wanted is not None
    state, room, length = Cut(), ctypes.create_string_buffer(frame, len(frame)), ctypes.c_uint32()
    assert lib.super_cut_begin(ctypes.byref(state), room, len(frame), kind_of(flow), size) == 0
    lib.super_cut_next(ctypes.byref(state), ctypes.byref(length))
    to = min(to, count - 1)
    lib.super_cut_skip(ctypes.byref(state), to)
    for index in range(to, count):
        at = lib.super_cut_next(ctypes.byref(state), ctypes.byref(length))
        assert ctypes.string_at(at, length.value) == wanted[index]
    assert not lib.super_cut_next(ctypes.byref(state), ctypes.byref(length))


def test_udp_without_a_checksum_stays_without(lib: ctypes.CDLL) -> None:
    flow = Flow(without=True)
    wanted = [replace(flow, ident=index).frame(bytes(10)) for index in range(3)]
    assert cut(lib, flow.frame(bytes(30)), UDP_L4, 10) == wanted


def test_a_sum_of_zero_is_written_as_udp_and_tcp_want_it(lib: ctypes.CDLL) -> None:
    for protocol, zero in ((UDP, 0xFFFF), (TCP, 0)):
        flow = Flow(protocol=protocol)
        at = flow.headers - (2 if protocol == UDP else 4)
        sum_of = int.from_bytes(flow.frame(b"\0\0")[at : at + 2], "big")
        frame = flow.frame(sum_of.to_bytes(2, "big"))
        assert int.from_bytes(frame[at : at + 2], "big") == zero
        both = cut(lib, flow.frame(2 * sum_of.to_bytes(2, "big"), partial=True), kind_of(flow), 2)
        assert both is not None
        assert (both[0] == frame) is (protocol == UDP or zero == 0)


@pytest.mark.parametrize(
    ("flow", "kind", "change"),
    [
        (Flow(), TCPV4, None),
        (Flow(protocol=TCP), UDP_L4, None),
        (Flow(protocol=TCP), TCPV6, None),
        (Flow(protocol=TCP, v6=True), TCPV4, None),
        (Flow(), 3, None),
        (Flow(protocol=47), UDP_L4, None),
        (Flow(fragment=0x2000), UDP_L4, None),
        (Flow(fragment=7), UDP_L4, None),
        (Flow(tags=(b"\x81\x00\0\1",) * 3), UDP_L4, None),
        (Flow(), UDP_L4, (12, b"\x88\xb5")),
        (Flow(), UDP_L4, (14, b"\x44")),
        (Flow(), UDP_L4, (14, b"\x65")),
        (Flow(), UDP_L4, (17, b"\0")),
        (Flow(protocol=TCP), TCPV4, (46, b"\x40")),
        (Flow(protocol=TCP), TCPV4, (46, b"\xf0")),
    ],
)
def test_what_cannot_be_cut_is_refused(
    lib: ctypes.CDLL, flow: Flow, kind: int, change: tuple[int, bytes] | None
) -> None:
    frame = flow.frame(bytes(30))
    if change is not None:
        frame = frame[: change[0]] + change[1] + frame[change[0] + len(change[1]) :]
    assert cut(lib, frame, kind, 10) is None


@given(flow=flows, size=st.integers(0, 80), noise=st.binary(max_size=90), kind=st.integers(0, 255))
def test_cut_up_noise_is_refused_or_keeps_its_bounds(
    lib: ctypes.CDLL, flow: Flow, size: int, noise: bytes, kind: int
) -> None:
    frame = bytearray(flow.frame(bytes(60), partial=True))
    for at, value in enumerate(noise):
        frame[(7 * at) % len(frame)] ^= value if value > 200 else 0
    found = cut(lib, bytes(frame), kind, size)
    assert found is None or all(len(one) <= SLACK + size for one in found)
    for length in range(0, len(frame), 11):
        cut(lib, bytes(frame[:length]), kind_of(flow), 9)


@given(flow=flows, payload=st.binary(min_size=0, max_size=300))
def test_left_out_checksums_are_computed(lib: ctypes.CDLL, flow: Flow, payload: bytes) -> None:
    start = flow.headers - (8 if flow.protocol == UDP else 20 + len(flow.tcp_options))
    offset = 6 if flow.protocol == UDP else 16
    frame = flow.frame(payload, partial=True)
    buffer = ctypes.create_string_buffer(frame, len(frame))
    lib.super_complete(buffer, len(frame), start, offset)
    wanted = flow.frame(payload)
    at = start + offset
    if wanted[at : at + 2] == b"\0\0":  # TCP's 0 and 0xffff mean the same
        wanted = wanted[:at] + b"\xff\xff" + wanted[at + 2 :]
    assert buffer.raw == wanted
    for beyond in (len(frame) - 1, 2**32 - 1):
        lib.super_complete(buffer, len(frame), beyond, 2**16 - 1)
    assert buffer.raw == wanted
