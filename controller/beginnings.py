# SPDX-License-Identifier: Apache-2.0
"""How a job's next epoch begins: planned, on disk, at the switch, and only then told to its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from copy import copy

from controller.errors import BindAgainError, ControllerError, PoolFullError, SwitchClientError
from controller.jobs import Job, WorkerSeat, expel
from controller.live import LiveJob, seats_of
from controller.setup import seat
from controller.store import Store
from controller.tasks import Tasks
from topologies.record import NetRecord


class Beginnings:
    """Carries out what the jobs' groups decide. `note` is told (job, kind, text) of events."""

    def __init__(
        self, record: NetRecord, store: Store, tasks: Tasks, note: Callable[[str, str, str], None]
    ) -> None:
        self._record = record
        self._store = store
        self._tasks = tasks
        self._note = note

    def advance(self, job: LiveJob) -> None:
        """Let a job's change go on as far as it can now, and wake its workers."""
        ready, change = job.group.step(time.monotonic()), job.group.change
        if change is not None and job.epoch is not None:
            ranks = seats_of(job.epoch, change.lost) - job.expelled
            if ranks:
                job.expelled.update(ranks)
                self._tasks.spawn(self._expel(job, job.epoch, ranks))
        if job.row() != job.kept:  # a change's id must not be used again, not even after our death
            self.save(job)
        if ready and not job.beginning and job.link.in_line:
            job.beginning = True
            self._tasks.spawn(self._begin(job))
        job.signal.set_off()

    async def _expel(self, job: LiveJob, epoch: Job, ranks: Collection[int]) -> None:
        """Refuse the packets of workers that are lost, while the others' epoch goes on to its end."""
        try:
            async with job.link.lock:
                if job.epoch is epoch and not job.removed:
                    await asyncio.to_thread(expel, job.link, epoch, ranks)
        except SwitchClientError as error:
            self._note(job.name, "switch", f"the entries of lost workers are still there: {error}")
            job.link.distrust()

    async def _begin(self, job: LiveJob) -> None:
        """Begin the epoch that a job is ready for: old entries go, new ones come."""
        group, link = job.group, job.link
        try:
            async with link.lock:
                if not job.removed:
                    await self.count(job, len(group.hosts))
                change = group.change
                if job.removed or change is None or not group.step(time.monotonic()):
                    return
                try:
                    planned, had = self._plan(job)
                except BindAgainError as error:
                    for session in group.sessions.values():
                        if (session.ip, session.status.udp_port) == (error.ip, error.udp_port):
                            session.refused_port = error.udp_port
                    group.ask_again(time.monotonic())
                    return
                g0, workers = group.memberships[0].g0, len(group.hosts)
                link.leave_over(had)
                await asyncio.to_thread(link.swap, had, planned)
                link.settle()
                group.installed = True
                self._note(
                    job.name,
                    "epoch",
                    f"epoch {planned.epoch} of {workers} workers begins at chunk {g0} ({change.why})",
                )
        except ControllerError as error:
            self._note(job.name, "switch", f"its epoch could not be installed: {error}")
            link.distrust()
        finally:
            job.beginning = False
            job.signal.set_off()

    def _plan(self, job: LiveJob) -> tuple[Job, Job | None]:
        """Put the next epoch on disk and take it as the present one; return it and the one before.

        What fails is taken back whole, the slots too: nobody hears of an epoch that is not on disk, and after
        our death the row that is there counts.
        """
        group, jobs, rented = job.group, job.link.jobs, job.rent
        change, before = group.change, copy(group)
        assert change is not None
        if rented.window != job.slots:
            try:
                job.rent = jobs.rent(job.number, job.slots, owner=job.name)
            except PoolFullError as error:
                job.slots = rented.window
                self._note(job.name, "changed", f"its window stays {job.slots} slots: {error}")
        g0 = group.next_chunk if change.members else change.g0
        t0 = group.begun if change.members else group.memberships[0].t0
        try:
            planned, members = jobs.plan(job.number, self._seats(job), job.lead, g0=g0, t0=t0)
            had = jobs.enter(planned)
            try:
                job.epoch = planned
                group.enter(planned.epoch, members)
                self.save(job, sessions=True)
            except BaseException:
                job.epoch = had
                vars(group).update(vars(before))
                jobs.undo(planned, had)
                raise
        except BaseException:
            job.rent = jobs.rent(job.number, rented.window, rented.base, job.name)
            raise
        job.expelled.clear()
        return planned, had

    def _seats(self, job: LiveJob) -> list[WorkerSeat]:
        sessions = job.group.sessions
        return [
            seat(self._record, host, sessions[rank].status.udp_port)
            for rank, host in enumerate(job.group.hosts)
        ]

    def save(self, job: LiveJob, sessions: bool = False) -> None:
        """Put a job on disk, and its sessions if they have changed with it. Raises StateError."""
        row = job.row()
        held = job.group.sessions.values() if sessions else ()
        self._store.put_job(row, [job.session_row(session) for session in held])
        job.kept = row

    async def count(self, job: LiveJob, workers: int) -> None:
        """Note what is not known yet of what a job's counters begin at; under its switch's lock."""
        link, number = job.link, job.number
        if job.tally.known < workers:
            read = 0 if number in link.untouched else workers
            found = await asyncio.to_thread(link.program.verdicts.of_jobs, link, {number: read})
            job.tally.begin(found[number], workers)
