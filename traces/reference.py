# SPDX-License-Identifier: Apache-2.0
"""decode.c in Python and numpy: to read, to test against, and for machines without a compiler."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .structs import MAX_BLOCK, MAX_PACKET, RECORD, ROW, SWITCHML, Bytes, Damage, Found, Rows, State
from .table import Category, Problem, UdpChecksum

SECTION, DESCRIPTION, OLD_PACKET, SIMPLE, ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_MOST, _LEAST = (1 << 63) - 1, -(1 << 63)
_HEAD = 52
"""Bytes before the values."""
_K = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1


def nanoseconds(ticks: int, interface: Any) -> int:
    """Return a pcapng time stamp in ns since the epoch, within 64 bits."""
    power = int(interface["power"])
    if interface["base2"]:
        t = ticks * 10**9 >> power if power < 64 else 0
    elif power <= 9:
        t = ticks * 10 ** (9 - power)
    else:
        t = ticks // 10 ** (power - 9) if power - 9 < 20 else 0
    return max(_LEAST, min(_MOST, t + int(interface["offset"]) * 10**9))


def _direction(options: bytes, order: str) -> int:
    """Return the direction that an enhanced packet's flags tell, 0 for none."""
    at = 0
    while len(options) - at >= 4:
        code, size = struct.unpack_from(order + "HH", options, at)
        if code == 0 or len(options) - at < 4 + size:
            return 0
        if code == 2 and size == 4:
            way: int = struct.unpack_from(order + "I", options, at + 4)[0] & 3
            return way if way < 3 else 0
        at += 4 + (size + 3 & ~3)
    return 0


class NumpyDecoder:
    """See Decoder."""

    name = "numpy"

    def scan_pcap(self, bytes_: Bytes, at: int, big: bool, tick: int, room: int) -> Found:
        """See Decoder."""
        data, order = bytes_.data, ">" if big else "<"
        found: list[tuple[Any, ...]] = []
        state, damage = State.MORE, None
        while at + 16 <= len(data):
            if len(found) == room:
                state = State.FULL
                break
            seconds, fraction, captured, length = struct.unpack_from(order + "4I", data, at)
            if captured > MAX_PACKET:
                state, damage = State.BAD, Damage.LONG_PACKET
                break
            if at + 16 + captured > len(data):
                break
            found.append((at + 16, seconds * 10**9 + fraction * tick, captured, length, 0, 0, (0, 0, 0)))
            at += 16 + captured
        return Found(state, np.array(found, RECORD), at, damage)

    def scan_pcapng(self, bytes_: Bytes, at: int, big: bool, interfaces: Rows, room: int) -> Found:
        """See Decoder."""
        data, order = bytes_.data, ">" if big else "<"
        found: list[tuple[Any, ...]] = []
        state, damage = State.MORE, None
        while at + 12 <= len(data):
            kind, size = struct.unpack_from(order + "II", data, at)
            if kind in (SECTION, DESCRIPTION):
                state = State.SPECIAL
                break
            damage = block_damage(size)
            if damage is None and at + size > len(data):
                break
            if damage is None and struct.unpack_from(order + "I", data, at + size - 4)[0] != size:
                damage = Damage.BLOCK_ENDS
            if damage is None and kind in (ENHANCED, SIMPLE, OLD_PACKET):
                if len(found) == room:
                    state = State.FULL
                    break
                block = bytes(data[at : at + size])
                told = _packet(block, kind, order, interfaces)
                if isinstance(told, Damage):
                    damage = told
                else:
                    found.append((at + told[0], *told[1:], (0, 0, 0)))
            if damage is not None:
                state = State.BAD
                break
            at += size
        return Found(state, np.array(found, RECORD), at, damage)

    def decode(self, bytes_: Bytes, records: Rows, ethernet: NDArray[np.bool_], format_: int) -> Rows:
        """See Decoder."""
        rows = np.zeros(len(records), ROW)
        rows["job"] = rows["at"] = -1
        rows["udp_checksum"] = UdpChecksum.UNCHECKED
        captured = np.where(ethernet[records["interface"]], records["captured"], 0)
        have = np.minimum(captured, records["length"]).astype(np.int64)
        _headers(bytes_, records["at"], have, records["length"].astype(np.int64), rows, format_)
        for elements in {int(n) for n in np.unique(rows["elements"])} - {0}:
            _whole(bytes_, records, rows, np.flatnonzero(rows["elements"] == elements), elements)
        _settle(rows, have == records["length"], format_)
        return rows


