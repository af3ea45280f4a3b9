# SPDX-License-Identifier: Apache-2.0
"""Cutting super-packets up and joining frames to them (runtime/io_super.c), against frames built singly."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch.ports import io_library
from tests.switch.flows import ACK, CWR, DONT_FRAGMENT, ECE, FIN, PSH, TCP, UDP, Flow, total

TCPV4, TCPV6, UDP_L4, ECN = 1, 4, 5, 0x80
NEEDS_CSUM = 1
SLACK = 160
MOST, SEGMENTS = 65535, 64


class Sum(ctypes.Structure):
    """sw_sum."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("start", "end", "sum")]


class Cut(ctypes.Structure):
    _fields_ = [
        ("frame", ctypes.c_void_p),
        ("head", ctypes.c_uint8 * SLACK),
        *((name, ctypes.c_uint32) for name in ("len", "size", "next", "seq", "l3")),
        *((name, ctypes.c_uint32) for name in ("l4", "payload", "at", "index")),
        *((name, ctypes.c_uint8) for name in ("v6", "tcp")),
        *((name, ctypes.c_uint16) for name in ("id", "l3_sum", "l4_sum")),
        ("sum", Sum),
    ]


class Run(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("len", "headers", "size", "segments")),
        *((name, ctypes.c_uint8) for name in ("tcp", "push", "verified", "v6")),
        ("udp_rest", ctypes.c_uint16),
        ("sum", Sum),
    ]


class Header(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint8), ("gso_type", ctypes.c_uint8)] + [
        (name, ctypes.c_uint16) for name in ("hdr_len", "gso_size", "csum_start", "csum_offset")
    ]


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(io_library()))
    u8, u16, u32 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32
    lib.super_cut_begin.argtypes = [ctypes.POINTER(Cut), ctypes.c_char_p, u32, u8, u16]
    lib.super_cut_next.argtypes = [ctypes.POINTER(Cut), ctypes.POINTER(u32)]
    lib.super_cut_next.restype = ctypes.c_void_p
    lib.super_complete.argtypes = [ctypes.c_char_p, u32, u32, u32]
    lib.super_complete.restype = None
    lib.super_run_begin.argtypes = [
        ctypes.POINTER(Run),
        ctypes.c_char_p,
        u32,
        ctypes.POINTER(Sum),
        u32,
        ctypes.c_int,
        ctypes.c_int,
    ]
    lib.super_run_begin.restype = None
    lib.super_run_join.argtypes = [
        *(ctypes.POINTER(Run), ctypes.c_char_p, ctypes.c_char_p, u32, ctypes.POINTER(Sum))
    ]
    lib.super_run_join.restype = u32
    lib.super_run_end.argtypes = [ctypes.POINTER(Run), ctypes.c_char_p, ctypes.POINTER(Header)]
    lib.super_run_end.restype = None
    return lib


def cut(lib: ctypes.CDLL, frame: bytes, kind: int, size: int) -> list[bytes] | None:
    """The segments; None for a frame that is refused."""
    state, room, length = Cut(), ctypes.create_string_buffer(frame, len(frame)), ctypes.c_uint32()
    if lib.super_cut_begin(ctypes.byref(state), room, len(frame), kind, size):
        return None
    assert state.payload <= SLACK
    start, found = ctypes.addressof(room), []
    while at := lib.super_cut_next(ctypes.byref(state), ctypes.byref(length)):
        assert start <= at
        assert at + length.value <= start + len(frame)
        found.append(ctypes.string_at(at, length.value))
        told = state.sum
        assert (told.start, told.end) in ((0, 0), (state.payload, length.value))
        assert told.end % 2 == told.start % 2
        assert told.sum == total(found[-1][told.start : told.end])
    return found


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


def right(frame: bytes) -> bool:
    """Whether a plain IPv4 frame's checksums are right."""
    length = len(frame) - 34
    pseudo = frame[26:34] + bytes([0, frame[23]]) + length.to_bytes(2, "big")
    return total(frame[14:34]) == 0xFFFF == total(pseudo + frame[34:])


