# SPDX-License-Identifier: Apache-2.0
"""One loaded program, in process: packets in, packets out, and the control calls beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from switch import ir


@dataclass(frozen=True)
class Exact:
    """Matches one value."""

    value: int


@dataclass(frozen=True)
class Lpm:
    """Matches the first `prefix_len` bits of the field; 0 matches all."""

    value: int
    prefix_len: int


@dataclass(frozen=True)
class Ternary:
    """Matches where the mask has ones; mask 0 matches all. Also the form of `optional` keys."""

    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    """Matches low..high, both included."""

    low: int
    high: int


MatchValue = Exact | Lpm | Ternary | Range


@dataclass(frozen=True)
class Entry:
    """One table entry as it stands; `priority` as P4Runtime counts it (larger wins), 0 where there is none."""

    handle: int
    key: tuple[MatchValue, ...]
    action: str
    args: tuple[int, ...]
    priority: int
    const: bool


@dataclass(frozen=True)
class MeterRates:
    """RFC 2698: committed and peak rate in units (bytes or packets) a second, bursts in units."""

    cir: float
    cburst: int
    pir: float
    pburst: int


@dataclass(frozen=True)
class Stats:
    """Counters of one device since it was loaded."""

    received: int
    sent: int
    too_long: int
    over_budget: int
    faults: int
    digests_lost: int


@dataclass(frozen=True)
class Digest:
    """One sample that the program gave to digest(): the list's name and its fields' values in order."""

    name: str
    values: tuple[int, ...]


class SwitchDevice:
    """A v1model program compiled and loaded. Thread-safe: each call is atomic towards packets."""

    program: ir.Program

    @classmethod
    def load(
        cls,
        json: str | bytes | Path,
        *,
        cpu_port: int | None = None,
        drop_port: int = 511,
        clock: Callable[[], int] | None = None,
    ) -> SwitchDevice:
        """Load bmv2 JSON: text (starts with `{`), or a path to it.

        `clock` gives microseconds since the start (for tests); without it the monotonic clock does.
        Raises `LoadError` for a program that cannot be run, `BuildError` where cc fails.
        """
        raise NotImplementedError

    # ---- packets
    def process(self, packets: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Run (port, bytes) packets to completion in order; what leaves, in order."""
        raise NotImplementedError

    def process_batch(
        self, ports: NDArray[np.uint16], lengths: NDArray[np.uint32], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.uint8]]:
        """The same for arrays: uint16[n], uint32[n], uint8[n, stride] -> uint16[m], uint32[m], uint8[m, s]."""
        raise NotImplementedError

    @property
    def c_process(self) -> int:
        """Address of `sw_process` (runtime/switch.h) for a C I/O loop; valid until `close`."""
        raise NotImplementedError

    @property
    def c_handle(self) -> int:
        """Address of the `sw` that goes with `c_process`; valid until `close`."""
        raise NotImplementedError

    # ---- tables: full JSON names; an action's name is looked up among the table's own actions
    def table_insert(
        self,
        table: str,
        key: Sequence[MatchValue],
        action: str,
        args: Sequence[int] = (),
        priority: int | None = None,
    ) -> int:
        """Insert and return the entry's handle (never reused). Larger priority wins; it is given exactly for
        tables with a ternary or range key. Raises BadKey, BadAction, DuplicateEntry, TableFull, Immutable.
        """
        raise NotImplementedError

    def table_modify(self, table: str, handle: int, action: str, args: Sequence[int] = ()) -> None:
        """Give an entry another action or arguments; its counters stay."""
        raise NotImplementedError

    def table_delete(self, table: str, handle: int) -> None:
        """Remove an entry. Raises NoSuchEntry, Immutable."""
        raise NotImplementedError

    def table_entries(self, table: str) -> list[Entry]:
        """All entries in the order of insertion, const ones included."""
        raise NotImplementedError

    def table_find(self, table: str, key: Sequence[MatchValue], priority: int | None = None) -> int | None:
        """The handle of the entry with exactly this match (and priority), or None."""
        raise NotImplementedError

    def table_set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        """Change the default action. Raises Immutable where the program made it const."""
        raise NotImplementedError

    def table_get_default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """The default action and its arguments, None where the table has none."""
        raise NotImplementedError

    def table_reset_default(self, table: str) -> None:
        """Back to the program's default action."""
        raise NotImplementedError

    # ---- counters, registers, meters
    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """(packets, bytes) of one counter."""
        raise NotImplementedError

    def counter_read_all(self, name: str) -> NDArray[np.uint64]:
        """uint64[size, 2]: packets and bytes of the whole array."""
        raise NotImplementedError

    def counter_write(self, name: str, index: int, packets: int, octets: int) -> None:
        """Set one counter."""
        raise NotImplementedError

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        """(packets, bytes) of one entry of a table with a direct counter."""
        raise NotImplementedError

    def direct_counter_write(self, table: str, handle: int, packets: int, octets: int) -> None:
        """Set an entry's counter."""
        raise NotImplementedError

    def register_read(self, name: str, index: int) -> int:
        """One element."""
        raise NotImplementedError

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set one element."""
        raise NotImplementedError

    def meter_get(self, name: str, index: int) -> MeterRates | None:
        """The rates of one meter cell, None where unconfigured (always green)."""
        raise NotImplementedError

    def meter_set(self, name: str, index: int, rates: MeterRates | None) -> None:
        """Configure one meter cell; None makes it unconfigured."""
        raise NotImplementedError

    def direct_meter_get(self, table: str, handle: int) -> MeterRates | None:
        """The rates of an entry of a table with a direct meter."""
        raise NotImplementedError

    def direct_meter_set(self, table: str, handle: int, rates: MeterRates | None) -> None:
        """Configure an entry's direct meter."""
        raise NotImplementedError

    # ---- packet replication
    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace group 1..65535: (port, replication id) each, sent in this order."""
        raise NotImplementedError

    def multicast_delete(self, group: int) -> None:
        """Remove a group; packets sent to it are dropped from then on."""
        raise NotImplementedError

    def multicast_groups(self) -> dict[int, list[tuple[int, int]]]:
        """All groups."""
        raise NotImplementedError

    def clone_session_set(
        self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0
    ) -> None:
        """Create or replace a clone session 0..32767; `truncate` > 0 keeps that many bytes of each clone."""
        raise NotImplementedError

    def clone_session_delete(self, session: int) -> None:
        """Remove a session; clones to it are lost from then on."""
        raise NotImplementedError

    def clone_sessions(self) -> dict[int, tuple[list[tuple[int, int]], int]]:
        """All sessions: replicas and truncation length."""
        raise NotImplementedError

    # ---- the rest
    def digests(self, limit: int = 1024) -> list[Digest]:
        """Take up to `limit` queued digest samples, oldest first."""
        raise NotImplementedError

    def stats(self) -> Stats:
        """What the device counted."""
        raise NotImplementedError

    def reset(self) -> None:
        """Tables, defaults, registers, counters, meters and replication as right after `load`."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the device; further calls raise DeviceError. Stop every C loop that uses it first."""
        raise NotImplementedError

    def __enter__(self) -> SwitchDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

