# SPDX-License-Identifier: Apache-2.0
"""A job over the switches of its tree: slots at each, and epochs that begin and end at all of them together.

The books alone: switches are written to by who holds their locks. What fails is taken back whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.epochs import EpochStore, Source
from controller.errors import JobError
from controller.jobs import Job, JobController, LeafSeat, Rent, WorkerSeat
from controller.trees import Tree
from controller.wiring import Wiring
from topologies.record import NetRecord
from wire.constants import MAX_RANKS, MAX_WORKERS
from wire.membership import Membership

Books = Mapping[str, JobController]
"""By switch."""


@dataclass(frozen=True)
class Epoch:
    """A job's epoch at all switches of its tree."""

    number: int
    """The job's."""
    epoch: int
    window: int
    lead: int
    tree: Tree
    wiring: tuple[Wiring, ...]
    hosts: tuple[str, ...]
    """By rank."""
    udp_ports: tuple[int, ...]
    """By rank."""
    nodes: Mapping[str, Job]
    """By switch, the root first."""

    @property
    def root(self) -> Job:
        """The job at the switch that completes the sums."""
        return self.nodes[self.tree.root.switch]

    def place(self, rank: int) -> tuple[str, int]:
        """Return the switch that a rank contributes to, and its worker bit there."""
        node = self.tree.above(self.hosts[rank])
        return node.switch, node.hosts.index(self.hosts[rank])


def rent_all(books: Books, number: int, tree: Tree, window: int, owner: str) -> dict[str, Rent | None]:
    """Rent `window` slots at each switch of a tree, in place of those rented there.

    Returns what those were, for `restore`. Slots that are right already stay. Raises PoolFullError and
    JobError; then nothing has changed.
    """
    before: dict[str, Rent | None] = {}
    try:
        for switch in tree.switches:
            rent = books[switch].rented(number)
            if rent is None or rent.window != window:
                before[switch] = rent
                books[switch].rent(number, window, owner=owner)
    except BaseException:
        restore(books, number, before, owner)
        raise
    return before


def restore(books: Books, number: int, before: Mapping[str, Rent | None], owner: str) -> None:
    """Have again at these switches what was rented before."""
    for switch, rent in before.items():
        if rent is not None:
            books[switch].rent(number, rent.window, rent.base, owner)
        elif books[switch].rented(number) is not None:
            books[switch].free(number)


def free_others(books: Books, number: int, tree: Tree | None) -> dict[str, Rent | None]:
    """Give back a job's slots at switches that are not of its tree; return them, for `restore`."""
    kept = () if tree is None else tree.switches
    found: dict[str, Rent | None] = {}
    for switch, book in books.items():
        rent = book.rented(number)
        if switch not in kept and rent is not None:
            found[switch] = rent
            book.free(number)
    return found


def begin(
    books: Books,
    epochs: EpochStore,
    record: NetRecord,
    number: int,
    tree: Tree,
    wiring: Sequence[Wiring],
    ranks: Sequence[tuple[str, int]],
    lead: int,
    g0: int,
    t0: int,
) -> tuple[Epoch, list[Membership]]:
    """Take what a job's next epoch needs at all switches of its tree, where its slots are rented.

    `ranks` are hosts and UDP ports. Raises JobError, BindAgainError, ExhaustedError, MembershipError,
    StateError; then nothing is taken.
    """
    if not 1 <= len(ranks) <= MAX_RANKS:
        raise JobError(number, f"a job has 1..{MAX_RANKS} workers, not {len(ranks)}")
    window = _window(books, number, tree)
    if not 1 <= lead <= window:
        raise JobError(number, f"its lead is 1..{window}, its window, not {lead}")
    port_of = dict(ranks)
    leaves = [record.switch(one.switch) for one in wiring if one.upward is not None]
    senders = [Source(host, record.host(host).ip, port) for host, port in ranks]
    epoch, leaf_ports = epochs.begin_tree(senders, [(leaf.name, leaf.ip) for leaf in leaves])
    port_of |= leaf_ports
    taken: dict[str, Job] = {}
    try:
        for one in wiring:
            seats = [WorkerSeat(i.name, i.ip, i.mac, i.port, port_of[i.name]) for i in one.inputs]
            if len(seats) > MAX_WORKERS:
                raise JobError(number, f"at most {MAX_WORKERS} inputs meet at one switch, not {len(seats)}")
            up = one.upward
            leaf = (
                None
                if up is None
                else LeafSeat(up.port, up.mac, up.parent_ip, up.parent_port, leaf_ports[one.switch])
            )
            taken[one.switch] = books[one.switch].place(number, seats, lead, epoch, leaf)
        made = Epoch(number, epoch, window, lead, tree, tuple(wiring), *_columns(ranks), nodes=taken)
        return made, memberships(record, made, g0, t0)
    except BaseException:
        for switch, job in taken.items():
            books[switch].give_back(job)
        epochs.end([*senders, *(Source(leaf.name, leaf.ip, leaf_ports[leaf.name]) for leaf in leaves)])
        raise


def _columns(ranks: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(host for host, _ in ranks), tuple(port for _, port in ranks)


def _window(books: Books, number: int, tree: Tree) -> int:
    windows = {rent.window for s in tree.switches if (rent := books[s].rented(number)) is not None}
    if len(windows) != 1:
        raise JobError(number, f"its slots are not the same everywhere: {sorted(windows) or 'none'}")
    return windows.pop()


def enter(books: Books, epoch: Epoch) -> None:
    """Take an epoch as its job's present one at all of its switches."""
    for switch, job in epoch.nodes.items():
        books[switch].enter(job)


def leave(books: Books, epoch: Epoch) -> None:
    """Take an epoch out of the books of its switches; what it took is given back later."""
    for switch, job in epoch.nodes.items():
        if books[switch].jobs.get(epoch.number) is job:
            books[switch].leave(epoch.number)


def undo(books: Books, epoch: Epoch, before: Epoch | None) -> None:
    """Take an `enter` back: the epoch before is the present one again, and what this one took is free."""
    leave(books, epoch)
    if before is not None:
        enter(books, before)
    for switch, job in epoch.nodes.items():
        books[switch].give_back(job)


def memberships(record: NetRecord, epoch: Epoch, g0: int, t0: int) -> list[Membership]:
    """Return what each rank of an epoch must know. Raises MembershipError."""
    found = []
    for rank, (host, udp_port) in enumerate(zip(epoch.hosts, epoch.udp_ports, strict=True)):
        switch = record.switch(epoch.place(rank)[0])
        own = record.host(host)
        found.append(
            Membership(
                job=epoch.number,
                rank=rank,
                n=len(epoch.hosts),
                switch_ip=switch.ip,
                switch_mac=switch.mac,
                own_ip=own.ip,
                own_mac=own.mac,
                own_port=udp_port,
                window=epoch.window,
                lead=epoch.lead,
                epoch=epoch.epoch,
                elements=record.elements,
                g0=g0,
                t0=t0,
            )
        )
    return found
