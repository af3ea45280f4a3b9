# SPDX-License-Identifier: Apache-2.0
"""Looking at a running job: its slots, by peeks, and its counts. Blocking calls are made in threads.

A peek is a packet out and one in, about a millisecond: a look asks for MOST of them at most, a few under one
hold of the switch's lock, so that changes of epoch are not held up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.changes import Status
from controller.live import LiveJob
from controller.placement import Epoch
from controller.program.peek import SlotState
from controller.program.verdicts import Counts, JobVerdicts
from controller.requests import NotReadyError
from controller.switches import SwitchLink
from controller.tally import JobCounts, JobTally
from wire.hints import command
from wire.verdicts import REPORTED, Verdict

MOST = 1024
"""Slots, each of one version, that one look asks for."""
FEW = 8
"""Chunks of which one is told who is missing."""
AT_ONCE = 32
"""Peeks under one hold of the lock."""
JOBS_AT_ONCE = 2
"""Jobs whose counters are read under one hold of the lock."""
COUNTS = 3
"""Attempts to count one job that moves."""
REFUSED = REPORTED | {Verdict.NO_RECEIVER}
"""Verdicts that are not ordinary loss and reordering."""


@dataclass(frozen=True)
class SlotView:
    """One version of a slot that the present epoch has used."""

    slot: int
    """Relative to the job's pool."""
    version: int
    epoch: int
    chunk: int
    """64 bits."""
    seen: list[int]
    """Ranks that have contributed."""
    missing: list[int]
    lacking: list[str]
    """Leaf switches that all below have contributed to, and whose partial has not come to their parent."""
    done: bool
    age_seconds: float
    """How long looks have found it like this: 0 at the first one."""


@dataclass(frozen=True)
class Awaited:
    """A rank and its host."""

    rank: int
    host: str


@dataclass(frozen=True)
class ChunkView:
    """A chunk of the present epoch; `missing` are the ranks that have not contributed: none, it is done."""

    chunk: int
    missing: list[Awaited]


def frontier(job: LiveJob) -> int | None:
    """Return the first chunk that is not known to be complete, if a rank waits for that one or one before it.

    It is the greatest of the ranks' first chunks without a result: who has all results before it tells that
    all ranks had contributed to them. As far as the workers of the present epoch have told.
    """
    told = _told(job)
    if all(status.first_missing == status.next_chunk for status in told):
        return None
    return max(status.first_missing for status in told)