def known(frame: bytes) -> Sum:
    """What the program might tell of a frame: nothing, or the sum of some of it."""
    draw = random.Random(frame)
    start = draw.choice([0, 14, 33, 34, 42, draw.randrange(len(frame) + 1)])
    end = start + (len(frame) - start) // 2 * 2 - draw.choice([0, 0, 2, 8])
    if draw.random() < 0.3 or end <= start:
        return Sum(0, 0, 0)
    return Sum(start, end, total(frame[start:end]))


class Joined:
    """What the port's queue does with frames: runs, each as the kernel would get it."""

    def __init__(
        self, lib: ctypes.CDLL, frames: list[bytes], longest: int = 9014, udp: int = 1, tcp: int = 1
    ):
        self.runs: list[tuple[Run, Header, bytes]] = []
        sums = [known(frame) for frame in frames]
        at = 0
        while at < len(frames):
            run, header = Run(), Header()
            room = ctypes.create_string_buffer(frames[at], MOST + 2)
            lib.super_run_begin(ctypes.byref(run), frames[at], len(frames[at]), sums[at], longest, udp, tcp)
            at += 1
            while at < len(frames):
                end = run.len
                more = lib.super_run_join(ctypes.byref(run), room, frames[at], len(frames[at]), sums[at])
                if not more:
                    break
                assert run.len == end + more <= MOST
                ctypes.memmove(ctypes.byref(room, end), frames[at][-more:], more)
                at += 1
            assert 1 <= run.segments <= SEGMENTS
            lib.super_run_end(ctypes.byref(run), room, ctypes.byref(header))
            self.runs.append((run, header, room.raw[: run.len]))

    def segments(self, lib: ctypes.CDLL) -> Iterator[bytes]:
        for run, header, frame in self.runs:
            if run.segments == 1:
                assert bytes(header) == bytes(10)
                yield frame
                continue
            assert header.flags == NEEDS_CSUM
            assert (header.hdr_len, header.gso_size) == (run.headers, run.size)
            found = cut(lib, frame, header.gso_type, header.gso_size)
            assert found is not None
            assert len(found) == run.segments
            yield from found


OTHER_HEADERS: list[dict[str, Any]] = [{"ttl": 9}, {"tos": 3}, {"without": True}, {"window": 1}]
OTHER_FORMS: list[dict[str, Any]] = [{"v6": True}, {"ip_options": bytes(4)}, {"urgent": 4}]
OUT_OF_STEP: list[dict[str, Any]] = [{"seq": 77}, {"ident": 99}, {"ack": 6}]


def stream(seed: int, count: int) -> list[bytes]:
    """Frames of a few flows and sizes, in stretches, some spoilt or of forms that cannot be joined."""
    rng = random.Random(seed)
    frames: list[bytes] = []
    base = [
        Flow(ident=7, fragment=0),
        Flow(source=2, ident=65530, fragment=0),
        Flow(protocol=TCP, seq=2**32 - 3000, ident=9, fragment=0, tcp_options=b"\1\1\1\1"),
        Flow(protocol=TCP, source=3, seq=5, ident=1, fragment=0),
    ]
    while len(frames) < count:
        which = rng.randrange(len(base))
        size = rng.choice([1, 18, 100, 266, 1034, 1448, 8000])
        parts = [rng.randbytes(size) for _ in range(rng.choice([1, 2, 3, 10, 70]))]
        parts[-1] = parts[-1][: rng.randint(1, size)]
        for part in parts:
            flow = base[which]
            if rng.random() < 0.05:
                flow = replace(flow, flags=rng.choice([ACK | PSH, ACK | FIN, ACK | ECE, ACK | CWR, 0]))
            if rng.random() < 0.03:
                flow = replace(flow, **rng.choice(OTHER_HEADERS))
            if rng.random() < 0.02:
                flow = replace(flow, **rng.choice(OTHER_FORMS))
            if rng.random() < 0.02:
                flow = replace(flow, **rng.choice(OUT_OF_STEP))
            frame = bytearray(flow.frame(part))
            if rng.random() < 0.05:
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.02:
                frame += bytes(rng.randint(1, 20))
            if rng.random() < 0.01:
                del frame[rng.randrange(len(frame)) :]
            frames.append(bytes(frame))
            base[which] = base[which].at(1, len(part), True)
    return frames


