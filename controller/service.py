# SPDX-License-Identifier: Apache-2.0
"""The controller of a network: tenants' jobs, their workers, and the switches that carry them.

Everything here runs in one asyncio loop and so needs no locks; what a switch must do is done in a thread,
under that switch's own lock. A job's state is on disk before a switch or a worker hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from controller import placement
from controller.beginnings import Beginnings, hold
from controller.changes import RENDEZVOUS, Group, Lost
from controller.epochs import EpochStore
from controller.errors import ControllerError, StateError, SwitchClientError
from controller.jobs import default_lead
from controller.live import LiveJob, restored
from controller.program.faults import Shares
from controller.refused import Refused
from controller.requests import (
    JobChange,
    JobExistsError,
    NewJob,
    NoSuchJobError,
    NoSuchSwitchError,
    QuotaError,
    RequestError,
)
from controller.sessions import LEASE_SECONDS, Sessions
from controller.signals import Signal
from controller.sites import NoTreeError, Site, Sites
from controller.store import Store
from controller.switches import SwitchLink
from controller.tasks import Tasks
from controller.watch import Watch
from topologies.record import NetRecord
from wire.constants import JOBS
from wire.control import WITHDRAWN

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Between two looks at the jobs."""
LATE_SECONDS = 1.0
"""How long this process may stand still, as when it is stopped, before leases grow by it."""


