# SPDX-License-Identifier: Apache-2.0
"""Workers' sessions: who holds a rank, for how long, and what each should do next."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.changes import Session, Status
from controller.epochs import EpochStore, Source
from controller.errors import StateError
from controller.live import LiveJob
from controller.requests import NoSuchSessionError, RankTakenError, RequestError
from controller.store import SessionRow, Store
from topologies.record import NetRecord

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""A worker that says nothing for so long is lost."""
LEAVE_SECONDS = 0.5
"""How long the others of a job may take to leave too, before they are told that one has left."""
OVER_SECONDS = 60.0
"""How long a session that is over is remembered, so that its worker is told why."""


@dataclass(frozen=True)
class Over:
    """A session that is over."""

    why: str
    kind: str
    """Name of the worker's error."""
    since: float


class Sessions:
    """All sessions of a network's jobs. `advance` is told of every job whose workers have moved."""

    def __init__(
        self,
        record: NetRecord,
        store: Store,
        epochs: EpochStore,
        advance: Callable[[LiveJob], None],
        note: Callable[[str, str, str], None],
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.lease = lease
        self._record = record
        self._store = store
        self._epochs = epochs
        self._advance = advance
        self._note = note
        self._held: dict[str, tuple[LiveJob, Session]] = {}
        self._over: dict[str, Over] = {}
        self._asked: set[str] = set()  # who should say at once how it stands
        self._forgotten: set[str] = set()  # whose rows must still go

    def restore(self, row: SessionRow, job: LiveJob | None) -> None:
        """Take a session over from the last controller; its lease begins now.

        One without its job, or that is not of its rank's host, is none: its worker is told to join again.
        """
        hosts = [] if job is None else job.group.hosts
        if job is None or row.rank >= len(hosts) or self._record.host(hosts[row.rank]).ip != row.ip:
            self._forget({row.sid})
            return
        now = time.monotonic()
        status = Status(epoch=row.epoch, udp_port=row.udp_port)
        host = hosts[row.rank]
        session = Session(row.sid, row.rank, host, row.ip, now + self.lease, status, now)
        job.group.sessions[row.rank] = session
        self._held[row.sid] = (job, session)

    def join(self, job: LiveJob, rank: int, ip: str, udp_port: int) -> Session:
        """Give a worker a rank. Raises RequestError, RankTakenError, BindAgainError."""
        hosts = job.group.hosts
        if not 0 <= rank < len(hosts):
            raise RequestError(
                job.name, f"job {job.name} has the ranks 0 to {len(hosts) - 1}, and no rank {rank}"
            )
        host = self._record.host(hosts[rank])
        if ip != host.ip:
            raise RequestError(
                job.name,
                f"rank {rank} of job {job.name} runs on {host.name} ({host.ip}), not at {ip}: start its "
                f"worker there (p4reduce net exec {host.name} …)",
            )
        if job.group.draining is not None:
            raise RequestError(job.name, f"job {job.name} is being drained and takes no workers any more")
        if rank in job.group.sessions:
            left = max(0.0, job.group.sessions[rank].deadline - time.monotonic())
            raise RankTakenError(job.name, rank, host.name, left)
        self._epochs.check([Source(host.name, ip, udp_port)])
        now = time.monotonic()
        status = Status(udp_port=udp_port)
        session = Session(secrets.token_hex(16), rank, host.name, ip, now + self.lease, status, now)
        # With the rows that must still go: its predecessor's is never beside it.
        self._store.put_sessions([job.session_row(session)], self._forgotten)
        self._forgotten.clear()
        job.group.sessions[rank] = session
        job.barriers.pop(rank, None)
        self._held[session.sid] = (job, session)
        self._note(job.name, "joined", f"rank {rank} on {host.name}, UDP port {udp_port}")
        # Its predecessor may have left a moment ago: the others learn of that now.
        self._settle(job, now, rank)
        self._advance(job)
        return session

    async def sync(self, sid: str, status: Status, wait: float) -> dict[str, Any]:
        """Take in what a worker says, renew its lease, and answer what it should do next.

        Answers as soon as there is something, {"do": "nothing"} after `wait` seconds. NoSuchSessionError.
        """
        over = self._over.get(sid)
        if over is None:
            job, session = self.find(sid)
            now = time.monotonic()
            session.deadline = now + self.lease  # whatever becomes of what follows
            if status.first_missing != session.status.first_missing or status.begun != session.status.begun:
                session.moved = now
            session.status = status
            self._asked.discard(sid)
            job.group.heed(session, now)
            self._settle(job, now)
            self._advance(job)
            until = now + min(wait, self.lease / 2)
            while (over := self._over.get(sid)) is None:
                session.deadline = time.monotonic() + self.lease
                told = job.group.instruction(session)
                if told is not None:
                    return told
                left = until - time.monotonic()
                if left <= 0 or sid in self._asked:
                    return {"do": "nothing"}
                await job.signal.wait(left)
        return {"do": "end", "why": over.why, "kind": over.kind}

    async def ask(self, job: LiveJob, seconds: float) -> list[int]:
        """Have a job's workers say at once how they stand; return the ranks that do not in time."""
        ranks = {session.sid: rank for rank, session in job.group.sessions.items()}
        self._asked |= set(ranks)
        job.signal.set_off()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._asked & set(ranks):
            await job.signal.wait(left)
        silent = [rank for sid, rank in ranks.items() if sid in self._asked and sid in self._held]
        self._asked -= set(ranks)
        return sorted(silent)

    def find(self, sid: str) -> tuple[LiveJob, Session]:
        """Return a session with its job; NoSuchSessionError."""
        try:
            return self._held[sid]
        except KeyError:
            raise NoSuchSessionError(sid) from None

    async def barrier(self, sid: str, number: int, wait: float) -> dict[str, Any]:
        """Say whether all ranks have reached their number-th barrier, waiting `wait` seconds at most."""
        job, session = self.find(sid)
        job.barriers[session.rank] = max(number, job.barriers.get(session.rank, 0))
        job.signal.set_off()
        until = time.monotonic() + wait
        while True:
            missing = [r for r in range(len(job.group.hosts)) if job.barriers.get(r, 0) < number]
            left = until - time.monotonic()
            if not missing or left <= 0 or sid not in self._held:
                return {"passed": not missing, "missing": missing}
            await job.signal.wait(left)

    def leave(self, sid: str) -> None:
        """End a session at its worker's wish. The others are told if they stay. NoSuchSessionError."""
        if sid in self._over:
            return
        job, session = self.find(sid)
        self.end(job, session, "it left the job", "SessionEndedError")
        self._note(job.name, "left", f"rank {session.rank} on {session.host}")
        if not job.group.fresh(session) and job.group.change is None and job.group.sessions:
            job.leaving.append((session, time.monotonic() + LEAVE_SECONDS))
        else:
            job.group.lose(session, "it left the job", time.monotonic())
        self._advance(job)

    def end(self, job: LiveJob, session: Session, why: str, kind: str) -> None:
        """Take a session out of the books; its worker is told why when it asks."""
        self._held.pop(session.sid, None)
        if job.group.sessions.get(session.rank) is session:
            del job.group.sessions[session.rank]
        self._over[session.sid] = Over(why, kind, time.monotonic())
        self._forget({session.sid})
        job.signal.set_off()

    def _forget(self, sids: set[str]) -> None:
        """Drop rows of sessions; later if that cannot be now, as what has ended cannot wait for it."""
        self._forgotten |= sids
        try:
            self._store.drop_sessions(self._forgotten)
        except StateError as error:
            log.error("%s", error)
        else:
            self._forgotten.clear()

    def pardon(self, job: LiveJob, seconds: float) -> None:
        """Let no worker suffer for a time in which we did not listen."""
        for session in job.group.sessions.values():
            session.deadline += seconds
        job.leaving = [(who, at + seconds) for who, at in job.leaving]
        if job.group.change is not None:
            job.group.change.since += seconds

    def expire(self, job: LiveJob, now: float) -> None:
        """End a job's sessions whose lease is over, and let those who left become losses to the others."""
        self._over = {sid: over for sid, over in self._over.items() if now - over.since < OVER_SECONDS}
        if self._forgotten:
            self._forget(set())
        for session in list(job.group.sessions.values()):
            if now > session.deadline:
                why = f"it said nothing for {self.lease:g} s"
                self.end(job, session, why, "LeaseExpiredError")
                self._note(job.name, "lost", f"rank {session.rank} on {session.host}: {why}")
                job.group.lose(session, why, now)
        self._settle(job, now)

    def _settle(self, job: LiveJob, now: float, rank: int | None = None) -> None:
        """Turn workers that left into losses: their time is up, their rank is taken, or all is changing."""
        changing = job.group.change is not None
        due = [who for who, at in job.leaving if now >= at or who.rank == rank or changing]
        job.leaving = [(who, at) for who, at in job.leaving if who not in due]
        for who in due:
            job.group.lose(who, "it left the job", now)
