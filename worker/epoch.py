# SPDX-License-Identifier: Apache-2.0
"""A rank's packets in one epoch, and how they are carried into the next (docs/protocol.md, Epochs).

A change of epoch: `stop`; then `resume` where the members stay, or `fetch` what another rank has and end
where they do not. `resume` takes the ring's packets from the new g0 on out of it (worker.kept) and makes a
ring of the new W; they are sent again from there, all before any new one, whether an all-reduce runs or not.
A result known from before counts for the send rule when it comes again, and is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wire.membership import Membership
from wire.packet import Packets

from .errors import ResumeError
from .flow import Flow
from .kept import Kept, Ranges, nothing_kept, runs
from .kernels import Kernels
from .recovery import Recovery
from .ring import PARKED, Ring
from .stats import Stats
from .timer import RetransmissionTimer


class Epoch:
    """What was sent and what has come, since the last change of members; the base of worker.engine.Engine."""

    def __init__(self, membership: Membership, kernels: Kernels, stats: Stats) -> None:
        self.kernels, self.stats = kernels, stats
        self.timer = RetransmissionTimer()
        self._flow = Flow(stats)
        # Chunk numbers below are offsets from this, the first epoch's g0, which may exceed 63 bits.
        self._base = membership.g0
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
        self._flow.begin(first, now)
        self._held = 0  # chunks passed over
        self._left_over: list[Packets] = []  # filled and counted, but not sent
        self._ready: list[int] = []  # held ones that can be sent now
        self._recovery = Recovery(self._ring, max(1, membership.lead, w // 4), self.timer)
        self._turn = self.kernels.turn(self._ring, self.timer, self._recovery, self._flow)
        self._stopped: str | None = None  # why
        self._fetching = False

    @property
    def next_chunk(self) -> int:
        """Number of the first chunk beyond all sent (unwrapped)."""
        return self._base + self._frontier

    @property
    def first_missing(self) -> int:
        """Number of the first chunk without a result, in this epoch or a former one (unwrapped)."""
        first = self._flow.first
        if first < self._kept.end:
            lacking = ~self._has_results(first, self._frontier)
            return self._base + (first + int(lacking.argmax()) if lacking.any() else self._frontier)
        return self._base + first

    @property
    def stopped(self) -> bool:
        """Whether the epoch has been stopped."""
        return self._stopped is not None

    @property
    def fetched(self) -> bool:
        """Whether all results that `fetch` asked for have come, or nobody waits for them any more."""
        return not self._fetching or self.left is not None or not bool((self._ring.deadline < PARKED).any())

    def missing(self, most: int = 8) -> list[int]:
        """Return the lowest chunks that were sent in this epoch and have no result, at most `most`."""
        lacking = np.isfinite(self._ring.deadline) & ~self._ring.held
        return [self._base + int(offset) for offset in np.sort(self._ring.offset[lacking])[:most]]

    def results_above(self) -> Ranges:
        """Return the chunks above `first_missing` that have results, in this epoch or a former one."""
        first = self.first_missing - self._base
        has = np.flatnonzero(self._has_results(first, self._frontier))
        return runs(self._base + first + int(at) for at in has)

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
            low, high = max(first - self._base, self._flow.first), min(last - self._base, self._flow.next - 1)
            wanted |= lacking & (self._ring.offset >= low) & (self._ring.offset <= high)
        self._ring.deadline[lacking] = PARKED
        self._ring.deadline[wanted & ~self._ring.held] = now
        self._recovery.next_check = self._flow.progress_at = now
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
        oldest = max(self._opened, self._flow.next - len(self._ring.packets))
        if not oldest <= first <= frontier:
            raise ResumeError(
                old.rank,
                f"the epoch begins at chunk {membership.g0}, and it has the packets of chunks "
                f"{self._base + oldest} to {self._base + frontier - 1}",
            )
        rows, rest = self._ring.rows(first, max(0, self._flow.next - first)), max(first, self._flow.next)
        packets = self._joined([self._ring.packets[rows], self._kept.packets(rest, frontier)])
        held = np.concatenate([self._ring.held[rows], self._kept.held(rest, frontier)])
        self._kept = Kept(first, packets, self._has_results(first, frontier), held)
        self._open(membership, first, now)

    def _has_results(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return for each of chunks first..end-1 whether its result came, in this epoch or before."""
        has = self._kept.known(first, end)
        sent = max(0, min(end, self._flow.next) - first)
        has[:sent] |= ~np.isfinite(self._ring.deadline[self._ring.rows(first, sent)])
        return has

    @property
    def _frontier(self) -> int:
        """Least chunk beyond all sent: beyond `_next` while kept packets are still to be sent again."""
        return max(self._flow.next, self._kept.end)

    def _joined(self, parts: list[Packets]) -> Packets:
        # Left alone, numpy would change structured arrays to the machine's byte order.
        joined: Packets = np.concatenate([self._ring.packets[:0], *parts], dtype=self._ring.packets.dtype)
        return joined
