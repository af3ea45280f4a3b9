# SPDX-License-Identifier: Apache-2.0
"""Watching a network's switches: each is kept in line, and what is dead is gone round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from controller.beginnings import Beginnings
from controller.cables import cut_cables
from controller.errors import ControllerError, SwitchClientError
from controller.fabric import Dead, Fabric
from controller.live import LiveJob
from controller.refused import Refused
from controller.sites import Sites
from controller.store import Store
from controller.switches import SwitchLink

if TYPE_CHECKING:  # topologies imports us
    from topologies.record import NetRecord

LOOK_SECONDS = 0.25
"""Between two looks at a switch."""
ASK_SECONDS = 1.0
"""Between two questions whether a switch is there: one that hangs ends no stream."""
RETRY_SECONDS = 1.0
"""Between two attempts to reach one."""


class Watch:
    """Keeps the switches of a network in line. `jobs` gives all jobs, `note` is told (job, kind, text)."""

    def __init__(
        self,
        record: NetRecord,
        links: Mapping[str, SwitchLink],
        jobs: Callable[[], Collection[LiveJob]],
        store: Store,
        sites: Sites,
        beginnings: Beginnings,
        refused: Refused,
        note: Callable[[str, str, str], None],
    ) -> None:
        self._record = record
        self._links = links
        self._jobs = jobs
        self._store = store
        self._sites = sites
        self._beginnings = beginnings
        self._refused = refused
        self._note = note

    async def bring_up(self, link: SwitchLink) -> None:
        """Connect to a switch and make it hold what it should; jobs that lost their sums get a new epoch."""
        jobs: list[LiveJob] = []
        try:
            await asyncio.to_thread(link.connect)
            async with link.lock:
                lost = await asyncio.to_thread(link.reach)
                jobs = [job for job in self._jobs() if link in job.links]
                if lost:  # on disk before the switch has a program: the next controller could not tell
                    self._lost_state(link, jobs)
                planned = [(job, job.epoch) for job in jobs if job.epoch is not None]
                entries = [entry for job in jobs for entry in job.entries(link.name)]
                shares = {job.number: job.share(link.name) for job in jobs}
                rates = {number: (rate, n) for number, (rate, n) in shares.items() if rate is not None}
                dead, faults = self._sites.dead, self._store.faults(link.name)
                report = await asyncio.to_thread(link.bring_up, lost, entries, rates, faults, dead)
                if dead != self._sites.dead:
                    link.reroute()
                link.settle()
                for job, epoch in planned:
                    if job.epoch is epoch and job.in_line:
                        job.group.installed = True
        except ControllerError as error:
            self._complain(link, error)
            return
        link.complaint = None
        self._note("", "switch", f"switch {link.name}: {report}")
        for job in jobs:
            self._beginnings.advance(job)

    def _complain(self, link: SwitchLink, error: ControllerError) -> None:
        if link.complaint != str(error):  # once, not every second
            link.complaint = str(error)
            self._note("", "switch", f"switch {link.name} is not in line: {error}")
            self.look_at_fabric()  # who goes round it need not wait for the next look

    def _lost_state(self, link: SwitchLink, jobs: Sequence[LiveJob]) -> None:
        """Have jobs go on in new epochs, as nobody knows any more what the old ones had summed."""
        why = f"switch {link.name} lost its state"
        link.ports.lost()
        for job in jobs:
            job.tallies.lost(link.name)
            if job.epoch is not None and (job.group.change is None or job.group.change.why != why):
                job.group.start_change(why, False, time.monotonic())
            self._beginnings.save(job)

    async def follow(self, link: SwitchLink) -> None:
        """Keep a switch connected, and take note of what it refuses, for as long as the controller runs."""
        asked = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not link.in_line:
                await self.bring_up(link)
                if not link.in_line:
                    await asyncio.sleep(RETRY_SECONDS)
            elif time.monotonic() - asked >= ASK_SECONDS:
                try:
                    await asyncio.to_thread(link.check_alive)
                except SwitchClientError as error:
                    self._complain(link, error)
                asked = time.monotonic()
            for refusal in link.refusals():
                self._refused.take(link.name, refusal)

    def look_at_fabric(self) -> None:
        """Notice switches and links that died or came back: routes change, and jobs move away.

        A switch that hosts hang on has no substitute: its jobs wait for it.
        """
        homes = {switch for switch, _ in Fabric(self._record).home.values()}
        away = (link.name for link in self._links.values() if link.away)
        dead = Dead(frozenset(away) - homes, cut_cables(self._record))
        if dead == self._sites.dead:
            return
        for word, parts in (
            ("is down", dead.told(self._sites.dead)),
            ("is back", self._sites.dead.told(dead)),
        ):
            for part in parts:
                self._note("", "fabric", f"{part} {word}")
        self._sites.turn(dead)
        for link in self._links.values():
            link.reroute()
