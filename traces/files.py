# SPDX-License-Identifier: Apache-2.0
"""Capture files, read in bounded batches: pcap and pcapng, of either byte order, also gzipped.

A file is read front to back in parts, so that memory does not grow with it. Whatever is wrong with it: first
comes all that was readable, then one TraceFileError.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from . import blocks
from .decoder import best_decoder
from .errors import TraceFileError
from .mixed import Turns
from .names import SUFFIXES, captures, source
from .structs import (
    INTERFACE,
    MAX_BLOCK,
    MAX_PACKET,
    P4REDUCE,
    RECORD,
    SWITCHML,
    Damage,
    Decoder,
    Found,
    Rows,
    State,
)
from .table import DTYPES, Payload, Source, Table, concat

FORMATS = {"p4reduce": P4REDUCE, "switchml": SWITCHML}
"""SwitchML's ports lie among ours, so which it is has to be said."""
PART = 4 << 20
"""Bytes read at once."""
ROOM = 1 << 16
"""Packets of one table, at most."""
MAX_SOURCES = 1 << 15
Told = Callable[[int], None]
"""Takes the bytes of files that were read since it was called last."""

_MAGICS = {
    b"\xd4\xc3\xb2\xa1": (False, 1000),
    b"\xa1\xb2\xc3\xd4": (True, 1000),
    b"\x4d\x3c\xb2\xa1": (False, 1),
    b"\xa1\xb2\x3c\x4d": (True, 1),
}
"""Of a classic pcap: whether it is big-endian, and ns of a sub-second tick."""
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_CUT = "it breaks off in the middle"
_CUT_REMEDY = "what came before is whole; if it is still being written, read it again when it is done"
_RECORD_AGAIN = "what came before is whole; record it again, or repair it (pcapfix)"
_KINDS = "captures are pcap or pcapng files, as p4reduce trace record, tcpdump and tshark write them"
_READABLE = "name captures that are there and that you may read"
_DAMAGE = {
    Damage.LONG_PACKET: f"it says that it has more than {MAX_PACKET} bytes",
    Damage.BLOCK_LENGTH: "its block's length is no multiple of 4, or under 12",
    Damage.BLOCK_ENDS: "its block's two lengths differ",
    Damage.PACKET_FITS: "it is longer than its block",
    Damage.NO_INTERFACE: "its interface is not described",
    Damage.LONG_BLOCK: f"its block has more than {MAX_BLOCK} bytes",
}


def expand(paths: Sequence[Path]) -> list[Path]:
    """Return the files, each once, a folder's captures in its place, sorted.

    Raises TraceFileError for a path that is not there, a folder without captures, and for pipes and devices.
    """
    found: list[Path] = []
    for path in paths:
        try:
            path.stat()
            inside = captures(path) if path.is_dir() else None
        except OSError as error:
            raise TraceFileError(path, None, f"cannot be read: {error.strerror}", _READABLE) from error
        if inside is None:
            found.append(path)
            continue
        if not inside:
            raise TraceFileError(path, None, f"holds no captures (*{', *'.join(SUFFIXES)})", _KINDS)
        found += inside
    for path in found:
        if os.path.exists(path) and not os.path.isfile(path):
            # Captures are read several times, and a pipe may never come to its end.
            raise TraceFileError(path, None, "is no file", "put what comes out of it into a file first")
    once: dict[str, Path] = {}
    for path in found:
        once.setdefault(os.path.realpath(path), path)
    return list(once.values())


def read(
    path: Path,
    *,
    values: bool = False,
    format: str = "p4reduce",
    part: int = PART,
    told: Told | None = None,
) -> Iterator[Table]:
    """Yield a file's packets in bounded tables, in the file's order.

    With `values` a table keeps the bytes that its values are in. `format` is one of FORMATS; `part` bytes are
    read at once. Raises TraceFileError after all that was readable.
    """
    return _Reader(path, values, FORMATS[format], best_decoder(), told).tables(part)


def stream(
    parts: Iterator[bytes], path: Path, *, values: bool = False, format: str = "p4reduce"
) -> Iterator[Table]:
    """Yield tables of pcapng blocks that come in parts, as soon as they are whole; `path` is where from."""
    return _Reader(path, values, FORMATS[format], best_decoder()).live(parts)