def block_damage(size: int) -> Damage | None:
    """Say what is wrong with a block's length."""
    if size < 12 or size & 3:
        return Damage.BLOCK_LENGTH
    return Damage.LONG_BLOCK if size > MAX_BLOCK else None


def _packet(block: bytes, kind: int, order: str, interfaces: Rows) -> tuple[int, ...] | Damage:
    """Return offset, time, captured, length, interface and direction of a packet's block, or what is bad."""
    head = 12 if kind == SIMPLE else 28
    if len(block) < head + 4:
        return Damage.PACKET_FITS
    number = 0
    if kind != SIMPLE:
        number = struct.unpack_from(order + ("I" if kind == ENHANCED else "H"), block, 8)[0]
    if number >= len(interfaces):
        return Damage.NO_INTERFACE
    interface = interfaces[number]
    if kind == SIMPLE:
        length = struct.unpack_from(order + "I", block, 8)[0]
        captured = min(length, int(interface["snaplen"]) or length)
        high = low = 0
    else:
        high, low, captured, length = struct.unpack_from(order + "4I", block, 12)
    if captured > MAX_PACKET:
        return Damage.LONG_PACKET
    end = head + (captured + 3 & ~3)
    if end + 4 > len(block):
        return Damage.PACKET_FITS
    if kind == SIMPLE:
        return head, 0, captured, length, 0, 0
    time = nanoseconds(high << 32 | low, interface)
    return head, time, captured, length, number, _direction(block[end:-4], order)


