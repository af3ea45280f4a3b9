# SPDX-License-Identifier: Apache-2.0
"""Packets of captures as columns: one row a packet, one numpy array a field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import PayloadError
from .names import Direction as Direction
from .names import Source as Source


class Category(IntEnum):
    """What a packet is."""

    OTHER = 0
    """Not ours: another protocol, other ports, a VLAN tag."""
    CONTRIBUTION = 1
    """To a job port: on the way up, a leaf's partials too."""
    RESULT = 2
    """From a job port: on the way down."""
    MALFORMED = 3
    """Names a job port and breaks the format; see Problem."""


class Problem(IntEnum):
    """Why a packet is malformed: the first that holds."""

    NONE = 0
    TWO_JOB_PORTS = 1
    """Both UDP ports are job ports."""
    IP_OPTIONS = 2
    FRAGMENT = 3
    """A first fragment; later ones name no port and are OTHER."""
    IP_CHECKSUM = 4
    SUPER_PACKET = 5
    """Several packets in one, as a capture inside a host sees them before the kernel cuts them up."""
    LENGTH = 6
    """The frame's, IPv4's and UDP's lengths are not those of the packet's size, or contradict each other."""
    SIZE = 7
    """The size field names no number of elements."""
    TYPE = 8
    """A result on the way up, a contribution on the way down, or neither."""
    SNAPPED = 9
    """The capture holds too few bytes of it to tell."""


class UdpChecksum(IntEnum):
    """What is known of a packet's UDP checksum."""

    RIGHT = 0
    WRONG = 1
    ABSENT = 2
    """0 on the wire: none was sent."""
    UNCHECKED = 3
    """Not all bytes were captured, the lengths are wrong, or it is no packet of ours."""
    UNFINISHED = 4
    """Only the pseudo-header's sum, as captured in a host that leaves the rest to its network card."""


