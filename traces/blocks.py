# SPDX-License-Identifier: Apache-2.0
"""pcapng's blocks that set something, read and written (draft-ietf-opsawg-pcapng)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SECTION, DESCRIPTION, STATISTICS = 0x0A0D0D0A, 1, 5
MAGIC = 0x1A2B3C4D
ETHERNET = 1
"""Link type."""
NANOSECONDS = 9
"""if_tsresol."""
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL, _IF_TSOFFSET = 2, 3, 9, 14
_ISB_START, _ISB_END, _ISB_RECEIVED, _ISB_DROPPED = 2, 3, 4, 5
_HARDWARE_OR_APPLICATION = 4
_WHOLE = (1 << 64) - 1
"""A section's length, not known."""


class Interface(NamedTuple):
    """An interface's description: a tick is 2^-power (base2) or 10^-power seconds; `offset` are seconds."""

    link_type: int
    snaplen: int
    name: str = ""
    description: str = ""
    base2: bool = False
    power: int = 6
    offset: int = 0


class Statistics(NamedTuple):
    """Of an interface: when its capture began (ns since the Unix epoch, None if not told), packets missed."""

    began: int | None
    dropped: int


def byte_order(block: bytes) -> str | None:
    """Return struct's sign of the byte order of a section (its header's first 12 bytes), None for neither."""
    for order in "<>":
        if struct.unpack_from(order + "I", block, 8)[0] == MAGIC:
            return order
    return None


def _options(data: bytes, order: str) -> Iterable[tuple[int, bytes]]:
    at = 0
    while len(data) - at >= 4:
        code, size = struct.unpack_from(order + "HH", data, at)
        if code == 0 or len(data) - at - 4 < size:
            return
        yield code, data[at + 4 : at + 4 + size]
        at += 4 + (size + 3 & ~3)


def read_interface(block: bytes, order: str) -> Interface:
    """Return what a whole block of at least 20 bytes describes."""
    link_type, _, snaplen = struct.unpack_from(order + "HHI", block, 8)
    found = Interface(link_type, snaplen)
    for code, value in _options(block[16:-4], order):
        if code == _IF_NAME:
            found = found._replace(name=value.decode("utf-8", "replace").rstrip("\0"))
        elif code == _IF_DESCRIPTION:
            found = found._replace(description=value.decode("utf-8", "replace").rstrip("\0"))
        elif code == _IF_TSRESOL and len(value) == 1:
            found = found._replace(base2=bool(value[0] & 0x80), power=value[0] & 0x7F)
        elif code == _IF_TSOFFSET and len(value) == 8:
            found = found._replace(offset=struct.unpack(order + "q", value)[0])
    return found


def last_statistics(path: Path) -> Statistics | None:
    """Return the statistics at the end of a file in the machine's usual order; None where there are none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4))
            tail = file.read(4)
            length = struct.unpack("<I", tail)[0] if len(tail) == 4 else 0
            if not 24 <= length <= min(size, 1 << 16):
                return None
            file.seek(size - length)
            block = file.read(length)
    except OSError:
        return None
    if struct.unpack_from("<II", block) != (STATISTICS, length):
        return None
    told = dict(_options(block[20:-4], "<"))
    began, dropped = told.get(_ISB_START, b""), told.get(_ISB_DROPPED, b"")
    high, low = struct.unpack("<II", began) if len(began) == 8 else (0, 0)
    missed = struct.unpack("<Q", dropped)[0] if len(dropped) == 8 else 0
    return Statistics(high << 32 | low if began else None, missed)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes, options: Iterable[tuple[int, bytes]] = ()) -> bytes:
    told = b"".join(_option(code, value) for code, value in options)
    body += told + (_option(0, b"") if told else b"")
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def section(application: str) -> bytes:
    """Return a section's header, little-endian; `application` is who wrote it."""
    body = struct.pack("<IHHQ", MAGIC, 1, 0, _WHOLE)
    return _block(SECTION, body, [(_HARDWARE_OR_APPLICATION, application.encode())])


def interface(name: str, description: str, snaplen: int) -> bytes:
    """Return the description of an Ethernet interface whose stamps are in nanoseconds."""
    options = [
        (_IF_NAME, name.encode()),
        (_IF_DESCRIPTION, description.encode()),
        (_IF_TSRESOL, bytes([NANOSECONDS])),
    ]
    return _block(DESCRIPTION, struct.pack("<HHI", ETHERNET, 0, snaplen), options)


def statistics(began: int, ended: int, received: int, dropped: int) -> bytes:
    """Return the statistics of interface 0: times in ns since the epoch, packets seen, and those missed."""

    def stamp(time: int) -> bytes:
        return struct.pack("<II", time >> 32, time & 0xFFFFFFFF)

    options = [
        *((_ISB_START, stamp(began)), (_ISB_END, stamp(ended))),
        *((_ISB_RECEIVED, struct.pack("<Q", received)), (_ISB_DROPPED, struct.pack("<Q", dropped))),
    ]
    return _block(STATISTICS, struct.pack("<I", 0) + stamp(ended), options)
