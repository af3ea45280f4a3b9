# SPDX-License-Identifier: Apache-2.0
"""Joining frames to super-packets (runtime/io_super.c), against frames built singly."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.switch.flows import ACK, CWR, DONT_FRAGMENT, ECE, FIN, PSH, TCP, UDP, Flow, total
from tests.switch.supers import MOST, NEEDS_CSUM, SEGMENTS, Header, Run, Sum, cut, super_library


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return super_library()


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
        self,
        lib: ctypes.CDLL,
        frames: list[bytes],
        longest: int = 9014,
        udp: int = 1,
        tcp: int = 1,
        told: Callable[[bytes], Sum] = known,
    ):
        self.runs: list[tuple[Run, Header, bytes]] = []
        sums = [told(frame) for frame in frames]
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


def repaired(frame: bytes, ip: bool, udp: bool) -> bytes:
    """The frame with right checksums where they are asked for."""
    fixed = bytearray(frame)
    if udp:
        pseudo = fixed[26:34] + bytes([0, fixed[23]]) + (len(fixed) - 34).to_bytes(2, "big")
        check = total(bytes(pseudo + fixed[34:40] + fixed[42:])) ^ 0xFFFF
        fixed[40:42] = (check or 0xFFFF).to_bytes(2, "big")
    if ip:
        fixed[24:26] = (total(bytes(fixed[14:24] + fixed[26:34])) ^ 0xFFFF).to_bytes(2, "big")
    return bytes(fixed)


TOLD: list[Callable[[bytes], Sum]] = [
    lambda frame: Sum(0, 0, 0),
    lambda frame: Sum(42, len(frame), total(frame[42:])),
    lambda frame: Sum(46, len(frame) - 4, total(frame[46:-4])),
    lambda frame: Sum(42, len(frame) + 2, total(frame[42:])),
]


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("ip", [False, True])
@pytest.mark.parametrize("udp", [False, True])
def test_a_frame_with_another_bit_or_end_stays_what_it_is(
    lib: ctypes.CDLL, ip: bool, udp: bool, told: Callable[[bytes], Sum]
) -> None:
    flow = Flow(fragment=0, ident=5)
    run = [flow.at(index, 0, True).frame(bytes(4) + bytes([index, 7]) * 10 + bytes(4)) for index in range(4)]
    for bit in range(8 * len(run[2])):
        other = bytearray(run[2])
        other[bit // 8] ^= 1 << bit % 8
        frames = [*run[:2], repaired(bytes(other), ip, udp), run[3]]
        assert list(Joined(lib, frames, told=told).segments(lib)) == frames
    for less in (1, 2, 4):
        frames = [*run[:2], run[2][:-less], run[3]]
        assert list(Joined(lib, frames, told=told).segments(lib)) == frames


@pytest.mark.parametrize("told", TOLD)
def test_checksums_that_cutting_would_write_otherwise(lib: ctypes.CDLL, told: Callable[[bytes], Sum]) -> None:
    plain = Flow(fragment=0)
    ident = int.from_bytes(plain.frame(bytes(20))[24:26], "big")  # with which IPv4's checksum is 0
    flow = replace(plain, ident=(ident - 2) % 2**16)
    frames = [flow.at(index, 0, True).frame(bytes(20)) for index in range(4)]
    assert frames[2][24:26] == b"\0\0"
    frames[2] = frames[2][:24] + b"\xff\xff" + frames[2][26:]
    assert list(Joined(lib, frames, told=told).segments(lib)) == frames
    check = plain.frame(bytes(20))[40:42]
    frames = [plain.at(index, 0, True).frame(check + bytes(18)) for index in range(4)]
    assert frames[2][40:42] == b"\xff\xff"
    frames[2] = frames[2][:40] + b"\0\0" + frames[2][42:]
    assert list(Joined(lib, frames, told=told).segments(lib)) == frames


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
