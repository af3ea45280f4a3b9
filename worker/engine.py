# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine without I/O and without a clock: packets out of `poll`, results into `on_results`.

1. A ring holds the packets of the last 2W chunks. A chunk's ring row is g mod 2W, which is its slot and
   version too (g mod W, (g div W) mod 2), so a result finds its row by what it says on the wire.
2. Send rule: chunk g is sent only when every chunk in g0..g-W has its result in this epoch. Keep rule: its
   row is not reused before g+2W, which is sent only after all in g0..g+W have results.
3. The congestion window C <= W bounds packets in flight, and maps nothing.
4. A chunk is sent again when its deadline passes (worker.timer). While nothing at all arrives, a peer is
   late or the path is down: then only the lowest missing chunk probes, backing off, and the others wait.
5. `now` is any clock in seconds that does not go back; each call is given it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wire.constants import MSG_RESULT
from wire.membership import Membership
from wire.packet import Packets, kind, payload_dtype

from .errors import NotInJobError, StalledError
from .operation import Operation
from .timer import RetransmissionTimer

BURST = 128
"""Most packets of one `poll`: enough to make numpy's fixed costs small, little enough to stay in a cache."""
FLAG = 1 << 3
"""The flag bit in a packet's `kind`."""


@dataclass
class Stats:
    """Totals of one worker; packets are aggregation packets, seconds those spent inside all-reduces."""

    all_reduces: int = 0
    elements: int = 0
    """Values summed, over all all-reduces that ended well."""
    packets_sent: int = 0
    """Retransmissions included."""
    packets_received: int = 0
    """Results that were awaited; others are duplicates or strays."""
    retransmissions: int = 0
    duplicates: int = 0
    """Well-formed results that no chunk waited for."""
    strays: int = 0
    """Packets that are no result of this epoch's slots."""
    bytes_sent: int = 0
    """UDP payload bytes."""
    seconds: float = 0.0
    rtt: float | None = None
    """The quickest of the last round trips in seconds, None before a first one."""


