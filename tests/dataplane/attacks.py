# SPDX-License-Identifier: Apache-2.0
"""What a hostile tenant's host can send: forged, replayed, malformed, oversized and spoofed frames.

The attacker is admitted to a job of its own. Each attack says what verdict it must meet, and where beside the
attacker's port that is counted.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.dataplane.frames import Frame, checksum, ip, mac
from wire.membership import Membership
from wire.verdicts import Verdict

BAD = 0xBAD
"""Every value that the attacker sends."""
BROADCAST = "ff:ff:ff:ff:ff:ff"


@dataclass(frozen=True)
class Scene:
    """Whom the attacker knows of, and what it has captured."""

    attacker: Membership
    """Its place in its own job."""
    former_port: int
    """UDP port of its former life, whose entry nobody has withdrawn."""
    victim: Membership
    """A worker of the job under attack."""
    captured: Frame
    """A contribution of that worker, as it was on the wire."""

    def own(self, **changes: object) -> Frame:
        """The attacker's honest contribution to its own job, with some fields changed."""
        a = self.attacker
        return Frame(
            eth_src=a.own_mac,
            eth_dst=a.switch_mac,
            ip_src=a.own_ip,
            ip_dst=a.switch_ip,
            udp_src=a.own_port,
            udp_dst=a.port,
            values=(BAD,) * a.elements,
        ).but(**changes)

    def result(self, **changes: object) -> Frame:
        """A forged result to the victim, of the chunk that was captured."""
        v = self.victim
        return self.captured.but(
            eth_src=v.switch_mac,
            eth_dst=v.switch_mac,
            ip_src=v.switch_ip,
            ip_dst=v.own_ip,
            udp_src=v.port,
            udp_dst=v.own_port,
            msg_type=2,
            values=(BAD,) * v.elements,
        ).but(**changes)


@dataclass(frozen=True)
class Attack:
    """One frame, and what has to become of it."""

    data: bytes
    verdict: Verdict
    job: int | None = None
    """Job that it is counted for: under no worker, or under the attacker's bit if it was admitted."""
    admitted: bool = False


Maker = Callable[[Scene], Attack]


def ipv4(scene: Scene, target: str, protocol: int, payload: bytes, **changes: object) -> bytes:
    """A frame of the attacker's with any IPv4 payload."""
    told = {"source": scene.attacker.own_ip, "eth_src": scene.attacker.own_mac, "fragment": 0} | changes
    length = min(20 + len(payload), 0xFFFF)
    head = struct.pack("!BBHHHBB", 0x45, 0, length, 77, told["fragment"], 64, protocol)
    addresses = ip(str(told["source"])) + ip(target)
    total = struct.pack("!H", checksum(head + b"\0\0" + addresses))
    ethernet = mac(scene.attacker.switch_mac) + mac(str(told["eth_src"])) + b"\x08\x00"
    return ethernet + head + total + addresses + payload


def echo(size: int) -> bytes:
    """An ICMP echo request with so many bytes behind its header."""
    body = struct.pack("!HH", 1, 1) + b"\xa5" * size
    return struct.pack("!BBH", 8, 0, checksum(b"\x08\0\0\0" + body)) + body


def arp(scene: Scene, *, operation: int, sender_mac: str, sender_ip: str, target_ip: str) -> bytes:
    """An ARP frame from the attacker's MAC."""
    head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
    body = head + mac(sender_mac) + ip(sender_ip) + bytes(6) + ip(target_ip)
    return mac(BROADCAST) + mac(scene.attacker.own_mac) + b"\x08\x06" + body


def _forged(changes: Callable[[Scene], dict[str, object]]) -> Maker:
    """A contribution to the victim's job that must not be admitted."""
    return lambda s: Attack(
        s.captured.but(values=(BAD,) * s.victim.elements, **changes(s)).pack(),
        Verdict.NOT_ADMITTED,
        s.victim.job,
    )


