# SPDX-License-Identifier: Apache-2.0
"""How a job's next epoch begins: planned, on disk, at the switches, and only then told to its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from copy import copy

from controller import placement
from controller.epochs import EpochStore
from controller.errors import BindAgainError, ControllerError, SwitchClientError
from controller.jobs import expel
from controller.live import LiveJob, ranks_of
from controller.placement import Epoch
from controller.sites import NoTreeError, Site, Sites
from controller.store import Store
from controller.switches import SwitchLink
from controller.tasks import Tasks
from topologies.record import NetRecord


async def hold(stack: AsyncExitStack, links: Iterable[SwitchLink]) -> None:
    """Hold the locks of some switches; always in the order of their names, so that nobody waits in a ring."""
    for link in sorted(links, key=lambda each: each.name):
        await stack.enter_async_context(link.lock)


class Beginnings:
    """Carries out what the jobs' groups decide. `note` is told (job, kind, text) of events."""

    def __init__(
        self,
        record: NetRecord,
        store: Store,
        epochs: EpochStore,
        sites: Sites,
        tasks: Tasks,
        note: Callable[[str, str, str], None],
    ) -> None:
        self._record = record
        self._store = store
        self._epochs = epochs
        self._sites = sites
        self._tasks = tasks
        self._note = note

    def advance(self, job: LiveJob) -> None:
        """Let a job's change go on as far as it can now, and wake its workers."""
        ready, change = job.group.step(time.monotonic()), job.group.change
        if change is not None and job.epoch is not None:
            ranks = ranks_of(job.epoch, change.lost) - job.expelled
            if ranks:
                job.expelled.update(ranks)
                self._tasks.spawn(self._expel(job, job.epoch, ranks))
        if job.row() != job.kept:  # a change's id must not be used again, not even after our death
            self.save(job)
        if ready and not job.beginning:
            job.beginning = True
            self._tasks.spawn(self._begin(job))
        job.signal.set_off()

    async def _expel(self, job: LiveJob, epoch: Epoch, ranks: Collection[int]) -> None:
        """Refuse the packets of workers that are lost, while the others' epoch goes on to its end."""
        hosts = {epoch.hosts[rank] for rank in ranks}
        for switch in {epoch.place(rank)[0] for rank in ranks}:
            link = job.switches[switch]
            try:
                async with link.lock:
                    if job.epoch is epoch and not job.removed:
                        await asyncio.to_thread(expel, link, epoch.nodes[switch], hosts)
            except SwitchClientError as error:
                self._note(job.name, "switch", f"the entries of lost workers are still there: {error}")
                link.distrust()

    async def _begin(self, job: LiveJob) -> None:
        """Begin the epoch that a job is ready for: old entries go, new ones come, those at the root first."""
        group = job.group
        try:
            site = self._find_site(job)
            if site is None:
                return
            old = list(job.links)
            new = [job.switches[name] for name in site.tree.switches]
            async with AsyncExitStack() as stack:
                await hold(stack, {link.name: link for link in (*old, *new)}.values())
                # What was true before the locks were ours need not be so now.
                change = group.change
                if job.removed or change is None or not group.step(time.monotonic()):
                    return
                if job.links != old or not all(link.in_line for link in new):
                    return
                await self.count(job, site)
                if group.change is not change or not group.step(time.monotonic()):
                    return
                try:
                    planned, had = self._plan(job, site)
                except BindAgainError as error:
                    for session in group.sessions.values():
                        if (session.ip, session.status.udp_port) == (error.ip, error.udp_port):
                            session.refused_port = error.udp_port
                    group.ask_again(time.monotonic())
                    return
                g0, workers = group.memberships[0].g0, len(group.hosts)
                failures = await self._swap(job, old, had, planned)
                if not failures:
                    group.installed = True
                    self._note(
                        job.name,
                        "epoch",
                        f"epoch {planned.epoch} of {workers} workers begins at chunk {g0} ({change.why})",
                    )
                for failure in failures:
                    self._note(job.name, "switch", f"its epoch could not be installed: {failure}")
        except ControllerError as error:
            self._note(job.name, "switch", f"its epoch could not be installed: {error}")
            for link in job.links:
                link.distrust()
        finally:
            job.beginning = False
            job.signal.set_off()

    def _find_site(self, job: LiveJob) -> Site | None:
        """Return where the next epoch will be summed; None, and one event, while that is nowhere."""
        try:
            site = self._sites.find(job)
        except NoTreeError as error:
            if job.homeless != str(error):
                job.homeless = str(error)
                self._note(job.name, "switch", f"no epoch can begin: {error}")
            return None
        job.homeless = ""
        return site if all(job.switches[name].in_line for name in site.tree.switches) else None

    async def _swap(
        self, job: LiveJob, links: Sequence[SwitchLink], had: Epoch | None, planned: Epoch
    ) -> list[SwitchClientError]:
        """Delete an epoch's entries everywhere, then write another's; return what failed.

        `links` are of the tree before, and may hold a rate without an epoch. A switch that cannot be reached
        is brought in line when it comes back.
        """
        failures: list[SwitchClientError] = []
        steps = [(name, node, None) for name, node in (had.nodes.items() if had else ())]
        moves = [*reversed(steps), *((name, None, node) for name, node in planned.nodes.items())]
        for name, node, _ in steps:
            job.switches[name].leave_over(node)
        names = {*(link.name for link in links), *planned.nodes}
        away = {name for name in names if not job.switches[name].in_line}
        for name in away:
            job.switches[name].distrust()
        for name, old, new in moves:
            if name in away:
                continue
            link = job.switches[name]
            try:
                await asyncio.to_thread(link.swap, old, new)
            except SwitchClientError as error:
                link.distrust()
                failures.append(error)
                away.add(name)
        for name in names - away:
            job.switches[name].settle()
            await self._set_rate(job, job.switches[name], failures)
        return failures

    async def _set_rate(self, job: LiveJob, link: SwitchLink, failures: list[SwitchClientError]) -> None:
        """Hold the job to its rate where its packets come in now."""
        if job.rate_bps is None:
            return
        try:
            await asyncio.to_thread(link.program.rates.set, link, job.number, *job.share(link.name))
        except SwitchClientError as error:
            link.distrust()
            failures.append(error)

    def _plan(self, job: LiveJob, site: Site) -> tuple[Epoch, Epoch | None]:
        """Put the next epoch on disk and take it as the present one; return it and the one before.

        What fails is taken back whole, the slots too: nobody hears of an epoch that is not on disk, and after
        our death the row that is there counts.
        """
        group, books, had = job.group, job.books, job.epoch
        change, before = group.change, copy(group)
        assert change is not None
        tree_before = job.tree
        rents = placement.rent_all(books, job.number, site.tree, site.window, job.name)
        rents |= placement.free_others(books, job.number, site.tree)
        g0 = group.next_chunk if change.members else change.g0
        t0 = group.begun if change.members else group.memberships[0].t0
        ranks = [(host, group.sessions[rank].status.udp_port) for rank, host in enumerate(group.hosts)]
        try:
            planned, members = placement.begin(
                *(
                    books,
                    self._epochs,
                    self._record,
                    job.number,
                    site.tree,
                    site.wiring,
                    ranks,
                    job.lead,
                    g0,
                    t0,
                )
            )
            if had is not None:
                placement.leave(books, had)
            placement.enter(books, planned)
            try:
                job.epoch, job.tree = planned, site.tree
                group.enter(planned.epoch, members)
                self.save(job, sessions=True)
            except BaseException:
                job.epoch, job.tree = had, tree_before
                vars(group).update(vars(before))
                placement.undo(books, planned, had)
                raise
        except BaseException:
            placement.restore(books, job.number, rents, job.name)
            raise
        if site.window != job.slots:
            job.slots = site.window
            self._note(job.name, "changed", f"its window stays {site.window} slots: {site.why}")
        if had is not None and had.tree != planned.tree:
            self._note(job.name, "moved", f"it is summed at {', '.join(planned.tree.switches)} from now on")
        job.expelled.clear()
        return planned, had

    def save(self, job: LiveJob, sessions: bool = False) -> None:
        """Put a job on disk, and its sessions if they have changed with it. Raises StateError."""
        row = job.row()
        held = job.group.sessions.values() if sessions else ()
        self._store.put_job(row, [job.session_row(session) for session in held])
        job.kept = row

    async def count(self, job: LiveJob, site: Site) -> None:
        """Note what a job's counters come to, as far as it is not known yet what they begin at at a site.

        Where worker bits will stand for others, what was counted until now is kept. Under all the locks.
        """
        turns = job.epoch is not None and job.epoch.tree != site.tree
        if turns:
            for link in job.links:
                if link.in_line:
                    tally = job.tallies.of(link.name)
                    known = {job.number: max(0, tally.known)}
                    read = await asyncio.to_thread(link.program.verdicts.of_jobs, link, known)
                    tally.take(read[job.number])
            job.tallies.turn(job.inputs)
        for node in site.tree.nodes:
            await self.count_at(job, job.switches[node.switch], len(node.hosts) + len(node.leaves))

    async def count_at(self, job: LiveJob, link: SwitchLink, inputs: int) -> None:
        """Note what so many inputs' counters at one switch begin at; under its lock."""
        tally = job.tallies.of(link.name)
        if tally.known < inputs:
            read = 0 if job.number in link.untouched else inputs
            found = await asyncio.to_thread(link.program.verdicts.of_jobs, link, {job.number: read})
            tally.begin(found[job.number], inputs)
