# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine without I/O and without a clock: packets out of `poll`, results into `on_results`.

1. A ring holds the packets of the last 2W chunks. A chunk's ring row is g mod 2W, which is its slot and
   version too (g mod W, (g div W) mod 2), so a result finds its row by what it says on the wire.
2. Send rule: chunk g is sent only when every chunk in g0..g-W has its result in this epoch. Keep rule: its
   row is not reused before g+2W, which is sent only after all in g0..g+W have results.
3. Several all-reduces may be under way: their chunks are numbered on, and the packets of the next follow
   those of the last without waiting for results. They begin in the same order at all ranks.
4. A float chunk's values wait for the result of its exponent. Where that was lost, or where it is under way
   and another all-reduce follows a short one, they are passed over ("held") and sent as soon as it is here.
5. `now` is any clock in seconds that does not go back; each call is given it.
6. An all-reduce whose header mismatched ends once all before it have; the rank is then out of step with its
   job (`left`), and those begun after it fail.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.membership import Membership
from wire.packet import Packets

from .calls import Call
from .epoch import Epoch
from .errors import NotInJobError, StalledError, WorkerError
from .kept import runs
from .kernels import Indexes, Kernels, NumpyKernels
from .operation import Operation
from .recovery import BURST
from .ring import NEVER, PARKED
from .stats import Stats

STEP = 1e-8
"""Seconds between packets of one burst, for the record: which of them was sent first."""
LULL = 0.5
"""Share of a round trip for which results gather while at least half a window is under way."""
LEAST_LULL = 0.002
"""Seconds: on a quicker path to sleep and to wake costs more than it saves."""
_ORDER = np.arange(BURST)