@dataclass(frozen=True)
class Payload:
    """The bytes of the files that a table's `at` points into: parts, and where each begins."""

    parts: tuple[NDArray[np.uint8], ...] = ()
    starts: tuple[int, ...] = ()

    def gather(self, at: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return (len(at), size) bytes, those from each `at` on."""
        found = np.empty((len(at), size), np.uint8)
        of = np.searchsorted(np.asarray(self.starts, np.int64), at, side="right") - 1
        for part in np.unique(of):
            rows = np.flatnonzero(of == part)
            offsets = at[rows] - self.starts[part]
            found[rows] = np.lib.stride_tricks.sliding_window_view(self.parts[part], size)[offsets]
        return found


@dataclass(frozen=True)
class Table:
    """Equal-length columns, a row a packet, in the order of the file (`merged`: of time)."""

    number: NDArray[np.int64]
    """The packet's number in its file, from 1, as Wireshark's."""
    time: NDArray[np.int64]
    """ns since the Unix epoch."""
    file: NDArray[np.int16]
    """Index into `sources`."""
    direction: NDArray[np.uint8]
    """Direction."""
    src_ip: NDArray[np.uint32]
    dst_ip: NDArray[np.uint32]
    """0 where it is not IPv4."""
    src_port: NDArray[np.uint16]
    dst_port: NDArray[np.uint16]
    """0 where it is not UDP."""
    length: NDArray[np.int32]
    """Bytes on the wire, with the Ethernet header, without FCS."""
    captured: NDArray[np.int32]
    """Bytes of these that the file holds."""
    category: NDArray[np.uint8]
    """Category."""
    problem: NDArray[np.uint8]
    """Problem."""
    udp_checksum: NDArray[np.uint8]
    """UdpChecksum."""
    job: NDArray[np.int16]
    """-1 where the packet names none."""
    msg_type: NDArray[np.uint8]
    flag: NDArray[np.uint8]
    size: NDArray[np.uint8]
    tensor: NDArray[np.uint8]
    chunk: NDArray[np.uint32]
    """As on the wire, mod 2^32."""
    version: NDArray[np.uint8]
    slot: NDArray[np.uint16]
    """Relative to the job's pool. These and the exponents are 0 where the packet has none."""
    e0: NDArray[np.int8]
    e1: NDArray[np.int8]
    elements: NDArray[np.int16]
    """Values in the packet, 0 where not all of it was captured, and where it is OTHER or MALFORMED."""
    digest: NDArray[np.uint64]
    """A hash of exponents and values, 0 where `elements` is 0: others are hardly ever equal."""
    at: NDArray[np.int64]
    """Where the values begin in `payload`, -1 where there are none or none were kept."""
    sources: tuple[Source, ...]
    payload: Payload | None = None
    """The packets' bytes, where they were asked for."""

    def __len__(self) -> int:
        return len(self.number)

    def take(self, rows: NDArray[Any] | slice) -> Table:
        """Return the rows of an index, mask or slice; values stay readable."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def values(self, rows: NDArray[Any]) -> NDArray[np.int32]:
        """Return the values of rows (indexes): int32, (len(rows), elements).

        All of them must have the same number of elements. Raises PayloadError for one that has none, or if
        the table was read without values.
        """
        elements, at = self.elements[rows], self.at[rows]
        if not len(elements):
            return np.empty((0, 0), np.int32)
        size = int(elements[0])
        for bad in np.flatnonzero((elements == 0) | (elements != size) | (at < 0))[:1]:
            why = f"it has {elements[bad]} where the first of the rows has {size}"
            if self.payload is None:
                why = "the files were read without values"
            elif elements[bad] == 0:
                why = "it is no whole packet of ours"
            raise PayloadError(int(np.asarray(rows)[bad]), why)
        assert self.payload is not None  # else every `at` is -1
        return self.payload.gather(at, 4 * size).view(">i4").astype(np.int32)


COLUMNS = tuple(field.name for field in fields(Table) if field.name not in ("sources", "payload"))
"""Names of the columns, in order."""

DTYPES = {
    **dict.fromkeys(("number", "time", "at"), np.int64),
    **dict.fromkeys(("file", "job", "elements"), np.int16),
    **dict.fromkeys(("src_ip", "dst_ip", "chunk"), np.uint32),
    **dict.fromkeys(("src_port", "dst_port", "slot"), np.uint16),
    **dict.fromkeys(("length", "captured"), np.int32),
    **dict.fromkeys(("direction", "category", "problem", "udp_checksum", "msg_type", "flag"), np.uint8),
    **dict.fromkeys(("size", "tensor", "version"), np.uint8),
    **dict.fromkeys(("e0", "e1"), np.int8),
    "digest": np.uint64,
}
"""Each column's dtype."""


def empty(sources: tuple[Source, ...] = ()) -> Table:
    """Return a table without rows."""
    columns: dict[str, Any] = {name: np.empty(0, DTYPES[name]) for name in COLUMNS}
    return Table(**columns, sources=sources)


def concat(tables: Sequence[Table]) -> Table:
    """Return all rows, table after table; `file` points into all their sources, each named once."""
    if not tables:
        return empty()
    sources: dict[Source, int] = {}
    parts: list[NDArray[np.uint8]] = []
    starts: list[int] = []
    end, files, ats = 0, [], []
    for table in tables:
        index = [sources.setdefault(source, len(sources)) for source in table.sources]
        files.append(np.asarray(index, np.int16)[table.file] if index else table.file)
        at = table.at
        if table.payload is not None:
            at = np.where(at >= 0, at + end, at)
            for part, start in zip(table.payload.parts, table.payload.starts, strict=True):
                parts.append(part)
                starts.append(end + start)
            end = starts[-1] + len(parts[-1]) if parts else 0
        ats.append(at)
    columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS}
    columns |= {"file": np.concatenate(files), "at": np.concatenate(ats)}
    kept = all(table.payload is not None for table in tables)
    payload = Payload(tuple(parts), tuple(starts)) if kept else None
    return Table(**columns, sources=tuple(sources), payload=payload)
