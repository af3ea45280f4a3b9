# SPDX-License-Identifier: Apache-2.0
"""Frames by struct alone, so that tests do not check the wire room with itself."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field, replace


def ones_complement(data: bytes) -> int:
    """RFC 1071's sum, not complemented, as its definition says."""
    if len(data) % 2:
        data += b"\0"
    total = 0
    for (word,) in struct.iter_unpack("!H", data):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checksum(data: bytes) -> int:
    return ~ones_complement(data) & 0xFFFF


def mac(text: str) -> bytes:
    return bytes(int(x, 16) for x in text.split(":"))


def ip(text: str) -> bytes:
    return ipaddress.IPv4Address(text).packed


@dataclass(frozen=True)
class Frame:
    """An aggregation frame; None means "the right value"."""

    eth_src: str
    eth_dst: str
    ip_src: str
    ip_dst: str
    udp_src: int
    udp_dst: int
    values: tuple[int, ...]
    msg_type: int = 1
    flag: int = 0
    size: int | None = None
    tensor: int = 0
    chunk: int = 0
    version: int = 0
    slot: int = 0
    e0: int = -128
    e1: int = -128
    ttl: int = 64
    ip_id: int = 0
    fragment: int = 0x4000
    options: bytes = b""
    ip_length: int | None = None
    udp_length: int | None = None
    ip_checksum: int | None = None
    udp_checksum: int | None = None
    trailer: bytes = field(default=b"")

    def payload(self) -> bytes:
        size = self.size if self.size is not None else {64: 1, 256: 3}.get(len(self.values), 0)
        head = struct.pack(
            "!BBIHbb",
            self.msg_type << 4 | self.flag << 3 | size,
            self.tensor,
            self.chunk,
            self.version << 15 | self.slot,
            self.e0,
            self.e1,
        )
        return head + struct.pack(f"!{len(self.values)}i", *self.values)

    def udp(self) -> bytes:
        payload = self.payload()
        length = 8 + len(payload) if self.udp_length is None else self.udp_length
        head = struct.pack("!HHH", self.udp_src, self.udp_dst, length)
        if self.udp_checksum is None:
            pseudo = ip(self.ip_src) + ip(self.ip_dst) + struct.pack("!BBH", 0, 17, length)
            value = checksum(pseudo + head + b"\0\0" + payload) or 0xFFFF
        else:
            value = self.udp_checksum
        return head + struct.pack("!H", value) + payload

    def pack(self) -> bytes:
        udp = self.udp()
        ihl = 5 + len(self.options) // 4
        length = 4 * ihl + len(udp) if self.ip_length is None else self.ip_length
        addresses = ip(self.ip_src) + ip(self.ip_dst) + self.options
        head = struct.pack("!BBHHHBB", 0x40 | ihl, 0, length, self.ip_id, self.fragment, self.ttl, 17)
        value = checksum(head + b"\0\0" + addresses) if self.ip_checksum is None else self.ip_checksum
        ethernet = mac(self.eth_dst) + mac(self.eth_src) + b"\x08\x00"
        return ethernet + head + struct.pack("!H", value) + addresses + udp + self.trailer

    @classmethod
    def parse(cls, data: bytes) -> Frame:
        """Read a frame that a switch sent; AssertionError unless lengths and checksums are right."""
        assert data[12:14] == b"\x08\x00"
        assert data[14] == 0x45
        (ip_length,) = struct.unpack_from("!H", data, 16)
        assert ip_length == len(data) - 14
        assert ones_complement(data[14:34]) == 0xFFFF
        udp_src, udp_dst, udp_length, udp_checksum = struct.unpack_from("!HHHH", data, 34)
        assert udp_length == len(data) - 34
        assert udp_checksum != 0
        pseudo = data[26:34] + struct.pack("!BBH", 0, 17, udp_length)
        assert ones_complement(pseudo + data[34:]) == 0xFFFF
        kind, tensor, chunk, place, e0, e1 = struct.unpack_from("!BBIHbb", data, 42)
        ip_id, fragment, ttl = struct.unpack_from("!HHB", data, 18)
        return cls(
            eth_dst=data[0:6].hex(":"),
            eth_src=data[6:12].hex(":"),
            ip_src=str(ipaddress.IPv4Address(data[26:30])),
            ip_dst=str(ipaddress.IPv4Address(data[30:34])),
            udp_src=udp_src,
            udp_dst=udp_dst,
            msg_type=kind >> 4,
            flag=kind >> 3 & 1,
            size=kind & 7,
            tensor=tensor,
            chunk=chunk,
            version=place >> 15,
            slot=place & 0x7FFF,
            e0=e0,
            e1=e1,
            ttl=ttl,
            ip_id=ip_id,
            fragment=fragment,
            values=struct.unpack_from(f"!{(len(data) - 52) // 4}i", data, 52),
        )

    def but(self, **changes: object) -> Frame:
        """The same frame with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]