@given(seed=st.integers(0, 2**32))
def test_joined_frames_come_apart_as_they_were(lib: ctypes.CDLL, seed: int) -> None:
    frames = stream(seed, 150)
    joined = Joined(lib, frames)
    assert list(joined.segments(lib)) == frames
    at = 0
    for run, _, _ in joined.runs:
        mine = frames[at : at + run.segments]
        at += run.segments
        if run.segments > 1:
            assert all(right(frame) for frame in mine)
            assert {len(frame) for frame in mine[:-1]} == {run.headers + run.size}
            assert len(mine[-1]) <= run.headers + run.size


@pytest.mark.parametrize("protocol", [UDP, TCP])
@pytest.mark.parametrize(
    ("size", "count", "wanted"),
    [(1034, 64, [63, 1]), (1, 130, [64, 64, 2]), (8000, 17, [8, 8, 1]), (266, 64, [64])],
)
def test_a_flow_is_joined_as_far_as_it_may(
    lib: ctypes.CDLL, protocol: int, size: int, count: int, wanted: list[int]
) -> None:
    flow = Flow(protocol=protocol, fragment=0)
    frames = [flow.at(index, index * size, True).frame(bytes([index]) * size) for index in range(count)]
    assert [run.segments for run, _, _ in Joined(lib, frames).runs] == wanted


def test_a_shorter_frame_ends_a_run(lib: ctypes.CDLL) -> None:
    flow = Flow(fragment=0)
    parts = [100, 100, 99, 100, 100, 101]
    frames = [flow.at(index, 0, True).frame(bytes(size)) for index, size in enumerate(parts)]
    assert [run.segments for run, _, _ in Joined(lib, frames).runs] == [3, 2, 1]


def test_tcp_runs_end_at_a_push_and_keep_it(lib: ctypes.CDLL) -> None:
    flow = Flow(protocol=TCP, fragment=0)
    flags = [ACK, ACK, ACK | PSH, ACK, ACK | FIN]
    frames = [
        replace(flow.at(index, 10 * index, True), flags=one).frame(bytes(10))
        for index, one in enumerate(flags)
    ]
    joined = Joined(lib, frames)
    assert [run.segments for run, _, _ in joined.runs] == [3, 1, 1]
    assert joined.runs[0][2][47] == ACK | PSH
    assert list(joined.segments(lib)) == frames


def test_wrong_checksums_stay_alone_and_wrong(lib: ctypes.CDLL) -> None:
    flow = Flow(fragment=0)
    frames = [flow.at(index, 0, True).frame(bytes([index]) * 50) for index in range(9)]
    for spoilt, at in ((0, 60), (4, 41), (5, 25), (8, 91)):
        frames[spoilt] = frames[spoilt][:at] + bytes([frames[spoilt][at] ^ 4]) + frames[spoilt][at + 1 :]
    joined = Joined(lib, frames)
    assert [run.segments for run, _, _ in joined.runs] == [1, 3, 1, 1, 2, 1]
    assert list(joined.segments(lib)) == frames


def test_an_identification_without_meaning_may_change(lib: ctypes.CDLL) -> None:
    # RFC 6864, 4.1: of a datagram that is not and will not be fragmented it means nothing.
    for fragment, runs in ((DONT_FRAGMENT, 1), (0, 3)):
        frames = [Flow(ident=0, fragment=fragment).frame(bytes([index]) * 20) for index in range(3)]
        assert len(Joined(lib, frames).runs) == runs


def test_what_is_not_to_be_joined(lib: ctypes.CDLL) -> None:
    for protocol, udp, tcp in itertools.product((UDP, TCP), (0, 1), (0, 1)):
        flow = Flow(protocol=protocol, fragment=0)
        frames = [flow.at(index, 20 * index, True).frame(bytes(20)) for index in range(3)]
        wanted = 1 if (udp if protocol == UDP else tcp) else 3
        assert len(Joined(lib, frames, udp=udp, tcp=tcp).runs) == wanted
        # longer than the link takes: the kernel would not refuse it in a super-packet
        assert len(Joined(lib, frames, longest=len(frames[0]) - 1, udp=udp, tcp=tcp).runs) == 3
