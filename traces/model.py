# SPDX-License-Identifier: Apache-2.0
"""What became of each packet, by a model of the slots (docs/protocol.md) that sees what was captured.

It stands beside the captures, in front of the switches: what a fault table drops after the capture it takes
for received. Where a result that must have followed is not there, it says `?` instead of guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from ipaddress import IPv4Address
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.constants import SIZE_CODES

from .members import Epoch
from .table import Category, Problem, Table, UdpChecksum


class Verdict(IntEnum):
    """What became of a packet."""

    NOT_OURS = 0
    UNKNOWN = 1
    """The memberships are missing, or what was captured does not tell."""
    ABSORBED = 2
    COMPLETED = 3
    """The last missing contribution: the result, or a leaf's partial, follows."""
    DUPLICATE = 4
    """It had contributed, and others are missing."""
    REPLAYED = 5
    """The slot was done: the stored result went to this worker alone."""
    PARTIAL_AGAIN = 6
    """At a leaf: it had contributed, as all; the partial goes up once more."""
    STALE = 7
    """The slot has moved on to a newer chunk."""
    REFUSED = 8
    """With a reason, see Reason."""
    RESULT = 9
    """A first result of its chunk to this receiver."""
    RESULT_AGAIN = 10
    PASSING = 11
    """On a link that is not its switch's: on its way between the two."""


class Reason(IntEnum):
    """Why a switch refuses a packet. Those of malformed packets are Problem's."""

    NONE = 0
    CHECKSUM = 32
    NOT_ADMITTED = 33
    """No member of the job's present epoch has this address and port, on this link."""
    OLD_EPOCH = 34
    """Its port is of an epoch that is over."""
    BEYOND_POOL = 35
    WRONG_SIZE = 36


WORDS: dict[int, str] = {
    Verdict.NOT_OURS: "",
    Verdict.UNKNOWN: "?",
    **{verdict: verdict.name.lower().replace("_", " ") for verdict in Verdict if verdict > 1},
}
REASONS: dict[int, str] = {
    Reason.CHECKSUM: "UDP checksum",
    Reason.NOT_ADMITTED: "not admitted",
    Reason.OLD_EPOCH: "old epoch's port",
    Reason.BEYOND_POOL: "slot beyond the pool",
    Reason.WRONG_SIZE: "size of another network",
    **{problem: problem.name.lower().replace("_", " ") for problem in Problem if problem},
}


class Judged(NamedTuple):
    """A table's verdicts, a row each."""

    verdict: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    """Of those refused: Reason, or Problem."""
    again: NDArray[np.bool_]
    """Contributions whose sender had sent the same chunk before: retransmissions."""
    member: NDArray[np.int16]
    """Index into `Model.names`, -1 where it is not known who sent (a result: is to get) the packet."""


class _Seat(NamedTuple):
    """A member's place at its switch in one epoch."""

    epoch: int
    bit: int
    full: int
    window: int
    size: int
    """The size field of its packets."""
    g0: int
    leaf: bool
    """Whether its switch is a leaf, and completed sums go up."""
    link: str
    links: frozenset[str]
    """Of all members at its switch."""
    name: int
    over: int
    """When the job's next epoch began, in ns; far off where there is none."""


_NEVER = 1 << 63
_MOST_STRANGERS = 1 << 8
_HALF = 1 << 31


class _Slot:
    """One version of a slot at a switch; `sure` where its life is known from its beginning."""

    __slots__ = ("answered", "epoch", "seen", "sure", "tag")

    def __init__(self, epoch: int, tag: int, sure: bool) -> None:
        self.epoch, self.tag, self.sure = epoch, tag, sure
        self.seen = 0
        self.answered = False


class _Flow:
    """What is remembered of a member in one epoch, or of a stranger: the last chunks by slot and version."""

    __slots__ = ("got", "pool", "seat", "sent")

    def __init__(self, seat: _Seat | None, pool: dict[int, _Slot]) -> None:
        self.seat, self.pool = seat, pool
        self.sent: dict[int, int] = {}
        self.got: dict[int, int] = {}


Told = tuple[int, int, int, int]
"""Verdict, reason, whether it is a repetition, and the member's index."""