class Engine(Epoch):
    """One rank from one change of members to the next.

    `begin`, then `poll` and `on_results` until the operation is `done`. After a `resume` there may be packets
    to send again between all-reduces too: `poll` and `on_results` while `outstanding`.
    `timeout`: seconds without any result after which an operation fails with StalledError, if it has no
    other.
    """

    def __init__(
        self,
        membership: Membership,
        timeout: float = 30.0,
        stats: Stats | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.timeout = timeout
        self.kernels = kernels if kernels is not None else NumpyKernels()
        self.stats = stats if stats is not None else Stats()
        super().__init__(membership)
        self._number = membership.t0
        self._running: deque[Operation] = deque()  # in order, from the first that is not done
        self._unsent: deque[Operation] = deque()  # those with packets never filled
        self._end = 0  # offset beyond the last operation begun
        self._mismatched = False
        self._retransmitted_before = 0
        self._clocked = 0.0
        self._limited = False  # whether the window kept packets back at the last poll
        self.failure: WorkerError | None = None
        """The mismatch or time-out by which it left."""
        self._stall_at = 0.0  # no operation has stalled before

    @property
    def begun(self) -> int:
        """All-reduces that this job has begun, as far as this rank knows."""
        return self._number

    @property
    def running(self) -> bool:
        """Whether an all-reduce is under way."""
        return bool(self._running)

    @property
    def outstanding(self) -> bool:
        """Whether `poll` and `on_results` have something to do, an all-reduce or none."""
        if self.left is not None:
            return False
        if self._stopped is not None:
            return not self.fetched
        return self.running or self._first < self._frontier

    def leave(self, reason: str, error: WorkerError | None = None) -> None:
        """Refuse all further calls: this rank is out of step with the job until it has a new membership.

        What is under way fails, with `error` if there is one. What this rank has is still told: others may
        need it.
        """
        self.left = reason
        while self._running:
            self._running.popleft().finish(self.stats.copy(), error or self._not_in_job())
        self._unsent.clear()

    def skip_to(self, number: int) -> None:
        """Count all-reduces below `number` as begun: they fail without having been."""
        self._number = max(self._number, number)

    def begin(self, call: Call, now: float, *, timeout: float | None = None) -> Operation:
        """Start an all-reduce and return it; raises NotInJobError."""
        if self.left is not None:
            raise self._not_in_job()
        if self._stopped is not None:
            raise RuntimeError("the epoch is stopped; resume it first")
        operation = Operation(
            call, self._number, self._end, self._base + self._end, self.membership, self.kernels
        )
        operation.timeout, operation.begun_at = self.timeout if timeout is None else timeout, now
        if not self._running:
            self._progress_at = self._clocked = now
            self._retransmitted_before = self.stats.retransmissions
        stall_at = now + operation.timeout
        self._stall_at = min(self._stall_at, stall_at) if self._running else stall_at
        self._running.append(operation)
        self._unsent.append(operation)
        self._end = operation.end
        self._number += 1
        return operation

    def wake_at(self, now: float) -> float:
        """Return when `poll` must be called again if no result comes before: `now` if it has more to send."""
        if self._sendable():
            return now
        limit = self._stall_at if self._running else NEVER
        return min(self._recovery.next_check, limit) if self.outstanding else limit

    @property
    def lull(self) -> float:
        """Seconds in which the results may be left to gather: many at once cost little more than one."""
        lull = LULL * (self.timer.quickest or 0.0)
        half = 2 * self._in_flight >= self._recovery.window
        return lull if half and lull >= LEAST_LULL and self._stopped is None else 0.0

    def poll(self, now: float) -> Packets:
        """Return the packets to send now, in order, valid until the next call; fails what has stalled."""
        if self._running:
            self._clock(now)
            if now >= self._stall_at:
                self._check_stall(now)
        if not self.outstanding:
            return self._ring.packets[:0]
        parts = []
        if now >= self._recovery.next_check:
            parts.append(self._recovery.due(now, self._fetching))
            self.stats.retransmissions += len(parts[0])
        if count := self._sendable():
            late = self._ready[: min(count, BURST)]
            if late:
                del self._ready[: len(late)]
                parts.append(self._catch_up(late, now))
            parts += self._advance(min(count, BURST) - len(late), now)
        self._limited = self._next < self._end
        packets = parts[0] if len(parts) == 1 else self._joined(parts)
        self.stats.packets_sent += len(packets)
        self.stats.bytes_sent += len(packets) * packets.itemsize
        return packets

    def on_results(self, packets: Packets, now: float) -> None:
        """Take received payloads (k of `payload_dtype`): awaited results are used, all else is counted."""
        if not len(packets) or self.left is not None or (self.stopped and self.fetched):
            return
        if self._running:
            self._clock(now)
        taken = self.kernels.take(self._ring, packets, self._highest, self._first, self._next)
        count = len(taken.picked)
        self.stats.strays += taken.strays
        self.stats.duplicates += len(packets) - taken.strays - count
        if not count:
            return
        if taken.sent_at is not None:
            self.stats.round_trips.add(now - taken.sent_at)
        self._recovery.results(taken, now)
        self._highest = taken.highest
        self._in_flight -= count
        self.stats.packets_received += count
        self._progress_at = now
        self._deliver(taken.offsets, packets, taken.picked)
        self._first = taken.first
        self._settle()

    def _clock(self, now: float) -> None:
        passed = now - self._clocked
        self._clocked = now
        self.stats.seconds += passed
        self.stats.packet_seconds += passed * self._in_flight
        if self._limited:
            self.stats.limited_seconds += passed

    def _deliver(self, offsets: Indexes, packets: Packets, picked: Indexes) -> None:
        """Hand over the results that were not known from a former epoch; these are of the operations."""
        if self._first < self._kept.end:
            fresh = self._kept.learn(offsets)
            offsets, picked = offsets[fresh], picked[fresh]
        if not len(offsets) or not self._running:
            return
        head = self._running[0]
        if self._highest < head.end:
            self._deliver_to(head, offsets, packets, picked)
            return
        for operation in self._running:
            if operation.start > self._highest:
                break
            its = (offsets >= operation.start) & (offsets < operation.end)
            if its.any():
                self._deliver_to(operation, offsets[its], packets, picked[its])

    def _deliver_to(self, operation: Operation, offsets: Indexes, packets: Packets, picked: Indexes) -> None:
        operation.deliver(offsets - operation.start, packets, picked)
        self._mismatched = self._mismatched or operation.mismatch is not None
        if self._held and operation.ahead:
            waiting = offsets + operation.ahead
            rows = (self._ring.base + waiting) % len(self._ring.packets)
            ready = self._ring.held[rows] & (self._ring.offset[rows] == waiting) & (waiting < operation.end)
            if ready.any():
                self._ready = sorted([*self._ready, *waiting[ready].tolist()])

    def _settle(self) -> None:
        """End operations that are complete, in order, or by a mismatch."""
        while self._running:
            head = self._running[0]
            if head.lacking and head.mismatch is None:
                return
            self._running.popleft()
            self.stats.all_reduces += 1
            self.stats.rtt = self.timer.quickest
            if head.mismatch is not None:
                self.failure = head.mismatch
                head.finish(self.stats.copy(), head.mismatch)
                self.leave("an all_reduce did not match the other ranks'")
                return
            self.stats.elements += head.size
            head.finish(self.stats.copy())

    def _not_in_job(self) -> NotInJobError:
        return NotInJobError(
            f"rank {self.membership.rank} has left epoch {self.membership.epoch} of job "
            f"{self.membership.job}: {self.left}. Rejoin with the membership of a new epoch."
        )

    def _sendable(self) -> int:
        """Return how many packets never sent the send rule, the exponents and the congestion window allow."""
        if self._stopped is not None or self.left is not None:
            return 0
        ready = len(self._ready)
        budget = max(1, int(self._recovery.window)) - self._in_flight
        if budget <= 0:
            return 0
        end = min(self._filled(), self._first + self._ring.window, self._next + budget - ready)
        return min(budget, ready + max(0, end - self._next))

    def _filled(self) -> int:
        """Return the end of what can be filled or held back."""
        end = self._kept.end
        if self._mismatched:
            return end
        last = self._unsent[-1] if self._unsent else None
        for operation in self._unsent:
            # What is overtaken was lost: it is not waited for.
            answered = max(self._first, self._highest + 1) - operation.start
            end = max(end, operation.start + operation.ready(answered))
            if operation is last or (end < operation.end and not operation.is_short):
                break
            end = operation.end
            if end >= self._next + self._ring.window:
                break
        return end

    def _advance(self, count: int, now: float) -> list[Packets]:
        """Fill the next `count` packets and return those that can be sent; in parts at borders."""
        parts, ring = [], self._ring
        while count > 0:
            row = ring.row(self._next)
            k = min(count, len(ring.packets) - row)
            if self._next < self._kept.end:
                k = min(k, self._kept.end - self._next)
                part = slice(row, row + k)
                held = self._again(ring.packets[part], ring.places[part])
            else:
                operation = self._unsent[0]
                at = self._next - operation.start
                k = min(k, operation.length - at)
                part = slice(row, row + k)
                operation.fill(ring.packets[part], at)
                held = operation.unready(at, at + k)
                if at + k == operation.length:
                    self._unsent.popleft()
            ring.offset[part] = self._next + _ORDER[:k]
            ring.sent_at[part] = now + STEP * _ORDER[:k]
            ring.tries[part] = 1
            ring.held[part] = False
            ring.deadline[part] = self._recovery.deadline(now)
            packets = ring.packets[part]
            self._next += k
            count -= k
            if held is not None:
                ring.deadline[part][held] = PARKED
                ring.held[part] = held
                packets = packets[~held]
                self._held += k - len(packets)
            self._in_flight += len(packets)
            parts.append(packets)
            if self._next == self._kept.end:
                self._kept.drop_packets()
        return parts

    def _again(self, packets: Packets, places: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Write kept packets from `_next` on; return which have to be held back again, None if none."""
        first, end = self._next, self._next + len(packets)
        packets[:] = self._kept.packets(first, end)
        packets["place"] = places
        held = self._kept.held(first, end)
        if not held.any():
            return None
        still = held.copy()
        for i in np.flatnonzero(held):
            still[i] = not self._fill_one(packets[i : i + 1], first + int(i))
        return still if still.any() else None

    def _catch_up(self, offsets: list[int], now: float) -> Packets:
        """Fill and return packets that were held back."""
        ring = self._ring
        rows = (ring.base + np.array(offsets)) % len(ring.packets)
        for first, last in runs(rows.tolist()):
            self._fill_one(ring.packets[first : last + 1], int(ring.offset[first]))
        ring.sent_at[rows] = now
        ring.deadline[rows] = self._recovery.deadline(now)
        ring.held[rows] = False
        self._held -= len(rows)
        self._in_flight += len(rows)
        packets: Packets = ring.packets[rows]
        return packets

    def _fill_one(self, packets: Packets, offset: int) -> bool:
        """Fill packets of the operation that holds a chunk, and say whether its exponent is known."""
        for operation in self._running:
            if offset < operation.end:
                at = offset - operation.start
                operation.fill(packets, at)
                return operation.unready(at, at + 1) is None
        return False

    def _check_stall(self, now: float) -> None:
        """Fail everything if an operation has waited too long."""
        limits = [max(self._progress_at, of.begun_at) + of.timeout for of in self._running]
        self._stall_at = min(limits)
        if now < self._stall_at:
            return
        head = self._running[limits.index(self._stall_at)]
        self.failure = StalledError(
            head.timeout,
            self.first_missing,
            self._in_flight,
            head.length,
            f"{self.membership.switch_ip}:{self.membership.port}",
            self.stats.retransmissions - self._retransmitted_before,
            self._stopped,
        )
        self.leave("an all_reduce timed out", self.failure)
