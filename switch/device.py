# SPDX-License-Identifier: Apache-2.0
"""One loaded program, in process: packets in, packets out, and the control calls beside it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from switch import ir
from switch.arrays import Arrays
from switch.batches import Batches, Rows
from switch.build import build
from switch.errors import DeviceError, LoadError, NoSuchEntry
from switch.generate import generate
from switch.library import STATS, TRACE_ROOM, StatsC, open_library
from switch.messages import Messages
from switch.profiles import Profiles
from switch.replication import Replication
from switch.tables import Tables, u64
from switch.trace import Decoder, Event
from switch.value_sets import SetMember, ValueSets
from switch.values import (
    Colors,
    Digest,
    Entry,
    Exact,
    Group,
    Lpm,
    MatchValue,
    Member,
    MeterRates,
    Range,
    Stats,
    Ternary,
)

__all__ = [
    "Colors",
    "Digest",
    "Entry",
    "Exact",
    "Group",
    "Lpm",
    "MatchValue",
    "Member",
    "MeterRates",
    "Range",
    "Stats",
    "SwitchDevice",
    "Ternary",
]

DROP_PORT = 511


class SwitchDevice:
    """A v1model program compiled and loaded. Thread-safe: each call is atomic towards packets."""

    def __init__(
        self,
        program: ir.Program,
        library: Path,
        *,
        cpu_port: int | None = None,
        drop_port: int = DROP_PORT,
        clock: Callable[[], int] | None = None,
        trace: bool = False,
    ) -> None:
        """From a compiled program; use `load`."""
        self.program = program
        self.cpu_port = cpu_port
        self.drop_port = drop_port
        self._clock = clock
        self._lock = threading.RLock()
        self._lib = open_library(library)
        self._sw: int | None = self._lib.sw_new(drop_port, int.from_bytes(os.urandom(8), "little"))
        if self._sw is None:
            raise DeviceError(
                f"no memory for the arrays of {program.name!r}: make its registers or counters smaller"
            )
        self._batches = Batches(self._lib, self._handle, self._tick)
        self._messages = Messages(program, self._lib, self._handle, self._lock)
        self._profiles = Profiles(program, self._lib, self._handle, self._lock)
        self._tables = Tables(program, self._lib, self._handle, self._lock, self._profiles)
        self._value_sets = ValueSets(program, self._lib, self._handle, self._lock)
        self._arrays = Arrays(program, self._lib, self._handle, self._lock)
        self._replication = Replication(self._lib, self._handle, self._lock)
        self._decoder = Decoder(program, self._entry_or_none) if trace else None
        if trace and self._lib.sw_trace_start(self._sw):
            raise DeviceError(f"no memory to trace {program.name!r}: load it without trace")
        self._tick()
        self._tables.restart()

    @classmethod
    def load(
        cls,
        json: str | bytes | Path,
        *,
        cpu_port: int | None = None,
        drop_port: int = DROP_PORT,
        clock: Callable[[], int] | None = None,
        extra_flags: Sequence[str] = (),
        trace: bool = False,
    ) -> SwitchDevice:
        """Load bmv2 JSON: text (starts with `{`), or a path to it.

        `clock` gives microseconds since the start (for tests); without it the monotonic clock does.
        `extra_flags` go to the C compiler. With `trace` the program is compiled such that it reports what it
        does, see `trace` and `process_traced`; it is slower then. Raises `LoadError` for a program that
        cannot be run, `BuildError` where cc fails.
        """
        text = _text(json)
        try:
            program, code = generate(text, trace=trace)
        except LoadError as error:
            if text is json:
                raise
            raise error.of(str(json)) from error
        library = build(code, extra_flags=extra_flags)
        return cls(program, library, cpu_port=cpu_port, drop_port=drop_port, clock=clock, trace=trace)

    def _handle(self) -> int:
        if self._sw is None:
            raise DeviceError("this device is closed: load the program again")
        return self._sw

    def _tick(self) -> None:
        if self._clock is not None:
            self._lib.sw_set_time(self._handle(), self._clock())

    # ---- packets

    def process(self, packets: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Run (port, bytes) packets to completion in order; what leaves, in order."""
        return self._batches.packets(packets)

    def process_traced(
        self, packets: Iterable[tuple[int, bytes]]
    ) -> tuple[list[tuple[int, bytes]], list[Event]]:
        """As `process`, with all that happened to these packets. Raises DeviceError as `trace` does."""
        self.trace()
        out: list[tuple[int, bytes]] = []
        events: list[Event] = []
        for packet in packets:
            out += self.process([packet])
            events += self.trace()
        return out, events

    def process_batch(
        self, ports: NDArray[np.uint16], lengths: NDArray[np.uint32], data: NDArray[np.uint8]
    ) -> Rows:
        """The same for arrays: uint16[n], uint32[n], uint8[n, stride] -> uint16[m], uint32[m], uint8[m, s].

        Row i holds packet i in its first lengths[i] bytes; s is the longest packet's length. Raises
        ValueError for arrays that do not fit together.
        """
        return self._batches.rows(ports, lengths, data)

    @property
    def c_process(self) -> int:
        """Address of `sw_process` (runtime/switch.h) for a C I/O loop; valid until `close`."""
        return ctypes.cast(self._lib.sw_process, ctypes.c_void_p).value or 0

    @property
    def c_alike(self) -> int:
        """Address of `sw_process_alike` (runtime/switch.h); valid until `close`."""
        return ctypes.cast(self._lib.sw_process_alike, ctypes.c_void_p).value or 0

    @property
    def c_handle(self) -> int:
        """Address of the `sw` that goes with `c_process`; valid until `close`."""
        return self._handle()

    # ---- tables: full JSON names; an action's name is looked up among the table's own actions

    def table_insert(
        self,
        table: str,
        key: Sequence[MatchValue],
        action: str | Member | Group,
        args: Sequence[int] = (),
        priority: int | None = None,
    ) -> int:
        """Insert and return the entry's handle (never reused). Larger priority wins; it is given exactly for
        tables with a ternary or range key. An entry of an indirect table names a member or group instead of
        an action. Raises BadKey, BadAction, NoSuchEntry, DuplicateEntry, TableFull, Immutable.
        """
        return self._tables.insert(table, key, action, args, priority)

    def table_modify(
        self, table: str, handle: int, action: str | Member | Group, args: Sequence[int] = ()
    ) -> None:
        """Give an entry another action or arguments; its counters stay. Raises NoSuchEntry, Immutable."""
        self._tables.modify(table, handle, action, args)

    def table_delete(self, table: str, handle: int) -> None:
        """Remove an entry. Raises NoSuchEntry, Immutable."""
        self._tables.delete(table, handle)

    def table_entries(self, table: str) -> list[Entry]:
        """All entries in the order of insertion, const ones included."""
        return self._tables.entries(table)

    def table_entry(self, table: str, handle: int) -> Entry:
        """One entry. Raises NoSuchEntry."""
        return self._tables.entry(table, handle)

    def table_find(self, table: str, key: Sequence[MatchValue], priority: int | None = None) -> int | None:
        """The handle of the entry with exactly this match (and priority), or None."""
        return self._tables.find(table, key, priority)

    def table_idle_us(self, table: str, handle: int) -> int:
        """Microseconds since an entry of a table with idle timeouts was hit, or inserted."""
        return self._tables.idle_us(table, handle)

    def table_set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        """Change the default action. Raises Immutable where the program made it const."""
        self._tables.set_default(table, action, args)

    def table_get_default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """The default action and its arguments, None where the table has none."""
        return self._tables.get_default(table)

    def table_reset_default(self, table: str) -> None:
        """Back to the program's default action."""
        self._tables.reset_default(table)

    # ---- action profiles: full JSON names; handles are a profile's own

    def member_add(self, profile: str, action: str, args: Sequence[int] = ()) -> int:
        """Add a member and return its handle, the lowest free one. Raises NoSuchObject, BadAction."""
        return self._profiles.member_add(profile, action, args)

    def member_modify(self, profile: str, member: int, action: str, args: Sequence[int] = ()) -> None:
        """Give a member another action, for all that name it. Raises NoSuchEntry, BadAction."""
        self._profiles.member_modify(profile, member, action, args)

    def member_delete(self, profile: str, member: int) -> None:
        """Remove a member. Raises NoSuchEntry, InUse."""
        self._profiles.member_delete(profile, member)

    def members(self, profile: str) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Actions and arguments of all members by handle."""
        return self._profiles.members(profile)

    def group_add(self, profile: str, members: Iterable[int] = ()) -> int:
        """Add a group of members, each in it once, and return its handle, the lowest free one.

        An entry that names an empty group does nothing. Raises NoSuchObject without a selector, NoSuchEntry.
        """
        return self._profiles.group_add(profile, members)

    def group_set(
        self, profile: str, group: int, members: Iterable[int], *, resting: Iterable[int] = ()
    ) -> None:
        """Replace a group's members; those in `resting` stay in the group, but are not chosen for now.

        Raises NoSuchEntry.
        """
        self._profiles.group_set(profile, group, members, resting)

    def group_delete(self, profile: str, group: int) -> None:
        """Remove a group; its members stay. Raises NoSuchEntry, InUse."""
        self._profiles.group_delete(profile, group)

    def groups(self, profile: str) -> dict[int, tuple[int, ...]]:
        """The members of all groups by handle, in the order in which the selector counts them."""
        return self._profiles.groups(profile)

    # ---- counters, registers, meters

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """(packets, bytes) of one counter."""
        return self._arrays.counter_read(name, index)

    def counter_read_all(self, name: str) -> NDArray[np.uint64]:
        """uint64[size, 2]: packets and bytes of the whole array."""
        return self._arrays.counter_read_all(name)

    def counter_write(self, name: str, index: int, packets: int, octets: int) -> None:
        """Set one counter. Raises BadIndex for values that are not in 0..2^64-1."""
        self._arrays.counter_write(name, index, packets, octets)

    def register_read(self, name: str, index: int) -> int:
        """One element."""
        return self._arrays.register_read(name, index)

    def register_read_range(self, name: str, start: int, count: int) -> list[int]:
        """`count` elements from `start`."""
        return self._arrays.register_read_range(name, start, count)

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set one element. Raises BadIndex for a value that does not fit."""
        self._arrays.register_write(name, index, value)

    def meter_get(self, name: str, index: int) -> MeterRates | None:
        """The rates of one meter cell, None where unconfigured (always green)."""
        return self._arrays.meter_get(name, index)

    def meter_set(self, name: str, index: int, rates: MeterRates | None) -> None:
        """Configure one meter cell; None makes it unconfigured."""
        self._arrays.meter_set(name, index, rates)

    def meter_colors(self, name: str, index: int, write: Colors | None = None) -> Colors:
        """What one meter cell counted by color; with `write` set that first."""
        return self._arrays.meter_colors(name, index, write)

    # direct resources: the handle None stands for the default entry

    def direct_counter_read(self, table: str, handle: int | None) -> tuple[int, int]:
        """(packets, bytes) of one entry of a table with a direct counter."""
        return self._tables.counter(table, handle, None)

    def direct_counter_write(self, table: str, handle: int | None, packets: int, octets: int) -> None:
        """Set an entry's counter."""
        self._tables.counter(table, handle, (u64(packets), u64(octets)))

    def direct_meter_get(self, table: str, handle: int | None) -> MeterRates | None:
        """The rates of an entry of a table with a direct meter."""
        return self._tables.direct_meter(table, handle, None, read=True)

    def direct_meter_set(self, table: str, handle: int | None, rates: MeterRates | None) -> None:
        """Configure an entry's direct meter. That of the default entry does nothing unless configured."""
        self._tables.direct_meter(table, handle, rates, read=False)

    def direct_meter_colors(self, table: str, handle: int | None, write: Colors | None = None) -> Colors:
        """What an entry's direct meter counted by color; with `write` set that first."""
        return self._tables.direct_colors(table, handle, write)

    # ---- value sets of the parser

    def value_set(self, name: str, members: Sequence[Sequence[MatchValue]]) -> None:
        """Replace the members of a value set: a match of any kind for each component of the key.

        Raises NoSuchObject, BadKey, DuplicateEntry, TableFull.
        """
        self._value_sets.set(name, members)

    def value_set_get(self, name: str) -> tuple[SetMember, ...]:
        """The members of a value set."""
        return self._value_sets.get(name)

    # ---- packet replication

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace group 1..65535: (port, replication id) each, sent in this order."""
        self._replication.multicast_set(group, replicas)

    def multicast_delete(self, group: int) -> None:
        """Remove a group; packets sent to it are dropped from then on. Raises NoSuchObject."""
        self._replication.multicast_delete(group)

    def multicast_groups(self) -> dict[int, list[tuple[int, int]]]:
        """All groups."""
        return self._replication.multicast_groups()

    def clone_session_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        """Create or replace a clone session 0..32767; `truncate` > 0 keeps that many bytes of each clone."""
        self._replication.clone_session_set(session, replicas, truncate)

    def clone_session_delete(self, session: int) -> None:
        """Remove a session; clones to it are lost from then on. Raises NoSuchObject."""
        self._replication.clone_session_delete(session)

    def clone_sessions(self) -> dict[int, tuple[list[tuple[int, int]], int]]:
        """All sessions: replicas and truncation length."""
        return self._replication.clone_sessions()

    # ---- the rest

    def digests(self, limit: int = 1024) -> list[Digest]:
        """Take up to `limit` queued digest samples, oldest first."""
        return self._messages.digests(limit)

    def log(self) -> list[str]:
        """Take what the program (log_msg) and the runtime (dropped packets) had to say, oldest first."""
        return self._messages.log()

    def trace(self) -> list[Event]:
        """Take what happened to packets, oldest first; there is room for some 20,000 events.

        Raises DeviceError for a device that was loaded without `trace`.
        """
        if self._decoder is None:
            raise DeviceError("this device keeps no trace: load it with trace=True")
        taken, lost = (ctypes.c_uint64 * TRACE_ROOM)(), ctypes.c_uint64()
        with self._lock:
            n = self._lib.sw_trace_take(self._handle(), taken, ctypes.byref(lost))
            return self._decoder.events(taken[:n], lost.value)

    def _entry_or_none(self, table: str, handle: int) -> Entry | None:
        try:
            return self._tables.entry(table, handle)
        except NoSuchEntry:
            return None

    def stats(self) -> Stats:
        """What the device counted."""
        c = StatsC()
        with self._lock:
            self._lib.sw_stats_read(self._handle(), ctypes.byref(c))
        return Stats(**{name: getattr(c, name) for name in STATS})

    def reset(self) -> None:
        """Tables, defaults, registers, counters, meters and replication as right after `load`."""
        with self._lock:
            self._lib.sw_reset(self._handle())
            self._replication.restart()
            self._profiles.restart()
            self._value_sets.restart()
            self._tables.restart()

    def close(self) -> None:
        """Free the device; further calls raise DeviceError. Stop every C loop that uses it first."""
        with self._lock, self._batches.lock:
            if self._sw is not None:
                self._batches.free()
                self._lib.sw_free(self._sw)
                self._sw = None

    def __enter__(self) -> SwitchDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_sw", None) is not None and hasattr(self, "_batches"):
            self.close()


def _text(json: str | bytes | Path) -> str | bytes:
    if isinstance(json, bytes):
        return json
    if isinstance(json, str) and json.lstrip()[:1] in ("{", "["):
        return json
    try:
        return Path(json).read_bytes()
    except (OSError, ValueError) as e:
        raise LoadError(f"file {str(json)[:80]!r}", f"cannot read it: {e}") from e
