# SPDX-License-Identifier: Apache-2.0
"""The all-reduce engine without I/O and without a clock: packets out of `poll`, results into `on_results`.

1. A ring holds the packets of the last 2W chunks. A chunk's ring row is g mod 2W, which is its slot and
   version too (g mod W, (g div W) mod 2), so a result finds its row by what it says on the wire.
2. Send rule: chunk g is sent only when every chunk in g0..g-W has its result in this epoch. Keep rule: its
   row is not reused before g+2W, which is sent only after all in g0..g+W have results.
3. The congestion window C <= W bounds packets in flight, and maps nothing.
4. A chunk is lost where one that was sent later has its result (as in RFC 8985, RACK): half a round trip is
   left for reordering, then it is sent again. Time alone shows no loss: a peer may be late, and so may this
   process be, or the switch. When a deadline passes (worker.timer), only the lowest missing chunk is sent
   again as a probe, backing off (RFC 9002, 6.2); what was sent before it is lost if an answer comes and no
   more after it. The congestion window shrinks for losses, once for what was under way, and not for probes.
5. `now` is any clock in seconds that does not go back; each call is given it.
6. A change of epoch: `stop`; then `resume` where the members stay, or `fetch` what another rank has and end
   where they do not. `resume` takes the ring's packets from the new g0 on out of it (worker.kept) and makes
   a ring of the new W; they are sent again from there, all before any new one, whether an all-reduce runs
   or not. A result known from before counts for the send rule when it comes again, and is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wire.membership import Membership
from wire.packet import Packets

from .calls import Call
from .errors import NotInJobError, ResumeError, StalledError
from .kept import Kept, Ranges, nothing_kept, runs
from .kernels import Indexes, Kernels, NumpyKernels
from .operation import Operation
from .ring import NEVER, PARKED, Ring
from .stats import Stats
from .timer import RetransmissionTimer

BURST = 128
"""Most packets of one `poll`: enough to make numpy's fixed costs small, little enough to stay in a cache."""
STEP = 1e-8
"""Seconds between packets of one burst, for the record: which of them was sent first."""


