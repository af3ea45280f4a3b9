# SPDX-License-Identifier: Apache-2.0
"""Transports that keep every result as it came off the wire, so that a run can be checked afterwards."""

from __future__ import annotations

import socket
import threading

import numpy as np
from numpy.typing import NDArray

from wire.membership import Membership
from wire.packet import Packets
from worker.transport import Transport
from worker.udp import UdpTransport


class Tap:
    """Keeps a worker's results over all its epochs; give `transport` to `worker.join`.

    `doubled` counts repeated results that differ from the first one of their chunk: there must be none.
    """

    def __init__(self) -> None:
        self.doubled = 0
        self._lock = threading.Lock()  # in a change of epoch the old transport may still be in use
        self._g0: int | None = None
        self._sums = np.zeros((0, 0), np.int32)
        self._have = np.zeros(0, np.bool_)

    def transport(self, membership: Membership, sock: socket.socket) -> Transport:
        """Return the transport of an epoch; see worker.join."""
        if self._g0 is None:
            self._g0 = membership.g0
            self._sums = np.zeros((1024, membership.elements), np.int32)
            self._have = np.zeros(1024, np.bool_)
        return _Tapped(UdpTransport(membership, sock), self)

    def keep(self, packets: Packets) -> None:
        """Take in results (m)."""
        assert self._g0 is not None
        rows = (packets["chunk"].astype(np.int64) - self._g0 % 2**32) % 2**32
        values = packets["values"].astype(np.int32)
        with self._lock:
            while rows.max() >= len(self._have):
                self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
                self._have = np.concatenate([self._have, np.zeros_like(self._have)])
            again = self._have[rows]
            self.doubled += int((self._sums[rows[again]] != values[again]).any(axis=1).sum())
            self._sums[rows[~again]] = values[~again]
            self._have[rows] = True

    def sums(self, chunks: int) -> NDArray[np.int32]:
        """Return the first `chunks` results, (chunks, elements), since the worker's first epoch began."""
        assert self._have[:chunks].all()
        return self._sums[:chunks]


class _Tapped:
    """The transport of one epoch."""

    native = None

    def __init__(self, inner: Transport, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    def send(self, packets: Packets) -> None:
        """See Transport."""
        self._inner.send(packets)

    def receive(self, timeout: float) -> Packets:
        """See Transport."""
        packets = self._inner.receive(timeout)
        if len(packets):
            self._tap.keep(packets)
        return packets

    def close(self) -> None:
        """See Transport."""
        self._inner.close()
