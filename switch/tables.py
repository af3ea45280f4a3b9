# SPDX-License-Identifier: Apache-2.0
"""The tables of a device: names, widths and duplicates are checked here, runtime/tables.c looks up."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from switch import ir
from switch.arguments import checked, pack
from switch.emit_code import limbs
from switch.emit_control import key_words
from switch.errors import (
    BadAction,
    BadIndex,
    BadKey,
    DeviceError,
    DuplicateEntry,
    Immutable,
    NoSuchEntry,
    NoSuchObject,
    TableFull,
)
from switch.library import split, words
from switch.matching import normal, value_mask
from switch.profiles import Profiles
from switch.values import Colors, Entry, Exact, Group, Lpm, MatchValue, Member, MeterRates, Range, Ternary

# bmv2 counts priorities downwards, P4Runtime upwards: a const entry's p becomes this minus p
BMV2_PRIORITY = (1 << 31) - 1

KINDS: dict[str, type[Exact] | type[Lpm] | type[Ternary] | type[Range]] = {
    "exact": Exact,
    "lpm": Lpm,
    "ternary": Ternary,
    "range": Range,
}
Signature = tuple[tuple[MatchValue, ...], int]


@dataclass
class _Row:
    entry: Entry
    pointer: int


@dataclass(frozen=True)
class _Target:
    """What an entry does: its action as `Entry` has it, and as the runtime takes it."""

    action: str | Member | Group
    args: tuple[int, ...]
    number: int
    packed: list[int]


def _direct(action: ir.Action, args: tuple[int, ...]) -> _Target:
    return _Target(action.name, args, action.id, pack(action, args))


@dataclass
class _State:
    index: int
    table: ir.Table
    rows: dict[int, _Row] = field(default_factory=dict)
    by_key: dict[Signature, int] = field(default_factory=dict)
    default: tuple[ir.Action, tuple[int, ...]] | None = None


class Tables:
    """All tables of one device."""

    def __init__(
        self,
        program: ir.Program,
        lib: ctypes.CDLL,
        handle: Callable[[], int],
        lock: threading.RLock,
        profiles: Profiles,
    ) -> None:
        self._lib = lib
        self._profiles = profiles
        self._sw = handle
        self._lock = lock
        self._next = 1
        self._states = {name: _State(i, t) for i, (name, t) in enumerate(program.tables.items())}

    def restart(self) -> None:
        """The state right after load: const entries and the program's defaults. The C side is empty."""
        with self._lock:
            for s in self._states.values():
                s.rows.clear()
                s.by_key.clear()
                if s.table.default_action is not None:
                    self._set_default(s, s.table.default_action, s.table.default_args)
                else:
                    s.default = None
                for e in s.table.entries:
                    key = tuple(
                        _masked(k, _const_match(k, m)) for k, m in zip(s.table.keys, e.key, strict=True)
                    )
                    priority = BMV2_PRIORITY - e.priority if has_priority(s.table) else 0
                    self._insert(s, key, _direct(e.action, e.args), priority, const=True)

    # ---- entries

    def insert(
        self,
        table: str,
        key: Sequence[MatchValue],
        action: str | Member | Group,
        args: Sequence[int],
        priority: int | None,
    ) -> int:
        """See SwitchDevice.table_insert."""
        with self._lock:
            s = self._changeable(table)
            if not s.table.keys:
                raise BadKey(f"table {table!r} has no key: set its default action instead")
            signature = self._signature(s.table, key, priority)
            what = self._target(s.table, action, args)
            if signature in s.by_key:
                raise DuplicateEntry(f"table {table!r} has this entry already: modify it instead")
            if len(s.rows) >= s.table.max_size:
                raise TableFull(f"table {table!r} holds {s.table.max_size} entries and is full")
            handle = self._insert(s, signature[0], what, signature[1], const=False)
            self._profiles.hold(s.table, what.action)
            return handle

    def modify(self, table: str, handle: int, action: str | Member | Group, args: Sequence[int]) -> None:
        """See SwitchDevice.table_modify."""
        with self._lock:
            s = self._changeable(table)
            row = self._row(s, handle)
            what = self._target(s.table, action, args)
            if self._lib.sw_table_modify(
                self._sw(), s.index, row.pointer, what.number, words(what.packed), len(what.packed)
            ):
                raise DeviceError("no memory for the entry")
            e = row.entry
            self._profiles.hold(s.table, what.action)
            self._profiles.release(s.table, e.action)
            row.entry = Entry(e.handle, e.key, what.action, what.args, e.priority, e.const)

    def delete(self, table: str, handle: int) -> None:
        """See SwitchDevice.table_delete."""
        with self._lock:
            s = self._changeable(table)
            row = self._row(s, handle)
            self._lib.sw_table_delete(self._sw(), s.index, row.pointer)
            self._profiles.release(s.table, row.entry.action)
            del s.rows[handle]
            del s.by_key[row.entry.key, row.entry.priority]

    def entries(self, table: str) -> list[Entry]:
        """See SwitchDevice.table_entries."""
        with self._lock:
            return [row.entry for row in self._state(table).rows.values()]

    def entry(self, table: str, handle: int) -> Entry:
        """See SwitchDevice.table_entry."""
        with self._lock:
            return self._row(self._state(table), handle).entry

    def find(self, table: str, key: Sequence[MatchValue], priority: int | None) -> int | None:
        """See SwitchDevice.table_find."""
        with self._lock:
            s = self._state(table)
            return s.by_key.get(self._signature(s.table, key, priority))

    def idle_us(self, table: str, handle: int) -> int:
        """See SwitchDevice.table_idle_us."""
        with self._lock:
            s = self._state(table)
            if not s.table.idle_timeout:
                raise NoSuchObject(f"table {table!r} has no idle timeouts")
            return int(self._lib.sw_entry_idle_us(self._sw(), self._row(s, handle).pointer))

    def _insert(
        self,
        s: _State,
        key: tuple[MatchValue, ...],
        what: _Target,
        priority: int,
        *,
        const: bool,
    ) -> int:
        places = key_words(s.table)
        value, mask, ranges = [0] * places[-1], [0] * places[-1], []
        weight = priority
        for k, at, m in zip(s.table.keys, places, key, strict=False):
            n = limbs(k.width)
            v, full = value_mask(k.width, m)
            value[at : at + n] = split(v, n)
            mask[at : at + n] = split(full, n)
            if isinstance(m, Range):
                ranges += split(m.low, n) + split(m.high, n)
            if isinstance(m, Lpm) and not has_priority(s.table):
                weight = m.prefix_len
        pointer = self._lib.sw_table_insert(
            self._sw(),
            s.index,
            self._next,
            words(value),
            words(mask),
            words(ranges),
            weight,
            what.number,
            words(what.packed),
            len(what.packed),
        )
        if pointer is None:
            raise DeviceError(f"no memory for an entry of table {s.table.name!r}")
        handle = self._next
        self._next += 1
        s.rows[handle] = _Row(Entry(handle, key, what.action, what.args, priority, const), pointer)
        s.by_key.setdefault((key, priority), handle)
        return handle

    # ---- defaults

    def set_default(self, table: str, action: str, args: Sequence[int]) -> None:
        """See SwitchDevice.table_set_default."""
        with self._lock:
            s = self._state(table)
            if s.table.default_const:
                raise Immutable(f"the default action of table {table!r} is const")
            if s.table.profile is not None:
                raise Immutable(
                    f"table {table!r} is indirect: p4c and simple_switch give it no default entry"
                )
            chosen, values = checked(f"table {table!r}", s.table.actions, action, args)
            self._set_default(s, chosen, values)

    def get_default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """See SwitchDevice.table_get_default."""
        with self._lock:
            default = self._state(table).default
            return None if default is None else (default[0].name, default[1])

    def reset_default(self, table: str) -> None:
        """See SwitchDevice.table_reset_default."""
        with self._lock:
            s = self._state(table)
            if s.table.default_action is not None:
                self._set_default(s, s.table.default_action, s.table.default_args)
                return
            if self._lib.sw_table_default(self._sw(), s.index, -1, words([]), 0):
                raise DeviceError("no memory for the default action")
            s.default = None

    def _set_default(self, s: _State, action: ir.Action, args: tuple[int, ...]) -> None:
        packed = pack(action, args)
        if self._lib.sw_table_default(self._sw(), s.index, action.id, words(packed), len(packed)):
            raise DeviceError("no memory for the default action")
        s.default = (action, args)

    # ---- direct resources

    def counter(self, table: str, handle: int | None, write: tuple[int, int] | None) -> tuple[int, int]:
        """Read, or write, an entry's counter: packets, bytes. The handle None is the default entry's."""
        with self._lock:
            s = self._state(table)
            if not s.table.counters:
                raise NoSuchObject(f"table {table!r} has no direct counter")
            packets, octets = (
                ctypes.c_uint64(write[0] if write else 0),
                ctypes.c_uint64(write[1] if write else 0),
            )
            self._lib.sw_entry_counter(
                self._sw(),
                self._bearer(s, handle),
                ctypes.byref(packets),
                ctypes.byref(octets),
                int(write is not None),
            )
            return packets.value, octets.value

    def direct_meter(
        self, table: str, handle: int | None, rates: MeterRates | None, *, read: bool
    ) -> MeterRates | None:
        """Read or set an entry's meter, or with None the default entry's."""
        with self._lock:
            s = self._state(table)
            if s.table.meter is None:
                raise NoSuchObject(f"table {table!r} has no direct meter")
            where = (self._bearer(s, handle),)
            return meter_call(self._sw(), self._lib.sw_entry_meter, where, rates, read=read)

    def direct_colors(self, table: str, handle: int | None, write: Colors | None) -> Colors:
        """Read, or write, what an entry's meter counted by color."""
        with self._lock:
            s = self._state(table)
            if s.table.meter is None:
                raise NoSuchObject(f"table {table!r} has no direct meter")
            return colors_call(self._sw(), self._lib.sw_entry_colors, (self._bearer(s, handle),), write)

    def _bearer(self, s: _State, handle: int | None) -> int:
        """The C entry that has the direct resources."""
        if handle is not None:
            return self._row(s, handle).pointer
        return int(self._lib.sw_table_miss(self._sw(), s.index))

    # ---- checks

    def _state(self, table: str) -> _State:
        s = self._states.get(table)
        if s is None:
            raise NoSuchObject(f"no table {table!r}")
        return s

    def _changeable(self, table: str) -> _State:
        s = self._state(table)
        if s.table.immutable:
            raise Immutable(f"the entries of table {table!r} are const")
        return s

    @staticmethod
    def _row(s: _State, handle: int) -> _Row:
        row = s.rows.get(handle)
        if row is None:
            raise NoSuchEntry(f"table {s.table.name!r} has no entry {handle}")
        return row

    def _target(self, t: ir.Table, action: str | Member | Group, args: Sequence[int]) -> _Target:
        """What an entry is to do, checked. Raises BadAction, NoSuchObject."""
        if isinstance(action, str):
            if t.profile is not None:
                raise BadAction(
                    f"table {t.name!r} is indirect: it takes a Member or Group of {t.profile.name!r}"
                )
            return _direct(*checked(f"table {t.name!r}", t.actions, action, args))
        if t.profile is None or args:
            why = "an action" if t.profile is None else "no arguments beside it"
            raise BadAction(f"table {t.name!r} takes {why}, not {action}")
        return _Target(action, (), 0, [self._profiles.address(t.profile.name, action)])

    @staticmethod
    def _signature(t: ir.Table, key: Sequence[MatchValue], priority: int | None) -> Signature:
        if len(key) != len(t.keys):
            raise BadKey(f"table {t.name!r} has {len(t.keys)} keys, not {len(key)}")
        if has_priority(t) != (priority is not None):
            raise BadKey(f"table {t.name!r} {'needs' if has_priority(t) else 'takes no'} priority")
        if priority is not None and not -(1 << 62) < priority < 1 << 62:
            raise BadKey(f"table {t.name!r}: priority {priority} is out of range")
        return tuple(_normal(t, k, m) for k, m in zip(t.keys, key, strict=True)), priority or 0


