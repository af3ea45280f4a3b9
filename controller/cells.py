# SPDX-License-Identifier: Apache-2.0
"""Reading cells of counter arrays: ReadRequest and ReadResponse as bytes (protobuf's encoding guide).

Python's protobuf takes some 150 µs for one cell, to ask and to read the answer; a page of metrics may need
tens of thousands of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1 import p4runtime_pb2

NUMBER, BYTES = 0, 2
"""Wire types: a varint, and what has its length before it."""
_SKIPPED = {1: 8, 5: 4}
"""Bytes of the other wire types."""


def _field(message: type, name: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[name].number)  # type: ignore[attr-defined]


_DEVICE = _field(p4runtime_pb2.ReadRequest, "device_id")
_ASKED = _field(p4runtime_pb2.ReadRequest, "entities")
_TOLD = _field(p4runtime_pb2.ReadResponse, "entities")
_ENTRY = _field(p4runtime_pb2.Entity, "counter_entry")
_ID, _INDEX, _DATA = (_field(p4runtime_pb2.CounterEntry, name) for name in ("counter_id", "index", "data"))
_NUMBER = _field(p4runtime_pb2.Index, "index")
_PACKETS, _OCTETS = (_field(p4runtime_pb2.CounterData, name) for name in ("packet_count", "byte_count"))


def request(device_id: int, counter_id: int, indexes: Iterable[int]) -> bytes:
    """Return the ReadRequest for these cells of one array. Fields are below 16, so that a tag is a byte."""
    head = _number(_ID, counter_id)
    parts = [_number(_DEVICE, device_id)]
    for index in indexes:
        entry = head + _block(_INDEX, _number(_NUMBER, index) if index else b"")
        parts.append(_block(_ASKED, _block(_ENTRY, entry)))
    return b"".join(parts)


def counts(response: bytes) -> dict[int, tuple[int, int]]:
    """Return (packets, bytes) by index of a ReadResponse of one array; ValueError if it is none."""
    found: dict[int, tuple[int, int]] = {}
    for number, entity in _fields(response):
        if number != _TOLD:
            continue
        for kind, entry in _fields(_content(entity)):
            if kind == _ENTRY:
                cell = dict(_fields(_content(entry)))
                index = dict(_fields(_content(cell.get(_INDEX, b"")))).get(_NUMBER, 0)
                data = dict(_fields(_content(cell.get(_DATA, b""))))
                found[_value(index)] = _value(data.get(_PACKETS, 0)), _value(data.get(_OCTETS, 0))
    return found


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return bytes([field << 3 | NUMBER]) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | BYTES]) + _varint(len(content)) + content


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message; those that are neither numbers nor blocks are skipped."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _read(data, at)
        kind = tag & 7
        if kind == NUMBER:
            value, at = _read(data, at)
            yield tag >> 3, value
        elif kind == BYTES:
            length, at = _read(data, at)
            if at + length > end:
                raise ValueError("a message ends too early")
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind in _SKIPPED:
            at += _SKIPPED[kind]
        else:
            raise ValueError(f"{kind} is no wire type")


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number ends too early, or is too long")


def _content(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _value(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message where a number should be")
    return value
