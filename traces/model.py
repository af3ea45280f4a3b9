# SPDX-License-Identifier: Apache-2.0
"""What became of each packet, by a model of the slots (docs/protocol.md) that sees what was captured.

It stands beside the captures, in front of the switches: what a fault table drops after the capture it takes
for received. Where a result that must have followed is not there, it says `?` instead of guessing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from ipaddress import IPv4Address
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.constants import SIZE_CODES

from .members import Epoch
from .table import Category, Direction, Problem, Source, Table, UdpChecksum


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
    """On its way: on a link that is not its switch's, or at the other end of one that is."""


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

    __slots__ = ("covered", "got", "got_far", "mine", "name", "pool", "seat", "sent", "sent_far")

    def __init__(self, seat: _Seat | None, pool: dict[int, _Slot]) -> None:
        self.seat, self.pool = seat, pool
        self.mine = 0 if seat is None else 1 << seat.bit
        self.name = 0 if seat is None else seat.name + 1 << 17
        """As it is told."""
        self.covered = False
        """Whether all its switch's members' links are captured."""
        self.sent: dict[int, int] = {}
        self.got: dict[int, int] = {}
        self.sent_far: dict[int, int] = {}
        """The same at the far end of the link, where both were captured."""
        self.got_far: dict[int, int] = {}


# A packet is told in one number, which is quick to collect: verdict, reason << 8, _AGAIN, member + 1 << 17.
_AGAIN = 1 << 16
_UNKNOWN, _ABSORBED, _COMPLETED = int(Verdict.UNKNOWN), int(Verdict.ABSORBED), int(Verdict.COMPLETED)
_DUPLICATE, _REPLAYED, _STALE = int(Verdict.DUPLICATE), int(Verdict.REPLAYED), int(Verdict.STALE)
_PARTIAL_AGAIN = int(Verdict.PARTIAL_AGAIN)
_RESULT, _RESULT_AGAIN = int(Verdict.RESULT), int(Verdict.RESULT_AGAIN)


class Model:
    """Judges packets in the order of time; it remembers members and slots, not packets.

    `links` are those known to be captured: where some of a switch's are not, it cannot tell what is absorbed.
    `ends` are link ends that are: where a link has both, packets are judged at that of who got a contribution
    or sent a result, and at the other it is told of members what they sent again, and which results they got.
    """

    def __init__(
        self, epochs: Sequence[Epoch], links: Iterable[str] = (), ends: Iterable[Source] = ()
    ) -> None:
        self.names: list[tuple[str, int]] = []
        """Members: host and rank; a leaf's name and -1."""
        captured = {(end.link, end.node) for end in ends}
        self.links = {*links, *(link for link, _ in captured)}
        self._both = {link for link, n in Counter(link for link, node in captured if node).items() if n > 1}
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
        self.links.update(source.link for source in table.sources)
        for flow in self._flows.values():
            flow.covered = flow.seat is not None and flow.seat.links <= self.links
        ours = (table.category == Category.CONTRIBUTION) | (table.category == Category.RESULT)
        passing = ours & self._passing(table)
        verdict[passing] = Verdict.PASSING
        rows = np.flatnonzero(ours & ~passing)
        wrong = table.udp_checksum == UdpChecksum.WRONG
        place = table.slot.astype(np.int32) << 1 | table.version
        columns = (
            *(table.category, table.job, table.src_ip, table.src_port, table.dst_ip, table.dst_port),
            *(table.chunk, place, table.size, wrong, table.time, table.file, self._far(table)),
        )
        links = [source.link for source in table.sources]
        flows, up, found = self._flows, int(Category.CONTRIBUTION), []
        for kind, job, src, src_port, dst, dst_port, chunk, at, size, bad, time, file, far in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            if kind == up:
                flow = flows.get((job, dst, src, src_port)) or self._stranger(job, dst, src, src_port)
                if far:
                    found.append(_sent(flow, chunk, at))
                else:
                    found.append(self._up(flow, job, dst, chunk, at, size, bad, time, links[file]))
            else:
                flow = flows.get((job, src, dst, dst_port)) or self._stranger(job, src, dst, dst_port)
                found.append(_got(flow, flow.got_far if far else flow.got, chunk, at, bad))
        told = np.array(found, np.int64)
        verdict[rows], reason[rows] = told & 0xFF, told >> 8 & 0xFF
        again[rows], member[rows] = told & _AGAIN != 0, (told >> 17) - 1
        return Judged(verdict, reason, again, member)

    def _passing(self, table: Table) -> NDArray[np.bool_]:
        """Say which packets are on a link that is not their switch's: they pass to another."""
        found = np.zeros(len(table), bool)
        switch = np.where(table.category == Category.CONTRIBUTION, table.dst_ip, table.src_ip)
        for index, source in enumerate(table.sources):
            nodes = source.link.split("-")
            others = [ip for ip, name in self.switches.items() if name not in nodes]
            if source.node and others:
                found |= (table.file == index) & np.isin(switch, others)
        return found

    def _far(self, table: Table) -> NDArray[np.bool_]:
        """Say which packets are at the end of who sent a contribution or got a result, and seen at both."""
        both = np.array([source.link in self._both for source in table.sources], np.bool_)
        here = both[table.file] if len(both) else np.zeros(len(table), np.bool_)
        of_sender = np.where(table.category == Category.CONTRIBUTION, Direction.DOWN, Direction.UP)
        found: NDArray[np.bool_] = here & (table.direction == of_sender)
        return found

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
    ) -> int:
        """Return what is told of a packet to a switch."""
        seat, name = flow.seat, flow.name
        if wrong:
            return _refused(Reason.CHECKSUM) | name
        if flow.sent.get(place) == chunk:
            name |= _AGAIN
        flow.sent[place] = chunk
        if seat is None:
            known = job in self.job_names and switch in self.switches
            return name | (_refused(Reason.NOT_ADMITTED) if known else _UNKNOWN)
        if time >= seat.over:
            return _refused(Reason.OLD_EPOCH) | name
        if link != seat.link and seat.link in self.links:
            return _refused(Reason.NOT_ADMITTED) | name
        if place >> 1 >= seat.window:
            return _refused(Reason.BEYOND_POOL) | name
        if seat.size != size:
            return _refused(Reason.WRONG_SIZE) | name
        return _slot(flow, seat, place, chunk) | name


