# SPDX-License-Identifier: Apache-2.0
"""Jobs on one switch: slots, epochs and the entries that admit their workers (docs/protocol.md, Epochs).

1. An epoch is a fresh set of everything: nothing is modified in place. The old entries go first.
2. Entries come in dependency order, one batch a level: group, receivers, members. A packet that is admitted
   finds all that it needs. They go in the reverse order.
3. What fails half-way is taken back whole, and the error says so if that fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from controller.entities import MAX_GROUP, MAX_RID, Switch, delete, insert, multicast_group
from controller.epochs import EpochStore, Source
from controller.errors import ControllerError, JobError, RollbackError, WriteError
from controller.p4info import Entity
from controller.pool import Numbers, SlotPool
from controller.program import Program
from controller.program.admission import Pool, Sender, Uplink
from wire.constants import JOBS, MAX_WORKERS, job_port
from wire.membership import Membership


@dataclass(frozen=True)
class SwitchSite:
    """What jobs must know of the switch they run on."""

    ip: str
    mac: str
    elements: int
    """Values a packet that its program was compiled for."""
    slots: int


@dataclass(frozen=True)
class WorkerSeat:
    """One input of a switch in one epoch: a worker on its host, or a leaf switch.

    `mac` is that of the next hop towards it, `port` the switch's, `udp_port` freshly bound or cycled.
    """

    host: str
    ip: str
    mac: str
    port: int
    udp_port: int


@dataclass(frozen=True)
class LeafSeat:
    """A leaf's way to its parent in one epoch."""

    port: int
    """That partials go out of."""
    mac: str
    """Of the next hop."""
    parent_ip: str
    parent_port: int
    """That results come in at."""
    udp_port: int
    """Its own."""


@dataclass(frozen=True)
class Rent:
    """The slots that a job has at a switch: `window` of them from `base` on."""

    base: int
    window: int


@dataclass(frozen=True)
class Job:
    """A job at one switch in one epoch; at a leaf with its way up."""

    number: int
    seats: tuple[WorkerSeat, ...]
    window: int
    lead: int
    epoch: int
    base: int
    """First slot of its pool."""
    group: int
    rids: tuple[int, ...]
    levels: tuple[tuple[Entity, ...], ...] = field(repr=False)
    """Its entries on the switch, by dependency level: group, receivers, members, and a leaf's parent."""
    leaf: LeafSeat | None = None