class Engine:
    """One rank from one change of members to the next, one all-reduce at a time.

    `begin`, then `poll` and `on_results` until `done`, then `finish`. After a `resume` there may be packets
    to send again between all-reduces too: `poll` and `on_results` while `outstanding`.
    `timeout`: seconds without any result after which `poll` raises StalledError.
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
        self._operation: Operation | None = None
        self._start = 0  # offset of the operation's first chunk
        self._lacking = 0  # results that the operation waits for
        self._begun_at = 0.0
        self._retransmitted_before = 0
        self.left: str | None = None
        """Why this rank is out of step with its job until it has a new engine; None while it is in step."""
        self._open(membership, 0, 0.0)
        self._kept = nothing_kept(self._ring.packets)

    def _open(self, membership: Membership, first: int, now: float) -> None:
        """Make an empty ring for an epoch that begins at offset `first`."""
        self.membership = membership
        w = membership.window
        self._ring = Ring(membership, self._base)
        self._opened = first
        self._first = first  # least chunk without a result in this epoch
        self._next = first  # least chunk not yet sent in this epoch
        self._highest = first - 1  # greatest chunk with a result
        self._in_flight = 0
        self._next_check = NEVER  # no deadline lies before it
        self._congestion_limit = max(1, membership.lead, w // 4)
        self._congestion = self._threshold = float(self._congestion_limit)
        self._cut_at = -np.inf  # when the congestion window was last reduced
        self._overtaken = -np.inf  # what was sent before is lost once its deadline passes
        self._probed_at: float | None = None  # since nothing has arrived
        self._progress_at = now
        self._stopped: str | None = None  # why
        self._fetching = False

    @property
    def next_chunk(self) -> int:
        """Number of the first chunk never sent (unwrapped)."""
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
        """Whether an all-reduce is under way: begun, and neither finished nor given up."""
        return self._operation is not None

    @property
    def done(self) -> bool:
        """Whether `finish` can be called: all results are here, or the headers show a mismatch."""
        operation = self._operation
        return operation is not None and (operation.mismatch is not None or not self._lacking)

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
        lacking = np.sort(self._ring.offset[np.isfinite(self._ring.deadline)])[:most]
        return [self._base + int(offset) for offset in lacking]

    def results_above(self) -> Ranges:
        """Return the chunks above `first_missing` that have results, in this epoch or a former one."""
        first = self.first_missing - self._base
        has = np.flatnonzero(self._has_results(first, self._frontier))
        return runs(self._base + first + int(at) for at in has)

    def leave(self, reason: str) -> None:
        """Refuse all further calls: this rank is out of step with the job until it has a new membership.

        What it has is still told: others may need it.
        """
        self.left = reason
        self._operation = None

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
        self._ring.deadline[wanted] = now
        self._next_check = self._progress_at = now
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
        parts = [
            self._ring.packets[self._ring.rows(first, max(0, self._next - first))],
            self._kept.packets(max(first, self._next), frontier),
        ]
        known = self._has_results(first, frontier)
        self._kept = Kept(first, self._joined(parts), known)
        self._open(membership, first, now)

    def _has_results(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return for each of chunks first..end-1 whether its result came, in this epoch or before."""
        has = self._kept.known(first, end)
        sent = max(0, min(end, self._next) - first)
        has[:sent] |= ~np.isfinite(self._ring.deadline[self._ring.rows(first, sent)])
        return has

    @property
    def _frontier(self) -> int:
        """Least chunk never sent: beyond `_next` while kept packets are still to be sent again."""
        return max(self._next, self._kept.end)

    def begin(
        self,
        array: ArrayLike,
        op: str,
        now: float,
        *,
        out: NDArray[Any] | None = None,
        cast: bool = False,
    ) -> None:
        """Start an all-reduce; raises UnsupportedError (the rank stays in step) or NotInJobError."""
        if self.left is not None:
            raise NotInJobError(
                f"rank {self.membership.rank} has left epoch {self.membership.epoch} of job "
                f"{self.membership.job}: {self.left}. Rejoin with the membership of a new epoch."
            )
        if self._operation is not None:
            raise RuntimeError("an all-reduce is under way; finish it first")
        if self._stopped is not None:
            raise RuntimeError("the epoch is stopped; resume it first")
        call = Call(array, op, out, cast)
        self._start = self._frontier
        operation = Operation(call, self._number, self._base + self._start, self.membership, self.kernels)
        self._operation = operation
        self._number += 1
        self._lacking = operation.length
        self._begun_at = self._progress_at = now
        self._retransmitted_before = self.stats.retransmissions

    def finish(self, now: float) -> NDArray[Any]:
        """Return the output (shape and dtype of the input); raises MismatchError or NonFiniteError."""
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
        if self._sendable():
            return now
        limit = self._progress_at + self.timeout if self.running else NEVER
        return min(self._next_check, limit) if self.outstanding else limit

    def poll(self, now: float) -> Packets:
        """Return the packets to send now, in order, valid until the next call; raises StalledError."""
        operation = self._operation
        if operation is not None and not self.done and now - self._progress_at >= self.timeout:
            raise self._stalled(operation)
        if not self.outstanding or (operation is not None and operation.mismatch is not None):
            return self._ring.packets[:0]
        again = self._due(now)
        new = self._advance(min(self._sendable(), BURST), now)
        self.stats.packets_sent += len(again) + len(new)
        self.stats.bytes_sent += (len(again) + len(new)) * self._ring.packets.itemsize
        if not len(again):
            return new
        return again if not len(new) else self._joined([again, new])

    def on_results(self, packets: Packets, now: float) -> None:
        """Take received payloads (k of `payload_dtype`): awaited results are used, all else is counted."""
        if not len(packets) or not self.outstanding:
            return
        taken = self.kernels.take(self._ring, packets, self._highest, self._first, self._next)
        count = len(taken.picked)
        self.stats.strays += taken.strays
        self.stats.duplicates += len(packets) - taken.strays - count
        if not count:
            return
        if taken.sent_at is not None:
            self.timer.sample(max(0.0, now - taken.sent_at))
            self._overtaken = max(self._overtaken, taken.sent_at)
        self._highest = taken.highest
        if self._probed_at is not None:
            # The wait was not the path's: give the others the usual time, not the backed-off one.
            self._overtaken = max(self._overtaken, self._probed_at)
            self._probed_at = None
            self.timer.answered()
            self._ring.deadline[self._ring.deadline < PARKED] = now + 2 * self.timer.base
            self._next_check = now + 2 * self.timer.base
        elif taken.first < taken.highest:
            self._hasten(now + (self.timer.quickest or 0.0) / 2)
        self._in_flight -= count
        self.stats.packets_received += count
        self._progress_at = now
        # Slow start below the threshold, then a packet a round trip (RFC 5681, 3.1).
        growth = count if self._congestion < self._threshold else count / self._congestion
        self._congestion = min(self._congestion_limit, self._congestion + growth)
        self._deliver(taken.offsets, packets, taken.picked)
        self._first = taken.first

    def _hasten(self, deadline: float) -> None:
        """Let what is overtaken wait no longer than that."""
        ring = self._ring
        rows = np.flatnonzero((ring.deadline < PARKED) & (ring.sent_at < self._overtaken))
        if len(rows):
            ring.deadline[rows] = np.minimum(ring.deadline[rows], deadline)
            self._next_check = min(self._next_check, deadline)

    def _deliver(self, offsets: Indexes, packets: Packets, picked: Indexes) -> None:
        """Hand over the results that were not known from a former epoch; these are of the operation."""
        if self._first < self._kept.end:
            fresh = self._kept.learn(offsets)
            offsets, picked = offsets[fresh], picked[fresh]
        if self._operation is not None and len(offsets):
            self._operation.deliver(offsets - self._start, packets, picked)
            self._lacking -= len(offsets)

    def _sendable(self) -> int:
        """Return how many new packets the send rule, the exponents known and the congestion window allow."""
        if self._stopped is not None or self.left is not None:
            return 0
        operation = self._operation
        filled = self._kept.end
        if operation is not None:
            filled = max(filled, self._start + operation.ready(self._first - self._start))
        ruled = self._first + self._ring.window
        budget = max(1, int(self._congestion)) - self._in_flight
        return max(0, min(filled, ruled, self._next + budget) - self._next)

    def _advance(self, count: int, now: float) -> Packets:
        """Fill and return the next `count` packets; at the ring's end one copy."""
        parts = []
        while count:
            row = self._ring.row(self._next)
            k = min(count, len(self._ring.packets) - row)
            part = slice(row, row + k)
            if self._next < self._kept.end:
                k = min(k, self._kept.end - self._next)
                part = slice(row, row + k)
                self._ring.packets[part] = self._kept.packets(self._next, self._next + k)
                self._ring.packets["place"][part] = self._ring.places[part]
            elif self._operation is not None:
                self._operation.fill(self._ring.packets[part], self._next - self._start)
            packets = self._ring.packets[part]
            self._ring.offset[part] = self._next + np.arange(k)
            self._ring.sent_at[part] = now + STEP * np.arange(k)
            self._ring.tries[part] = 1
            deadline = now + self.timer.patience()
            self._ring.deadline[part] = deadline
            self._next_check = min(self._next_check, deadline)
            self._next += k
            self._in_flight += k
            count -= k
            parts.append(packets)
            if self._next == self._kept.end:
                self._kept.drop_packets()
        if len(parts) == 1:
            return parts[0]
        return self._joined(parts) if parts else self._ring.packets[:0]

    def _joined(self, parts: list[Packets]) -> Packets:
        # Left alone, numpy would change structured arrays to the machine's byte order.
        return np.concatenate(parts, dtype=self._ring.packets.dtype)

    def _due(self, now: float) -> Packets:
        """Return copies of lost packets, at most BURST, lowest chunk first, or of one that probes."""
        ring = self._ring
        if now < self._next_check:
            return ring.packets[:0]
        rows = np.flatnonzero(ring.deadline <= now)
        if len(rows):
            lost = rows if self._fetching else rows[ring.sent_at[rows] < self._overtaken]
            rows = self._lost(lost, now) if len(lost) else self._probe(now)
            ring.tries[rows] += 1
            ring.sent_at[rows] = now
            self.stats.retransmissions += len(rows)
        self._next_check = float(ring.deadline.min())
        return ring.packets[rows]

    def _lost(self, rows: Indexes, now: float) -> Indexes:
        ring = self._ring
        rows = rows[np.argsort(ring.offset[rows])][:BURST]
        waits = np.array([self.timer.patience(tries) for tries in range(2, 6)])
        ring.deadline[rows] = now + waits[np.minimum(ring.tries[rows], 4) - 1]
        if not self._fetching and float(ring.sent_at[rows].max()) > self._cut_at:
            self._congestion = max(1.0, self._congestion_limit / 2, self._congestion * 0.7)
            self._threshold = self._congestion
            self._cut_at = now
        return rows

    def _probe(self, now: float) -> Indexes:
        """Send one packet: repeating a whole window at a late peer's switch helps nobody."""
        ring = self._ring
        awaiting = np.flatnonzero(ring.deadline < PARKED)
        self.timer.back_off()
        ring.deadline[awaiting] = now + self.timer.patience()
        self._probed_at = now
        return awaiting[[ring.offset[awaiting].argmin()]]

    def _stalled(self, operation: Operation) -> StalledError:
        error = StalledError(
            self.timeout,
            self.first_missing,
            self._in_flight,
            operation.length,
            f"{self.membership.switch_ip}:{self.membership.port}",
            self.stats.retransmissions - self._retransmitted_before,
            self._stopped,
        )
        self.leave("its last all_reduce timed out")
        return error