def _sent(flow: _Flow, chunk: int, place: int) -> int:
    """Return what is told of a contribution at the far end of its link."""
    again = _AGAIN if flow.sent_far.get(place) == chunk else 0
    flow.sent_far[place] = chunk
    return int(Verdict.PASSING) | again | flow.name


def _got(flow: _Flow, known: dict[int, int], chunk: int, place: int, wrong: bool) -> int:
    """Return what is told of a packet from a switch; `known` are the results that were seen at this end."""
    slot = flow.pool.get(place)
    if slot is not None and slot.tag == chunk:
        slot.answered = True
    if wrong:
        return _refused(Reason.CHECKSUM) | flow.name
    again = known.get(place) == chunk
    known[place] = chunk
    return (_RESULT_AGAIN if again else _RESULT) | flow.name


def _refused(reason: Reason) -> int:
    return Verdict.REFUSED | reason << 8


def _slot(flow: _Flow, seat: _Seat, place: int, chunk: int) -> int:
    """Return the verdict of an admitted contribution, and let its slot take it in."""
    slot, epoch = flow.pool.get(place), seat.epoch
    if slot is None or epoch != slot.epoch or chunk != slot.tag:
        newer = slot is None or epoch > slot.epoch
        if not newer and slot is not None and epoch == slot.epoch:
            newer = (chunk - slot.tag & 0xFFFFFFFF) < _HALF  # RFC 1982
        if not newer:
            return _STALE
        first = (chunk - seat.g0 & 0xFFFFFFFF) < 2 * seat.window
        known = slot is not None and slot.epoch == epoch
        flow.pool[place] = slot = _Slot(epoch, chunk, first or known)
    repeated, slot.seen = slot.seen & flow.mine, slot.seen | flow.mine
    if slot.answered:
        return _REPLAYED
    if not slot.sure or not flow.covered:
        return _UNKNOWN
    if not repeated:
        return _COMPLETED if slot.seen == seat.full else _ABSORBED
    if slot.seen != seat.full:
        return _DUPLICATE
    # All have contributed, as far as was captured, and no result has been seen: at a leaf it may be on its
    # way, elsewhere something was lost after the capture.
    return _PARTIAL_AGAIN if seat.leaf else _UNKNOWN
