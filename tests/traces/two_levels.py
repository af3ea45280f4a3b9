# SPDX-License-Identifier: Apache-2.0
"""A world of racks, leaf switches below a root, in plain Python; captured at both ends of every link."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.reference.slot_switch import FIRST_JOB_PORT, Entry, Receiver, Slot, SlotSwitch, newer, ones_sum
from tests.traces.captures import START, Capture, Captured
from tests.traces.worlds import CapturedWorld
from tests.worker.world import ELEMENTS, Ports
from traces.members import Epoch, Member, SwitchPlace
from wire.membership import Membership
from wire.verdicts import Verdict

UPLINK = 64
ROOT_IP, ROOT_MAC = "10.0.255.1", "02:01:0a:00:ff:01"
Out = tuple[Verdict, list[tuple[int, bytes]]]


class LeafSwitch(SlotSwitch):
    """A switch whose sums go up as contributions to its parent, and whose results come from there."""

    def __init__(self, elements: int, ip: str, mac: str) -> None:
        super().__init__(elements, ip, mac)
        self.parents: dict[tuple[int, bytes, int, int], Entry] = {}
        self.own_port = 0

    def handle(self, port: int, frame: bytes) -> Out:
        source, destination = struct.unpack(">2H", frame[34:38])
        entry = self.parents.get((port, frame[26:30], source, destination))
        if entry is None:
            return super().handle(port, frame)
        pseudo = frame[26:34] + struct.pack(">BBH", 0, 17, len(frame) - 34)
        if ones_sum(pseudo + frame[34:]) != 0xFFFF:
            return Verdict.BAD_UDP_CHECKSUM, []
        tag, place, e0, e1 = struct.unpack(">IHbb", frame[44:52])
        slot = self.slots.get((place & 0x7FFF, place >> 15), Slot())
        if (slot.epoch, slot.tag, slot.seen, slot.done) != (entry.epoch, tag, entry.full, False):
            return Verdict.RESULT_UNEXPECTED, []
        slot.done, slot.e0, slot.e1 = True, e0, e1
        slot.values = list(struct.unpack(f">{self.elements}i", frame[52:]))
        results = [self._result(slot, frame, receiver, source) for receiver in entry.receivers]
        return Verdict.RESULT_STORED, results

    def _contribute(self, entry: Entry, frame: bytes, job_port: int) -> Out:
        tag, place, e0, e1 = struct.unpack(">IHbb", frame[44:52])
        values = struct.unpack(f">{self.elements}i", frame[52:])
        slot = self.slots.setdefault((place & 0x7FFF, place >> 15), Slot())
        if entry.epoch < slot.epoch:
            return Verdict.OLD_EPOCH, []
        if entry.epoch > slot.epoch or newer(tag, slot.tag):
            slot.epoch, slot.tag, slot.seen, slot.done = entry.epoch, tag, 0, False
        elif tag != slot.tag:
            return Verdict.STALE, []
        if slot.done:
            me = entry.receivers[entry.bit.bit_length() - 1]
            return Verdict.REPLAYED, [self._result(slot, frame, me, job_port)]
        if slot.seen & entry.bit:
            if slot.seen != entry.full:
                return Verdict.DUPLICATE, []
            return Verdict.PARTIAL_RESENT, [self._partial(slot, frame, job_port)]
        if slot.seen:
            slot.values = [(a + b + 2**31) % 2**32 - 2**31 for a, b in zip(slot.values, values, strict=True)]
            slot.e0, slot.e1 = max(slot.e0, e0), max(slot.e1, e1)
        else:
            slot.values, slot.e0, slot.e1 = list(values), e0, e1
        slot.seen |= entry.bit
        if slot.seen != entry.full:
            return Verdict.ABSORBED, []
        return Verdict.PARTIAL_SENT, [self._partial(slot, frame, job_port)]

    def _partial(self, slot: Slot, answered: bytes, job_port: int) -> tuple[int, bytes]:
        parent = Receiver(UPLINK, _mac(ROOT_MAC), _ip(ROOT_IP), 0)
        _, frame = self._result(slot, answered, parent, 0)
        payload = bytes([1 << 4 | answered[42] & 0x0F]) + frame[43:]
        udp = struct.pack(">4H", self.own_port, job_port, 8 + len(payload), 0)
        pseudo = frame[26:34] + struct.pack(">BBH", 0, 17, 8 + len(payload))
        checksum = ones_sum(pseudo + udp + payload) ^ 0xFFFF or 0xFFFF
        return UPLINK, frame[:34] + udp[:6] + struct.pack(">H", checksum) + payload


def _ip(text: str) -> bytes:
    return bytes(map(int, text.split(".")))


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


class TwoLevels(CapturedWorld):
    """`racks` leaves s2, s3 … of `per` workers each, below s1."""

    def __init__(
        self,
        seed: int,
        *,
        racks: int,
        per: int,
        loss: float,
        duplicate: float,
        double: float,
        corrupt: float = 0.0,
    ) -> None:
        self.random, self.now, self.steps, self.widest, self.calls = random.Random(seed), 0.0, 0, 0, 0
        self.loss, self.duplicate, self.double, self.corrupt = loss, duplicate, double, corrupt
        self.racks, self.per = racks, per
        self.ports, self.kernels, self.job = Ports(), None, 3
        self.up, self.down = [], []
        self.above: list[tuple[int, bytes]] = []
        """Partials under way: rack and frame."""
        self.below: list[tuple[int, bytes]] = []
        """Results of the root under way."""
        self.ranks, self.late, self.capture, self._stamps = [], [], Capture(), 0
        self.epoch = 100
        self.root = SlotSwitch(ELEMENTS, ROOT_IP, ROOT_MAC)
        self.leaves = [
            LeafSwitch(ELEMENTS, f"10.0.254.{k + 1}", f"02:01:0a:00:fe:0{k + 1}") for k in range(racks)
        ]
        self.jobs = self  # type: ignore[assignment]

    def add_job(self, job: int, places: Any, window: int, lead: int, *, g0: int, t0: int) -> list[Membership]:
        return self.new_epoch(job, places, g0=g0, t0=t0, window=window)

    def new_epoch(self, job: int, places: Any, *, g0: int, t0: int, window: int) -> list[Membership]:
        self.epoch += 1
        members = [
            Membership(
                job=job,
                rank=rank,
                n=self.racks * self.per,
                switch_ip=f"10.0.254.{rank // self.per + 1}",
                switch_mac=f"02:01:0a:00:fe:0{rank // self.per + 1}",
                own_ip=place.ip,
                own_mac=place.mac,
                own_port=place.udp_port,
                window=window,
                lead=1,
                epoch=self.epoch,
                elements=ELEMENTS,
                g0=g0,
                t0=t0,
            )
            for rank, place in enumerate(places)
        ]
        uplinks = [
            Receiver(k + 1, leaf.mac, leaf.ip, self.ports.take()) for k, leaf in enumerate(self.leaves)
        ]
        self._admit(self.root, uplinks, FIRST_JOB_PORT + job, window)
        for k, (leaf, uplink) in enumerate(zip(self.leaves, uplinks, strict=True)):
            mine = members[k * self.per : (k + 1) * self.per]
            seats = [Receiver(i + 1, _mac(m.own_mac), _ip(m.own_ip), m.own_port) for i, m in enumerate(mine)]
            self._admit(leaf, seats, FIRST_JOB_PORT + job, window)
            entry = Entry(0, (1 << self.per) - 1, 0, window, self.epoch, tuple(seats))
            leaf.parents = {(UPLINK, _ip(ROOT_IP), FIRST_JOB_PORT + job, uplink.udp_port): entry}
            leaf.own_port = uplink.udp_port
        self.capture.epochs.append(self._told(members, uplinks))
        return members

    def _admit(self, switch: SlotSwitch, seats: list[Receiver], job_port: int, window: int) -> None:
        full = (1 << len(seats)) - 1
        switch.admission = {
            (seat.port, seat.ip, seat.udp_port, job_port): Entry(
                1 << bit, full, 0, window, self.epoch, tuple(seats)
            )
            for bit, seat in enumerate(seats)
        }

    def _told(self, members: list[Membership], uplinks: list[Receiver]) -> Epoch:
        m = members[0]
        leaves = [(f"s{k + 2}", f"10.0.254.{k + 1}") for k in range(self.racks)]
        workers = [
            Member(
                each.rank,
                f"h{each.rank + 1}",
                each.own_ip,
                each.own_port,
                each.rank % self.per,
                leaves[each.rank // self.per][0],
                f"h{each.rank + 1}-{leaves[each.rank // self.per][0]}",
            )
            for each in members
        ]
        return Epoch(
            job=m.job,
            job_name="job",
            epoch=m.epoch,
            window=m.window,
            lead=m.lead,
            elements=m.elements,
            n=m.n,
            g0=m.g0,
            t0=m.t0,
            switches=(SwitchPlace("s1", ROOT_IP), *(SwitchPlace(name, ip, "s1") for name, ip in leaves)),
            members=(
                *workers,
                *(
                    Member(-1, name, ip, uplink.udp_port, k, "s1", f"s1-{name}")
                    for k, ((name, ip), uplink) in enumerate(zip(leaves, uplinks, strict=True))
                ),
            ),
            began=START + self.stamp(),
        )

    # ---- links: of a list, the ends of its sender and its receiver
    def _ends(self, link: list[Any], port: int) -> tuple[str, str]:
        if link is self.up or link is self.down:
            leaf, host = f"s{(port - 1) // self.per + 2}", f"h{port}"
            low, high = f"{host}-{leaf}", f"{leaf}-{host}"
        else:
            low, high = f"s{port + 2}-s1", f"s1-s{port + 2}"
        return (low, high) if link is self.up or link is self.above else (high, low)

    def see(self, end: str, frame: bytes, way: int = 0) -> None:
        self.capture.packets.append(Captured(end, self.stamp(), frame, way))

    def put(self, link: list[Any], frame: tuple[int, bytes]) -> None:
        port, data = frame
        upwards = link is self.up or link is self.above
        repeated = self.random.random() < (self.duplicate if upwards else self.double)
        for _ in range(2 if repeated else 1):
            self.see(self._ends(link, port)[0], data, 2)
            if self.random.random() >= self.loss:
                spoilt = bytearray(data)
                if self.random.random() < self.corrupt:
                    spoilt[self.random.randrange(52, len(data))] ^= 1 << self.random.randrange(8)
                link.append((port, bytes(spoilt)))

    def take(self, link: list[Any]) -> Any:
        at = self.random.randrange(len(link))
        link[at], link[-1] = link[-1], link[at]
        taken = link.pop()
        if any(link is each for each in (self.up, self.down, self.above, self.below)):
            self.see(self._ends(link, taken[0])[1], taken[1], 1)
        return taken

    def step(self) -> None:
        self.steps += 1
        assert self.steps < 100_000, "stuck"
        self.now += 0.002
        draw = self.random.random()
        if draw < 0.3 and self.up:
            port, frame = self.take(self.up)
            rack = (port - 1) // self.per
            self._out_of_leaf(rack, self.leaves[rack].process([((port - 1) % self.per + 1, frame)]))
        elif draw < 0.45 and self.above:
            rack, frame = self.take(self.above)
            for port, out in self.root.process([(rack + 1, frame)]):
                self.put(self.below, (port - 1, out))
        elif draw < 0.6 and self.below:
            rack, frame = self.take(self.below)
            self._out_of_leaf(rack, self.leaves[rack].process([(UPLINK, frame)]))
        elif draw < 0.85 and self.down:
            port, frame = self.take(self.down)
            self.ranks[port - 1].arrive(frame)
        else:
            self.act(self.random.choice(self.ranks))

    def _out_of_leaf(self, rack: int, frames: list[tuple[int, bytes]]) -> None:
        for port, frame in frames:
            if port == UPLINK:
                self.put(self.above, (rack, frame))
            else:
                self.put(self.down, (rack * self.per + port, frame))
