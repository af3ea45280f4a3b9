# SPDX-License-Identifier: Apache-2.0
"""A transport that keeps every result as it came off the wire, so that a run can be checked afterwards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wire.packet import Packets
from worker.transport import Transport


class Tap:
    """Wraps a transport; `sums` holds each chunk's int32 values, the row being the chunk number minus g0.

    `doubled` counts repeated results that differ from the first one of their chunk: there must be none.
    """

    def __init__(self, inner: Transport, elements: int, g0: int) -> None:
        self._inner = inner
        self._g0 = g0
        self._sums = np.zeros((1024, elements), np.int32)
        self._have = np.zeros(1024, np.bool_)
        self.doubled = 0

    def send(self, packets: Packets) -> None:
        """See Transport."""
        self._inner.send(packets)

    def receive(self, timeout: float) -> Packets:
        """See Transport."""
        packets = self._inner.receive(timeout)
        if len(packets):
            self._keep(packets)
        return packets

    def close(self) -> None:
        """See Transport."""
        self._inner.close()

    def _keep(self, packets: Packets) -> None:
        rows = (packets["chunk"].astype(np.int64) - self._g0 % 2**32) % 2**32
        values = packets["values"].astype(np.int32)
        while rows.max() >= len(self._have):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
            self._have = np.concatenate([self._have, np.zeros_like(self._have)])
        again = self._have[rows]
        self.doubled += int((self._sums[rows[again]] != values[again]).any(axis=1).sum())
        self._sums[rows[~again]] = values[~again]
        self._have[rows] = True

    def sums(self, chunks: int) -> NDArray[np.int32]:
        """Return the first `chunks` results, (chunks, elements)."""
        assert self._have[:chunks].all()
        return self._sums[:chunks]
