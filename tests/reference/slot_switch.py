# SPDX-License-Identifier: Apache-2.0
"""A root switch in plain Python, to compare others with: docs/protocol.md's slot state machine word by word.

Independent of the packet code in `wire` (only the verdicts' names are shared), one packet at a time.
Aggregation only: there are no routes, no ARP and no ping, and every port leads to a host.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from wire.membership import Membership
from wire.verdicts import Verdict

TTL = 64
SIZE_OF = {64: 1, 256: 3}
FIRST_JOB_PORT, LAST_JOB_PORT = 0xBE00, 0xBEFF


@dataclass(frozen=True)
class Receiver:
    """Where a result for one worker goes."""

    port: int
    mac: bytes
    ip: bytes
    udp_port: int


@dataclass(frozen=True)
class Entry:
    """What the admission table says of one worker."""

    bit: int
    full: int
    base: int
    window: int
    epoch: int
    receivers: tuple[Receiver, ...]


@dataclass
class Slot:
    """The registers of one (slot, version)."""

    epoch: int = 0
    tag: int = 0
    seen: int = 0
    done: bool = False
    e0: int = 0
    e1: int = 0
    values: list[int] = field(default_factory=list)


def newer(a: int, b: int) -> bool:
    """Return whether serial number a comes after b (RFC 1982, 32 bits)."""
    return 0 < ((a - b) & 0xFFFFFFFF) < 0x80000000


def ones_sum(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit words (RFC 1071), padded with a zero byte."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class SlotSwitch:
    """The model. `process` is the callable that in-memory workers use; `handle` also tells the verdict."""

    def __init__(self, elements: int, ip: str, mac: str) -> None:
        self.elements = elements
        self.ip = bytes(map(int, ip.split(".")))
        self.mac = bytes.fromhex(mac.replace(":", ""))
        self.admission: dict[tuple[int, bytes, int, int], Entry] = {}
        self.slots: dict[tuple[int, int], Slot] = {}
        self.counts: Counter[tuple[int, Verdict]] = Counter()

    def add_job(self, memberships: Sequence[Membership], ports: Sequence[int], base: int = 0) -> None:
        """Admit the ranks of a job, rank r at switch port ports[r] worker bit r, pool from slot `base`."""
        receivers = tuple(
            Receiver(
                port,
                bytes.fromhex(m.own_mac.replace(":", "")),
                bytes(map(int, m.own_ip.split("."))),
                m.own_port,
            )
            for m, port in zip(memberships, ports, strict=True)
        )
        full = (1 << len(memberships)) - 1
        for m, receiver in zip(memberships, receivers, strict=True):
            key = (receiver.port, receiver.ip, receiver.udp_port, FIRST_JOB_PORT + m.job)
            self.admission[key] = Entry(1 << m.rank, full, base, m.window, m.epoch, receivers)

    def remove_job(self, job: int) -> None:
        """Withdraw a job's entries; its slots keep what they hold, as registers do."""
        self.admission = {key: e for key, e in self.admission.items() if key[3] != FIRST_JOB_PORT + job}

    def process(self, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Run frames (port, bytes) in order; return the frames sent, in order."""
        return [out for port, frame in frames for out in self.handle(port, frame)[1]]

    def handle(self, port: int, frame: bytes) -> tuple[Verdict, list[tuple[int, bytes]]]:
        """Run one frame; return its verdict and what the switch sends."""
        verdict, out = self._refuse_or_run(port, frame)
        self.counts[port, verdict] += 1
        return verdict, out

    def _refuse_or_run(self, port: int, frame: bytes) -> tuple[Verdict, list[tuple[int, bytes]]]:
        if frame[12:14] != b"\x08\x00":
            return Verdict.NOT_IPV4, []
        ip, udp = frame[14:34], frame[34:42]
        header = 4 * (ip[0] & 15) if len(ip) == 20 else 0
        if header < 20 or ip[0] >> 4 != 4 or len(frame) < 14 + header:
            return Verdict.MALFORMED, []
        if ones_sum(frame[14 : 14 + header]) != 0xFFFF:
            return Verdict.BAD_IP_CHECKSUM, []
        (ip_length,) = struct.unpack(">H", ip[2:4])
        if 14 + ip_length > len(frame) or ip_length < header:
            return Verdict.MALFORMED, []
        if ip[16:20] != self.ip:
            return Verdict.NO_ROUTE, []
        if header > 20:
            return Verdict.IP_OPTIONS, []
        if struct.unpack(">H", ip[6:8])[0] & 0x3FFF:
            return Verdict.FRAGMENT, []
        if ip[9] != 17 or len(udp) < 8:
            return Verdict.NOT_FOR_SWITCH, []
        source, destination, udp_length, udp_checksum = struct.unpack(">4H", udp)
        job_ports = [FIRST_JOB_PORT <= p <= LAST_JOB_PORT for p in (source, destination)]
        if not any(job_ports):
            return Verdict.NOT_FOR_SWITCH, []
        if all(job_ports):
            return Verdict.TWO_JOB_PORTS, []
        entry = self.admission.get((port, ip[12:16], source, destination))
        if entry is None:
            return Verdict.NOT_ADMITTED, []
        wanted = 52 + 4 * self.elements
        if (len(frame), ip_length, udp_length) != (wanted, wanted - 14, wanted - 34):
            return Verdict.BAD_LENGTH, []
        pseudo = ip[12:20] + struct.pack(">BBH", 0, 17, udp_length)
        if udp_checksum and ones_sum(pseudo + frame[34:]) != 0xFFFF:
            return Verdict.BAD_UDP_CHECKSUM, []
        if frame[42] & 7 != SIZE_OF[self.elements]:
            return Verdict.WRONG_SIZE, []
        if frame[42] >> 4 != 1:
            return Verdict.WRONG_TYPE, []
        (place,) = struct.unpack(">H", frame[48:50])
        if place & 0x7FFF >= entry.window:
            return Verdict.SLOT_BEYOND_POOL, []
        return self._contribute(entry, frame, destination)

    def _contribute(
        self, entry: Entry, frame: bytes, job_port: int
    ) -> tuple[Verdict, list[tuple[int, bytes]]]:
        tag, place, e0, e1 = struct.unpack(">IHbb", frame[44:52])
        values = struct.unpack(f">{self.elements}i", frame[52:])
        slot = self.slots.setdefault((entry.base + (place & 0x7FFF), place >> 15), Slot())
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
            return Verdict.DUPLICATE, []
        if slot.seen:
            slot.values = [(a + b + 2**31) % 2**32 - 2**31 for a, b in zip(slot.values, values, strict=True)]
            slot.e0, slot.e1 = max(slot.e0, e0), max(slot.e1, e1)
        else:
            slot.values, slot.e0, slot.e1 = list(values), e0, e1
        slot.seen |= entry.bit
        if slot.seen != entry.full:
            return Verdict.ABSORBED, []
        slot.done = True
        return Verdict.COMPLETED, [self._result(slot, frame, r, job_port) for r in entry.receivers]

    def _result(self, slot: Slot, answered: bytes, to: Receiver, job_port: int) -> tuple[int, bytes]:
        """Return the stored result as a frame to one worker, with the answered packet's flag and tensor."""
        payload = bytes([2 << 4 | answered[42] & 0x0F]) + answered[43:50]
        payload += struct.pack(f">bb{self.elements}i", slot.e0, slot.e1, *slot.values)
        addresses = self.ip + to.ip
        udp = struct.pack(">4H", job_port, to.udp_port, 8 + len(payload), 0)
        pseudo = addresses + struct.pack(">BBH", 0, 17, 8 + len(payload))
        checksum = ones_sum(pseudo + udp + payload) ^ 0xFFFF or 0xFFFF
        udp = udp[:6] + struct.pack(">H", checksum)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, TTL, 17, 0) + addresses
        ip = ip[:10] + struct.pack(">H", ones_sum(ip) ^ 0xFFFF) + ip[12:]
        return to.port, to.mac + self.mac + b"\x08\x00" + ip + udp + payload
