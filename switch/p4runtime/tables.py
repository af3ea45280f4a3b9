# SPDX-License-Identifier: Apache-2.0
"""TableEntry: matches, actions and default entries between P4Runtime and the device (spec 1.4, 9.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from p4.v1 import p4runtime_pb2

from switch.device import Entry, Exact, Group, Lpm, MatchValue, Member, Range, SwitchDevice, Ternary
from switch.p4runtime import actions, codec, rates
from switch.p4runtime.errors import already_exists, denied, invalid, not_found, unimplemented
from switch.p4runtime.p4info import MatchField, MatchKind, P4InfoView, Scope, Table
from switch.p4runtime.profiles import Profiles


@dataclass(frozen=True)
class Cookies:
    """What the server keeps of an entry for the client and never looks at."""

    controller_metadata: int = 0
    metadata: bytes = b""


NO_COOKIES = Cookies()


class Tables:
    """The tables of one loaded program. Entries live in the device; only the clients' cookies live here."""

    def __init__(self, view: P4InfoView, device: SwitchDevice, profiles: Profiles) -> None:
        self._view = view
        self._device = device
        self._profiles = profiles
        self._cookies: dict[tuple[int, int | None], Cookies] = {}
        """By (table id, entry handle), None for the default entry."""

    # ---- writing
    def insert(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Add an entry with its direct resources."""
        table = self._writable(entry)
        if entry.is_default_action:
            raise invalid(f"Cannot use INSERT for the default entry of {table.name}; use MODIFY")
        if not table.fields:
            raise invalid(f"Cannot use INSERT: table {table.name} has no key; MODIFY its default entry")
        if table.const:
            raise denied(f"Cannot insert: table {table.name} has const entries")
        if not entry.HasField("action"):
            raise invalid(f"'action' field must be set to insert an entry into {table.name}")
        key, priority = self._key(table, entry)
        self._check_resources(table, entry)
        meter = rates.decode(entry.meter_config) if entry.HasField("meter_config") else None
        if self._device.table_find(table.name, key, priority) is not None:
            raise already_exists(
                f"Match entry exists in {table.name}, use MODIFY if you wish to change the action"
            )
        action, args = self._action(table, entry.action, default=False)
        with self._releasing(table, action):
            handle = self._device.table_insert(table.name, key, action, args, priority)
        if meter is not None:
            self._device.direct_meter_set(table.name, handle, meter)
        if entry.HasField("counter_data"):
            self._write_counter(table, handle, entry.counter_data)
        self._remember(table, handle, entry)

    def modify(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Change an entry's action and direct resources, or set or reset the default entry."""
        table = self._writable(entry)
        if entry.is_default_action:
            self._modify_default(table, entry)
            return
        key, priority = self._key(table, entry)
        self._check_resources(table, entry)
        handle = self._find(table, key, priority)
        meter = rates.decode(entry.meter_config) if entry.HasField("meter_config") else None
        if entry.HasField("action"):
            if table.const:
                raise denied(f"Cannot change the action of an entry of {table.name}: its entries are const")
            former = self._device.table_entry(table.name, handle).action
            action, args = self._action(table, entry.action, default=False)
            with self._releasing(table, action):
                self._device.table_modify(table.name, handle, action, args)
            self._profiles.release(table.implementation, former)
        if table.meter is not None:
            self._device.direct_meter_set(table.name, handle, meter)
        if entry.HasField("counter_data"):
            self._write_counter(table, handle, entry.counter_data)
        self._remember(table, handle, entry)

    def delete(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Remove an entry; only its match and priority are looked at."""
        table = self._view.table(entry.table_id)
        if entry.is_default_action:
            raise invalid(
                f"Cannot use DELETE for the default entry of {table.name}; MODIFY without action resets it"
            )
        if table.const:
            raise denied(f"Cannot delete: table {table.name} has const entries")
        key, priority = self._key(table, entry)
        handle = self._find(table, key, priority)
        former = self._device.table_entry(table.name, handle).action
        self._device.table_delete(table.name, handle)
        self._profiles.release(table.implementation, former)
        self._cookies.pop((table.id, handle), None)

    def locate(self, entry: p4runtime_pb2.TableEntry, resource: str) -> tuple[Table, int]:
        """Return the table and the handle of the entry that a DirectCounterEntry or DirectMeterEntry names.

        Raises:
            RpcError: NOT_FOUND without such an entry, INVALID_ARGUMENT if the table has no such resource.
        """
        table = self._view.table(entry.table_id)
        if getattr(table, resource) is None:
            raise invalid(f"Table {table.name} has no direct {resource}")
        if entry.is_default_action:
            raise unimplemented(f"The default entry of {table.name} has no direct {resource} on this target")
        key, priority = self._key(table, entry)
        return table, self._find(table, key, priority)

    # ---- reading
    def read(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield what the filter selects: entries of all tables, of one, a single one, or a default entry."""
        if wanted.HasField("time_since_last_hit"):
            raise unimplemented("time_since_last_hit: idle timeouts are not supported")
        if wanted.HasField("meter_counter_data"):
            raise unimplemented("meter_counter_data: meters do not count per color")
        if wanted.table_id == 0:
            for table in self._view.tables.values():
                yield from self._read_table(table, wanted)
            return
        table = self._view.table(wanted.table_id)
        if wanted.is_default_action:
            yield from self._read_default(table, wanted)
        else:
            yield from self._read_table(table, wanted)

    def select(
        self, wanted: p4runtime_pb2.TableEntry, resource: str
    ) -> Iterator[tuple[Table, int, p4runtime_pb2.TableEntry]]:
        """Yield (table, handle, key-only TableEntry) of the entries whose direct `resource` is to be read.

        That is one entry if `wanted` has a match, else all of its table, else those of all tables.
        """
        if wanted.match or wanted.is_default_action:
            table, handle = self.locate(wanted, resource)
            yield table, handle, wanted
            return
        if wanted.table_id:
            tables = [self._view.table(wanted.table_id)]
            if getattr(tables[0], resource) is None:
                raise invalid(f"Table {tables[0].name} has no direct {resource}")
        else:
            tables = [table for table in self._view.tables.values() if getattr(table, resource) is not None]
        for table in tables:
            for entry in self._device.table_entries(table.name):
                message = p4runtime_pb2.TableEntry(table_id=table.id, priority=entry.priority)
                self._encode_key(table, entry, message)
                yield table, entry.handle, message

    def _read_table(self, table: Table, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        single: int | None = None
        if wanted.match:
            key, priority = self._key(table, wanted)
            single = self._device.table_find(table.name, key, priority)
            if single is None:
                return
        for entry in self._device.table_entries(table.name):
            cookies = self._cookies.get((table.id, entry.handle), NO_COOKIES)
            if (
                (single is not None and entry.handle != single)
                or (wanted.priority and entry.priority != wanted.priority)
                or (wanted.controller_metadata and cookies.controller_metadata != wanted.controller_metadata)
                or (wanted.metadata and cookies.metadata != wanted.metadata)
                or (
                    wanted.HasField("action")
                    and wanted.action.WhichOneof("type") == "action"
                    and wanted.action.action.action_id != self._id(table, entry.action)
                )
            ):
                continue
            entity = p4runtime_pb2.Entity()
            message = entity.table_entry
            message.table_id, message.priority, message.is_const = table.id, entry.priority, entry.const
            self._encode_key(table, entry, message)
            self._encode_action(table, entry.action, entry.args, message)
            _set_cookies(message, cookies)
            if wanted.HasField("counter_data") and table.counter is not None:
                packets, octets = self._device.direct_counter_read(table.name, entry.handle)
                message.counter_data.packet_count, message.counter_data.byte_count = packets, octets
            if wanted.HasField("meter_config") and table.meter is not None:
                rates.fill(message.meter_config, self._device.direct_meter_get(table.name, entry.handle))
            yield entity

    def _read_default(self, table: Table, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        entity = p4runtime_pb2.Entity()
        message = entity.table_entry
        message.table_id, message.is_default_action = table.id, True
        default = self._device.table_get_default(table.name)
        if default is not None:
            self._encode_action(table, default[0], default[1], message)
        _set_cookies(message, self._cookies.get((table.id, None), NO_COOKIES))
        yield entity

    # ---- the parts
    def _writable(self, entry: p4runtime_pb2.TableEntry) -> Table:
        table = self._view.table(entry.table_id)
        if entry.HasField("time_since_last_hit"):
            raise invalid("time_since_last_hit must not be set in a WriteRequest")
        if entry.is_const:
            raise invalid("is_const must not be set in a WriteRequest")
        if entry.HasField("meter_counter_data"):
            raise unimplemented("meter_counter_data: meters do not count per color")
        if entry.idle_timeout_ns:
            if entry.idle_timeout_ns < 0 or not table.idle_timeout:
                raise invalid(f"idle_timeout_ns must be 0: table {table.name} does not support idle timeout")
            raise unimplemented(f"idle_timeout_ns of table {table.name}: idle timeouts are not supported")
        return table

    def _modify_default(self, table: Table, entry: p4runtime_pb2.TableEntry) -> None:
        self._key(table, entry)
        if table.implementation:
            raise invalid(f"Cannot set or reset the default entry of {table.name}: the table is indirect")
        if table.const_default:
            raise denied(f"Cannot set or reset the default action of {table.name}: it is const")
        if entry.HasField("counter_data") or entry.HasField("meter_config"):
            raise unimplemented(f"The default entry of {table.name} has no direct resources on this target")
        if entry.HasField("action"):
            action, args = self._action(table, entry.action, default=True)
            assert isinstance(action, str)
            self._device.table_set_default(table.name, action, args)
            self._remember(table, None, entry)
        else:
            self._device.table_reset_default(table.name)
            self._cookies.pop((table.id, None), None)

    def _find(self, table: Table, key: list[MatchValue], priority: int | None) -> int:
        handle = self._device.table_find(table.name, key, priority)
        if handle is None:
            raise not_found(f"Cannot find match entry in {table.name}")
        return handle

    def _remember(self, table: Table, handle: int | None, entry: p4runtime_pb2.TableEntry) -> None:
        cookies = Cookies(entry.controller_metadata, entry.metadata)
        if cookies != NO_COOKIES:
            self._cookies[table.id, handle] = cookies
        else:
            self._cookies.pop((table.id, handle), None)

    def _check_resources(self, table: Table, entry: p4runtime_pb2.TableEntry) -> None:
        if entry.HasField("meter_config") and table.meter is None:
            raise invalid(f"Table {table.name} has no direct meter")
        if entry.HasField("counter_data") and table.counter is None:
            raise invalid(f"Table {table.name} has no direct counter")

    def _write_counter(self, table: Table, handle: int, data: p4runtime_pb2.CounterData) -> None:
        self._device.direct_counter_write(table.name, handle, data.packet_count, data.byte_count)

    def _key(self, table: Table, entry: p4runtime_pb2.TableEntry) -> tuple[list[MatchValue], int | None]:
        if entry.is_default_action:
            if entry.match or entry.priority:
                raise invalid(f"The default entry of {table.name} has neither key nor priority")
            return [], None
        given: dict[int, Any] = {}
        for match in entry.match:
            if match.field_id in given:
                raise invalid(f"Match field {match.field_id} of {table.name} is there twice")
            given[match.field_id] = match
        key = [_match_value(table, field, given.pop(field.id, None)) for field in table.fields]
        if given:
            raise invalid(f"Unknown field {next(iter(given))} in the match key of {table.name}")
        if table.has_priority:
            if entry.priority <= 0:
                raise invalid(
                    f"Priority must be positive in {table.name}, which has ternary, range or optional keys"
                )
            return key, entry.priority
        if entry.priority:
            raise invalid(f"Priority must be 0 in {table.name}, which has only exact or lpm keys")
        return key, None

    def _action(
        self, table: Table, action: p4runtime_pb2.TableAction, *, default: bool
    ) -> tuple[str | Member | Group, list[int]]:
        """What an entry is to do. A one-shot set is made a group here: see `_releasing`."""
        if table.implementation:
            return self._profiles.target(table.implementation, action), []
        kind = action.WhichOneof("type")
        if kind != "action":
            raise invalid(f"Table {table.name} is direct: it takes an action, not {kind or 'nothing'}")
        name, args = actions.decode(self._view, action.action, table.scopes, f"Table {table.name}")
        scope = table.scopes[action.action.action_id]
        if scope is Scope.ENTRIES_ONLY and default:
            raise denied(f"{name} is a TABLE_ONLY action of {table.name}: not for the default entry")
        if scope is Scope.DEFAULT_ONLY and not default:
            raise denied(f"{name} is a DEFAULT_ONLY action of {table.name}: not for entries")
        return name, args

    @contextlib.contextmanager
    def _releasing(self, table: Table, action: str | Member | Group) -> Iterator[None]:
        """Let go of a new one-shot group where the device refuses the entry."""
        try:
            yield
        except Exception:
            self._profiles.release(table.implementation, action)
            raise

    def _id(self, table: Table, action: str | Member | Group) -> int | None:
        """The id of a direct action, None where the table is indirect."""
        if not isinstance(action, str):
            return None
        return actions.find(self._view, table.scopes, action, table.name)

    def _encode_action(
        self,
        table: Table,
        action: str | Member | Group,
        args: tuple[int, ...],
        message: p4runtime_pb2.TableEntry,
    ) -> None:
        if isinstance(action, str):
            action_id = actions.find(self._view, table.scopes, action, table.name)
            actions.encode(self._view, action_id, args, message.action.action)
        else:
            self._profiles.encode(table.implementation, action, message.action)

    def _encode_key(self, table: Table, entry: Entry, message: p4runtime_pb2.TableEntry) -> None:
        for field, value in zip(table.fields, entry.key, strict=True):
            _encode_match(field, value, message)


def _set_cookies(message: p4runtime_pb2.TableEntry, cookies: Cookies) -> None:
    message.controller_metadata, message.metadata = cookies.controller_metadata, cookies.metadata


def _match_value(table: Table, field: MatchField, match: Any) -> MatchValue:
    """Return the match on one field; `match` is its FieldMatch, None where left out ("don't care")."""
    what = f"{table.name}.{field.name}"
    full = (1 << field.bits) - 1
    kind = field.kind
    if match is None:
        if kind is MatchKind.EXACT:
            raise invalid(f"Missing match on {what}: an exact field cannot be left out")
        if kind is MatchKind.LPM:
            return Lpm(0, 0)
        return Range(0, full) if kind is MatchKind.RANGE else Ternary(0, 0)
    if match.WhichOneof("field_match_type") != kind.value:
        raise invalid(
            f"Invalid match type on {what}: it is {kind.value}, not {match.WhichOneof('field_match_type')}"
        )
    if kind is MatchKind.EXACT:
        return Exact(codec.decode(match.exact.value, field.bits, what))
    if kind is MatchKind.OPTIONAL:
        return Ternary(codec.decode(match.optional.value, field.bits, what), full)
    if kind is MatchKind.LPM:
        return _lpm(what, field.bits, codec.decode(match.lpm.value, field.bits, what), match.lpm.prefix_len)
    if kind is MatchKind.TERNARY:
        value = codec.decode(match.ternary.value, field.bits, what)
        mask = codec.decode(match.ternary.mask, field.bits, what)
        if not mask:
            raise invalid(f"Mask 0 on {what}: leave the field out to match anything")
        if value & ~mask:
            raise invalid(f"Value {value:#x} on {what} has bits outside the mask {mask:#x}")
        return Ternary(value, mask)
    low = codec.decode(match.range.low, field.bits, what)
    high = codec.decode(match.range.high, field.bits, what)
    if low > high:
        raise invalid(f"Range {low}..{high} on {what} is empty")
    if low == 0 and high == full:
        raise invalid(f"The whole range on {what}: leave the field out to match anything")
    return Range(low, high)


def _lpm(what: str, bits: int, value: int, length: int) -> Lpm:
    if not 0 < length <= bits:
        why = "leave the field out to match anything" if length == 0 else f"it must lie in 1..{bits}"
        raise invalid(f"Prefix length {length} on {what}: {why}")
    if value & ((1 << (bits - length)) - 1):
        raise invalid(f"Value {value:#x} on {what} has bits beyond its prefix length {length}")
    return Lpm(value, length)


def _encode_match(field: MatchField, value: MatchValue, message: p4runtime_pb2.TableEntry) -> None:
    """Add the FieldMatch of one field, nothing where it matches anything."""
    if isinstance(value, Exact):
        message.match.add(field_id=field.id).exact.value = codec.encode(value.value)
    elif isinstance(value, Lpm):
        if value.prefix_len:
            lpm = message.match.add(field_id=field.id).lpm
            lpm.value, lpm.prefix_len = codec.encode(value.value), value.prefix_len
    elif isinstance(value, Range):
        if (value.low, value.high) != (0, (1 << field.bits) - 1):
            bounds = message.match.add(field_id=field.id).range
            bounds.low, bounds.high = codec.encode(value.low), codec.encode(value.high)
    elif value.mask:
        if field.kind is MatchKind.OPTIONAL:
            message.match.add(field_id=field.id).optional.value = codec.encode(value.value)
        else:
            ternary = message.match.add(field_id=field.id).ternary
            ternary.value, ternary.mask = codec.encode(value.value), codec.encode(value.mask)
