# SPDX-License-Identifier: Apache-2.0
"""The aggregation packet as numpy sees it: payload and frame dtypes, checksums (protocol.md, The packet).

Ethernet | IPv4 | UDP | agg 8 B | exponents 2 B | ELEMENTS x int32, big-endian
agg = msg_type:4  flag:1  size:3  tensor:8  chunk:32  version:1  slot:15
"""

from __future__ import annotations

import ipaddress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .constants import SIZE_CODES, TTL
from .membership import Membership

Packets = NDArray[np.void]
"""A structured array of `payload_dtype` or `frame_dtype`, one packet an item."""


@cache
def payload_dtype(elements: int) -> np.dtype[np.void]:
    """Return the packed dtype of a UDP payload: 10 + 4 * elements bytes.

    `kind` is msg_type << 4 | flag << 3 | size; `place` is version << 15 | slot.
    """
    return np.dtype(
        [
            ("kind", "u1"),
            ("tensor", "u1"),
            ("chunk", ">u4"),
            ("place", ">u2"),
            ("e0", "i1"),
            ("e1", "i1"),
            ("values", ">i4", (elements,)),
        ]
    )


@cache
def frame_dtype(elements: int) -> np.dtype[np.void]:
    """Return the packed dtype of a whole frame, from Ethernet to the last value: 52 + 4 * elements bytes."""
    return np.dtype(
        [
            ("eth_dst", "u1", (6,)),
            ("eth_src", "u1", (6,)),
            ("eth_type", ">u2"),
            ("ip_version_ihl", "u1"),
            ("ip_tos", "u1"),
            ("ip_length", ">u2"),
            ("ip_id", ">u2"),
            ("ip_fragment", ">u2"),
            ("ip_ttl", "u1"),
            ("ip_protocol", "u1"),
            ("ip_checksum", ">u2"),
            ("ip_src", ">u4"),
            ("ip_dst", ">u4"),
            ("udp_src", ">u2"),
            ("udp_dst", ">u2"),
            ("udp_length", ">u2"),
            ("udp_checksum", ">u2"),
            ("payload", payload_dtype(elements)),
        ]
    )


def kind(msg_type: int, flag: int, elements: int) -> int:
    """Return the first byte of the agg header."""
    return msg_type << 4 | flag << 3 | SIZE_CODES[elements]


def mac_bytes(mac: str) -> bytes:
    """Return the six bytes of a MAC written with colons."""
    return bytes.fromhex(mac.replace(":", ""))


def internet_checksum(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the RFC 1071 checksum of each row of an (n, bytes) uint8 array, in host order."""
    n, length = rows.shape
    if length % 2:
        rows = np.concatenate([rows, np.zeros((n, 1), np.uint8)], axis=1)
    total = np.ascontiguousarray(rows).view(">u2").sum(axis=1, dtype=np.uint64)
    for _ in range(4):
        total = (total & 0xFFFF) + (total >> np.uint64(16))
    checksums: NDArray[np.uint16] = (~total & 0xFFFF).astype(np.uint16)
    return checksums


def _bytes_of(packets: NDArray[Any]) -> NDArray[np.uint8]:
    packets = np.ascontiguousarray(packets)
    return packets.view(np.uint8).reshape(len(packets), packets.dtype.itemsize)


def udp_checksums(frames: Packets) -> NDArray[np.uint16]:
    """Return what each frame's UDP checksum field must hold: a computed 0 is sent as 0xFFFF (RFC 768)."""
    raw = _bytes_of(frames).copy()
    raw[:, 40:42] = 0
    pseudo = np.zeros((len(frames), 4), np.uint8)
    pseudo[:, 1] = raw[:, 23]
    pseudo[:, 2:4] = raw[:, 38:40]
    sums = internet_checksum(np.concatenate([raw[:, 26:34], pseudo, raw[:, 34:]], axis=1))
    sums[sums == 0] = 0xFFFF
    return sums


def build_frames(
    payloads: Packets,
    *,
    eth_src: str,
    eth_dst: str,
    ip_src: str,
    ip_dst: str,
    udp_src: int,
    udp_dst: int,
) -> Packets:
    """Wrap payloads (n of `payload_dtype`) into frames with right lengths and checksums."""
    elements = payloads.dtype["values"].shape[0]
    dtype = frame_dtype(elements)
    frames = np.zeros(len(payloads), dtype)
    frames["eth_dst"] = np.frombuffer(mac_bytes(eth_dst), np.uint8)
    frames["eth_src"] = np.frombuffer(mac_bytes(eth_src), np.uint8)
    frames["eth_type"] = 0x0800
    frames["ip_version_ihl"] = 0x45
    frames["ip_length"] = dtype.itemsize - 14
    frames["ip_fragment"] = 0x4000
    frames["ip_ttl"] = TTL
    frames["ip_protocol"] = 17
    frames["ip_src"] = int(ipaddress.IPv4Address(ip_src))
    frames["ip_dst"] = int(ipaddress.IPv4Address(ip_dst))
    frames["udp_src"] = udp_src
    frames["udp_dst"] = udp_dst
    frames["udp_length"] = dtype.itemsize - 34
    frames["payload"] = payloads
    frames["ip_checksum"] = internet_checksum(_bytes_of(frames)[:, 14:34])
    frames["udp_checksum"] = udp_checksums(frames)
    return frames


def frames_to_switch(payloads: Packets, member: Membership) -> Packets:
    """Wrap a worker's payloads into frames for its switch."""
    return build_frames(
        payloads,
        eth_src=member.own_mac,
        eth_dst=member.switch_mac,
        ip_src=member.own_ip,
        ip_dst=member.switch_ip,
        udp_src=member.own_port,
        udp_dst=member.port,
    )


def frames_are_sound(frames: Packets) -> NDArray[np.bool_]:
    """Say of each frame whether both its checksums are right (0 in the UDP field means none)."""
    ip_ok = internet_checksum(_bytes_of(frames)[:, 14:34]) == 0
    written = frames["udp_checksum"]
    sound: NDArray[np.bool_] = ip_ok & ((written == 0) | (written == udp_checksums(frames)))
    return sound