def merged(
    paths: Sequence[Path], *, values: bool = False, format: str = "p4reduce", told: Told | None = None
) -> Iterator[Table]:
    """Yield the packets of several files in the order of time; each file's own order is kept.

    A file that breaks off ends there, the others go on; then the first one's TraceFileError is raised, which
    names the others too. Folders that are mixed in time, see `mixed`, raise one at once.
    """
    turns = Turns() if len({path.parent for path in paths}) > 1 else None
    part = max(PART // 16, PART // max(1, len(paths) // 4))
    errors: list[TraceFileError] = []
    heads = [_Head(read(path, values=values, format=format, part=part, told=told), errors) for path in paths]
    while live := [head for head in heads if head.fill()]:
        horizon = min(int(head.key[-1]) for head in live)
        taken = [head.until(horizon) for head in live]
        order = np.argsort(np.concatenate([key for _, key in taken]), kind="stable")
        table = concat([rows for rows, _ in taken]).take(order)
        if turns is not None:
            turns.check(table)
        yield table
    if errors:
        first = errors[0]
        more = f"; so do {', '.join(str(error.path) for error in errors[1:])}" if errors[1:] else ""
        raise TraceFileError(first.path, first.number, first.what, first.remedy + more, first.offset)


def readable(tables: Iterator[Table], errors: list[TraceFileError]) -> Iterator[Table]:
    """Yield all tables that can be read; what broke them off is added to `errors` at their end."""
    try:
        yield from tables
    except TraceFileError as error:
        errors.append(error)


class _Head:
    """A file that is being merged: rows that were read and not yet taken."""

    def __init__(self, tables: Iterator[Table], errors: list[TraceFileError]) -> None:
        self._tables = tables
        self._errors = errors
        self._table: Table | None = None
        self._latest = np.iinfo(np.int64).min
        self.key: NDArray[np.int64] = np.empty(0, np.int64)
        """Times, never falling: where a file is out of order, the order counts."""

    def fill(self) -> bool:
        """Have rows, if there are any left."""
        while not len(self.key):
            try:
                self._table = next(self._tables)
            except StopIteration:
                return False
            except TraceFileError as error:
                self._errors.append(error)
                return False
            self.key = np.maximum(np.maximum.accumulate(self._table.time), self._latest)
            self._latest = self.key[-1] if len(self.key) else self._latest
        return True

    def until(self, horizon: int) -> tuple[Table, NDArray[np.int64]]:
        """Take the rows up to a time."""
        assert self._table is not None
        end = int(np.searchsorted(self.key, horizon, side="right"))
        rows, key = self._table.take(slice(0, end)), self.key[:end]
        self._table, self.key = self._table.take(slice(end, None)), self.key[end:]
        return rows, key


class _Reader:
    """Reads one file. What it knows of the file grows as it goes."""

    def __init__(
        self, path: Path, values: bool, format_: int, decoder: Decoder, told: Told | None = None
    ) -> None:
        self._path = path
        self._told, self._at = told, 0
        self._values = values
        self._format = format_
        self._decoder = decoder
        self._sources: dict[Source, int] = {}
        self._links: list[int] = []
        """Link types of the interfaces."""
        self._of: list[int] = []
        """Their sources."""
        self._interfaces = np.empty(0, INTERFACE)
        self._order = "<"
        self._count = 0
        self._ethernet = False
        """Whether any packet was on Ethernet."""

    def tables(self, part: int) -> Iterator[Table]:
        try:
            with self._open() as file:
                head = file.read(4)
                if head in _MAGICS:
                    yield from self._classic(file, head, part)
                elif head == _PCAPNG:
                    yield from self._blocks(self._parts(file, part), head)
                elif not head:
                    raise TraceFileError(self._path, None, "is empty", _KINDS)
                else:
                    raise TraceFileError(
                        self._path, None, f"is no capture (it begins {head.hex(' ')})", _KINDS
                    )
        except (EOFError, zlib.error) as error:  # of gzip, in the first bytes
            raise TraceFileError(self._path, None, f"has a damaged gzip stream ({error})", _KINDS) from error
        except OSError as error:
            # gzip.BadGzipFile is one, too.
            raise TraceFileError(
                self._path,
                None,
                f"cannot be read: {error.strerror or error}",
                _READABLE,
            ) from error
        if self._count and not self._ethernet:
            raise TraceFileError(
                self._path,
                None,
                f"no packet is on Ethernet (link type {self._links[0]})",
                "record on one interface by its name, not on `any`",
            )

    def live(self, parts: Iterator[bytes]) -> Iterator[Table]:
        return self._blocks(parts, b"")

    def _open(self) -> IO[bytes]:
        file = self._path.open("rb")
        if file.read(2) == b"\x1f\x8b":
            file.close()
            return gzip.open(self._path, "rb")  # type: ignore[return-value]
        file.seek(0)
        return file

    def _parts(self, file: IO[bytes], part: int) -> Generator[bytes, None, None]:
        """Yield the rest of a file; a gzip stream that is bad or breaks off is told after its last bytes."""
        while True:
            got, bad = bytearray(), ""
            try:
                # gzip's read() would lose what it has when it comes upon what is bad.
                while len(got) < part and (more := file.read1(part - len(got))):  # type: ignore[attr-defined]
                    got += more
            except EOFError:
                bad = _CUT
            except (zlib.error, gzip.BadGzipFile) as error:
                bad = f"its gzip stream is damaged ({error})"
            if self._told is not None:
                at = os.lseek(file.fileno(), 0, os.SEEK_CUR)  # also where it is gzipped
                self._told(at - self._at)
                self._at = at
            if got:
                yield bytes(got)
            if bad:
                raise self._bad(bad, _CUT_REMEDY if bad is _CUT else _RECORD_AGAIN)
            if not got:
                return

    def _bad(self, what: str, remedy: str, offset: int | None = None) -> TraceFileError:
        return TraceFileError(self._path, self._count + 1, what, remedy, offset)

    # ---- classic
    def _classic(self, file: IO[bytes], head: bytes, part: int) -> Iterator[Table]:
        big, tick = _MAGICS[head]
        rest = file.read(20)
        if len(rest) < 20:
            raise TraceFileError(self._path, None, "is cut off in its header", _KINDS)
        snaplen, link_type = struct.unpack_from((">" if big else "<") + "II", rest, 12)
        self._describe(blocks.Interface(link_type & 0xFFFF, snaplen))

        def scan(data: NDArray[np.uint8], at: int) -> Found:
            return self._decoder.scan_pcap(data, at, big, tick, ROOM)

        yield from self._scan(self._parts(file, part), b"", 24, scan)

    # ---- pcapng
    def _blocks(self, parts: Iterator[bytes], head: bytes) -> Iterator[Table]:
        def scan(data: NDArray[np.uint8], at: int) -> Found:
            return self._decoder.scan_pcapng(data, at, self._order == ">", self._interfaces, ROOM)

        yield from self._scan(parts, head, 0, scan)

    def _scan(self, parts: Iterator[bytes], rest: bytes, offset: int, scan: Any) -> Iterator[Table]:
        """Yield tables; `rest` are bytes already read, which begin at `offset` in the file."""
        data, at = np.frombuffer(rest, np.uint8), 0
        while True:
            found: Found = scan(data, at)
            if len(found.records):
                yield self._table(data, found.records)
            at = found.at
            if found.state is State.BAD:
                assert found.damage is not None
                raise self._bad(_DAMAGE[found.damage], _RECORD_AGAIN, offset + at)
            if found.state is State.SPECIAL:
                size = self._special(data[at:], offset + at)
                at += size
                if size:
                    continue
            elif found.state is State.FULL:
                continue
            more = next(parts, None)
            if more is None:
                if at != len(data):
                    raise self._bad(_CUT, _CUT_REMEDY, offset + at)
                return
            offset += at
            data, at = np.concatenate([data[at:], np.frombuffer(more, np.uint8)]), 0

    def _special(self, data: NDArray[np.uint8], offset: int) -> int:
        """Take in a section's header or an interface's description; return its size, 0 if it is not whole."""
        head = data[:12].tobytes()
        is_section = head[:4] == _PCAPNG
        order = blocks.byte_order(head) if is_section else self._order
        if order is None:
            raise self._bad("its section's header has no byte order", _RECORD_AGAIN, offset)
        size: int = struct.unpack_from(order + "I", head, 4)[0]
        least = 28 if is_section else 20
        if size < least or size & 3:
            raise self._bad(_DAMAGE[Damage.BLOCK_LENGTH], _RECORD_AGAIN, offset)
        if size > MAX_BLOCK:
            raise self._bad(_DAMAGE[Damage.LONG_BLOCK], _RECORD_AGAIN, offset)
        if size > len(data):
            return 0
        block = data[:size].tobytes()
        if struct.unpack_from(order + "I", block, size - 4)[0] != size:
            raise self._bad(_DAMAGE[Damage.BLOCK_ENDS], _RECORD_AGAIN, offset)
        if is_section:
            self._order = order
            self._links, self._of, self._interfaces = [], [], np.empty(0, INTERFACE)
        else:
            self._describe(blocks.read_interface(block, order))
        return size

    def _describe(self, told: blocks.Interface) -> None:
        where = source(self._path, told.name, told.description)
        index = self._sources.setdefault(where, len(self._sources))
        if index >= MAX_SOURCES or len(self._links) >= MAX_SOURCES:
            raise self._bad(f"it describes more than {MAX_SOURCES} interfaces", _RECORD_AGAIN)
        self._links.append(told.link_type)
        self._of.append(index)
        added = np.zeros(1, INTERFACE)
        added[0] = (told.offset, told.snaplen, told.base2, told.power, (0, 0))
        self._interfaces = np.concatenate([self._interfaces, added])

    # ---- tables
    def _table(self, data: NDArray[np.uint8], records: Rows) -> Table:
        ethernet = np.asarray(self._links) == blocks.ETHERNET
        which = records["interface"]
        self._ethernet = self._ethernet or bool(ethernet[which].any())
        rows = self._decoder.decode(data, records, ethernet, self._format)
        sources = tuple(self._sources)
        file = np.asarray(self._of, np.int16)[which]
        fixed = np.asarray([source.direction for source in sources], np.uint8)[file]
        number = np.arange(self._count + 1, self._count + 1 + len(records))
        self._count += len(records)
        columns: dict[str, NDArray[Any]] = {
            "number": number,
            "file": file,
            "direction": np.where(records["direction"] != 0, records["direction"], fixed),
            **{name: records[name] for name in RECORD.names or () if name in ("time", "captured", "length")},
            **{name: rows[name] for name in rows.dtype.names or ()},
        }
        if not self._values:
            columns["at"] = np.full(len(records), -1)
        most = np.iinfo(np.int32).max
        columns["length"] = np.minimum(records["length"], most)
        return Table(
            **{name: np.ascontiguousarray(column, DTYPES[name]) for name, column in columns.items()},
            sources=sources,
            payload=Payload((data,), (0,)) if self._values else None,
        )
