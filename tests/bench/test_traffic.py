# SPDX-License-Identifier: Apache-2.0
"""The sender in C: what it sends, what it takes for an answer, what it does about losses."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bench.errors import BenchError, WrongSumError
from bench.load import Exchange
from bench.traffic import Lane, Traffic
from switch.super_packets import udp_missing
from tests.switch.veth import Link
from wire.packet import frame_dtype, frames_are_sound

pytestmark = pytest.mark.root
WINDOW = 24
SHORT = 0.002
JOIN_S = 10.0


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    try:
        yield made
    finally:
        made.close()


def crossing(link: Link, window: int) -> list[Lane]:
    """Both ends of a cable: what one sends arrives at the other."""
    exchange = Exchange(window, 256)
    frames = exchange.frames(0, 1)[0]
    return [
        Lane(end, frames[i], exchange.wanted[i], exchange.answers[i])
        for i, end in enumerate((link.port, link.host))
    ]


SUPER = pytest.param(True, marks=pytest.mark.skipif(udp_missing() is not None, reason=str(udp_missing())))


@pytest.mark.parametrize("super_packets", [False, SUPER], ids=["single", "super"])
@pytest.mark.parametrize("window", [1, 5, WINDOW, 150])
def test_everything_that_is_sent_is_counted_once(link: Link, window: int, super_packets: bool) -> None:
    link.socket.close()
    with Traffic("cable", crossing(link, window), super_packets=super_packets) as traffic:
        for _ in range(3):
            before = traffic.chunks
            assert traffic.run(SHORT) >= SHORT
            assert traffic.chunks > before
        assert traffic.answers == 2 * traffic.chunks
        assert traffic.resent == 0
        assert 0 <= traffic.idle_s <= traffic.seconds


@pytest.mark.parametrize("super_packets", [False, SUPER], ids=["single", "super"])
def test_wrong_values_are_an_error_that_names_the_chunk(link: Link, super_packets: bool) -> None:
    link.socket.close()
    lanes = crossing(link, WINDOW)
    wanted = lanes[1].wanted.copy()
    wanted[5, -1] ^= 1
    lanes[1] = dataclasses.replace(lanes[1], wanted=wanted)
    with Traffic("cable", lanes, super_packets=super_packets) as traffic:
        with pytest.raises(WrongSumError, match="cable: the answer to chunk 5 has other values"):
            traffic.run(SHORT)


def echoing(link: Link, change: Callable[[int, bytes], list[bytes]]) -> tuple[threading.Thread, list[bytes]]:
    """Send back what `change` makes of each frame (number, frame) until nothing comes; what came."""
    came: list[bytes] = []
    link.socket.settimeout(2.0)

    def loop() -> None:
        try:
            while True:
                came.append(link.socket.recv(1 << 16))
                for frame in change(len(came) - 1, came[-1]):
                    link.socket.send(frame)
        except TimeoutError:
            return

    thread = threading.Thread(target=loop)
    thread.start()
    return thread, came


def echo_run(
    link: Link, change: Callable[[int, bytes], list[bytes]], window: int = WINDOW
) -> tuple[Traffic, np.ndarray]:
    exchange = Exchange(window, 64)
    lane = Lane(link.port, exchange.frames(0, 1)[0, 0], exchange.values[0], 0)
    with Traffic("echo", [lane], super_packets=False) as traffic:
        thread, came = echoing(link, change)
        traffic.run(SHORT)
        thread.join(JOIN_S)
        assert not thread.is_alive()
    return traffic, np.frombuffer(b"".join(came), frame_dtype(64))


@pytest.mark.parametrize("window", [1, WINDOW])
def test_frames_are_right_chunk_by_chunk(link: Link, window: int) -> None:
    traffic, frames = echo_run(link, lambda number, frame: [frame], window)
    chunks = np.arange(traffic.chunks)
    assert frames_are_sound(frames).all()
    assert frames["payload"]["chunk"].tolist() == chunks.tolist()
    assert frames["payload"]["place"].tolist() == (chunks % window | chunks // window % 2 << 15).tolist()
    assert np.array_equal(frames["payload"]["values"], Exchange(window, 64).values[0][chunks % window])


def test_lost_frames_are_sent_again_and_second_answers_do_not_count(link: Link) -> None:
    lost = (0, 3)

    def change(number: int, frame: bytes) -> list[bytes]:
        return [] if number in lost else [frame] if number % 5 else [frame, frame]

    traffic, frames = echo_run(link, change)
    assert traffic.resent >= len(lost)
    assert traffic.answers == traffic.chunks
    assert len(frames) == traffic.chunks + traffic.resent
    assert frames_are_sound(frames).all()


def test_frames_that_are_no_answers_do_not_count(link: Link) -> None:
    other = b"\x02" * 12 + b"\x08\x00" + bytes(60)
    traffic, frames = echo_run(link, lambda number, frame: [other, frame])
    assert traffic.answers == traffic.chunks == len(frames)


def test_an_interface_that_is_not_there_is_an_error(link: Link) -> None:
    lanes = crossing(link, WINDOW)
    lanes[1] = dataclasses.replace(lanes[1], interface="nowhere0")
    with pytest.raises(BenchError, match="no packet socket on nowhere0"):
        Traffic("cable", lanes, super_packets=False)
