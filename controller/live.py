# SPDX-License-Identifier: Apache-2.0
"""A job as the controller runs it, and as a row that outlives the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller import placement
from controller.changes import RENDEZVOUS, Group, Lost, Session
from controller.jobs import Job, LeafSeat, Rent, WorkerSeat
from controller.p4info import Entity
from controller.placement import Books, Epoch
from controller.program.peek import SlotState
from controller.signals import Signal
from controller.store import ChangeRow, EpochRow, JobRow, NodeRow, SessionRow
from controller.tally import JobCounts, JobTallies, JobTally
from controller.trees import Node, Tree
from controller.wiring import Input, Upward, Wiring
from wire.constants import MAX_WORKERS

if TYPE_CHECKING:  # topologies imports us
    from controller.switches import SwitchLink
    from topologies.record import NetRecord


LEAST_RATE = 1000
"""Bits a second that a meter can hold a job to."""


@dataclass
class LiveJob:
    """A job with its workers, its tree, its slots and its present epoch."""

    name: str
    number: int
    tenant: str
    switches: Mapping[str, SwitchLink]
    """All of the network's."""
    tree: Tree
    """Where it is summed, and has its slots; another one begins with an epoch."""
    allowed: tuple[str, ...]
    """The switches that may sum for it; () for all."""
    slots: int
    """What was asked for; the rents follow with the next epoch."""
    lead: int
    rate_bps: int | None
    created: float
    """Unix seconds."""
    group: Group
    epoch: Epoch | None = None
    """Its present epoch."""
    signal: Signal = field(default_factory=Signal)
    """Set off whenever what a worker should do may have changed."""
    beginning: bool = False
    """Whether a new epoch is being written to the switches."""
    removed: bool = False
    homeless: str = ""
    """Why no tree can be had for its next epoch, as it was last told."""
    kept: JobRow | None = None
    """Its row as it is on disk."""
    expelled: set[int] = field(default_factory=set)
    """Lost ranks whose entries of the present epoch are being withdrawn."""
    leaving: list[tuple[Session, float]] = field(default_factory=list)
    """Workers that left while the job ran, with the time at which that becomes a loss to the others."""
    barriers: dict[int, int] = field(default_factory=dict)
    """By rank: the last barrier that its worker has reached."""
    tallies: JobTallies = field(default_factory=JobTallies)
    """What its counters at the switches began at."""
    looks: dict[tuple[int, int], tuple[tuple[SlotState, ...], float]] = field(default_factory=dict)
    """By slot and version: its states at the last look, and since when they have been seen so."""

    @property
    def status(self) -> str:
        """draining, running, waiting (for workers) or changing."""
        if self.group.draining is not None:
            return "draining"
        if self.group.running:
            return "running"
        return "waiting" if self.group.absent else "changing"

    @property
    def links(self) -> list[SwitchLink]:
        """The switches of its tree, the root first."""
        return [self.switches[name] for name in self.tree.switches]

    @property
    def books(self) -> Books:
        """The books of all switches."""
        return {name: link.jobs for name, link in self.switches.items()}

    @property
    def in_line(self) -> bool:
        """Whether all switches of its tree hold what they should, as far as is known."""
        return all(link.in_line for link in self.links)

    @property
    def rents(self) -> dict[str, Rent]:
        """Its slots by switch, the root's first."""
        found = ((link.name, link.jobs.rented(self.number)) for link in self.links)
        return {name: rent for name, rent in found if rent is not None}

    @property
    def rent(self) -> Rent:
        """Its slots at the root; its window is the same everywhere."""
        return self.rents[self.tree.root.switch]

    @property
    def inputs(self) -> dict[str, list[int | str]]:
        """What the worker bits at each switch stand for in the present epoch: ranks, and names of leaves."""
        if self.epoch is None:
            return {}
        ranks = {host: rank for rank, host in enumerate(self.epoch.hosts)}
        return {
            node.switch: [*(ranks[host] for host in node.hosts), *node.leaves]
            for node in self.epoch.tree.nodes
        }

    def share(self, switch: str) -> tuple[int | None, int]:
        """Return the rate of its packets at a switch (None for no limit), and how many inputs send there.

        A switch sees some of the workers, leaves that send as much as a worker each, and a parent's results.
        """
        node = next((node for node in self.tree.nodes if node.switch == switch), None)
        workers = len(self.tree.hosts)
        if node is None or self.rate_bps is None:
            return None, 1
        inputs = len(node.hosts) + len(node.leaves) + (node.parent is not None)
        return max(LEAST_RATE, self.rate_bps * inputs // workers), min(inputs, MAX_WORKERS)

    def entries(self, switch: str) -> list[Entity]:
        """Return what a switch should hold of its present epoch: all but the entries of lost workers."""
        job = self.epoch.nodes.get(switch) if self.epoch is not None else None
        if job is None or self.epoch is None:
            return []
        gone = {self.epoch.hosts[rank] for rank in self.expelled}
        group, receivers, members, *parent = job.levels
        kept = [bit for bit, seat in enumerate(job.seats) if seat.host not in gone]
        chosen = [level[bit] for level in (receivers, members) for bit in kept]
        return [*group, *chosen, *(entry for level in parent for entry in level)]

    def row(self) -> JobRow:
        """Return what is kept of it."""
        group, job, change = self.group, self.epoch, self.group.change
        epoch = None
        if job is not None:
            first = group.memberships[0]
            epoch = EpochRow(
                epoch=job.epoch,
                window=job.window,
                lead=job.lead,
                ranks=[[host, port] for host, port in zip(job.hosts, job.udp_ports, strict=True)],
                nodes=[
                    NodeRow(
                        switch=switch,
                        base=node.base,
                        group=node.group,
                        rids=list(node.rids),
                        seats=[list(vars(seat).values()) for seat in node.seats],
                        leaf=None if node.leaf is None else list(vars(node.leaf).values()),
                    )
                    for switch, node in job.nodes.items()
                ],
                g0=first.g0,
                t0=first.t0,
                resume_from=group.resume_from,
            )
        return JobRow(
            name=self.name,
            number=self.number,
            tenant=self.tenant,
            hosts=group.hosts,
            tree=[[n.switch, list(n.hosts), list(n.leaves), n.parent] for n in self.tree.nodes],
            allowed=list(self.allowed),
            slots=self.slots,
            rents={name: [rent.base, rent.window] for name, rent in self.rents.items()},
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
            counted={name: [tally.known, tally.rows] for name, tally in self.tallies.at.items()},
            counts_kept=self.tallies.kept.rows,
        )

    def session_row(self, session: Session) -> SessionRow:
        """Return what is kept of one of its sessions."""
        status = session.status
        return SessionRow(session.sid, self.name, session.rank, session.ip, status.udp_port, status.epoch)


def ranks_of(epoch: Epoch, lost: Iterable[Lost]) -> set[int]:
    """Return which ranks of an epoch are lost: a change may have numbered the workers anew since it began."""
    hosts = {who.host for who in lost}
    return {rank for rank, host in enumerate(epoch.hosts) if host in hosts}


def restored(row: JobRow, switches: Mapping[str, SwitchLink], record: NetRecord, now: float) -> LiveJob:
    """Return the job of a row, its slots and numbers taken; the switches are not touched.

    A change that was under way begins again: its workers state what they are.
    """
    group = Group(list(row.hosts), row.next_chunk, row.begun, changes=row.changes, draining=row.draining)
    tree = _tree(row)
    epoch = None
    if row.epoch is None:
        for switch, (base, window) in row.rents.items():
            switches[switch].jobs.rent(row.number, window, base, row.name)
    else:
        epoch = _epoch(row, row.epoch, tree, switches)
        group.epoch, group.resume_from = epoch.epoch, row.epoch.resume_from
        group.memberships = placement.memberships(record, epoch, row.epoch.g0, row.epoch.t0)
    if row.change is not None or row.epoch is None:
        change = row.change or ChangeRow(0, True, RENDEZVOUS, [])
        group.start_change(change.why, change.members, now, [Lost(*who) for who in change.lost])
    made = LiveJob(
        row.name,
        row.number,
        row.tenant,
        switches,
        tree,
        tuple(row.allowed),
        row.slots,
        row.lead,
        row.rate_bps,
        row.created,
        group,
        epoch,
        expelled=set() if epoch is None or group.change is None else ranks_of(epoch, group.change.lost),
        tallies=JobTallies(JobCounts.from_rows(row.counts_kept)),
    )
    made.tallies.at = {name: JobTally(known, rows) for name, (known, rows) in row.counted.items()}
    return made


def _tree(row: JobRow) -> Tree:
    return Tree(tuple(Node(s, tuple(hosts), tuple(leaves), parent) for s, hosts, leaves, parent in row.tree))


def _epoch(row: JobRow, told: EpochRow, tree: Tree, switches: Mapping[str, SwitchLink]) -> Epoch:
    nodes: dict[str, Job] = {}
    wiring: list[Wiring] = []
    for node in told.nodes:
        seats = [WorkerSeat(*seat) for seat in node.seats]
        leaf = None if node.leaf is None else LeafSeat(*node.leaf)
        nodes[node.switch] = switches[node.switch].jobs.adopt(
            row.number,
            seats,
            Rent(node.base, told.window),
            told.lead,
            told.epoch,
            node.group,
            node.rids,
            row.name,
            leaf,
        )
        wiring.append(wiring_of(nodes[node.switch], node.switch))
    hosts, ports = zip(*told.ranks, strict=True)
    return Epoch(row.number, told.epoch, told.window, told.lead, tree, tuple(wiring), hosts, ports, nodes)


def wiring_of(job: Job, switch: str) -> Wiring:
    """Return the wiring that a job's entries at a switch follow."""
    inputs = tuple(Input(seat.host, seat.ip, seat.mac, seat.port) for seat in job.seats)
    leaf = job.leaf
    up = None if leaf is None else Upward(leaf.port, leaf.mac, leaf.parent_ip, leaf.parent_port)
    return Wiring(switch, inputs, up)
