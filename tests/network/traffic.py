# SPDX-License-Identifier: Apache-2.0
"""A seeded stream of everything that a switch may meet: good packets, late ones, broken ones, garbage."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.dataplane.frames import Frame, checksum, ip, mac
from tests.network.site import (
    HOSTS,
    JOB,
    LATE,
    LEAF_JOB,
    LEAF_PORT,
    NO_PORT,
    UPLINK,
    WINDOW,
    WORKERS,
    udp_port,
)
from topologies.record import NetRecord
from wire.constants import job_port

BROADCAST = b"\xff" * 6
SHORTEST = 14
"""A packet socket sends no frame without a whole Ethernet header."""


@dataclass(frozen=True)
class Input:
    """One frame that comes in by a port; `what` tells people what it is."""

    what: str
    port: int
    data: bytes


class Traffic:
    """Makes the stream. Most is good, so that chunks complete; the rest is drawn from all that is not."""

    def __init__(self, record: NetRecord, seed: int) -> None:
        self._random = random.Random(seed)
        self._record = record
        self._elements = record.elements
        self._switch = record.switch("s1")
        self._recent: deque[tuple[int, Frame]] = deque(maxlen=40)
        self._turn = 0
        self._kinds: list[tuple[str, Callable[[], tuple[int, bytes]]]] = [
            ("repeated", self._repeated),
            *[("changed", self._changed)] * 4,
            ("of an old epoch", self._of_an_old_epoch),
            ("by another port", self._by_another_port),
            ("cut or longer", self._cut),
            ("with bytes overwritten", self._overwritten),
            ("garbage", self._garbage),
            ("ARP", self._arp),
            *[("ping", self._icmp)] * 2,
            ("routed", self._routed),
            ("other protocols", self._foreign),
        ]

    def stream(self, chunks: int, first: int) -> Iterator[Input]:
        """Yield contributions of both jobs for `chunks` chunks from `first`, and other frames among them."""
        for chunk in range(first, first + chunks):
            good = [(w + 1, self._contribution(w, JOB, chunk)) for w in range(WORKERS)]
            good += [(w + 1, self._contribution(w, LEAF_JOB, chunk)) for w in range(2)]
            self._random.shuffle(good)
            for port, frame in [*good, (UPLINK, self._parents_result(chunk))]:
                while self._random.random() < 0.5:
                    what, make = self._random.choice(self._kinds)
                    yield Input(what, *make())
                self._recent.append((port, frame))
                yield Input(f"chunk {chunk} of job {frame.udp_dst & 0xFF}", port, frame.pack())

    # ---- aggregation
    def _values(self) -> tuple[int, ...]:
        draw = self._random
        if draw.random() < 0.1:
            return (draw.choice([0, -1, 2**31 - 1, -(2**31)]),) * self._elements
        return tuple(draw.randrange(-(2**31), 2**31) for _ in range(self._elements))

    def _contribution(self, worker: int, job: int, chunk: int) -> Frame:
        host = self._record.host(f"h{worker + 1}")
        frame = Frame(
            eth_src=host.mac,
            eth_dst=self._switch.mac,
            ip_src=host.ip,
            ip_dst=self._switch.ip,
            udp_src=udp_port(worker, job),
            udp_dst=job_port(job),
            values=self._values(),
            tensor=chunk % 256,
            flag=chunk % 3 == 0,
            chunk=chunk % 2**32,
            slot=chunk % WINDOW,
            version=chunk // WINDOW % 2,
            e0=self._random.randrange(-128, 128),
            e1=self._random.choice([-128, 0]),
            ip_id=self._random.randrange(1 << 16),
        )
        if self._random.random() < 0.05:  # no checksum is a right one
            return frame.but(udp_checksum=0)
        return frame

    def _parents_result(self, chunk: int) -> Frame:
        parent = self._record.switch("s2")
        return self._contribution(0, LEAF_JOB, chunk).but(
            eth_src=parent.mac,
            ip_src=parent.ip,
            udp_src=job_port(LEAF_JOB),
            udp_dst=LEAF_PORT,
            msg_type=2,
            udp_checksum=None,
        )

    def _any(self) -> tuple[int, Frame]:
        return self._random.choice(self._recent) if self._recent else (1, self._contribution(0, JOB, 0))

    def _repeated(self) -> tuple[int, bytes]:
        port, frame = self._any()
        return port, frame.pack()

    def _changed(self) -> tuple[int, bytes]:
        port, frame = self._any()
        draw = self._random
        changes: list[dict[str, object]] = [
            {"udp_checksum": 0xFFFF},
            {"udp_checksum": draw.randrange(1 << 16)},
            {"ip_checksum": draw.randrange(1 << 16)},
            {"ip_checksum": 0xFFFF},
            {"size": draw.randrange(8)},
            {"msg_type": draw.randrange(16)},
            {"slot": draw.choice([WINDOW, WINDOW + 1, 0x7FFF])},
            {"version": 1 - frame.version},
            {"chunk": (frame.chunk + draw.choice([-1, -16, -(2**31), 2**31 - 1])) % 2**32},
            {"chunk": (frame.chunk + 2 * WINDOW) % 2**32},  # a newer chunk takes the slot over
            {"udp_src": draw.choice([frame.udp_src + 1, 53, job_port(JOB)])},
            {"udp_dst": draw.choice([job_port(0), job_port(255), 53, LEAF_PORT])},
            {"udp_src": frame.udp_dst, "udp_dst": frame.udp_src},
            {"ip_src": self._record.host(f"h{draw.randrange(1, HOSTS + 1)}").ip},
            {"ip_src": self._switch.ip},
            {"ip_dst": draw.choice(["10.0.0.3", "10.0.1.1", "10.9.9.9", "255.255.255.255", "224.0.0.1"])},
            {"eth_dst": "ff:ff:ff:ff:ff:ff"},
            {"eth_dst": "01:00:5e:00:00:01"},
            {"eth_src": "02:00:00:00:00:99"},
            {"options": b"\x01" * 4 * draw.randrange(1, 11)},
            {"fragment": draw.choice([0x2000, 0x0001, 0x6000, 0x1FFF, 0x8000, 0])},
            {"ttl": draw.choice([0, 1, 255])},
            {"ip_length": draw.choice([0, 19, 20, 38 + 4 * self._elements + 1, 0xFFFF])},
            {"udp_length": draw.choice([0, 8, 18 + 4 * self._elements + 1, 0xFFFF])},
            {"trailer": draw.randbytes(draw.randrange(1, 40))},
            {"values": frame.values[: draw.randrange(self._elements)]},
            {"tensor": draw.randrange(256), "flag": draw.randrange(2), "e0": draw.randrange(-128, 128)},
        ]
        self._turn += 1  # each gets its turn
        return port, frame.but(**changes[self._turn % len(changes)]).pack()

    def _of_an_old_epoch(self) -> tuple[int, bytes]:
        _, frame = self._any()
        return LATE + 1, self._contribution(LATE, LEAF_JOB, frame.chunk).pack()

    def _by_another_port(self) -> tuple[int, bytes]:
        _, frame = self._any()
        return self._random.choice([1, 2, HOSTS, UPLINK, NO_PORT]), frame.pack()

    def _cut(self) -> tuple[int, bytes]:
        port, frame = self._any()
        data = frame.pack()
        cut = self._random.choice([SHORTEST, 20, 33, 34, 41, 42, 51, 52, len(data) - 1, None])
        if cut is None:
            return port, data + self._random.randbytes(self._random.randrange(1, 400))
        return port, data[:cut]

    def _overwritten(self) -> tuple[int, bytes]:
        port, frame = self._any()
        data = bytearray(frame.pack())
        for _ in range(self._random.randrange(1, 4)):
            data[self._random.randrange(60)] = self._random.randrange(256)
        return port, bytes(data)

    def _garbage(self) -> tuple[int, bytes]:
        draw = self._random
        data = bytearray(draw.randbytes(draw.randrange(SHORTEST, 1200)))
        kind = draw.choice([b"\x08\x00", b"\x08\x06", bytes(data[12:14])])
        data[:14] = mac(self._switch.mac) + bytes(data[6:12]) + kind
        if kind == b"\x08\x00" and len(data) > 34:
            data[14] = draw.choice([0x45, 0x46, 0x4F, 0x44, 0x55, data[14]])
            header = 14 + 4 * (data[14] & 15)
            if draw.random() < 0.7 and header <= len(data):
                data[16:18] = struct.pack("!H", len(data) - 14)
                data[26:34] = ip("10.0.0.1") + ip(self._switch.ip)
                data[24:26] = bytes(2)
                data[24:26] = struct.pack("!H", checksum(bytes(data[14:header])))
        return draw.randrange(1, UPLINK + 1), bytes(data)

    # ---- what is no aggregation
    def _arp(self) -> tuple[int, bytes]:
        draw = self._random
        port = draw.randrange(1, HOSTS + 1)
        own = self._record.host(f"h{port}")
        sender = draw.choice([own.mac, own.mac, own.mac, "02:00:00:00:00:99", "03:00:00:00:00:01"])
        target = draw.choice(["10.0.0.1", "10.0.0.5", "10.0.1.1", self._switch.ip, "10.0.255.2", "10.9.9.9"])
        head = struct.pack("!HHBBH", draw.choice([1, 1, 1, 6]), 0x0800, 6, 4, draw.choice([1, 1, 1, 2]))
        data = (
            BROADCAST + mac(own.mac) + b"\x08\x06" + head + mac(sender) + ip(own.ip) + bytes(6) + ip(target)
        )
        return port, data + bytes(draw.choice([0, 18]))

    def _ipv4(self, port: int, target: str, protocol: int, payload: bytes) -> bytes:
        draw = self._random
        own = self._record.host(f"h{min(port, HOSTS)}")
        options = draw.choice([b"", b"", b"", b"", b"\x01" * 8, b"\x94\x04\x00\x00"])
        ihl = 5 + len(options) // 4
        fragment = draw.choice([0, 0, 0, 0, 0x4000, 0x4000, 0x2000, 0x00FF])
        head = struct.pack(
            "!BBHHHBB",
            0x40 | ihl,
            draw.choice([0, 0xB8]),
            4 * ihl + len(payload),
            draw.randrange(1 << 16),
            fragment,
            draw.choice([64, 64, 64, 64, 2, 1, 0]),
            protocol,
        )
        rest = (
            ip(draw.choice([own.ip, own.ip, own.ip, own.ip, "10.0.0.2", "192.0.2.1"])) + ip(target) + options
        )
        total = struct.pack("!H", checksum(head + b"\0\0" + rest))
        return mac(self._switch.mac) + mac(own.mac) + b"\x08\x00" + head + total + rest + payload

    def _icmp(self) -> tuple[int, bytes]:
        draw = self._random
        port = draw.randrange(1, UPLINK + 1)
        kind, code = draw.choice([*[(8, 0)] * 5, (8, 1), (0, 0), (13, 0), (3, 4)])
        body = draw.randbytes(4 + draw.randrange(80))
        total = checksum(struct.pack("!BBH", kind, code, 0) + body)
        message = struct.pack("!BBH", kind, code, draw.choice([total, total, total, 0xFFFF])) + body
        return port, self._ipv4(port, self._switch.ip, 1, message[: draw.choice([*[len(message)] * 4, 3, 4])])

    def _routed(self) -> tuple[int, bytes]:
        draw = self._random
        port = draw.randrange(1, UPLINK + 1)
        target = draw.choice(["10.0.0.2", "10.0.0.4", "10.0.1.1", "10.0.255.2", "10.9.9.9"])
        payload = draw.randbytes(draw.randrange(600))
        if draw.random() < 0.5:
            ports = struct.pack("!HH", 7000, draw.choice([7001, job_port(JOB)]))
            payload = ports + struct.pack("!HH", 8 + len(payload), draw.randrange(1 << 16)) + payload
        return port, self._ipv4(port, target, draw.choice([17, 6, 1, 89]), payload)

    def flows(self, count: int) -> Iterator[Input]:
        """Yield packets of so many flows over TCP and UDP to the host behind s2, some of them fragments."""
        target = self._record.host(f"h{HOSTS + 1}").ip
        for number in range(count):
            payload = struct.pack("!HHHH", 4000 + number, 5201, 32, 0) + bytes(24)
            port = 1 + number % HOSTS
            yield Input(f"flow {number}", port, self._ipv4(port, target, (6, 17)[number % 2], payload))

    def _foreign(self) -> tuple[int, bytes]:
        port, frame = self._any()
        data = frame.pack()
        kind = self._random.choice(
            [b"\x86\xdd", b"\x88\xcc", b"\x00\x26", b"\x81\x00\x00\x05", b"\x88\xa8\x00\x05"]
        )
        inside = data[12:] if len(kind) == 4 else data[14:]
        return port, data[:12] + kind + inside
