# SPDX-License-Identifier: Apache-2.0
"""All workers of a job in one loop: what comes back lets the next contributions go (DESIGN.md, send rule)."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

from wire.constants import PAYLOAD_HEADER_BYTES

from .errors import BenchError, WrongSumError
from .load import Load

RESEND_S = 0.5
"""A worker that has had no result for this long sends again what is missing."""
SILENCE_LIMIT_S = 10.0


class _Peer:
    """One worker's socket and how far it is in a run."""

    def __init__(self, sock: socket.socket, window: int) -> None:
        self.sock = sock
        self.window = window
        self.begin([], 0.0)

    def begin(self, packets: Sequence[bytes], now: float) -> None:
        """Start a run; `packets` are its payloads in the order of their chunks."""
        self.packets = packets
        self.have = bytearray(len(packets))
        self.first = 0
        """Least chunk without a result."""
        self.next = 0
        """Least chunk not yet sent."""
        self.heard_at = now

    def send_new(self) -> None:
        """Send what the send rule allows."""
        while self.next < min(self.first + self.window, len(self.packets)):
            self.sock.send(self.packets[self.next])
            self.next += 1

    def send_missing(self) -> int:
        """Send again what has no result; return how many."""
        missing = [i for i in range(self.first, self.next) if not self.have[i]]
        for i in missing:
            self.sock.send(self.packets[i])
        return len(missing)

    def take(self, offset: int) -> None:
        """Note a chunk's result."""
        self.have[offset] = 1
        while self.first < self.next and self.have[self.first]:
            self.first += 1


class ClosedLoop:
    """Sends a Load from connected UDP sockets, one a worker, in runs of consecutive chunks."""

    def __init__(self, target: str, load: Load, socks: Sequence[socket.socket]) -> None:
        self.target = target
        self.load = load
        self._sums = [row.astype(">i4").tobytes() for row in load.sums]
        self._peers = [_Peer(sock, load.window) for sock in socks]
        self._poll = select.poll()
        self._by_fd = {sock.fileno(): peer for sock, peer in zip(socks, self._peers, strict=True)}
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)
        self.chunks = 0
        """Chunks summed so far, at all workers."""
        self.results = 0
        self.retransmissions = 0
        self._heard_at = 0.0

    def run(self, windows: int) -> float:
        """Have the next `windows` windows summed; return the seconds between first packet and last result.

        Raises WrongSumError, and BenchError when nothing comes back for SILENCE_LIMIT_S.
        """
        payloads = self.load.payloads(self.chunks, windows)
        flat = [
            [packet.tobytes() for packet in payloads[:, rank].reshape(-1)] for rank in range(len(self._peers))
        ]
        start = self._heard_at = time.perf_counter()
        for peer, packets in zip(self._peers, flat, strict=True):
            peer.begin(packets, start)
            peer.send_new()
        while any(peer.first < len(peer.packets) for peer in self._peers):
            for fd, _ in self._poll.poll(1000 * RESEND_S):
                self._receive(self._by_fd[fd])
            self._resend()
        seconds = time.perf_counter() - start
        self.chunks += windows * self.load.window
        return seconds

    def _receive(self, peer: _Peer) -> None:
        came = False
        for _ in range(self.load.window):
            try:
                data = peer.sock.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            chunk = int.from_bytes(data[2:6], "big")
            offset = (chunk - self.chunks) % 2**32
            if offset >= peer.next or peer.have[offset]:
                continue  # a second answer
            if data[PAYLOAD_HEADER_BYTES:] != self._sums[chunk % self.load.window]:
                raise WrongSumError(self.target, f"the result of chunk {chunk} is not the workers' sum")
            peer.take(offset)
            self.results += 1
            came = True
        if came:
            peer.heard_at = self._heard_at = time.perf_counter()
            peer.send_new()

    def _resend(self) -> None:
        now = time.perf_counter()
        if now - self._heard_at > SILENCE_LIMIT_S:
            first = min(peer.first for peer in self._peers) + self.chunks
            raise BenchError(
                self.target,
                f"no result came for {SILENCE_LIMIT_S:g} s (chunk {first} is missing); "
                "look into the switch's log",
            )
        for peer in self._peers:
            if peer.first < len(peer.packets) and now - peer.heard_at > RESEND_S:
                self.retransmissions += peer.send_missing()
                peer.heard_at = now
