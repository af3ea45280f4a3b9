# SPDX-License-Identifier: Apache-2.0
"""The seam between the engine and the network: packets out, results in."""

from __future__ import annotations

import ctypes
from typing import Protocol

from wire.packet import Packets

AT_ONCE = 16
"""Messages that C receives by one system call: what they carry stays in a cache until it is used."""


class Socket(ctypes.Structure):
    """C sees a struct socket (turn.c): a UDP socket, and messages of a batched call each way."""

    segments: int
    """Packets a message sent; 1 where the kernel cannot cut messages up."""
    wake: int
    """An eventfd that ends all waiting."""
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "in_", "out_runs", "in_runs")),
        *((name, ctypes.c_size_t) for name in ("messages", "segments")),
        *((name, ctypes.c_int32) for name in ("fd", "wake")),
    )


class Transport(Protocol):
    """Carries aggregation payloads between one worker and its switch; may lose, repeat and reorder them."""

    @property
    def native(self) -> Socket | None:
        """What C needs to send and to receive by itself; None where only Python can."""
        ...

    def send(self, packets: Packets) -> None:
        """Send payloads (k of `wire.packet.payload_dtype`) in order; done with the array on return."""
        ...

    def receive(self, timeout: float) -> Packets:
        """Wait at most `timeout` seconds and return the payloads (m) that came, m = 0 if none did.

        Only intact packets from the job's switch and port, back to back in memory. The array may be reused by
        the next call.
        """
        ...

    def close(self) -> None:
        """Give back what the transport holds; a second call does nothing."""
        ...
