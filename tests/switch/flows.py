# SPDX-License-Identifier: Apache-2.0
"""Frames of flows, built field by field: Ethernet, IPv4 or IPv6, UDP or TCP, with right checksums."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

TCP, UDP = 6, 17
FIN, PSH, ACK, ECE, CWR = 1, 8, 16, 64, 128
DONT_FRAGMENT = 0x4000


def total(data: bytes) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071): 0xffff with a right checksum among them."""
    padded = data + b"\0" * (len(data) % 2)
    value: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value


@dataclass(frozen=True)
class Flow:
    """Headers of a packet: all but lengths and checksums."""

    protocol: int = UDP
    v6: bool = False
    tags: tuple[bytes, ...] = ()
    """VLAN tags, four bytes each."""
    tos: int = 0
    ident: int = 0
    fragment: int = DONT_FRAGMENT
    ttl: int = 64
    ip_options: bytes = b""
    source: int = 1
    ports: tuple[int, int] = (4000, 5000)
    seq: int = 0
    ack: int = 0
    flags: int = ACK
    window: int = 500
    urgent: int = 0
    tcp_options: bytes = b""
    without: bool = False
    """UDP without checksum."""

    def at(self, index: int, offset: int, last: bool) -> Flow:
        """The headers of segment `index`, whose payload starts `offset` bytes behind that of the first."""
        dropped = (0 if last else FIN | PSH) | (CWR if index else 0)
        return replace(
            self,
            ident=(self.ident + index) % 2**16,
            seq=(self.seq + offset) % 2**32,
            flags=self.flags & ~dropped,
        )

    def frame(self, payload: bytes, *, partial: bool = False) -> bytes:
        """The frame; `partial`: with the pseudo-header's sum alone where TCP or UDP have their checksum."""
        l4 = self._l4(payload, 0)
        addresses = self._addresses()
        pseudo = addresses + struct.pack("!HH", self.protocol, len(l4))
        if partial:
            l4 = self._l4(payload, total(pseudo))
        elif not self.without:
            check = total(pseudo + l4) ^ 0xFFFF
            l4 = self._l4(payload, check or (0xFFFF if self.protocol == UDP else 0))
        kind = b"\x86\xdd" if self.v6 else b"\x08\x00"
        return b"\x02" * 11 + bytes([self.source]) + b"".join(self.tags) + kind + self._ip(l4) + l4

    @property
    def headers(self) -> int:
        """Their length."""
        return len(self.frame(b""))

    def _addresses(self) -> bytes:
        size = 16 if self.v6 else 4
        return bytes([10] * (size - 1) + [self.source]) + bytes([10] * (size - 1) + [99])

    def _ip(self, l4: bytes) -> bytes:
        if self.v6:
            words = struct.pack("!IHBB", 6 << 28 | self.tos << 20, len(l4), self.protocol, self.ttl)
            return words + self._addresses()
        size = 20 + len(self.ip_options)
        head = struct.pack(
            "!BBHHHBB",
            0x40 | size // 4, self.tos, size + len(l4), self.ident, self.fragment, self.ttl, self.protocol,
        )  # fmt: skip
        rest = self._addresses() + self.ip_options
        return head + struct.pack("!H", total(head + b"\0\0" + rest) ^ 0xFFFF) + rest

    def _l4(self, payload: bytes, check: int) -> bytes:
        if self.protocol == UDP:
            return struct.pack("!HHHH", *self.ports, 8 + len(payload), check) + payload
        offset = (20 + len(self.tcp_options)) // 4 << 4
        return (
            struct.pack("!HHIIBB", *self.ports, self.seq, self.ack, offset, self.flags)
            + struct.pack("!HHH", self.window, check, self.urgent)
            + self.tcp_options
            + payload
        )