def _wrong(verdict: Verdict, changes: Callable[[Scene], dict[str, object]]) -> Maker:
    """A contribution to its own job with something wrong."""
    return lambda s: Attack(s.own(**changes(s)).pack(), verdict, s.attacker.job, admitted=True)


def _cut(length: int, verdict: Verdict, named: bool, admitted: bool = False) -> Maker:
    return lambda s: Attack(s.own().pack()[:length], verdict, s.attacker.job if named else None, admitted)


def _arp(operation: int, sender_mac: Callable[[Scene], str], sender_ip: Callable[[Scene], str]) -> Maker:
    def make(s: Scene) -> Attack:
        told = {"operation": operation, "sender_mac": sender_mac(s), "sender_ip": sender_ip(s)}
        return Attack(arp(s, **told, target_ip=sender_ip(s)), Verdict.ARP_UNKNOWN)  # type: ignore[arg-type]

    return make


def _ping(payload: bytes, verdict: Verdict, **changes: object) -> Maker:
    return lambda s: Attack(ipv4(s, s.attacker.switch_ip, 1, payload, **changes), verdict)


def icmp_error(kind: int, code: int, word: int, quoted: bytes) -> bytes:
    """An ICMP error about a packet, of which it quotes the IPv4 header and 8 bytes (RFC 792)."""
    rest = struct.pack("!I", word) + quoted[:28]
    return struct.pack("!BBH", kind, code, checksum(struct.pack("!BBH", kind, code, 0) + rest)) + rest


def _error(kind: int, code: int, word: int) -> Maker:
    def make(s: Scene) -> Attack:
        message = icmp_error(kind, code, word, s.captured.pack()[14:])
        return Attack(ipv4(s, s.victim.own_ip, 1, message), Verdict.SPOOFED_SOURCE)

    return make


