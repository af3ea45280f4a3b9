# SPDX-License-Identifier: Apache-2.0
"""How far an engine has come: numbers that its steps in Python and in C share."""

from __future__ import annotations

import ctypes

from .stats import Stats


class Flow(ctypes.Structure):
    """Chunks are offsets, as the engine counts. C sees a struct flow (kernel.h).

    first         least chunk without a result in this epoch
    next          least chunk neither sent nor held back in this epoch
    highest       greatest chunk with a result in this epoch
    end           beyond the last operation begun
    in_flight     packets under way
    progress_at   when the last result came
    clocked       when the statistics were last brought up to date
    stall_at      when the first operation has waited too long
    limited       whether the window kept packets back at the last poll
    """

    first: int
    next: int
    highest: int
    end: int
    in_flight: int
    progress_at: float
    clocked: float
    stall_at: float
    limited: int
    sent: int
    received: int
    duplicates: int
    strays: int
    seconds: float
    packet_seconds: float
    limited_seconds: float
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("first", "next", "highest", "end", "in_flight")),
        *((name, ctypes.c_double) for name in ("progress_at", "clocked", "stall_at")),
        ("limited", ctypes.c_uint32),
        *((name, ctypes.c_int64) for name in ("sent", "received", "duplicates", "strays")),
        *((name, ctypes.c_double) for name in ("seconds", "packet_seconds", "limited_seconds")),
        ("_round_trips", ctypes.c_void_p),
    )

    def __init__(self, stats: Stats) -> None:
        super().__init__(_round_trips=stats.round_trips.address)
        self._stats = stats

    def begin(self, first: int, now: float) -> None:
        """Begin an epoch."""
        self.first = self.next = first
        self.highest = first - 1
        self.in_flight = 0
        self.progress_at = now

    def tell(self, packet_bytes: int) -> None:
        """Add what C has counted to the statistics."""
        stats = self._stats
        stats.packets_sent += self.sent
        stats.bytes_sent += self.sent * packet_bytes
        stats.packets_received += self.received
        stats.duplicates += self.duplicates
        stats.strays += self.strays
        stats.seconds += self.seconds
        stats.packet_seconds += self.packet_seconds
        stats.limited_seconds += self.limited_seconds
        self.sent = self.received = self.duplicates = self.strays = 0
        self.seconds = self.packet_seconds = self.limited_seconds = 0.0
