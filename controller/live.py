# SPDX-License-Identifier: Apache-2.0
"""A job as the controller runs it, and as a row that outlives the controller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.changes import RENDEZVOUS, Group, Lost, Session
from controller.jobs import Job, Rent
from controller.p4info import Entity
from controller.program.peek import SlotState
from controller.setup import seat
from controller.signals import Signal
from controller.store import ChangeRow, EpochRow, JobRow, SessionRow
from controller.tally import JobTally

if TYPE_CHECKING:  # topologies imports us
    from controller.switches import SwitchLink
    from topologies.record import NetRecord


@dataclass
class LiveJob:
    """A job with its workers, its slots and its present epoch."""

    name: str
    number: int
    tenant: str
    link: SwitchLink
    slots: int
    """What was asked for; the rent follows with the next epoch."""
    rent: Rent
    lead: int
    rate_bps: int | None
    created: float
    """Unix seconds."""
    group: Group
    epoch: Job | None = None
    """Its present epoch at the switch."""
    signal: Signal = field(default_factory=Signal)
    """Set off whenever what a worker should do may have changed."""
    beginning: bool = False
    """Whether a new epoch is being written to the switch."""
    removed: bool = False
    kept: JobRow | None = None
    """Its row as it is on disk."""
    expelled: set[int] = field(default_factory=set)
    """Lost ranks whose entries of the present epoch are being withdrawn."""
    leaving: list[tuple[Session, float]] = field(default_factory=list)
    """Workers that left while the job ran, with the time at which that becomes a loss to the others."""
    barriers: dict[int, int] = field(default_factory=dict)
    """By rank: the last barrier that its worker has reached."""
    tally: JobTally = field(default_factory=JobTally)
    """What its counters at the switch began at."""
    looks: dict[tuple[int, int], tuple[SlotState, float]] = field(default_factory=dict)
    """By slot and version: its state at the last look, and since when it has been seen so."""

    @property
    def status(self) -> str:
        """draining, running, waiting (for workers) or changing."""
        if self.group.draining is not None:
            return "draining"
        if self.group.running:
            return "running"
        return "waiting" if self.group.absent else "changing"

    def entries(self) -> list[Entity]:
        """Return what the switch should hold of its present epoch: all but the entries of lost workers."""
        if self.epoch is None:
            return []
        group, *levels = self.epoch.levels
        kept = [rank for rank in range(len(self.epoch.seats)) if rank not in self.expelled]
        return [*group, *(level[rank] for level in levels for rank in kept)]

    def row(self) -> JobRow:
        """Return what is kept of it."""
        group, job, change = self.group, self.epoch, self.group.change
        epoch = None
        if job is not None:
            first = group.memberships[0]
            epoch = EpochRow(
                epoch=job.epoch,
                base=job.base,
                window=job.window,
                lead=job.lead,
                group=job.group,
                rids=list(job.rids),
                seats=[[seat.host, seat.udp_port] for seat in job.seats],
                g0=first.g0,
                t0=first.t0,
                resume_from=group.resume_from,
            )
        return JobRow(
            name=self.name,
            number=self.number,
            tenant=self.tenant,
            hosts=group.hosts,
            slots=self.slots,
            base=self.rent.base,
            lead=self.lead,
            rate_bps=self.rate_bps,
            created=self.created,
            next_chunk=group.next_chunk,
            begun=group.begun,
            changes=group.changes,
            draining=group.draining,
            change=None
            if change is None
            else ChangeRow(
                change.id, change.members, change.why, [[who.rank, who.host, who.why] for who in change.lost]
            ),
            epoch=epoch,
            counted=self.tally.rows,
            counts_known=self.tally.known,
        )

    def session_row(self, session: Session) -> SessionRow:
        """Return what is kept of one of its sessions."""
        status = session.status
        return SessionRow(session.sid, self.name, session.rank, session.ip, status.udp_port, status.epoch)


def seats_of(epoch: Job, lost: Iterable[Lost]) -> set[int]:
    """Return which ranks of an epoch are lost: a change may have numbered the workers anew since it began."""
    hosts = {who.host for who in lost}
    return {rank for rank, seat in enumerate(epoch.seats) if seat.host in hosts}


def restored(row: JobRow, link: SwitchLink, record: NetRecord, now: float) -> LiveJob:
    """Return the job of a row, its slots and numbers taken at `link`; the switch is not touched.

    A change that was under way begins again: its workers state what they are.
    """
    group = Group(list(row.hosts), row.next_chunk, row.begun, changes=row.changes, draining=row.draining)
    if row.epoch is None:
        rent, job = link.jobs.rent(row.number, row.slots, row.base, row.name), None
    else:
        e = row.epoch
        seats = [seat(record, host, port) for host, port in e.seats]
        rent = Rent(e.base, e.window)
        job = link.jobs.adopt(row.number, seats, rent, e.lead, e.epoch, e.group, e.rids, row.name)
        group.epoch, group.resume_from = e.epoch, e.resume_from
        group.memberships = link.jobs.memberships(job, e.g0, e.t0)
    if row.change is not None or row.epoch is None:
        change = row.change or ChangeRow(0, True, RENDEZVOUS, [])
        group.start_change(change.why, change.members, now, [Lost(*who) for who in change.lost])
    return LiveJob(
        row.name,
        row.number,
        row.tenant,
        link,
        row.slots,
        rent,
        row.lead,
        row.rate_bps,
        row.created,
        group,
        job,
        expelled=set() if job is None or group.change is None else seats_of(job, group.change.lost),
        tally=JobTally(row.counts_known, row.counted),
    )
