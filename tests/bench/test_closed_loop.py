# SPDX-License-Identifier: Apache-2.0
"""The closed loop against a switch that is a thread: sums, loss, wrong sums."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from bench.closed_loop import ClosedLoop
from bench.errors import WrongSumError
from bench.load import Load
from tests.bench.members import memberships

WORKERS, WINDOW, ELEMENTS = 3, 4, 64


@contextmanager
def summing(lose: Callable[[int, int], bool], add: int = 0) -> Iterator[list[socket.socket]]:
    """Sum what comes; `lose(worker, chunk)` loses a result, `add` spoils each sum."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(WORKERS)]
    have: dict[int, dict[int, tuple[int, ...]]] = {}

    def send(worker: int, chunk: int, data: bytes) -> None:
        if not lose(worker, chunk):
            values = [sum(column) + add for column in zip(*have[chunk].values(), strict=True)]
            wrapped = [(v + 2**31) % 2**32 - 2**31 for v in values]
            with suppress(BrokenPipeError):  # the loop has ended
                pairs[worker][1].send(bytes([0x21]) + data[1:10] + struct.pack(f">{ELEMENTS}i", *wrapped))

    def serve(worker: int) -> None:
        while data := pairs[worker][1].recv(1 << 16):
            (chunk,) = struct.unpack_from(">I", data, 2)
            with lock:
                of_chunk = have.setdefault(chunk, {})
                done = len(of_chunk) == WORKERS
                of_chunk[worker] = struct.unpack_from(f">{ELEMENTS}i", data, 10)
                if len(of_chunk) == WORKERS:
                    for receiver in [worker] if done else range(WORKERS):
                        send(receiver, chunk, data)

    lock = threading.Lock()
    threads = [threading.Thread(target=serve, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for ours, theirs in pairs:
            ours.shutdown(socket.SHUT_RDWR)
            theirs.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)
        for pair in pairs:
            for sock in pair:
                sock.close()


def loop(socks: list[socket.socket]) -> ClosedLoop:
    return ClosedLoop("thread", Load(memberships(WORKERS, window=WINDOW, elements=ELEMENTS)), socks)


def test_every_worker_gets_every_sum() -> None:
    with summing(lambda worker, chunk: False) as socks:
        made = loop(socks)
        assert made.run(3) > 0
        assert made.run(2) > 0
        assert (made.chunks, made.results) == (5 * WINDOW, 5 * WINDOW * WORKERS)


def test_a_lost_result_is_asked_for_again() -> None:
    lost = {(1, 2), (0, 5)}

    def lose(worker: int, chunk: int) -> bool:
        try:
            lost.remove((worker, chunk))
        except KeyError:
            return False
        return True

    with summing(lose) as socks:
        made = loop(socks)
        made.run(2)
        assert (made.chunks, made.results) == (2 * WINDOW, 2 * WINDOW * WORKERS)
        assert made.retransmissions >= 2
        assert not lost


def test_a_wrong_sum_is_an_error() -> None:
    with (
        summing(lambda worker, chunk: False, add=1) as socks,
        pytest.raises(WrongSumError, match="thread: the result of chunk 0 is not the workers' sum"),
    ):
        loop(socks).run(1)