class Model:
    """Judges packets in the order of time; it remembers members and slots, not packets.

    `links` are those known to be captured: where some of a switch's are not, it cannot tell what is absorbed.
    """

    def __init__(self, epochs: Sequence[Epoch], links: Iterable[str] = ()) -> None:
        self.names: list[tuple[str, int]] = []
        """Members: host and rank; a leaf's name and -1."""
        self.links = set(links)
        self.job_names: dict[int, str] = {}
        self.switches: dict[int, str] = {}
        """The switches that are known, by address: ours are packets to and from these."""
        self._flows: dict[tuple[int, int, int, int], _Flow] = {}
        """By job, switch's address, the other's address and port."""
        self._strangers = 0
        self._pools: dict[tuple[int, int], dict[int, _Slot]] = {}
        """By job and switch's address; in each by slot << 1 | version."""
        self.learn(epochs)

    def learn(self, epochs: Sequence[Epoch]) -> None:
        """Take in epochs, all that are known, oldest first."""
        for index, epoch in enumerate(epochs):
            self.job_names[epoch.job] = epoch.job_name
            later = [other.began for other in epochs[index + 1 :] if other.job == epoch.job]
            ended = [] if later or epoch.ended is None else [epoch.ended]
            self._add(epoch, min([*later, *ended], default=_NEVER))

    def _add(self, epoch: Epoch, over: int) -> None:
        places = {place.name: place for place in epoch.switches}
        self.switches.update((int(IPv4Address(place.ip)), place.name) for place in epoch.switches)
        full: dict[str, int] = {}
        links: dict[str, set[str]] = {}
        for member in epoch.members:
            full[member.switch] = full.get(member.switch, 0) | 1 << member.bit
            links.setdefault(member.switch, set()).add(member.link)
        for member in epoch.members:
            if member.switch not in places:
                continue
            place = places[member.switch]
            who = (member.host, member.rank)
            if who not in self.names:
                self.names.append(who)
            key = (epoch.job, int(IPv4Address(place.ip)), int(IPv4Address(member.ip)), member.udp_port)
            seat = _Seat(
                epoch=epoch.epoch,
                bit=member.bit,
                full=full[member.switch],
                window=epoch.window,
                size=SIZE_CODES[epoch.elements],
                g0=epoch.g0,
                leaf=place.parent is not None,
                link=member.link,
                links=frozenset(links[member.switch]),
                name=self.names.index(who),
                over=over,
            )
            flow = self._flows.get(key)
            if flow is None or flow.seat is None:
                pool = self._pools.setdefault(key[:2], {})
                self._flows[key] = _Flow(seat, pool)
            else:
                flow.seat = seat

    def judge(self, table: Table) -> Judged:
        """Return the verdicts of the next packets, in the order of time."""
        count = len(table)
        verdict, reason = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
        again, member = np.zeros(count, bool), np.full(count, -1, np.int16)
        malformed = table.category == Category.MALFORMED
        verdict[malformed] = Verdict.REFUSED
        reason[malformed] = table.problem[malformed]
        links = [source.link for source in table.sources]
        self.links.update(links)
        rows = np.flatnonzero((table.category == Category.CONTRIBUTION) | (table.category == Category.RESULT))
        wrong = table.udp_checksum == UdpChecksum.WRONG
        place = table.slot.astype(np.int32) << 1 | table.version
        columns = (
            *(table.category, table.job, table.src_ip, table.src_port, table.dst_ip, table.dst_port),
            *(table.chunk, place, table.size, wrong, table.time, table.file),
        )
        # A link that is named by its ends carries what passes to other switches, too.
        ends = [frozenset(source.link.split("-")) if source.node else None for source in table.sources]
        flows, up = self._flows, int(Category.CONTRIBUTION)
        found: list[Told] = []
        for kind, job, src, src_port, dst, dst_port, chunk, at, size, bad, time, file in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            nodes = ends[file]
            if nodes is not None and self.switches.get(dst if kind == up else src, "") not in (*nodes, ""):
                told: Told = (Verdict.PASSING, 0, 0, -1)
            elif kind == up:
                flow = flows.get((job, dst, src, src_port)) or self._stranger(job, dst, src, src_port)
                told = self._up(flow, job, dst, chunk, at, size, bad, time, links[file])
            else:
                flow = flows.get((job, src, dst, dst_port)) or self._stranger(job, src, dst, dst_port)
                told = self._down(flow, chunk, at, bad)
            found.append(told)
        if found:
            verdict[rows], reason[rows], again[rows], member[rows] = np.array(found, np.int16).T
        return Judged(verdict, reason, again, member)

    def _stranger(self, job: int, switch: int, ip: int, port: int) -> _Flow:
        """Return what is remembered of who is no member; forged packets must not fill the memory."""
        if self._strangers >= _MOST_STRANGERS:
            for key in [key for key, flow in self._flows.items() if flow.seat is None]:
                del self._flows[key]
            self._strangers = 0
        self._strangers += 1
        pool = self._pools.get((job, switch), {})
        flow = self._flows[job, switch, ip, port] = _Flow(None, pool)
        return flow

    def _up(
        self,
        flow: _Flow,
        job: int,
        switch: int,
        chunk: int,
        place: int,
        size: int,
        wrong: bool,
        time: int,
        link: str,
    ) -> Told:
        """Return verdict, reason, again and member of a packet to a switch."""
        seat = flow.seat
        name = -1 if seat is None else seat.name
        if wrong:
            return Verdict.REFUSED, Reason.CHECKSUM, 0, name
        again = int(flow.sent.get(place) == chunk)
        flow.sent[place] = chunk
        if seat is None:
            if job in self.job_names and switch in self.switches:
                return Verdict.REFUSED, Reason.NOT_ADMITTED, again, -1
            return Verdict.UNKNOWN, 0, again, -1
        if time >= seat.over:
            return Verdict.REFUSED, Reason.OLD_EPOCH, again, name
        if link != seat.link and seat.link in self.links:
            return Verdict.REFUSED, Reason.NOT_ADMITTED, again, name
        if place >> 1 >= seat.window:
            return Verdict.REFUSED, Reason.BEYOND_POOL, again, name
        if seat.size != size:
            return Verdict.REFUSED, Reason.WRONG_SIZE, again, name
        return self._slot(seat, flow.pool, place, chunk), 0, again, name

    def _slot(self, seat: _Seat, pool: dict[int, _Slot], place: int, chunk: int) -> int:
        """Return the verdict of an admitted contribution, and let its slot take it in."""
        slot = pool.get(place)
        if (
            slot is None
            or seat.epoch > slot.epoch
            or (seat.epoch == slot.epoch and 0 < (chunk - slot.tag & 0xFFFFFFFF) < _HALF)
        ):
            first = (chunk - seat.g0 & 0xFFFFFFFF) < 2 * seat.window
            known = slot is not None and slot.epoch == seat.epoch
            pool[place] = slot = _Slot(seat.epoch, chunk, first or known)
        elif seat.epoch < slot.epoch or chunk != slot.tag:
            return Verdict.STALE
        mine = 1 << seat.bit
        repeated, slot.seen = slot.seen & mine, slot.seen | mine
        if slot.answered:
            return Verdict.REPLAYED
        if not slot.sure or not seat.links <= self.links:
            return Verdict.UNKNOWN
        if not repeated:
            return Verdict.COMPLETED if slot.seen == seat.full else Verdict.ABSORBED
        if slot.seen != seat.full:
            return Verdict.DUPLICATE
        # All have contributed, as far as was captured, and no result has been seen: at a leaf it may be on
        # its way, elsewhere something was lost after the capture.
        return Verdict.PARTIAL_AGAIN if seat.leaf else Verdict.UNKNOWN

    def _down(self, flow: _Flow, chunk: int, place: int, wrong: bool) -> Told:
        """Return the same of a packet from a switch."""
        name = -1 if flow.seat is None else flow.seat.name
        slot = flow.pool.get(place)
        if slot is not None and slot.tag == chunk:
            slot.answered = True
        if wrong:
            return Verdict.REFUSED, Reason.CHECKSUM, 0, name
        again = flow.got.get(place) == chunk
        flow.got[place] = chunk
        return Verdict.RESULT_AGAIN if again else Verdict.RESULT, 0, 0, name
