# SPDX-License-Identifier: Apache-2.0
"""How much may be under way, and which packets are sent again: the congestion window and loss detection.

1. The congestion window C <= W bounds packets in flight, and maps nothing.
2. A chunk is lost where one that was sent later has its result (as in RFC 8985, RACK): half a round trip is
   left for reordering, then it is sent again; and once more after two round trips, for the worker whose
   packet was lost may notice later. Time alone shows no loss: a peer may be late, and so may this process
   be, or the switch. When a deadline passes (worker.timer), only the lowest missing chunk is sent again as a
   probe, backing off (RFC 9002, 6.2); what was sent before it is lost if an answer comes and no more after
   it. The congestion window shrinks for losses, once for what was under way, and not for probes.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np

from wire.packet import Packets

from .kernels import Indexes, Taken
from .pace import BURST
from .ring import NEVER, PARKED, Ring
from .timer import RetransmissionTimer


class Recovery(ctypes.Structure):
    """Of one epoch's ring. The timer goes on over epochs. C sees a struct recovery (kernel.h)."""

    window: float
    """C, in packets; at most `limit`."""
    next_check: float
    """No deadline lies before it."""
    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in ("window", "_threshold", "_limit", "next_check", "_cut_at", "_overtaken", "_probed_at")
    )
    _cut_at: float  # when the congestion window was last reduced
    _overtaken: float  # what was sent before is lost once its deadline passes
    _probed_at: float  # when since nothing has arrived, or NaN

    def __init__(self, ring: Ring, limit: int, timer: RetransmissionTimer) -> None:
        self._ring, self._timer = ring, timer
        super().__init__(limit, limit, limit, NEVER, -math.inf, -math.inf, math.nan)

    def deadline(self, now: float) -> float:
        """Return until when a packet sent now for the first time may wait for its result."""
        deadline = now + self._timer.patience()
        self.next_check = min(self.next_check, deadline)
        return deadline

    def results(self, taken: Taken, now: float) -> None:
        """Note awaited results, of which there are some; `taken.first` is still the least chunk without."""
        ring, timer, count = self._ring, self._timer, len(taken.picked)
        if taken.sent_at is not None:
            timer.sample(max(0.0, now - taken.sent_at))
            self._overtaken = max(self._overtaken, taken.sent_at)
        if not math.isnan(self._probed_at):
            # The wait was not the path's: give the others the usual time, not the backed-off one.
            self._overtaken = max(self._overtaken, self._probed_at)
            self._probed_at = math.nan
            timer.answered()
            ring.deadline[ring.deadline < PARKED] = now + 2 * timer.base
            self.next_check = now + 2 * timer.base
        elif taken.first < taken.highest:
            self._hasten(now)
        # Slow start below the threshold, then a packet a round trip (RFC 5681, 3.1).
        growth = count if self.window < self._threshold else count / self.window
        self.window = min(self._limit, self.window + growth)

    def _hasten(self, now: float) -> None:
        """Let what is overtaken wait no longer than that."""
        ring, trip = self._ring, self._timer.quickest or 0.0
        rows = np.flatnonzero((ring.deadline < PARKED) & (ring.sent_at < self._overtaken))
        if len(rows):
            deadlines = now + np.where(ring.tries[rows] > 1, 2 * trip, trip / 2)
            ring.deadline[rows] = np.minimum(ring.deadline[rows], deadlines)
            self.next_check = min(self.next_check, float(deadlines.min()))

    def due(self, now: float, fetching: bool) -> Packets:
        """Return copies of lost packets, at most BURST, lowest chunk first, or of one that probes.

        While `fetching`, whatever is due is sent again.
        """
        ring = self._ring
        rows = np.flatnonzero(ring.deadline <= now)
        if len(rows):
            lost = rows if fetching else rows[ring.sent_at[rows] < self._overtaken]
            rows = self._lost(lost, now, fetching) if len(lost) else self._probe(now)
            ring.tries[rows] += 1
            ring.sent_at[rows] = now
        self.next_check = float(ring.deadline.min())
        return ring.packets[rows]

    def _lost(self, rows: Indexes, now: float, fetching: bool) -> Indexes:
        ring = self._ring
        rows = rows[np.argsort(ring.offset[rows])][:BURST]
        waits = np.array([self._timer.patience(tries) for tries in range(2, 6)])
        ring.deadline[rows] = now + waits[np.minimum(ring.tries[rows], 4) - 1]
        if not fetching and float(ring.sent_at[rows].max()) > self._cut_at:
            self.window = max(1.0, self._limit * 0.75, self.window * 0.85)
            self._threshold = self.window
            self._cut_at = now
        return rows

    def _probe(self, now: float) -> Indexes:
        """Send one packet: repeating a whole window at a late peer's switch helps nobody."""
        ring = self._ring
        awaiting = np.flatnonzero(ring.deadline < PARKED)
        self._timer.back_off()
        ring.deadline[awaiting] = now + self._timer.patience()
        self._probed_at = now
        return awaiting[[ring.offset[awaiting].argmin()]]