def _at(bytes_: Bytes, at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return (n, size) bytes from each `at` on; 0 beyond the end."""
    places = at[:, None] + np.arange(size)
    inside = places < len(bytes_)
    return np.where(inside, bytes_[np.where(inside, places, 0)] if len(bytes_) else 0, 0).astype(np.int64)


def _number(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the big-endian number of each row of bytes."""
    total = np.zeros(len(columns), np.int64)
    for column in columns.T:
        total = total << 8 | column
    return total


def _sums(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the one's complement sum of each row of 16-bit words."""
    total: NDArray[np.int64] = words.sum(axis=1)
    while (total >> 16).any():
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _words(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    return columns[:, 0::2] << 8 | columns[:, 1::2]


def _is_job(port: NDArray[np.int64], format_: int) -> NDArray[np.bool_]:
    mask, base = (0xFFF0, 0xBEE0) if format_ == SWITCHML else (0xFF00, 0xBE00)
    named: NDArray[np.bool_] = np.equal(port & mask, base)
    return named


def _headers(
    bytes_: Bytes,
    at: NDArray[np.int64],
    have: NDArray[np.int64],
    length: NDArray[np.int64],
    rows: Rows,
    format_: int,
) -> None:
    """Fill in what headers say; `elements` where the lengths are right and all was captured."""
    head = _at(bytes_, at, _HEAD)
    ipv4 = (have >= 34) & (_number(head[:, 12:14]) == 0x0800) & (head[:, 14] >> 4 == 4)
    rows["src_ip"] = np.where(ipv4, _number(head[:, 26:30]), 0)
    rows["dst_ip"] = np.where(ipv4, _number(head[:, 30:34]), 0)
    header = 4 * (head[:, 14] & 15)
    fragment = _number(head[:, 20:22]) & 0x3FFF
    l4 = 14 + header
    udp = ipv4 & (head[:, 23] == 17) & (header >= 20) & (fragment & 0x1FFF == 0) & (have >= l4 + 4)
    ports = _at(bytes_, at + l4, 4)
    src, dst = np.where(udp, _number(ports[:, :2]), 0), np.where(udp, _number(ports[:, 2:]), 0)
    rows["src_port"], rows["dst_port"] = src, dst
    up, down = _is_job(dst, format_), _is_job(src, format_)
    named = up | down
    rows["job"] = np.where(named, np.where(up, dst, src) & (15 if format_ == SWITCHML else 255), -1)
    rows["category"] = np.where(named, np.where(up, Category.CONTRIBUTION, Category.RESULT), Category.OTHER)
    plain = named & (header == 20) & (fragment == 0)
    told = plain & (have >= _HEAD)
    place = _number(head[:, 48:50])
    chunk = _number(head[:, 44:48][:, ::-1] if format_ == SWITCHML else head[:, 44:48])
    size = head[:, 42] & 7
    for name, value in (
        *(("msg_type", head[:, 42] >> 4), ("flag", head[:, 42] >> 3 & 1), ("size", size)),
        *(("tensor", head[:, 43]), ("chunk", chunk), ("version", place >> 15)),
        ("slot", place & (0x3FFF if format_ == SWITCHML else 0x7FFF)),
        *(("e0", head[:, 50].astype(np.int8)), ("e1", head[:, 51].astype(np.int8))),
    ):
        rows[name] = np.where(told, value, 0)
    elements = _elements(size, format_)
    ip_bytes, udp_bytes = _number(head[:, 16:18]), _number(head[:, 38:40])
    right = (length == _HEAD + 4 * elements) & (ip_bytes + 14 == length) & (udp_bytes + 34 == length)
    many = (length > _HEAD + 4 * elements) & (ip_bytes + 14 == length)
    many &= (length - 42) % (10 + 4 * elements) == 0
    problem = np.select(
        [
            *(~named, up & down, header != 20, fragment != 0, _no_ip_sum(head)),
            *(~told & (length < _HEAD), ~told, elements == 0, ~right & many, ~right),
        ],
        [
            *(Problem.NONE, Problem.TWO_JOB_PORTS, Problem.IP_OPTIONS, Problem.FRAGMENT, Problem.IP_CHECKSUM),
            *(Problem.LENGTH, Problem.SNAPPED, Problem.SIZE, Problem.SUPER_PACKET, Problem.LENGTH),
        ],
        Problem.NONE,
    )
    rows["problem"] = problem
    rows["elements"] = np.where(told & (problem == Problem.NONE) & (have == length), elements, 0)


def _elements(size: NDArray[np.int64], format_: int) -> NDArray[np.int64]:
    if format_ == SWITCHML:
        return np.where(size < 4, 32 << np.minimum(size, 3), 0)
    return np.select([size == 1, size == 3], [64, 256], 0)


def _no_ip_sum(head: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.not_equal(_sums(_words(head[:, 14:34])), 0xFFFF)


def _whole(bytes_: Bytes, records: Rows, rows: Rows, which: NDArray[Any], elements: int) -> None:
    """Fill in the UDP checksum, the digest and `at` of packets with all of their `elements` values."""
    at = records["at"][which]
    raw = _at(bytes_, at, _HEAD + 4 * elements)
    pseudo = np.full((len(raw), 6), 17, np.int64)
    pseudo[:, :4] = _words(raw[:, 26:34])
    pseudo[:, 5] = _number(raw[:, 38:40])
    field, sums = _number(raw[:, 40:42]), _sums(np.hstack([pseudo, _words(raw[:, 34:])]))
    rows["udp_checksum"][which] = np.select(
        [field == 0, sums == 0xFFFF, _sums(pseudo) == field],
        [UdpChecksum.ABSENT, UdpChecksum.RIGHT, UdpChecksum.UNFINISHED],
        UdpChecksum.WRONG,
    )
    values = raw[:, 52:].astype(np.uint8).view(">u4").astype(np.uint64)
    rows["digest"][which] = digests(_number(raw[:, 50:52]).astype(np.uint64), values)
    rows["at"][which] = at + _HEAD


def digests(exponents: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each row: exponents (n,) as e0 << 8 | e1, and values (n, 8m) as unsigned 32-bit."""
    k, thirty_two, twenty_nine = np.uint64(_K), np.uint64(32), np.uint64(29)
    lanes = np.zeros((len(values), 8), np.uint64)
    for eight in range(0, values.shape[1], 8):
        lanes = lanes * k + values[:, eight : eight + 8]
    h: NDArray[np.uint64] = exponents + np.uint64(1)
    for lane in lanes.T:
        h = (h ^ h >> thirty_two) * k + lane
        h ^= h >> twenty_nine
    h = (h ^ h >> thirty_two) * k
    h ^= h >> thirty_two
    h[h == 0] = 1
    return h


def _settle(rows: Rows, whole: NDArray[np.bool_], format_: int) -> None:
    """Find wrong types, and give what is malformed its category and no values."""
    fine = (rows["category"] != Category.OTHER) & (rows["problem"] == Problem.NONE)
    if format_ != SWITCHML:
        wrong = fine & (rows["msg_type"] != rows["category"])
        rows["problem"][wrong] = Problem.TYPE
    broken = rows["problem"] != Problem.NONE
    rows["category"][broken] = Category.MALFORMED
    for name, none in (("elements", 0), ("digest", 0), ("at", -1)):
        rows[name][broken] = none