async def slots(job: LiveJob, most: int = MOST) -> list[SlotView]:
    """Return the slots that a job's present epoch has used, by chunk; none between two epochs.

    Of a larger pool than `most` peeks cover it is those of the `most` chunks from the frontier on, or up to
    the last one if nobody waits. Raises NotReadyError, SwitchClientError.
    """
    epoch = job.epoch
    if epoch is None or not job.group.memberships:
        return []
    # Two versions of W slots: of 2W consecutive chunks each has its own.
    count = min(most // len(epoch.nodes), 2 * epoch.window)
    first = frontier(job)
    if first is None:
        next_chunks = [status.next_chunk for status in _told(job)]
        first = max([job.group.memberships[0].g0, *next_chunks]) - count
    chunks = range(max(0, first), max(0, first) + count)
    now = time.monotonic()
    found: list[SlotView] = []
    for start in range(0, count, AT_ONCE):
        some = chunks[start : start + AT_ONCE]
        states = await _peek(job, epoch, some)
        if states is None:
            return []
        views = (_view(job, epoch, chunk, each, now) for chunk, each in zip(some, states, strict=True))
        found += [view for view in views if view is not None]
    return sorted(found, key=lambda view: view.chunk)


async def chunks(job: LiveJob, numbers: Sequence[int]) -> list[ChunkView]:
    """Return who has contributed to some chunks of a job's present epoch, FEW at most.

    Those that their slots no longer hold are left out: all ranks had contributed to them. Raises
    NotReadyError, SwitchClientError.
    """
    epoch, hosts = job.epoch, job.group.hosts
    if epoch is None or not job.group.installed:
        raise NotReadyError(job.name, f"job {job.name} is between two epochs")
    some = sorted(set(numbers))[:FEW]
    states = await _peek(job, epoch, some)
    if states is None:
        raise NotReadyError(job.name, f"job {job.name} is between two epochs")
    found = []
    for chunk, each in zip(some, states, strict=True):
        root = each[0]
        if root.epoch == epoch.epoch and _distance(root.tag, chunk) > 0:
            continue
        seen = _contributed(job, epoch, each, chunk)
        lacking = [Awaited(r, hosts[r]) for r in range(len(epoch.hosts)) if r not in seen]
        found.append(ChunkView(chunk, lacking))
    return found


def _distance(tag: int, chunk: int) -> int:
    """Return how far a tag is ahead of a chunk's (RFC 1982)."""
    return (tag - chunk + (1 << 31)) % (1 << 32) - (1 << 31)


def _told(job: LiveJob) -> list[Status]:
    return [session.status for session in job.group.sessions.values() if job.group.in_epoch(session)]


def _place(epoch: Epoch, chunk: int) -> tuple[int, int]:
    """Return a chunk's slot and version (docs/protocol.md, The packet)."""
    return chunk % epoch.window, chunk // epoch.window % 2


async def _peek(job: LiveJob, epoch: Epoch, chunks: Sequence[int]) -> list[list[SlotState]] | None:
    """Return for each chunk what the slots of the tree's switches hold, the root's first.

    None if the epoch has ended. Raises NotReadyError, SwitchClientError.
    """
    places = [_place(epoch, chunk) for chunk in chunks]
    columns: list[list[SlotState]] = []
    for switch, node in epoch.nodes.items():
        link = job.switches[switch]
        async with link.lock:
            if job.epoch is not epoch:
                return None
            if not link.in_line:
                raise _not_ready(job)
            columns.append(await asyncio.to_thread(_peek_at, link, node.base, places))
    return [list(states) for states in zip(*columns, strict=True)]


def _peek_at(link: SwitchLink, base: int, places: Sequence[tuple[int, int]]) -> list[SlotState]:
    return [link.program.peek.slot(link, base + slot, version) for slot, version in places]


def _contributed(job: LiveJob, epoch: Epoch, states: Sequence[SlotState], chunk: int) -> set[int | str]:
    """Return the ranks that have contributed to a chunk, and the leaves whose partials have come.

    A leaf whose partial has come may have gone on to a later chunk: all below it had contributed.
    """
    found: set[int | str] = set()
    for (switch, inputs), state in zip(job.inputs.items(), states, strict=True):  # parents before leaves
        if switch in found:
            found.update(inputs)
        elif state.epoch == epoch.epoch and state.tag == chunk % (1 << 32):
            found.update(name for bit, name in enumerate(inputs) if state.seen >> bit & 1)
    return found


def _view(job: LiveJob, epoch: Epoch, near: int, states: Sequence[SlotState], now: float) -> SlotView | None:
    """Return the newest chunk that a slot has at any switch of the tree; None if it has none of the epoch."""
    tags = [near + _distance(state.tag, near) for state in states if state.epoch == epoch.epoch]
    if not tags:
        return None
    place, chunk, all_states = _place(epoch, near), max(tags), tuple(states)
    known = job.looks.get(place)
    since = known[1] if known is not None and known[0] == all_states else now
    job.looks[place] = all_states, since
    seen, inputs, root = _contributed(job, epoch, states, chunk), job.inputs, states[0]
    return SlotView(
        *place,
        epoch=epoch.epoch,
        chunk=chunk,
        seen=[rank for rank in range(len(epoch.hosts)) if rank in seen],
        missing=[rank for rank in range(len(epoch.hosts)) if rank not in seen],
        lacking=[
            leaf for leaf in epoch.tree.switches[1:] if leaf not in seen and seen.issuperset(inputs[leaf])
        ],
        done=root.epoch == epoch.epoch and root.tag == chunk % (1 << 32) and root.done,
        age_seconds=now - since,
    )


async def counts(jobs: Sequence[LiveJob]) -> list[tuple[LiveJob, JobCounts]]:
    """Return what the switches have counted for jobs, without what was counted before them.

    Jobs that end or move meanwhile, or one of whose switches is not in line, are left out. Raises
    SwitchClientError.
    """
    read: dict[str, dict[str, JobVerdicts]] = {job.name: {} for job in jobs}
    of: dict[str, dict[str, JobTally]] = {job.name: {} for job in jobs}
    by_link: dict[str, list[LiveJob]] = {}
    for job in jobs:
        for link in job.links:
            by_link.setdefault(link.name, []).append(job)
    for switch, same in by_link.items():
        for start in range(0, len(same), JOBS_AT_ONCE):
            link = same[0].switches[switch]
            async with link.lock:
                some = [job for job in same[start : start + JOBS_AT_ONCE] if not job.removed]
                if not link.in_line:
                    continue
                tallies = {job.name: job.tallies.of(switch) for job in some}
                asked = {job.number: max(0, tallies[job.name].known) for job in some}
                told = await asyncio.to_thread(link.program.verdicts.of_jobs, link, asked)
                for job in some:
                    read[job.name][switch] = tallies[job.name].take(told[job.number])
                    of[job.name][switch] = tallies[job.name]

    def whole(job: LiveJob) -> bool:
        """Say whether all was read, and of its present tree: what was counted in a former one is kept."""
        return not job.removed and all(
            switch in of[job.name] and job.tallies.at.get(switch) is of[job.name][switch]
            for switch in job.tree.switches
        )

    return [(job, job.tallies.total(read[job.name], job.inputs)) for job in jobs if whole(job)]


async def count(job: LiveJob) -> JobCounts:
    """Return one job's counts. Raises NotReadyError while one of its switches is away, SwitchClientError."""
    for _ in range(COUNTS):  # it may have moved meanwhile
        for _, found in await counts([job]):
            return found
    raise _not_ready(job)


def _not_ready(job: LiveJob) -> NotReadyError:
    away = [link.name for link in job.links if not link.in_line] or [job.tree.root.switch]
    return NotReadyError(job.name, f"switch {away[0]} is not reached now; see: {command('net status')}")


def words(verdict: Verdict) -> str:
    """Return a verdict as people say it."""
    return verdict.name.lower().replace("_", " ")


def refused(found: JobCounts) -> Counts:
    """Return the packets that were refused, and not as those of an input of the job, at any switch."""
    total: Counts = {}
    for counts in found.others.values():
        for verdict, (packets, octets) in counts.items():
            if verdict in REFUSED:
                had = total.get(verdict, (0, 0))
                total[verdict] = had[0] + packets, had[1] + octets
    return total


def arrived(before: JobCounts, after: JobCounts) -> Mapping[int, dict[str, int]]:
    """Return by rank how many packets came between two counts, by the verdict's name in words."""
    found: dict[int, dict[str, int]] = {}
    for rank, verdicts in after.workers.items():
        for verdict, (packets, _) in verdicts.items():
            more = packets - before.workers.get(rank, {}).get(verdict, (0, 0))[0]
            if more:
                found.setdefault(rank, {})[words(verdict)] = more
    return found
