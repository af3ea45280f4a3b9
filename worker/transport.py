# SPDX-License-Identifier: Apache-2.0
"""The seam between the engine and the network: packets out, results in."""

from __future__ import annotations

from typing import Protocol

from wire.packet import Packets


class Transport(Protocol):
    """Carries aggregation payloads between one worker and its switch; may lose, repeat and reorder them."""

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
