# SPDX-License-Identifier: Apache-2.0
"""Captures made by tests, byte by byte: frames, pcap and pcapng of either byte order."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wire import packet
from wire.packet import Packets

START = 1_700_000_000_123_456_789
SWITCH = "10.0.255.1"


def payloads(
    count: int = 1, elements: int = 64, *, up: bool = True, chunk: int = 0, window: int = 8, seed: int = 0
) -> Packets:
    made = np.zeros(count, packet.payload_dtype(elements))
    chunks = np.arange(chunk, chunk + count)
    made["kind"] = packet.kind(1 if up else 2, 0, elements)
    made["tensor"], made["chunk"] = 5, chunks
    made["place"] = (chunks // window % 2) << 15 | chunks % window
    made["e0"], made["e1"] = -3, -128
    rng = np.random.default_rng(seed)
    made["values"] = rng.integers(-(2**31), 2**31, (count, elements))
    return made


def frames(
    made: Packets, *, up: bool = True, job: int = 3, host: str = "10.0.0.1", port: int = 5001, **changed: int
) -> list[bytes]:
    """Frames between a worker and the switch; `changed` are fields of the frame, set before the checksums."""
    ends = [(host, port), (SWITCH, 0xBE00 + job)]
    (src, src_port), (dst, dst_port) = ends if up else reversed(ends)
    built = packet.build_frames(
        made,
        eth_src="02:00:00:00:00:01",
        eth_dst="02:00:00:00:00:02",
        ip_src=src,
        ip_dst=dst,
        udp_src=changed.pop("udp_src", src_port),
        udp_dst=changed.pop("udp_dst", dst_port),
    )
    for name, value in changed.items():
        built[name] = value
    return [each.tobytes() for each in built]


def one(**changed: Any) -> bytes:
    return frames(payloads(), **changed)[0]


def ip_sum(frame: bytes) -> bytes:
    """The frame with a right IPv4 header checksum."""
    head = frame[14:24] + b"\0\0" + frame[26:34]
    total = sum(struct.unpack("!10H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:24] + struct.pack("!H", ~total & 0xFFFF) + frame[26:]


def pcap(
    packets: Sequence[bytes],
    *,
    order: str = "<",
    ns: bool = False,
    snaplen: int = 65535,
    link: int = 1,
    start: int = START,
) -> bytes:
    """A classic capture; packet i is at start + i µs."""
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if ns else 0xA1B2C3D4, 2, 4, 0, 0, snaplen, link)
    for index, each in enumerate(packets):
        seconds, rest = divmod(start + 1000 * index, 10**9)
        kept = each[:snaplen]
        out += struct.pack(order + "4I", seconds, rest if ns else rest // 1000, len(kept), len(each)) + kept
    return out


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(*options: bytes, order: str = "<", link: int = 1, snaplen: int = 0) -> bytes:
    return block(1, struct.pack(order + "HHI", link, 0, snaplen) + b"".join(options), order)


def enhanced(
    frame: bytes, ticks: int, *options: bytes, order: str = "<", on: int = 0, length: int = 0
) -> bytes:
    head = struct.pack(order + "5I", on, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), length or len(frame))
    return block(6, head + frame + bytes(-len(frame) % 4) + b"".join(options), order)


def simple(frame: bytes, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", len(frame)) + frame, order)


def old(frame: bytes, ticks: int, order: str = "<", on: int = 0) -> bytes:
    head = struct.pack(order + "HH4I", on, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(2, head + frame, order)


def put(folder: Path, data: bytes, name: str = "a.pcap") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
