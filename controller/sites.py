# SPDX-License-Identifier: Apache-2.0
"""Where a job can be summed now: by the best tree there is, the one that it has if no other costs less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.errors import ControllerError, JobError, PoolFullError
from controller.fabric import Dead, Fabric
from controller.trees import Tree, cost, plan
from controller.wiring import Wiring, wire
from topologies.record import NetRecord

if TYPE_CHECKING:
    from controller.live import LiveJob
    from controller.switches import SwitchLink


class NoTreeError(ControllerError):
    """No switch, or no set of switches, can sum for these hosts; `hosts` are the job's."""

    def __init__(self, hosts: Sequence[str], why: str) -> None:
        super().__init__(f"nothing can sum for {', '.join(hosts)}: {why}")
        self.hosts = tuple(hosts)


@dataclass(frozen=True)
class Site:
    """A tree with its wiring, and the window that it has room for."""

    tree: Tree
    wiring: tuple[Wiring, ...]
    window: int
    why: str = ""
    """Why the window is not the one that was asked for."""


class Sites:
    """Finds sites in the network as it is. `jobs` gives all jobs."""

    def __init__(
        self,
        record: NetRecord,
        links: Mapping[str, SwitchLink],
        jobs: Callable[[], Collection[LiveJob]],
    ) -> None:
        self._record = record
        self._links = links
        self._jobs = jobs
        self.dead = Dead()
        """What carries nothing now."""
        self.fabric = Fabric(record)

    def turn(self, dead: Dead) -> None:
        """Take note of what is dead."""
        self.dead, self.fabric = dead, Fabric(self._record, dead)

    def find(self, job: LiveJob) -> Site:
        """Return the site of a job's next epoch. Raises NoTreeError."""
        try:
            return self.place(job.group.hosts, job.slots, job.allowed, job)
        except (NoTreeError, PoolFullError) as error:
            window = job.rent.window if job.rents else job.slots
            if window == job.slots:
                raise NoTreeError(job.group.hosts, str(error)) from error
            site = self.place(job.group.hosts, window, job.allowed, job)
            return Site(site.tree, site.wiring, window, str(error))

    def place(
        self, hosts: Sequence[str], window: int, allowed: Collection[str], job: LiveJob | None = None
    ) -> Site:
        """Return where workers on these hosts can be summed with so many slots; `job` is theirs, if any.

        Raises NoTreeError, and PoolFullError where only slots are lacking.
        """

        def usable(switch: str, inputs: int) -> bool:
            allows = not allowed or switch in allowed
            return allows and self._has_room(switch, window, job) and self._has_copies(switch, inputs, job)

        load = Counter(s for other in self._jobs() if other is not job for s in other.tree.switches)
        tree = plan(self.fabric, hosts, usable, load)
        holds = job is not None and self._holds(job, hosts, usable)
        if tree is not None and job is not None and holds:
            tree = min(job.tree, tree, key=lambda one: cost(self.fabric, one))  # of equal ones the first
        wiring = None if tree is None else wire(tree, self.fabric, self._record)
        if tree is None or wiring is None:
            raise self._nothing(hosts, window, allowed, job)
        return Site(tree, wiring, window)

    def changed(self, job: LiveJob) -> bool:
        """Say whether a job's present epoch cannot go on as it is wired."""
        return job.epoch is not None and wire(job.epoch.tree, self.fabric, self._record) != job.epoch.wiring

    def _holds(self, job: LiveJob, hosts: Sequence[str], usable: Callable[[str, int], bool]) -> bool:
        """Say whether a job's tree is for these hosts in this order, is whole, and has room."""
        order = {host: rank for rank, host in enumerate(hosts)}
        if job.tree.hosts != frozenset(hosts) or wire(job.tree, self.fabric, self._record) is None:
            return False
        for node in job.tree.nodes:
            ranks = [order[host] for host in node.hosts]
            if ranks != sorted(ranks) or not usable(node.switch, len(node.hosts) + len(node.leaves)):
                return False
        return True

    def _has_room(self, switch: str, window: int, job: LiveJob | None) -> bool:
        book = self._links[switch].jobs
        rent = None if job is None else book.rented(job.number)
        if rent is not None and rent.window == window:
            return True
        if rent is None or job is None:
            return book.pool.largest_run >= window
        try:
            book.check_rent(job.number, window)
        except (PoolFullError, JobError):
            return False
        return True

    def copies(self, switch: str, job: LiveJob | None = None) -> int:
        """Return the multicast copies that jobs but this one have at a switch."""
        nodes = (n for other in self._jobs() if other is not job for n in other.tree.nodes)
        return sum(len(node.hosts) + len(node.leaves) for node in nodes if node.switch == switch)

    def _has_copies(self, switch: str, inputs: int, job: LiveJob | None) -> bool:
        return self.copies(switch, job) + inputs <= self._record.replicas

    def _nothing(
        self, hosts: Sequence[str], window: int, allowed: Collection[str], job: LiveJob | None
    ) -> ControllerError:
        """Return why there is no tree: what of the network that reaches all hosts lacks what."""
        cut = [host for host in hosts if host not in self.fabric.home]
        if cut:
            return NoTreeError(hosts, f"{', '.join(cut)} cannot be reached now; see p4reduce net status")
        reach = [s for s in self.fabric.switches if self.fabric.reaches(hosts, s)]
        reach = [s for s in reach if not allowed or s in allowed]
        if not reach:
            asked = f" of {', '.join(allowed)}" if allowed else ""
            return NoTreeError(hosts, f"no switch{asked} that lives has a path to all of them")
        full = [s for s in reach if not self._has_room(s, window, job)]
        if len(full) == len(reach):
            best = max(full, key=lambda s: self._links[s].jobs.pool.largest_run)
            pool = self._links[best].jobs.pool
            holders = [(owner, slots) for owner, _, slots in pool.holders()]
            return PoolFullError(window, pool.free, pool.largest_run, holders)
        return NoTreeError(
            hosts,
            f"a switch takes at most 64 inputs, and holds {self._record.replicas} multicast copies for all "
            "jobs; ask for fewer workers, or remove a job first",
        )