class JobController:
    """The jobs of one switch. Not thread-safe.

    A job first rents slots, and then has one epoch after another: `plan` takes what an epoch needs and tells
    nobody, `insert_epoch` and `delete_epoch` write to the switch, `enter`, `leave` and `give_back` keep the
    books. `add_job`, `new_epoch` and `remove_job` do all of it, and may raise SwitchClientError: then a job
    being added is not there; one being removed is still known (remove it again); one being given a new epoch
    has its old one, or is gone if its old entries are: add it again with its g0 and t0.
    """

    def __init__(self, switch: Switch, site: SwitchSite, epochs: EpochStore) -> None:
        self._switch = switch
        self._site = site
        self._epochs = epochs
        self._program = Program(switch.p4info)
        self.pool = SlotPool(site.slots)
        self._groups = Numbers("multicast groups", MAX_GROUP)
        self._rids = Numbers("replication ids", MAX_RID)
        self._rents: dict[int, Rent] = {}
        self._jobs: dict[int, Job] = {}

    @property
    def jobs(self) -> dict[int, Job]:
        """The jobs that have an epoch, by number (a copy)."""
        return dict(self._jobs)

    def job(self, number: int) -> Job:
        """Return a job; JobError if there is none of that number, or it has no epoch."""
        try:
            return self._jobs[number]
        except KeyError:
            have = ", ".join(map(str, sorted(self._jobs)))
            there = f"; there is {have}" if have else ", nor any other"
            raise JobError(number, f"there is no such job{there}") from None

    # ---- slots
    def rent(self, job: int, window: int, base: int | None = None, owner: str | None = None) -> Rent:
        """Rent slots for a job, in place of those that it rents; first fit, or those from `base` on.

        `owner` is what messages call it.

        Raises JobError and PoolFullError before anything is changed.
        """
        if not 0 <= job < JOBS:
            raise JobError(job, f"job numbers are 0..{JOBS - 1}")
        if not 1 <= window <= self._site.slots:
            raise JobError(job, f"its window is 1..{self._site.slots}, the switch's slots, not {window}")
        pool, old = deepcopy(self.pool), self._rents.get(job)
        if old is not None:
            pool.release(old.base)
        rent = Rent(pool.allocate(window, owner or f"job {job}", base), window)
        self.pool = pool
        self._rents[job] = rent
        return rent

    def rented(self, job: int) -> Rent | None:
        """Return what a job rents here, None for nothing."""
        return self._rents.get(job)

    def check_rent(self, job: int, window: int) -> None:
        """Raise as `rent` would now, and change nothing."""
        before, had = self.pool, self._rents.get(job)
        try:
            self.rent(job, window)
        finally:
            self.pool = before
            if had is None:
                self._rents.pop(job, None)
            else:
                self._rents[job] = had

    def free(self, job: int) -> None:
        """Give a job's slots back; it has no epoch."""
        self.pool.release(self._rents.pop(job).base)

    # ---- epochs
    def plan(
        self, number: int, seats: Sequence[WorkerSeat], lead: int, *, g0: int = 0, t0: int = 0
    ) -> tuple[Job, list[Membership]]:
        """Take all that a new epoch needs and make its entries; the switch is not touched.

        Seat r is rank r. Raises JobError, BindAgainError, MembershipError; then nothing is taken.
        """
        rent = self._rents[number]
        if not 1 <= len(seats) <= MAX_WORKERS:
            raise JobError(number, f"a job has 1..{MAX_WORKERS} workers on one switch, not {len(seats)}")
        if not 1 <= lead <= rent.window:
            raise JobError(number, f"its lead is 1..{rent.window}, its window, not {lead}")
        epoch = self._epochs.begin(sources(seats))
        try:
            job = self.place(number, seats, lead, epoch)
        except BaseException:
            self._epochs.end(sources(seats))
            raise
        try:
            return job, self.memberships(job, g0, t0)
        except BaseException:
            self.give_back(job)
            raise

    def place(
        self, number: int, seats: Sequence[WorkerSeat], lead: int, epoch: int, leaf: LeafSeat | None = None
    ) -> Job:
        """Take what an epoch that has begun needs at this switch, and make its entries; as `plan`."""
        groups: list[int] = []
        rids: list[int] = []
        try:
            groups = self._groups.take(1)
            rids = self._rids.take(len(seats))
            return self._job(number, tuple(seats), self._rents[number], lead, epoch, groups[0], rids, leaf)
        except BaseException:
            self._groups.give_back(groups)
            self._rids.give_back(rids)
            raise

    def enter(self, job: Job) -> None:
        """Take a planned epoch as its job's present one. The switch is not touched."""
        self._jobs[job.number] = job

    def leave(self, number: int) -> Job:
        """Take a job's epoch out of the books; return it. The switch is not touched."""
        old = self.job(number)
        del self._jobs[number]
        return old

    def give_back(self, job: Job) -> None:
        """Give back what an epoch took, once no switch holds its entries."""
        self._groups.give_back([job.group])
        self._rids.give_back(list(job.rids))
        self._epochs.end(sources(job.seats))

    def adopt(
        self,
        number: int,
        seats: Sequence[WorkerSeat],
        rent: Rent,
        lead: int,
        epoch: int,
        group: int,
        rids: Sequence[int],
        owner: str | None = None,
        leaf: LeafSeat | None = None,
    ) -> Job:
        """Take over a job that outlived its controller, as it was; the switch is not touched."""
        self.rent(number, rent.window, rent.base, owner)
        self._groups.claim([group])
        self._rids.claim(rids)
        self._epochs.hold(sources(seats))
        job = self._job(number, tuple(seats), rent, lead, epoch, group, rids, leaf)
        self._jobs[number] = job
        return job

    def memberships(self, job: Job, g0: int, t0: int) -> list[Membership]:
        """Return what each rank of an epoch must know. Raises MembershipError."""
        return [self._membership(job, rank, g0, t0) for rank in range(len(job.seats))]

    # ---- each as one step
    def add_job(
        self,
        job: int,
        seats: Sequence[WorkerSeat],
        window: int,
        lead: int | None = None,
        *,
        g0: int = 0,
        t0: int = 0,
    ) -> list[Membership]:
        """Rent `window` slots, admit the workers (seat r is rank r) and return each one's membership.

        `lead` is max(1, window // 4) unless given. Raises JobError, PoolFullError, BindAgainError and
        MembershipError before anything is changed.
        """
        if job in self._rents:
            raise JobError(job, "is already there; remove it, or give it a new epoch")
        self.rent(job, window)
        try:
            new, members = self.plan(job, seats, default_lead(window) if lead is None else lead, g0=g0, t0=t0)
            self._install(new)
        except RollbackError:
            raise  # its slots are not given to another job
        except BaseException:
            self.free(job)
            raise
        return members

    def remove_job(self, job: int) -> None:
        """Withdraw a job's entries and free its slots."""
        delete_epoch(self._switch, self.job(job))
        self.give_back(self.leave(job))
        self.free(job)

    def new_epoch(
        self,
        job: int,
        seats: Sequence[WorkerSeat],
        *,
        g0: int,
        t0: int,
        window: int | None = None,
        lead: int | None = None,
    ) -> list[Membership]:
        """Let a job go on in a new epoch from chunk g0, after t0 all-reduces: old entries go, new ones come.

        The workers have stopped. `window` stays unless given; `lead` may change only where the members do.
        Raises as `add_job`.
        """
        old = self.job(job)
        lead = old.lead if lead is None else lead
        if lead != old.lead and [s.host for s in seats] == [s.host for s in old.seats]:
            raise JobError(job, f"its lead is {old.lead} and changes only where its members change")
        before, rent = self.pool, self._rents[job]
        if window is not None and window != rent.window:
            self.rent(job, window)
        try:
            new, members = self.plan(job, seats, lead, g0=g0, t0=t0)
            try:
                delete_epoch(self._switch, old)
            except BaseException:
                self.give_back(new)
                raise
        except BaseException:
            self.pool, self._rents[job] = before, rent
            raise
        self.give_back(self.leave(job))
        try:
            self._install(new)
        except RollbackError:
            raise
        except BaseException:
            self.free(job)
            raise
        return members

    def _install(self, job: Job) -> None:
        """Write a planned epoch; what fails half-way is taken back whole, and the plan with it."""
        done: list[Sequence[Entity]] = []
        try:
            for level in job.levels:
                done.append(level)
                insert(self._switch, level)
        except BaseException as error:
            if isinstance(error, WriteError):
                # What was refused is not ours: it may be somebody else's, who was there before.
                refused = {failure.index for failure in error.failures}
                done[-1] = [entity for i, entity in enumerate(done[-1]) if i not in refused]
            try:
                for batch in reversed(done):
                    delete(self._switch, batch)
            except ControllerError as failure:
                # What the switch may still hold is not given to another job.
                raise RollbackError(job.number, error, failure) from error
            self.give_back(job)
            raise
        self.enter(job)

    def _job(
        self,
        number: int,
        seats: tuple[WorkerSeat, ...],
        rent: Rent,
        lead: int,
        epoch: int,
        group: int,
        rids: Sequence[int],
        leaf: LeafSeat | None = None,
    ) -> Job:
        levels = self._entries(number, seats, Pool(rent.base, rent.window, epoch, group), rids, leaf)
        return Job(number, seats, rent.window, lead, epoch, rent.base, group, tuple(rids), levels, leaf)

    def _entries(
        self,
        number: int,
        seats: Sequence[WorkerSeat],
        pool: Pool,
        rids: Sequence[int],
        leaf: LeafSeat | None,
    ) -> tuple[tuple[Entity, ...], ...]:
        port = job_port(number)
        site, program, n = self._site, self._program, len(seats)
        group = multicast_group(pool.group, [(s.port, rid) for s, rid in zip(seats, rids, strict=True)])
        receivers = [
            program.receivers.receiver(
                rid,
                src_mac=site.mac,
                dst_mac=seat.mac,
                src_ip=site.ip,
                dst_ip=seat.ip,
                src_port=port,
                dst_port=seat.udp_port,
            )
            for seat, rid in zip(seats, rids, strict=True)
        ]
        senders = [Sender(seat.port, seat.ip, seat.udp_port, port) for seat in seats]
        if leaf is None:
            members = [program.admission.worker(each, bit, n, pool) for bit, each in enumerate(senders)]
            return (group,), tuple(receivers), tuple(members)
        uplink = Uplink(leaf.port, site.mac, leaf.mac, site.ip, leaf.parent_ip, leaf.udp_port, port)
        members = [
            program.admission.leaf_worker(each, bit, n, pool, uplink) for bit, each in enumerate(senders)
        ]
        parent = program.admission.parent(
            Sender(leaf.parent_port, leaf.parent_ip, port, leaf.udp_port), n, pool
        )
        return (group,), tuple(receivers), tuple(members), (parent,)

    def _membership(self, job: Job, rank: int, g0: int, t0: int) -> Membership:
        seat = job.seats[rank]
        return Membership(
            job=job.number,
            rank=rank,
            n=len(job.seats),
            switch_ip=self._site.ip,
            switch_mac=self._site.mac,
            own_ip=seat.ip,
            own_mac=seat.mac,
            own_port=seat.udp_port,
            window=job.window,
            lead=job.lead,
            epoch=job.epoch,
            elements=self._site.elements,
            g0=g0,
            t0=t0,
        )


def insert_epoch(switch: Switch, job: Job) -> None:
    """Write an epoch's entries. Raises SwitchClientError; then it is unknown which are there."""
    for level in job.levels:
        insert(switch, level)


def delete_epoch(switch: Switch, job: Job) -> None:
    """Delete an epoch's entries, as far as they are there: its packets are refused from then on.

    Raises SwitchClientError; then it is unknown which are there.
    """
    for level in reversed(job.levels):
        delete(switch, level)


def expel(switch: Switch, job: Job, hosts: Iterable[str]) -> None:
    """Delete the entries of the workers on some hosts. Raises as `delete_epoch`."""
    gone = set(hosts)
    bits = [bit for bit, seat in enumerate(job.seats) if seat.host in gone]
    for level in (job.levels[2], job.levels[1]):
        delete(switch, [level[bit] for bit in bits])


def default_lead(window: int) -> int:
    """Return the lead of a job that is given none: a quarter of its window, the bound of C."""
    return max(1, window // 4)


def sources(seats: Sequence[WorkerSeat]) -> list[Source]:
    """Return where the packets of these inputs come from."""
    return [Source(seat.host, seat.ip, seat.udp_port) for seat in seats]