def has_priority(t: ir.Table) -> bool:
    """Whether entries of a table have a priority."""
    return t.match in ("ternary", "range")


def _normal(t: ir.Table, k: ir.Key, m: MatchValue) -> MatchValue:
    """A match value checked against its key, don't-care bits cleared."""
    wanted = KINDS[k.match]
    where = f"key {k.name!r} of table {t.name!r}"
    if not isinstance(m, wanted):
        raise BadKey(f"{where} is matched by {wanted.__name__}, not by {type(m).__name__}")
    return _masked(k, normal(where, k.width, m))


def _masked(k: ir.Key, m: MatchValue) -> MatchValue:
    """The value under the mask that P4_14 may give a key: the packet's is masked alike (match_units.cpp)."""
    if k.mask is None:
        return m
    return replace(m, low=m.low & k.mask) if isinstance(m, Range) else replace(m, value=m.value & k.mask)


def _const_match(k: ir.Key, m: ir.Match) -> MatchValue:
    if k.match == "exact":
        return Exact(m.value)
    if k.match == "lpm":
        return Lpm(m.value, m.prefix_len)
    if k.match == "range":
        return Range(m.value, m.mask)
    return Ternary(m.value, m.mask)


def meter_call(
    sw: int, call: Callable[..., int], where: tuple[int, ...], rates: MeterRates | None, *, read: bool
) -> MeterRates | None:
    """One of the runtime's meter functions: here units a second, there units a microsecond."""
    speed, burst = (ctypes.c_double * 2)(), (ctypes.c_uint64 * 2)()
    if rates is not None:
        if not (0 <= rates.cir <= rates.pir and 0 <= rates.cburst < 1 << 63 and 0 <= rates.pburst < 1 << 63):
            raise BadIndex(f"meter rates {rates}: they must not be negative, and cir not above pir")
        speed[0], speed[1] = rates.cir / 1e6, rates.pir / 1e6
        burst[0], burst[1] = rates.cburst, rates.pburst
    configured = call(sw, *where, speed, burst, 0 if read else 1 if rates is not None else 2)
    if not read or not configured:
        return None
    return MeterRates(speed[0] * 1e6, burst[0], speed[1] * 1e6, burst[1])


def colors_call(sw: int, call: Callable[..., None], where: tuple[int, ...], write: Colors | None) -> Colors:
    """One of the runtime's functions for what meters counted by color."""
    flat = (
        [0] * 6
        if write is None
        else [u64(n) for pair in (write.green, write.yellow, write.red) for n in pair]
    )
    data = words(flat)
    call(sw, *where, data, int(write is not None))
    return Colors((data[0], data[1]), (data[2], data[3]), (data[4], data[5]))


def u64(value: int) -> int:
    """A value checked to fit 64 bits. Raises BadIndex."""
    if not 0 <= value < 1 << 64:
        raise BadIndex(f"{value} is not in 0..2^64-1")
    return value
