# SPDX-License-Identifier: Apache-2.0
"""Elements of `ReadResponse.entities` as bytes (protobuf's encoding guide): each with its tag and length.

Those of arrays are written by hand: Python's protobuf takes some 70 µs for one, and a program may have
hundreds of thousands of counters. Joined, elements are a serialized ReadResponse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1 import p4runtime_pb2

_SMALL = [bytes([n]) for n in range(128)]
_NUMBERS = {name: field.number for name, field in p4runtime_pb2.Entity.DESCRIPTOR.fields_by_name.items()}
NUMBER, BYTES = 0, 2
"""Wire types."""


def varint(number: int) -> bytes:
    """Return a number of 0 to 2^64-1, 7 bits a byte, the lowest first."""
    if number < 128:
        return _SMALL[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def numeric(field: int, value: int) -> bytes:
    """Return a field that holds a number: nothing where it is 0, the default. `field` is below 16."""
    return _SMALL[field << 3 | NUMBER] + varint(value) if value else b""


def block(field: int, content: bytes) -> bytes:
    """Return a field that holds a message, bytes or a string. `field` is below 16."""
    return _SMALL[field << 3 | BYTES] + varint(len(content)) + content


def element(entity: p4runtime_pb2.Entity) -> bytes:
    """Return an entity as one element."""
    return block(1, entity.SerializeToString())


def cells(kind: str, array_id: int, values: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield an element for each (index, serialized `data`) of an array; `kind` is the entity's field.

    It is for CounterEntry and RegisterEntry: id, index and data are their fields 1 to 3.
    """
    number, head = _NUMBERS[kind], numeric(1, array_id)
    for index, data in values:
        entry = head + block(2, numeric(1, index)) + block(3, data)
        yield block(1, block(number, entry))
