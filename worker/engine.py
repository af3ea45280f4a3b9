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
6. A change of epoch: `stop`; then `resume` where the members stay, or `fetch` what another rank has and end
   where they do not. `resume` takes the ring's packets from the new g0 on out of it (worker.kept) and makes
   a ring of the new W; they are sent again from there, all before any new one, whether an all-reduce runs
   or not. A result known from before counts for the send rule when it comes again, and is not delivered.
7. An all-reduce whose header mismatched ends once all before it have; the rank is then out of step with its
   job (`left`), and those begun after it fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.membership import Membership
from wire.packet import Packets

from .calls import Call
from .errors import NotInJobError, ResumeError, StalledError, WorkerError
from .kept import Kept, Ranges, nothing_kept, runs
from .kernels import Indexes, Kernels, NumpyKernels
from .operation import Operation
from .recovery import BURST, Recovery
from .ring import NEVER, PARKED, Ring
from .stats import Stats
from .timer import RetransmissionTimer

STEP = 1e-8
"""Seconds between packets of one burst, for the record: which of them was sent first."""
_ORDER = np.arange(BURST)


class Engine:
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
        self.timer = RetransmissionTimer()
        # Chunk numbers below are offsets from this, the first epoch's g0, which may exceed 63 bits.
        self._base = membership.g0
        self._number = membership.t0
        self._running: deque[Operation] = deque()  # in order, from the first that is not done
        self._unsent: deque[Operation] = deque()  # those with packets never filled
        self._end = 0  # offset beyond the last operation begun
        self._mismatched = False
        self._retransmitted_before = 0
        self._clocked = 0.0
        self._limited = False  # whether the window kept packets back at the last poll
        self.left: str | None = None
        """Why this rank is out of step with its job until it has a new engine; None while it is in step."""
        self.failure: WorkerError | None = None
        """The mismatch or time-out by which it left."""
        self._open(membership, 0, 0.0)
        self._kept = nothing_kept(self._ring.packets)

    def _open(self, membership: Membership, first: int, now: float) -> None:
        """Make an empty ring for an epoch that begins at offset `first`."""
        self.membership = membership
        w = membership.window
        self._ring = Ring(membership, self._base)
        self._opened = first
        self._first = first  # least chunk without a result in this epoch
        self._next = first  # least chunk neither sent nor held back in this epoch
        self._highest = first - 1  # greatest chunk with a result
        self._in_flight = 0
        self._held = 0
        self._ready: list[int] = []  # held ones that can be sent now
        self._recovery = Recovery(self._ring, max(1, membership.lead, w // 4), self.timer)
        self._progress_at = self._stall_at = now  # no operation has stalled before the latter
        self._stopped: str | None = None  # why
        self._fetching = False

    @property
    def next_chunk(self) -> int:
        """Number of the first chunk beyond all sent (unwrapped)."""
        return self._base + self._frontier

    @property
    def first_missing(self) -> int:
        """Number of the first chunk without a result, in this epoch or a former one (unwrapped)."""
        first = self._first
        if first < self._kept.end:
            lacking = ~self._has_results(first, self._frontier)
            return self._base + (first + int(lacking.argmax()) if lacking.any() else self._frontier)
        return self._base + first

    @property
    def begun(self) -> int:
        """All-reduces that this job has begun, as far as this rank knows."""
        return self._number

    @property
    def running(self) -> bool:
        """Whether an all-reduce is under way."""
        return bool(self._running)

    @property
    def stopped(self) -> bool:
        """Whether the epoch has been stopped."""
        return self._stopped is not None

    @property
    def fetched(self) -> bool:
        """Whether all results that `fetch` asked for have come, or nobody waits for them any more."""
        return not self._fetching or self.left is not None or not bool((self._ring.deadline < PARKED).any())

    @property
    def outstanding(self) -> bool:
        """Whether `poll` and `on_results` have something to do, an all-reduce or none."""
        if self.left is not None:
            return False
        if self._stopped is not None:
            return not self.fetched
        return self.running or self._first < self._frontier

    def missing(self, most: int = 8) -> list[int]:
        """Return the lowest chunks that were sent in this epoch and have no result, at most `most`."""
        lacking = np.isfinite(self._ring.deadline) & ~self._ring.held
        return [self._base + int(offset) for offset in np.sort(self._ring.offset[lacking])[:most]]

    def results_above(self) -> Ranges:
        """Return the chunks above `first_missing` that have results, in this epoch or a former one."""
        first = self.first_missing - self._base
        has = np.flatnonzero(self._has_results(first, self._frontier))
        return runs(self._base + first + int(at) for at in has)

    def leave(self, reason: str, error: WorkerError | None = None) -> None:
        """Refuse all further calls: this rank is out of step with the job until it has a new membership.

        What is under way fails, with `error` if there is one. What this rank has is still told: others may
        need it.
        """
        self.left = reason
        while self._running:
            self._fail(self._running.popleft(), error or self._not_in_job())
        self._unsent.clear()

    def skip_to(self, number: int) -> None:
        """Count all-reduces below `number` as begun: they fail without having been."""
        self._number = max(self._number, number)

    def stop(self, why: str) -> None:
        """Send nothing and take nothing in: a change of epoch begins. The time-out runs on."""
        self._stopped, self._fetching = why, False

    def fetch(self, chunks: Iterable[tuple[int, int]], now: float) -> None:
        """While stopped, get the results of these chunks (runs, both ends included) by retransmission.

        Only what was sent in this epoch and has no result is repeated; the switch replays its result if
        another rank has it. `fetched` says when all came.
        """
        lacking = np.isfinite(self._ring.deadline)
        wanted = np.zeros_like(lacking)
        for first, last in chunks:
            low, high = max(first - self._base, self._first), min(last - self._base, self._next - 1)
            wanted |= lacking & (self._ring.offset >= low) & (self._ring.offset <= high)
        self._ring.deadline[lacking] = PARKED
        self._ring.deadline[wanted & ~self._ring.held] = now
        self._recovery.next_check = self._progress_at = now
        self._fetching = True

    def resume(self, membership: Membership, now: float) -> None:
        """Carry on in a new epoch of the same members, from `membership.g0`, which lies before `next_chunk`.

        Raises ResumeError, and changes nothing, where the members differ or the packets are not kept.
        """
        old = self.membership
        same = ("job", "rank", "n", "lead", "elements")
        changed = [name for name in same if getattr(membership, name) != getattr(old, name)]
        if changed:
            raise ResumeError(old.rank, f"{', '.join(changed)} changed")
        first, frontier = membership.g0 - self._base, self._frontier
        oldest = max(self._opened, self._next - len(self._ring.packets))
        if not oldest <= first <= frontier:
            raise ResumeError(
                old.rank,
                f"the epoch begins at chunk {membership.g0}, and it has the packets of chunks "
                f"{self._base + oldest} to {self._base + frontier - 1}",
            )
        rows, rest = self._ring.rows(first, max(0, self._next - first)), max(first, self._next)
        packets = self._joined([self._ring.packets[rows], self._kept.packets(rest, frontier)])
        held = np.concatenate([self._ring.held[rows], self._kept.held(rest, frontier)])
        self._kept = Kept(first, packets, self._has_results(first, frontier), held)
        self._open(membership, first, now)

    def _has_results(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return for each of chunks first..end-1 whether its result came, in this epoch or before."""
        has = self._kept.known(first, end)
        sent = max(0, min(end, self._next) - first)
        has[:sent] |= ~np.isfinite(self._ring.deadline[self._ring.rows(first, sent)])
        return has

    @property
    def _frontier(self) -> int:
        """Least chunk beyond all sent: beyond `_next` while kept packets are still to be sent again."""
        return max(self._next, self._kept.end)

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
                self._fail(head, head.mismatch)
                self.leave("an all_reduce did not match the other ranks'")
                return
            self.stats.elements += head.size
            head.done, head.stats = True, self.stats.copy()

    def _fail(self, operation: Operation, error: WorkerError) -> None:
        operation.done, operation.error, operation.stats = True, error, self.stats.copy()

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
        return ring.packets[rows]

    def _fill_one(self, packets: Packets, offset: int) -> bool:
        """Fill packets of the operation that holds a chunk, and say whether its exponent is known."""
        for operation in self._running:
            if offset < operation.end:
                at = offset - operation.start
                operation.fill(packets, at)
                return operation.unready(at, at + 1) is None
        return False

    def _joined(self, parts: list[Packets]) -> Packets:
        # Left alone, numpy would change structured arrays to the machine's byte order.
        joined: Packets = np.concatenate([self._ring.packets[:0], *parts], dtype=self._ring.packets.dtype)
        return joined

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
