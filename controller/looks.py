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
from controller.jobs import Job
from controller.live import LiveJob
from controller.program.peek import SlotState
from controller.program.verdicts import JobVerdicts
from controller.requests import NotReadyError
from controller.switches import SwitchLink
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
    count = min(most, 2 * epoch.window)
    first = frontier(job)
    if first is None:
        next_chunks = [status.next_chunk for status in _told(job)]
        first = max([job.group.memberships[0].g0, *next_chunks]) - count
    chunks = range(max(0, first), max(0, first) + count)
    now = time.monotonic()
    found: list[SlotView] = []
    for start in range(0, count, AT_ONCE):
        some = chunks[start : start + AT_ONCE]
        async with job.link.lock:
            if job.epoch is not epoch:
                return []
            if not job.link.in_line:
                raise _not_ready(job)
            states = await asyncio.to_thread(_peek, job.link, epoch, some)
        for chunk, state in zip(some, states, strict=True):
            if state.epoch == epoch.epoch:
                found.append(_view(job, epoch, chunk, state, now))
    return sorted(found, key=lambda view: view.chunk)


async def chunks(job: LiveJob, numbers: Sequence[int]) -> list[ChunkView]:
    """Return who has contributed to some chunks of a job's present epoch, FEW at most.

    Those that their slots no longer hold are left out: all ranks had contributed to them. Raises
    NotReadyError, SwitchClientError.
    """
    async with job.link.lock:
        epoch, hosts = job.epoch, job.group.hosts
        if epoch is None or not job.group.installed:
            raise NotReadyError(job.name, f"job {job.name} is between two epochs")
        if not job.link.in_line:
            raise _not_ready(job)
        some = sorted(set(numbers))[:FEW]
        states = await asyncio.to_thread(_peek, job.link, epoch, some)
    found = []
    for chunk, state in zip(some, states, strict=True):
        ahead = _distance(state.tag, chunk) if state.epoch == epoch.epoch else -1
        if ahead <= 0:
            seen = state.seen if ahead == 0 else 0
            lacking = [Awaited(r, hosts[r]) for r in range(len(epoch.seats)) if not seen >> r & 1]
            found.append(ChunkView(chunk, lacking))
    return found


def _distance(tag: int, chunk: int) -> int:
    """Return how far a tag is ahead of a chunk's (RFC 1982)."""
    return (tag - chunk + (1 << 31)) % (1 << 32) - (1 << 31)


def _told(job: LiveJob) -> list[Status]:
    return [session.status for session in job.group.sessions.values() if job.group.in_epoch(session)]


def _place(epoch: Job, chunk: int) -> tuple[int, int]:
    """Return a chunk's slot and version (docs/protocol.md, The packet)."""
    return chunk % epoch.window, chunk // epoch.window % 2


def _peek(link: SwitchLink, epoch: Job, chunks: Sequence[int]) -> list[SlotState]:
    places = [_place(epoch, chunk) for chunk in chunks]
    return [link.program.peek.slot(link, epoch.base + slot, version) for slot, version in places]


def _view(job: LiveJob, epoch: Job, near: int, state: SlotState, now: float) -> SlotView:
    place = _place(epoch, near)
    known = job.looks.get(place)
    since = known[1] if known is not None and known[0] == state else now
    job.looks[place] = state, since
    ranks = range(len(epoch.seats))
    return SlotView(
        *place,
        epoch=state.epoch,
        chunk=near + _distance(state.tag, near),
        seen=[rank for rank in ranks if state.seen >> rank & 1],
        missing=[rank for rank in ranks if not state.seen >> rank & 1],
        done=state.done,
        age_seconds=now - since,
    )


async def counts(jobs: Sequence[LiveJob]) -> list[tuple[LiveJob, JobVerdicts]]:
    """Return what the switches have counted for jobs, without what was counted before them.

    Jobs that end meanwhile, or whose switch is not in line, are left out. Raises SwitchClientError.
    """
    found: list[tuple[LiveJob, JobVerdicts]] = []
    by_link: dict[str, list[LiveJob]] = {}
    for job in jobs:
        by_link.setdefault(job.link.name, []).append(job)
    for same in by_link.values():
        for start in range(0, len(same), JOBS_AT_ONCE):
            link = same[0].link
            async with link.lock:
                some = [job for job in same[start : start + JOBS_AT_ONCE] if not job.removed]
                if not link.in_line:
                    continue
                asked = {job.number: max(0, min(job.tally.known, len(job.group.hosts))) for job in some}
                read = await asyncio.to_thread(link.program.verdicts.of_jobs, link, asked)
                found += [(job, job.tally.take(read[job.number])) for job in some if not job.removed]
    return found


async def count(job: LiveJob) -> JobVerdicts:
    """Return one job's counts. Raises NotReadyError while its switch is not in line, SwitchClientError."""
    for _, verdicts in await counts([job]):
        return verdicts
    raise _not_ready(job)


def _not_ready(job: LiveJob) -> NotReadyError:
    return NotReadyError(job.name, f"switch {job.link.name} is not reached now; see: {command('net status')}")


def words(verdict: Verdict) -> str:
    """Return a verdict as people say it."""
    return verdict.name.lower().replace("_", " ")


def arrived(before: JobVerdicts, after: JobVerdicts) -> Mapping[int, dict[str, int]]:
    """Return by rank how many packets came between two counts, by the verdict's name in words."""
    found: dict[int, dict[str, int]] = {}
    for rank, verdicts in after.workers.items():
        for verdict, (packets, _) in verdicts.items():
            more = packets - before.workers.get(rank, {}).get(verdict, (0, 0))[0]
            if more:
                found.setdefault(rank, {})[words(verdict)] = more
    return found
