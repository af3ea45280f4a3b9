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
from .pace import BURST, LEAST_LULL, LULL, SHARE, STEP
from .ring import NEVER, PARKED
from .stats import Stats
from .turn import Turn, Why

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
        super().__init__(membership, kernels or NumpyKernels(), stats or Stats())
        self._number = membership.t0
        self._running: deque[Operation] = deque()  # in order, from the first that is not done
        self._unsent: deque[Operation] = deque()  # those with packets never filled
        self._mismatched = False
        self._retransmitted_before = 0
        self.failure: WorkerError | None = None
        """The mismatch or time-out by which it left."""

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
        return self.running or self._flow.first < self._frontier

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
            call, self._number, self._flow.end, self._base + self._flow.end, self.membership, self.kernels
        )
        operation.timeout, operation.begun_at = self.timeout if timeout is None else timeout, now
        if not self._running:
            self._flow.progress_at = self._flow.clocked = now
            self._retransmitted_before = self.stats.retransmissions
        stall_at = now + operation.timeout
        self._flow.stall_at = min(self._flow.stall_at, stall_at) if self._running else stall_at
        if self._running:
            self._running[-1].followed_by(operation)
        self._running.append(operation)
        self._unsent.append(operation)
        self._flow.end = operation.end
        self._number += 1
        return operation

    def wake_at(self, now: float) -> float:
        """Return when `poll` must be called again if no result comes before: `now` if it has more to send."""
        if self._sendable():
            return now
        limit = self._flow.stall_at if self._running else NEVER
        return min(self._recovery.next_check, limit) if self.outstanding else limit

    @property
    def lull(self) -> float:
        """Seconds in which the results may be left to gather: many at once cost little more than one."""
        lull = LULL * (self.timer.quickest or 0.0)
        half = 2 * self._flow.in_flight >= self._recovery.window
        return lull if half and lull >= LEAST_LULL and self._stopped is None else 0.0

    def poll(self, now: float) -> Packets:
        """Return the packets to send now, in order, valid until the next call; fails what has stalled."""
        if self._running:
            self._clock(now)
            if now >= self._flow.stall_at:
                self._check_stall(now)
        if not self.outstanding:
            return self._ring.packets[:0]
        parts, self._left_over = self._left_over, []
        counted = sum(map(len, parts))
        if (turn := self.usual()) is not None:
            why = turn.poll(now)
            self.go_on(why)
            if not why:
                parts += [self._ring.packets[rows] for rows in self._ring.parts(turn.unsent, self._flow.next)]
                return parts[0] if len(parts) == 1 else self._joined(parts)
        if now >= self._recovery.next_check:
            parts.append(self._recovery.due(now, self._fetching))
            self.stats.retransmissions += len(parts[-1])
        if count := self._sendable():
            count = min(count, BURST)
            late = self._ready[:count]
            if late:
                del self._ready[: len(late)]
                parts.append(self._catch_up(late, now))
            parts += self._advance(count - len(late), now)
        self._flow.limited = self._flow.next < self._flow.end
        packets = parts[0] if len(parts) == 1 else self._joined(parts)
        sent = len(packets) - counted
        self.stats.packets_sent += sent
        self.stats.bytes_sent += sent * packets.itemsize
        return packets

    def on_results(self, packets: Packets, now: float) -> None:
        """Take received payloads (k of `payload_dtype`): awaited results are used, all else is counted."""
        if not len(packets) or self.left is not None or (self.stopped and self.fetched):
            return
        if (turn := self.usual()) is not None:
            self.go_on(turn.on_results(packets, now))
            return
        if self._running:
            self._clock(now)
        taken = self.kernels.take(self._ring, packets, self._flow.highest, self._flow.first, self._flow.next)
        count = len(taken.picked)
        self.stats.strays += taken.strays
        self.stats.duplicates += len(packets) - taken.strays - count
        if not count:
            return
        if taken.sent_at is not None:
            self.stats.round_trips.add(now - taken.sent_at)
        self._recovery.results(taken, now)
        self._flow.highest = taken.highest
        self._flow.in_flight -= count
        self.stats.packets_received += count
        self._flow.progress_at = now
        self._deliver(taken.offsets, packets, taken.picked)
        self._flow.first = taken.first
        self._settle()

    def usual(self) -> Turn | None:
        """Return what does the next step in C, if nothing is out of the ordinary."""
        turn, flow, running = self._turn, self._flow, self._running
        if turn is None or not running or self._held or self._mismatched or self._stopped is not None:
            return None
        if flow.first < self._kept.end:
            return None
        turn.take_up(running[0], self._unsent[0] if self._unsent else None)
        return turn

    def go_on(self, why: int) -> None:
        """Go on where C has ended."""
        self._flow.tell(self._ring.stride)
        if why & Why.UNSENT and self._turn is not None:
            rows = self._ring.parts(self._turn.unsent, self._flow.next)
            self._left_over = [self._ring.packets[part] for part in rows]
        while self._unsent and self._unsent[0].end <= self._flow.next:
            self._unsent.popleft()
        if why & Why.DIFFERENT:
            for operation in self._running:
                self._mismatched = operation.compare() or self._mismatched
        if why & (Why.DIFFERENT | Why.COMPLETE):
            self._settle()

    def _clock(self, now: float) -> None:
        passed = now - self._flow.clocked
        self._flow.clocked = now
        self.stats.seconds += passed
        self.stats.packet_seconds += passed * self._flow.in_flight
        if self._flow.limited:
            self.stats.limited_seconds += passed

    def _deliver(self, offsets: Indexes, packets: Packets, picked: Indexes) -> None:
        """Hand over the results that were not known from a former epoch; these are of the operations."""
        if self._flow.first < self._kept.end:
            fresh = self._kept.learn(offsets)
            offsets, picked = offsets[fresh], picked[fresh]
        if not len(offsets) or not self._running:
            return
        head = self._running[0]
        if self._flow.highest < head.end:
            self._deliver_to(head, offsets, packets, picked)
            return
        for operation in self._running:
            if operation.start > self._flow.highest:
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
        flow, window = self._flow, self._recovery.window
        # What was held back goes out whatever the window says: others may wait for it, and until they have
        # its result they repeat nothing that comes after it.
        ready = len(self._ready)
        budget = max(1, int(window)) - flow.in_flight - ready
        if budget <= 0:
            return ready
        end = min(self._filled(), flow.first + self._ring.window, flow.next + budget)
        fresh = max(0, end - flow.next)
        under_way = 2 * flow.in_flight >= window
        return ready if under_way and SHARE * fresh < window and end < flow.end else ready + fresh

    def _filled(self) -> int:
        """Return the end of what can be filled or held back."""
        end = self._kept.end
        if self._mismatched:
            return end
        last = self._unsent[-1] if self._unsent else None
        for operation in self._unsent:
            # What is overtaken was lost: it is not waited for.
            answered = max(self._flow.first, self._flow.highest + 1) - operation.start
            end = max(end, operation.start + operation.ready(answered))
            if operation is last or (end < operation.end and not operation.is_short):
                break
            end = operation.end
            if end >= self._flow.next + self._ring.window:
                break
        return end

    def _advance(self, count: int, now: float) -> list[Packets]:
        """Fill the next `count` packets and return those that can be sent; in parts at borders."""
        parts, ring = [], self._ring
        while count > 0:
            row = ring.row(self._flow.next)
            k = min(count, len(ring.packets) - row)
            if self._flow.next < self._kept.end:
                k = min(k, self._kept.end - self._flow.next)
                part = slice(row, row + k)
                held = self._again(ring.packets[part], ring.places[part])
            else:
                operation = self._unsent[0]
                at = self._flow.next - operation.start
                k = min(k, operation.length - at)
                part = slice(row, row + k)
                operation.fill(ring.packets[part], at)
                held = operation.unready(at, at + k)
                if at + k == operation.length:
                    self._unsent.popleft()
            ring.offset[part] = self._flow.next + _ORDER[:k]
            ring.sent_at[part] = now + STEP * _ORDER[:k]
            ring.tries[part] = 1
            ring.held[part] = False
            ring.deadline[part] = self._recovery.deadline(now)
            packets = ring.packets[part]
            self._flow.next += k
            count -= k
            if held is not None:
                ring.deadline[part][held] = PARKED
                ring.held[part] = held
                packets = packets[~held]
                self._held += k - len(packets)
            self._flow.in_flight += len(packets)
            parts.append(packets)
            if self._flow.next == self._kept.end:
                self._kept.drop_packets()
        return parts

    def _again(self, packets: Packets, places: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Write kept packets from `_next` on; return which have to be held back again, None if none."""
        first, end = self._flow.next, self._flow.next + len(packets)
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
        self._flow.in_flight += len(rows)
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
        limits = [max(self._flow.progress_at, of.begun_at) + of.timeout for of in self._running]
        self._flow.stall_at = min(limits)
        if now < self._flow.stall_at:
            return
        head = self._running[limits.index(self._flow.stall_at)]
        self.failure = StalledError(
            head.timeout,
            self.first_missing,
            self._flow.in_flight,
            self._flow.first - self._running[0].start + 1,
            self._running[0].length,
            f"{self.membership.switch_ip}:{self.membership.port}",
            self.stats.retransmissions - self._retransmitted_before,
            self._stopped,
        )
        self.leave("an all_reduce timed out", self.failure)