ATTACKS: dict[str, Maker] = {
    # forged contributions to the victim's job
    "the victim's source address": _forged(lambda s: {"eth_src": s.attacker.own_mac}),
    "the victim's MAC and source address": _forged(lambda s: {}),
    "the victim's UDP port": _forged(lambda s: _addresses(s)),
    "its own address and UDP port": _forged(lambda s: {**_addresses(s), "udp_src": s.attacker.own_port}),
    "the switch's own address": _forged(lambda s: {"ip_src": s.victim.switch_ip}),
    "a newer chunk, to take the slot over": _forged(lambda s: {"chunk": s.captured.chunk + 1000}),
    "no UDP checksum": _forged(lambda s: {"udp_checksum": 0}),
    "a job that nobody has": lambda s: Attack(s.own(udp_dst=0xBEFE).pack(), Verdict.NOT_ADMITTED, 0xFE),
    # replayed
    "a captured contribution": lambda s: Attack(s.captured.pack(), Verdict.NOT_ADMITTED, s.victim.job),
    "a captured result": lambda s: Attack(
        s.result(values=s.captured.values, eth_dst=s.victim.own_mac).pack(), Verdict.SPOOFED_SOURCE
    ),
    # forged results and partials
    "a result to the victim": lambda s: Attack(s.result().pack(), Verdict.SPOOFED_SOURCE),
    "a result from its own MAC": lambda s: Attack(
        s.result(eth_src=s.attacker.own_mac).pack(), Verdict.SPOOFED_SOURCE
    ),
    "a result to the switch, as to a leaf": lambda s: Attack(
        s.result(ip_dst=s.victim.switch_ip, udp_dst=6000).pack(), Verdict.NOT_ADMITTED, s.victim.job
    ),
    "a leaf's partial": lambda s: Attack(
        s.captured.but(ip_src="10.0.255.9", eth_src="02:00:00:00:ff:09", udp_src=6000).pack(),
        Verdict.NOT_ADMITTED,
        s.victim.job,
    ),
    # its own job, beyond what it may
    "the slot behind its pool": _wrong(Verdict.SLOT_BEYOND_POOL, lambda s: {"slot": s.attacker.window}),
    "the last slot number": _wrong(Verdict.SLOT_BEYOND_POOL, lambda s: {"slot": 2**15 - 1}),
    "a slot that would wrap round to the victim's": _wrong(
        Verdict.SLOT_BEYOND_POOL, lambda s: {"slot": 2**15 - s.victim.window, "version": 1}
    ),
    "an old epoch": _wrong(Verdict.OLD_EPOCH, lambda s: {"udp_src": s.former_port}),
    "a result of its own making": _wrong(Verdict.WRONG_TYPE, lambda s: {"msg_type": 2}),
    "no message type": _wrong(Verdict.WRONG_TYPE, lambda s: {"msg_type": 0}),
    "the size of no packet": _wrong(Verdict.WRONG_SIZE, lambda s: {"size": 7}),
    "the size code of another network": _wrong(
        Verdict.WRONG_SIZE, lambda s: {"size": {64: 3, 256: 1}[s.attacker.elements]}
    ),
    "a wrong UDP checksum": _wrong(Verdict.BAD_UDP_CHECKSUM, lambda s: {"udp_checksum": 0x1234}),
    "two job ports, the victim's as source": lambda s: Attack(
        s.own(udp_src=s.victim.port).pack(), Verdict.TWO_JOB_PORTS, s.attacker.job
    ),
    "two job ports, the victim's as destination": lambda s: Attack(
        s.own(udp_src=s.attacker.port, udp_dst=s.victim.port).pack(), Verdict.TWO_JOB_PORTS, s.victim.job
    ),
    # malformed and oversized
    "half an Ethernet type": _cut(13, Verdict.MALFORMED, named=False),
    "half an IPv4 header": _cut(30, Verdict.MALFORMED, named=False),
    "half a UDP header": _cut(38, Verdict.MALFORMED, named=False),
    "a frame that ends within the values": _cut(100, Verdict.MALFORMED, named=True),
    "half the values, lengths that say so": lambda s: Attack(
        s.own(values=(BAD,) * (s.attacker.elements // 2)).pack(), Verdict.BAD_LENGTH, s.attacker.job, True
    ),
    "8,000 bytes behind it": _wrong(Verdict.BAD_LENGTH, lambda s: {"trailer": bytes(8000)}),
    "8,000 values": _wrong(Verdict.BAD_LENGTH, lambda s: {"values": (BAD,) * 2000}),
    "an IPv4 length beyond the frame": lambda s: Attack(
        s.own(ip_length=0xFFFF).pack(), Verdict.MALFORMED, s.attacker.job
    ),
    "a UDP length beyond the frame": _wrong(Verdict.BAD_LENGTH, lambda s: {"udp_length": 0xFFFF}),
    "IPv4 options": lambda s: Attack(
        s.captured.but(options=b"\x01" * 40).pack(), Verdict.IP_OPTIONS, s.victim.job
    ),
    "a first fragment": lambda s: Attack(
        s.captured.but(fragment=0x2000).pack(), Verdict.FRAGMENT, s.victim.job
    ),
    "a broadcast to the job": lambda s: Attack(
        s.captured.but(eth_dst=BROADCAST).pack(), Verdict.NOT_FOR_SWITCH, s.victim.job
    ),
    # ARP
    "an ARP answer for the victim": _arp(2, lambda s: s.attacker.own_mac, lambda s: s.victim.own_ip),
    "an ARP answer for the switch": _arp(2, lambda s: s.attacker.own_mac, lambda s: s.attacker.switch_ip),
    "an ARP question with another's MAC": _arp(1, lambda s: s.victim.own_mac, lambda s: s.victim.own_ip),
    # ping
    "a ping from the victim's address": lambda s: Attack(
        ipv4(s, s.attacker.switch_ip, 1, echo(56), source=s.victim.own_ip), Verdict.SPOOFED_SOURCE
    ),
    "the last fragment of a ping beyond 65,535 bytes": _ping(
        b"\xa5" * 1000, Verdict.FRAGMENT, fragment=0x1FFF
    ),
    "a first fragment of a ping": _ping(echo(1472), Verdict.FRAGMENT, fragment=0x2000),
    **{
        f"an ICMP error {kind}, {code} about the victim's packets": _error(kind, code, word)
        for kind, code, word in (
            (3, 2, 0),
            (3, 4, 552),
            (4, 0, 0),
            (5, 1, 0x0A000005),
            (11, 0, 0),
            (12, 0, 0),
        )
    },
    "an ICMP error that quotes nothing": _ping(b"\x03\x02\xfc\xfd\0\0\0\0", Verdict.MALFORMED),
    "an ICMP header that is cut off": _ping(b"\x08\0", Verdict.MALFORMED),
    "an ICMP timestamp request": _ping(b"\x0d\0\xf2\xff" + bytes(16), Verdict.NOT_FOR_SWITCH),
}


def _addresses(scene: Scene) -> dict[str, object]:
    return {"eth_src": scene.attacker.own_mac, "ip_src": scene.attacker.own_ip}


def against_hosts(scene: Scene) -> list[bytes]:
    """Frames that a switch routes, honest about their source: the victim's kernel and worker refuse them."""
    v = scene.victim
    own = {"eth_src": scene.attacker.own_mac, "ip_src": scene.attacker.own_ip}
    to_me = scene.result(ip_src=v.own_ip, ip_dst=scene.attacker.own_ip, udp_src=v.own_port).pack()[14:]
    return [
        scene.result(**own).pack(),
        scene.result(**own, udp_src=scene.attacker.own_port).pack(),
        # Errors about packets that the victim's socket never sent here; 552 is the least MTU Linux believes.
        ipv4(scene, v.own_ip, 1, icmp_error(3, 3, 0, to_me)),
        ipv4(scene, v.own_ip, 1, icmp_error(3, 4, 552, to_me)),
        # Fragments that no packet holds: of a ping beyond 65,535 bytes, and of its own flow.
        ipv4(scene, v.own_ip, 1, b"\xa5" * 1000, fragment=0x1FFF),
        ipv4(scene, v.own_ip, 1, echo(1472), fragment=0x2000),
        scene.result(**own, fragment=0x2000).pack(),
    ]


def mutated(scene: Scene, seen: list[bytes], draw: random.Random) -> bytes:
    """A frame by chance: one of the attacks, or bytes that it has seen or made, changed here and there."""
    kind = draw.random()
    if kind < 0.3:
        data = bytearray(draw.choice(list(ATTACKS.values()))(scene).data)
    elif kind < 0.6:
        data = bytearray(draw.choice(seen))
    else:
        # Admitted: nearly right, any chunk, slot and version.
        slot, version = draw.randrange(scene.attacker.window + 2), draw.randrange(2)
        return scene.own(
            slot=slot,
            version=version,
            chunk=draw.choice([draw.randrange(64), draw.randrange(2**32)]),
            msg_type=draw.choice([1, 1, 1, 2]),
            udp_src=draw.choice([scene.attacker.own_port, scene.former_port]),
        ).pack()
    for _ in range(draw.randrange(4)):
        at = draw.randrange(min(len(data), 60))
        data[at] = draw.choice([data[at] ^ 1 << draw.randrange(8), draw.randrange(256)])
    if draw.random() < 0.5 and len(data) >= 42:  # so that a checksum does not refuse it
        data[40:42] = b"\0\0"
        header = 14 + 4 * (data[14] & 15)
        data[24:26] = b"\0\0"
        data[24:26] = struct.pack("!H", checksum(bytes(data[14:header])))
    if draw.random() < 0.1:
        data = data[: draw.randrange(len(data))]
    return bytes(data)