class Engine:
    """One rank in one epoch, one all-reduce at a time.

    `begin`, then `poll` and `on_results` until `done`, then `finish`.
    `timeout`: seconds without any result after which `poll` raises StalledError.
    """

    def __init__(self, membership: Membership, timeout: float = 30.0, stats: Stats | None = None) -> None:
        self.membership = membership
        self.timeout = timeout
        self.stats = stats if stats is not None else Stats()
        self.timer = RetransmissionTimer()
        self._window = w = membership.window
        rows = 2 * w
        self._ring = np.zeros(rows, payload_dtype(membership.elements))
        self._ring["place"] = np.arange(rows) % w | np.arange(rows) // w << 15
        self._result_kind = kind(MSG_RESULT, 0, membership.elements)
        # Chunk numbers below are offsets from g0, which may exceed 63 bits.
        self._offset = np.full(rows, -1, np.int64)
        self._deadline = np.full(rows, np.inf)  # infinite: not awaiting a result
        self._sent_at = np.zeros(rows)
        self._tries = np.zeros(rows, np.int32)
        self._newest = np.zeros(rows, np.int64)  # scratch: which of equal rows in a batch came last
        self._first = 0  # least chunk without a result in this epoch
        self._next = 0  # least chunk not yet sent
        self._highest = -1  # greatest chunk with a result
        self._in_flight = 0
        self._next_check = np.inf  # no deadline lies before it
        self._congestion_limit = max(1, membership.lead, w // 4)
        self._congestion = self._threshold = float(self._congestion_limit)
        self._cut_at = -np.inf  # when the congestion window was last reduced
        self._probing = False  # nothing arrives; only the lowest missing chunk is repeated
        self._number = membership.t0
        self._operation: Operation | None = None
        self._start = 0  # offset of the operation's first chunk
        self._begun_at = 0.0
        self._progress_at = 0.0
        self._retransmitted_before = 0
        self._left: str | None = None

    @property
    def next_chunk(self) -> int:
        """Number of the first chunk not yet sent (unwrapped)."""
        return self.membership.g0 + self._next

    @property
    def first_missing(self) -> int:
        """Number of the first chunk without a result in this epoch (unwrapped)."""
        return self.membership.g0 + self._first

    @property
    def begun(self) -> int:
        """All-reduces that this job has begun, as far as this rank knows."""
        return self._number

    @property
    def done(self) -> bool:
        """Whether `finish` can be called: all results are here, or the headers show a mismatch."""
        operation = self._operation
        return operation is not None and (
            operation.mismatch is not None or self._first == self._start + operation.length
        )

    def leave(self, reason: str) -> None:
        """Refuse all further calls: this rank is out of step with the job until it has a new membership."""
        self._left = reason
        self._operation = None
        self._deadline[:] = np.inf

    def begin(self, array: ArrayLike, op: str, now: float) -> None:
        """Start an all-reduce; raises UnsupportedError (the rank stays in step) or NotInJobError."""
        if self._left is not None:
            raise NotInJobError(
                f"rank {self.membership.rank} has left epoch {self.membership.epoch} of job "
                f"{self.membership.job}: {self._left}. Rejoin with the membership of a new epoch."
            )
        if self._operation is not None:
            raise RuntimeError("an all-reduce is under way; finish it first")
        operation = Operation(np.asarray(array), op, self._number, self.membership)
        self._operation = operation
        self._number += 1
        self._start = self._next
        self._begun_at = self._progress_at = now
        self._retransmitted_before = self.stats.retransmissions

    def finish(self, now: float) -> NDArray[Any]:
        """Return the sum (shape and dtype of the input); raises MismatchError or NonFiniteError."""
        operation = self._operation
        if operation is None or not self.done:
            raise RuntimeError("finish() before done")
        self._operation = None
        self.stats.all_reduces += 1
        self.stats.seconds += now - self._begun_at
        self.stats.rtt = self.timer.quickest
        if operation.mismatch is not None:
            self.leave("its last all_reduce did not match the other ranks'")
        result = operation.result()
        self.stats.elements += result.size
        return result

    def wake_at(self, now: float) -> float:
        """Return when `poll` must be called again if no result comes before: `now` if it has more to send."""
        return now if self._sendable() else min(self._next_check, self._progress_at + self.timeout)

    def poll(self, now: float) -> Packets:
        """Return the packets to send now, in order, valid until the next call; raises StalledError."""
        operation = self._operation
        if operation is None or self.done:
            return self._ring[:0]
        if now - self._progress_at >= self.timeout:
            raise self._stalled(operation)
        again = self._due(now)
        new = self._advance(operation, min(self._sendable(), BURST), now)
        self.stats.packets_sent += len(again) + len(new)
        self.stats.bytes_sent += (len(again) + len(new)) * self._ring.itemsize
        if not len(again):
            return new
        return again if not len(new) else self._joined([again, new])

    def on_results(self, packets: Packets, now: float) -> None:
        """Take received payloads (k of `payload_dtype`): awaited results are used, all else is counted."""
        if not len(packets) or self._operation is None:
            return
        place = packets["place"].astype(np.int64)
        slot = place & 0x7FFF
        sound = (packets["kind"] & ~np.uint8(FLAG) == self._result_kind) & (slot < self._window)
        rows = np.where(sound, slot + (place >> 15) * self._window, 0)
        awaited = sound & (self._ring["chunk"][rows] == packets["chunk"]) & np.isfinite(self._deadline[rows])
        order = np.arange(len(rows))
        self._newest[rows[awaited]] = order[awaited]
        awaited &= self._newest[rows] == order
        self.stats.strays += int((~sound).sum())
        count = int(awaited.sum())
        self.stats.duplicates += int(sound.sum()) - count
        if not count:
            return
        if count < len(rows):
            rows, packets = rows[awaited], packets[awaited]
        self._sample(rows, now)
        self._deadline[rows] = np.inf
        if self._probing:
            # The wait was not the path's: give the others the usual time, not the backed-off one.
            self._probing = False
            self.timer.answered()
            self._deadline[np.isfinite(self._deadline)] = now + 2 * self.timer.base
            self._next_check = now + 2 * self.timer.base
        self._in_flight -= count
        self.stats.packets_received += count
        self._progress_at = now
        # Slow start below the threshold, then a packet a round trip (RFC 5681, 3.1).
        growth = count if self._congestion < self._threshold else count / self._congestion
        self._congestion = min(self._congestion_limit, self._congestion + growth)
        self._operation.deliver(self._offset[rows] - self._start, packets)
        self._first = self._first_awaited()

    def _sample(self, rows: NDArray[np.int64], now: float) -> None:
        """Tell the timer a round-trip time, of chunks sent once (Karn) that no later chunk has overtaken."""
        offsets = self._offset[rows]
        in_order = (self._tries[rows] == 1) & (offsets > self._highest)
        if in_order.any():
            self.timer.sample(now - float(self._sent_at[rows[in_order]].max()))
        self._highest = max(self._highest, int(offsets.max()))

    def _sendable(self) -> int:
        """Return how many new packets the send rule, the exponents known and the congestion window allow."""
        operation = self._operation
        if operation is None:
            return 0
        filled = self._start + operation.ready(self._first - self._start)
        ruled = self._first + self._window
        budget = max(1, int(self._congestion)) - self._in_flight
        return max(0, min(filled, ruled, self._next + budget) - self._next)

    def _row(self, offset: int) -> int:
        return (self.membership.g0 + offset) % (2 * self._window)

    def _advance(self, operation: Operation, count: int, now: float) -> Packets:
        """Fill and return the next `count` packets; at the ring's end one copy."""
        parts = []
        while count:
            row = self._row(self._next)
            k = min(count, len(self._ring) - row)
            part = slice(row, row + k)
            packets = self._ring[part]
            operation.fill(packets, self._next - self._start)
            self._offset[part] = offsets = self._next + np.arange(k)
            packets["chunk"] = (offsets + self.membership.g0 % (1 << 32)) % (1 << 32)
            self._sent_at[part] = now
            self._tries[part] = 1
            deadline = now + self.timer.patience()
            self._deadline[part] = deadline
            self._next_check = min(self._next_check, deadline)
            self._next += k
            self._in_flight += k
            count -= k
            parts.append(packets)
        if len(parts) == 1:
            return parts[0]
        return self._joined(parts) if parts else self._ring[:0]

    def _joined(self, parts: list[Packets]) -> Packets:
        # Left alone, numpy would change structured arrays to the machine's byte order.
        return np.concatenate(parts, dtype=self._ring.dtype)

    def _due(self, now: float) -> Packets:
        """Return copies of the packets whose deadline has passed, at most BURST, lowest chunk first."""
        if now < self._next_check:
            return self._ring[:0]
        rows = np.flatnonzero(self._deadline <= now)
        if not len(rows):
            self._next_check = float(self._deadline.min())
            return self._ring[:0]
        if now - self._progress_at >= self.timer.patience():
            # Nothing arrives at all. Repeating a whole window at a late peer's switch helps nobody.
            rows = np.array([self._row(self._first)])
            self.timer.back_off()
            awaiting = np.isfinite(self._deadline)
            self._deadline[awaiting] = now + self.timer.patience()
            self._tries[rows] += 1
            if not self._probing:
                self._threshold = self._congestion / 2
            self._congestion = self._congestion_limit / 8
            self._probing = True
        else:
            rows = rows[np.argsort(self._offset[rows])][:BURST]
            self._tries[rows] += 1
            waits = np.array([self.timer.patience(tries) for tries in range(1, 6)])
            self._deadline[rows] = now + waits[np.minimum(self._tries[rows], 5) - 1]
            if now - self._cut_at > (self.timer.quickest or 0.0):
                self._congestion = max(self._congestion_limit / 8, self._congestion * 0.7)
                self._threshold = self._congestion
                self._cut_at = now
        self._congestion = max(1.0, self._congestion)
        self._next_check = float(self._deadline.min())
        self.stats.retransmissions += len(rows)
        return self._ring[rows]

    def _first_awaited(self) -> int:
        first, row = self._first, self._row(self._first)
        while first < self._next:
            k = min(self._next - first, len(self._ring) - row)
            awaiting = np.isfinite(self._deadline[row : row + k])
            if awaiting.any():
                return first + int(awaiting.argmax())
            first, row = first + k, 0
        return first

    def _stalled(self, operation: Operation) -> StalledError:
        error = StalledError(
            self.timeout,
            self.first_missing,
            self._in_flight,
            operation.length,
            f"{self.membership.switch_ip}:{self.membership.port}",
            self.stats.retransmissions - self._retransmitted_before,
        )
        self.leave("its last all_reduce timed out")
        return error