class Controller:
    """All of a network's jobs. `start` before use, `stop` at the end."""

    def __init__(
        self,
        record: NetRecord,
        store: Store,
        epochs: EpochStore,
        links: Sequence[SwitchLink],
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.record = record
        self.store = store
        self.links = {link.name: link for link in links}
        for link in links:
            link.open_books(epochs)
            # A new state file knows no epoch; the switch may, and would replay what it summed in it.
            link.reload = epochs.last == 0
        self._tasks = Tasks()
        self._jobs: dict[str, LiveJob] = {}
        self.sites = Sites(record, self.links, lambda: self._jobs.values())
        self._beginnings = Beginnings(record, store, epochs, self.sites, self._tasks, self.note)
        self.sessions = Sessions(record, store, epochs, self._beginnings.advance, self.note, lease)
        self.noted = Signal()
        """Set off with every event."""
        self.refused = Refused(self._note_refusal)
        self._watch = Watch(
            *(record, self.links, self._jobs.values, store, self.sites, self._beginnings, self.refused),
            self.note,
        )

    # ---- life
    async def start(self) -> None:
        """Take over what the last controller left, bring every switch in line, and begin to watch.

        A switch that cannot be reached is brought in line when it comes. Raises StateError.
        """
        now = time.monotonic()
        for row in self.store.jobs():
            self._jobs[row.name] = restored(row, self.links, self.record, now)
        for told in self.store.sessions():
            self.sessions.restore(told, self._jobs.get(told.job))
        self.note("", "controller", f"the controller has started with {len(self._jobs)} jobs")
        await asyncio.gather(*(self._watch.bring_up(link) for link in self.links.values()))
        for link in self.links.values():
            self._tasks.spawn(self._watch.follow(link))
        self._tasks.spawn(self._tick())

    async def stop(self) -> None:
        """End the watching and leave the switches as they are: their jobs go on."""
        await self._tasks.stop()
        for link in self.links.values():
            await asyncio.to_thread(link.close)

    def note(self, job: str, kind: str, text: str) -> None:
        """Keep an event, and wake those who follow them. `job` is empty for the network's own.

        An event that cannot be kept holds up nothing.
        """
        log.info("%s%s: %s", f"{job}: " if job else "", kind, text)
        try:
            self.store.log(job, kind, text)
        except StateError as error:
            log.error("%s", error)
        self.noted.set_off()

    def _note_refusal(self, number: int | None, text: str) -> None:
        self.note(
            next((job.name for job in self._jobs.values() if job.number == number), ""), "refused", text
        )

    # ---- switches
    def link(self, name: str) -> SwitchLink:
        """Return the connection to a switch; NoSuchSwitchError."""
        try:
            return self.links[name]
        except KeyError:
            raise NoSuchSwitchError(name, list(self.links)) from None

    async def _tick(self) -> None:
        """Look after all jobs again and again, whatever becomes of one of them."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            late = now - last - TICK_SECONDS
            self._watch.look_at_fabric()
            for job in list(self._jobs.values()):
                if late > LATE_SECONDS:
                    self.sessions.pardon(job, late)
                try:
                    await self._look_after(job, now)
                except ControllerError as error:
                    log.error("%s: %s", job.name, error)
            last = time.monotonic()

    async def _look_after(self, job: LiveJob, now: float) -> None:
        self.sessions.expire(job, now)
        if job.group.change is None and self.sites.changed(job):
            job.group.start_change("its way through the network has changed", False, now)
        if job.group.change is not None:
            self._beginnings.advance(job)
        if job.group.draining is not None and not job.group.sessions and not job.beginning:
            await self.remove(job.name, "it has been drained")

    async def set_faults(self, switch: str, port: int, direction: str, shares: Shares) -> None:
        """Fault a share of a port's packets in one direction, `in` or `out`, until it is set anew.

        Raises NoSuchSwitchError, RequestError, SwitchClientError.
        """
        link = self.link(switch)
        ports = self.record.switch(switch).ports
        if port not in ports:
            has = f"{min(ports)} to {max(ports)}"
            raise RequestError(switch, f"switch {switch} has no port {port}: it has {has}")
        async with link.lock:
            self.store.put_faults(switch, port, direction, shares)
            await asyncio.to_thread(link.faults(direction).set, link, port, shares)

    # ---- jobs
    @property
    def jobs(self) -> Mapping[str, LiveJob]:
        """The jobs by name."""
        return self._jobs

    def job(self, name: str) -> LiveJob:
        """Return a job; NoSuchJobError."""
        try:
            return self._jobs[name]
        except KeyError:
            raise NoSuchJobError(name, sorted(self._jobs)) from None

    async def add(self, new: NewJob) -> LiveJob:
        """Rent slots for a job and let its workers join.

        Raises RequestError, RecordError, PoolFullError, SwitchClientError; then nothing is done.
        """
        if new.name in self._jobs:
            raise JobExistsError(new.name)
        _check_hosts(new.name, new.workers)
        for host in new.workers:
            self.record.host(host)
        allowed = tuple(self.link(name).name for name in new.switches or ())
        slots = new.slots or self.record.window
        self._check_slots(new.name, slots)
        lead = default_lead(slots) if new.lead is None else new.lead
        if lead > slots:
            raise RequestError(new.name, f"the lead of job {new.name} is 1..{slots}, its window, not {lead}")
        self._check_quota(new.tenant, slots, None)
        tree = self._site(new.name, new.workers, slots, allowed).tree
        used = {job.number for job in self._jobs.values()}
        number = next((number for number in range(JOBS) if number not in used), None)
        if number is None:
            raise RequestError(new.name, f"all {JOBS} job numbers are in use: remove a job first")
        group = Group(list(new.workers))
        job = LiveJob(
            *(
                new.name,
                number,
                new.tenant,
                self.links,
                tree,
                allowed,
                slots,
                lead,
                new.rate_bps,
                time.time(),
            ),
            group,
        )
        placement.rent_all(job.books, number, tree, slots, new.name)
        group.start_change(RENDEZVOUS, True, time.monotonic())
        self._jobs[new.name] = job
        try:
            self._beginnings.save(job)
            if job.rate_bps is not None:
                await self._set_rate(job)
        except BaseException:
            if not job.removed:
                job.removed = True
                del self._jobs[new.name]
                placement.free_others(job.books, number, None)
                self.store.drop_job(new.name)
            raise
        self._tasks.spawn(self._count_from_now(job))
        places = (f"{r.base} to {r.base + r.window - 1} of switch {name}" for name, r in job.rents.items())
        self.note(
            new.name,
            "added",
            f"job {number} of tenant {new.tenant}, {len(new.workers)} workers, slots {', '.join(places)}",
        )
        return job

    def _site(
        self,
        name: str,
        hosts: Sequence[str],
        slots: int,
        allowed: Sequence[str],
        job: LiveJob | None = None,
    ) -> Site:
        """Return where a job can be summed. Raises RequestError, PoolFullError."""
        try:
            return self.sites.place(hosts, slots, allowed, job)
        except NoTreeError as error:
            raise RequestError(name, str(error)) from error

    async def change(self, name: str, asked: JobChange) -> LiveJob:
        """Change a job's slots, rate or workers; slots and workers with a new epoch, as soon as it begins.

        Raises as `add`; then nothing has changed.
        """
        job = self.job(name)
        group, now = job.group, time.monotonic()
        if group.draining is not None:
            raise RequestError(name, f"job {name} is being drained and changes no more")
        hosts = asked.workers or group.hosts
        _check_hosts(name, hosts)
        for host in hosts:
            self.record.host(host)
        slots = asked.slots or job.slots
        self._check_slots(name, slots)
        if job.lead > slots:
            raise RequestError(
                name,
                f"job {name} has a lead of {job.lead} chunks: it needs as many slots, not {slots}",
            )
        self._check_quota(job.tenant, slots, job)
        self._site(name, hosts, slots, job.allowed, job)
        self._beginnings.save(job)  # where that fails nothing has changed
        before = job.rate_bps
        if "rate_bps" in asked.model_fields_set:
            job.rate_bps = asked.rate_bps
        if job.rate_bps != before:
            try:
                await self._set_rate(job)
            except BaseException:
                job.rate_bps = before
                raise
        if job.rate_bps != before:
            rate = "not limited" if job.rate_bps is None else f"{job.rate_bps / 1e6:g} Mbit/s"
            self.note(name, "changed", f"its rate is {rate}")
        if hosts != group.hosts:
            self._seat_anew(job, hosts, now)
        if slots != job.slots:
            self.note(name, "changed", f"its window will be {slots} slots, it was {job.slots}")
            job.slots = slots
            if group.epoch and group.change is None:
                group.start_change(f"its window becomes {slots} slots", False, now)
        self._beginnings.save(job)
        self._beginnings.advance(job)
        return job

    def _seat_anew(self, job: LiveJob, hosts: list[str], now: float) -> None:
        """Give a job another list of workers: those on hosts of both lists keep their sessions."""
        group = job.group
        gone = [(rank, host) for rank, host in enumerate(group.hosts) if host not in hosts]
        why = f"its workers become {', '.join(hosts)}"
        for rank, _ in gone:
            if rank in group.sessions:
                session = group.sessions[rank]
                self.sessions.end(job, session, "its job goes on without this rank", "SessionEndedError")
        lost = [Lost(rank, host, WITHDRAWN) for rank, host in gone]
        staying = sorted(group.sessions.values(), key=lambda session: hosts.index(session.host))
        group.start_change(why, True, now, lost)
        group.hosts = list(hosts)
        group.sessions = {hosts.index(session.host): session for session in staying}
        for rank, session in group.sessions.items():
            session.rank = rank
        self._beginnings.save(job, sessions=True)
        job.barriers.clear()
        self.note(job.name, "changed", why)

    def drain(self, name: str) -> LiveJob:
        """Let a job finish the all-reduces that it has begun, and end; NoSuchJobError."""
        job = self.job(name)
        group = job.group
        if group.draining is None:
            self._beginnings.save(job)  # where that fails nothing has changed
            # What has begun is known once all have stopped: until then it only grows.
            group.draining = group.begun
            group.start_change("it is being drained", False, time.monotonic())
            self._beginnings.save(job)
            self.note(name, "draining", "it ends after the all-reduces that have begun")
            self._beginnings.advance(job)
        return job

    async def remove(self, name: str, why: str = "it has been removed") -> None:
        """End a job at once: its workers are told, its entries go, its slots are free.

        Raises NoSuchJobError.
        """
        job = self.job(name)
        async with AsyncExitStack() as stack:
            await hold(stack, job.switches.values())
            if job.removed:
                return
            self.store.drop_job(name)  # first: where that fails nothing is done
            job.removed = True
            links, epoch = job.links, job.epoch
            if epoch is not None:
                placement.leave(job.books, epoch)
                for switch, node in epoch.nodes.items():
                    self.links[switch].leave_over(node)
            placement.free_others(job.books, job.number, None)
            del self._jobs[name]
            for session in list(job.group.sessions.values()):
                self.sessions.end(job, session, f"job {name} is gone: {why}", "JobRemovedError")
            for link in links:
                await self._withdraw(link, job)
        job.signal.set_off()
        self.note(name, "removed", why)

    async def _withdraw(self, link: SwitchLink, job: LiveJob) -> None:
        """Take a job's entries off a switch; where that fails they go when the switch is brought in line."""
        try:
            node = None if job.epoch is None else job.epoch.nodes.get(link.name)
            await asyncio.to_thread(link.swap, node, None)
            if job.rate_bps is not None:
                await asyncio.to_thread(link.program.rates.set, link, job.number, None, 1)
            if link.in_line:
                link.settle()
        except SwitchClientError as error:
            self.note("", "switch", f"switch {link.name} still holds entries of job {job.name}: {error}")
            link.distrust()

    def set_quota(self, tenant: str, quota: int | None) -> None:
        """Set how many slots a tenant may have; what it has stays."""
        self.store.put_tenant(tenant, quota)
        self.note(
            "", "tenant", f"tenant {tenant} may have {'any number of' if quota is None else quota} slots"
        )

    def used_slots(self, tenant: str) -> int:
        """Return the slots that a tenant's jobs have asked for."""
        return sum(job.slots for job in self._jobs.values() if job.tenant == tenant)

    def _check_slots(self, name: str, slots: int) -> None:
        most = self.record.slots
        if slots > most:
            raise RequestError(name, f"job {name} cannot have {slots} slots: a switch here has {most} in all")

    def _check_quota(self, tenant: str, slots: int, job: LiveJob | None) -> None:
        quota = self.store.tenants().get(tenant)
        used = self.used_slots(tenant) - (job.slots if job else 0)
        if quota is not None and used + slots > quota:
            raise QuotaError(tenant, quota, used, slots)

    async def _count_from_now(self, job: LiveJob) -> None:
        """Note what the counters of a new job's number have come to, as far as no worker is needed for it."""
        for link in job.links:
            try:
                async with link.lock:
                    if not job.removed and link.in_line and link in job.links:
                        await self._beginnings.count_at(job, link, 0)
                        self._beginnings.save(job)
            except SwitchClientError as error:  # then they are read before its first epoch
                log.info("%s: %s", job.name, error)

    async def _set_rate(self, job: LiveJob) -> None:
        async with AsyncExitStack() as stack:
            await hold(stack, job.switches.values())
            if job.removed:  # its number may be another job's
                raise NoSuchJobError(job.name, sorted(self._jobs))
            try:
                for link in job.links:
                    await asyncio.to_thread(link.program.rates.set, link, job.number, *job.share(link.name))
            except SwitchClientError:  # it may have been written all the same, and was before
                for link in job.links:
                    link.distrust()
                raise


def _check_hosts(job: str, hosts: Sequence[str]) -> None:
    for host in hosts:
        if list(hosts).count(host) > 1:
            raise RequestError(job, f"host {host} is named twice: a job has one worker a host")
