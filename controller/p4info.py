# SPDX-License-Identifier: Apache-2.0
"""P4Info by names: table entries and packet metadata from Python values, and back.

Bytestrings are in P4Runtime's canonical form (spec 1.4, 8.4): big-endian, as short as possible, never empty.
Widths are checked here, so that an error names the field and not a byte.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from controller.errors import FieldError, P4InfoError

Value = int | str
"""A field's value: a number, a MAC address with colons for 48 bits, a dotted IPv4 address for 32."""
Prefix = tuple[Value, int]
"""An lpm field's value and prefix length; length 0 matches everything."""
MatchValue = Value | Prefix
Entity = Any
"""A p4.v1.Entity (its generated code has no types)."""
Update = Any
"""A p4.v1.Update."""

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_ADDRESS_NAME = re.compile(r"(^|_)ip(_|$)|^prefix$")
T = TypeVar("T")


def number(value: Value, bits: int, field: str) -> int:
    """Return the number that a value stands for; FieldError if it does not fit `bits` bits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FieldError(field, value, "must be a number, a MAC or an IPv4 address")
    if isinstance(value, int):
        result = value
    elif _MAC.fullmatch(value):
        if bits != 48:
            raise FieldError(field, value, f"is a MAC address, but the field has {bits} bits")
        result = int(value.replace(":", ""), 16)
    else:
        try:
            result = int(ipaddress.IPv4Address(value))
        except ValueError:
            raise FieldError(field, value, "is neither a MAC address nor an IPv4 address") from None
        if bits != 32:
            raise FieldError(field, value, f"is an IPv4 address, but the field has {bits} bits")
    if not 0 <= result < 1 << bits:
        raise FieldError(field, value, f"does not fit {bits} bits (0..{(1 << bits) - 1})")
    return result


def encode(value: Value, bits: int, field: str) -> bytes:
    """Return the canonical bytestring of a value; FieldError if it does not fit."""
    plain = number(value, bits, field)
    return plain.to_bytes(max(1, (plain.bit_length() + 7) // 8), "big")


@dataclass(frozen=True)
class Field:
    """A key field, an action's parameter or a field of packet_in or packet_out."""

    id: int
    name: str
    bits: int
    kind: str = ""
    """Of a key field: exact or lpm (others the controller does not use)."""

    def show(self, value: int) -> str:
        """Return a value as people write it."""
        if self.bits == 48:
            return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))
        if self.bits == 32 and _ADDRESS_NAME.search(self.name):
            return str(ipaddress.IPv4Address(value))
        return str(value)


@dataclass(frozen=True)
class Action:
    """An action with its parameters by name."""

    id: int
    name: str
    params: Mapping[str, Field]


@dataclass(frozen=True)
class Table:
    """A table with its key fields and actions by name."""

    id: int
    name: str
    size: int
    fields: Mapping[str, Field]
    actions: Mapping[str, Action]


@dataclass(frozen=True)
class Counter:
    """An indirect counter array."""

    id: int
    name: str
    size: int


@dataclass(frozen=True)
class Meter:
    """An indirect meter array."""

    id: int
    name: str
    size: int


@dataclass(frozen=True)
class Digest:
    """A digest whose samples are structs of bits."""

    id: int
    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A table entry in numbers; an lpm field's value is (value, prefix length)."""

    table: str
    key: Mapping[str, int | tuple[int, int]]
    action: str | None
    args: Mapping[str, int]


class P4Info:
    """A checked view of one P4Info message. Names are the full ones, as SwitchIngress.receive.ports."""

    def __init__(self, message: p4info_pb2.P4Info) -> None:
        self.message = message
        actions = {
            a.preamble.id: Action(a.preamble.id, a.preamble.name, _fields(a.params)) for a in message.actions
        }
        self.tables = {
            t.preamble.name: Table(
                t.preamble.id,
                t.preamble.name,
                t.size,
                _fields(t.match_fields),
                {actions[ref.id].name: actions[ref.id] for ref in t.action_refs},
            )
            for t in message.tables
        }
        self.counters = {
            c.preamble.name: Counter(c.preamble.id, c.preamble.name, c.size) for c in message.counters
        }
        self.meters = {m.preamble.name: Meter(m.preamble.id, m.preamble.name, m.size) for m in message.meters}
        self.digests = {
            d.preamble.name: Digest(
                d.preamble.id,
                d.preamble.name,
                tuple(m.name for m in message.type_info.structs[d.type_spec.struct.name].members),
            )
            for d in message.digests
            if d.type_spec.struct.name in message.type_info.structs
        }
        headers = {h.preamble.name: _fields(h.metadata) for h in message.controller_packet_metadata}
        self._packet_in = headers.get("packet_in", {})
        self._packet_out = headers.get("packet_out", {})
        self._tables_by_id = {table.id: table for table in self.tables.values()}
        self._meters_by_id = {meter.id: meter for meter in self.meters.values()}
        self._digests_by_id = {digest.id: digest for digest in self.digests.values()}
        self._actions_by_id = actions

    @classmethod
    def from_file(cls, path: Path) -> P4Info:
        """Read what p4c wrote in protobuf's text form; P4InfoError if it cannot be read."""
        message = p4info_pb2.P4Info()
        try:
            text_format.Parse(path.read_text(), message)
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            raise P4InfoError(str(path), f"is no P4Info: {error}; `make p4` writes it") from error
        return cls(message)

    def table(self, name: str) -> Table:
        """Return a table; P4InfoError if the program has none of that name."""
        return _named(self.tables, name, "table")

    def counter(self, name: str) -> Counter:
        """Return a counter array; P4InfoError if the program has none of that name."""
        return _named(self.counters, name, "counter")

    def meter(self, name: str | int) -> Meter:
        """Return a meter array by name or id; P4InfoError if the program has none such."""
        known: Mapping[Any, Meter] = self._meters_by_id if isinstance(name, int) else self.meters
        return _named(known, name, "meter")

    def digest(self, name: str | int) -> Digest:
        """Return a digest by name or id; P4InfoError if the program has none such."""
        known: Mapping[Any, Digest] = self._digests_by_id if isinstance(name, int) else self.digests
        return _named(known, name, "digest")

    # ---- entities
    def key(self, table: str, key: Mapping[str, MatchValue]) -> Entity:
        """Return the entity that names one entry by its key alone, for deleting or reading it.

        Raises P4InfoError for unknown or missing fields, FieldError for a value that does not fit.
        """
        known = self.table(table)
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = known.id
        _same_names(table, "key field", known.fields, key)
        for field in known.fields.values():
            _add_match(entity.table_entry, f"{table}.{field.name}", field, key[field.name])
        return entity

    def entry(
        self,
        table: str,
        key: Mapping[str, MatchValue],
        action: str = "NoAction",
        args: Mapping[str, Value] | None = None,
    ) -> Entity:
        """Return a table entry; `action` by its full name or its last part. Raises as `key`."""
        entity = self.key(table, key)
        chosen = self._action(self.table(table), action)
        given = args or {}
        _same_names(chosen.name, "parameter", chosen.params, given)
        message = entity.table_entry.action.action
        message.action_id = chosen.id
        for param in chosen.params.values():
            value = encode(given[param.name], param.bits, f"{chosen.name}.{param.name}")
            message.params.add(param_id=param.id, value=value)
        return entity

    def all_entries(self, table: str) -> Entity:
        """Return the entity that reads all entries of a table."""
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = self.table(table).id
        return entity

    def cell(self, counter: str, index: int | None) -> Entity:
        """Return the entity that reads one cell of a counter array, or all of them for None."""
        known = self.counter(counter)
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = known.id
        if index is not None:
            if not 0 <= index < known.size:
                raise FieldError(counter, index, f"the array has the cells 0..{known.size - 1}")
            entity.counter_entry.index.index = index
        return entity

    def rate(self, meter: str, index: int | None) -> Entity:
        """Return the entity that reads one cell of a meter array, or all of them for None.

        Written as it is, it makes the cell unconfigured: always green.
        """
        known = self.meter(meter)
        entity = p4runtime_pb2.Entity()
        entity.meter_entry.meter_id = known.id
        if index is not None:
            if not 0 <= index < known.size:
                raise FieldError(meter, index, f"the array has the cells 0..{known.size - 1}")
            entity.meter_entry.index.index = index
        return entity

    def row(self, entity: Entity) -> Row:
        """Return a table entry in names and numbers; P4InfoError for ids that the program does not have."""
        entry = entity.table_entry
        table = _named(self._tables_by_id, entry.table_id, "table")
        fields = {field.id: field for field in table.fields.values()}
        key: dict[str, int | tuple[int, int]] = {}
        for field in fields.values():
            if field.kind == "lpm":
                key[field.name] = (0, 0)  # left out: it matches everything
        for match in entry.match:
            field = _named(fields, match.field_id, "key field")
            if match.WhichOneof("field_match_type") == "lpm":
                key[field.name] = (int.from_bytes(match.lpm.value, "big"), match.lpm.prefix_len)
            else:
                key[field.name] = int.from_bytes(match.exact.value, "big")
        if not entry.HasField("action"):
            return Row(table.name, key, None, {})
        action = _named(self._actions_by_id, entry.action.action.action_id, "action")
        params = {param.id: param for param in action.params.values()}
        args = {
            _named(params, param.param_id, "parameter").name: int.from_bytes(param.value, "big")
            for param in entry.action.action.params
        }
        return Row(table.name, key, action.name, args)

    # ---- packets
    def packet_out(self, fields: Mapping[str, Value], payload: bytes) -> Any:
        """Return a p4.v1.PacketOut; raises as `key`."""
        _same_names("packet_out", "field", self._packet_out, fields)
        packet = p4runtime_pb2.PacketOut(payload=payload)
        for field in self._packet_out.values():
            value = encode(fields[field.name], field.bits, f"packet_out.{field.name}")
            packet.metadata.add(metadata_id=field.id, value=value)
        return packet

    def packet_in(self, packet: Any) -> dict[str, int]:
        """Return the fields of a p4.v1.PacketIn by name."""
        fields = {field.id: field.name for field in self._packet_in.values()}
        return {
            _named(fields, metadata.metadata_id, "packet_in field"): int.from_bytes(metadata.value, "big")
            for metadata in packet.metadata
        }

    def samples(self, digests: Any) -> list[dict[str, int]]:
        """Return each sample's fields of a p4.v1.DigestList by name; P4InfoError for another program's."""
        digest = self.digest(int(digests.digest_id))
        found = []
        for data in digests.data:
            values = [int.from_bytes(member.bitstring, "big") for member in data.struct.members]
            if len(values) != len(digest.fields):
                raise P4InfoError(
                    digest.name, f"a sample has {len(values)} values, the program's {len(digest.fields)}"
                )
            found.append(dict(zip(digest.fields, values, strict=True)))
        return found

    # ---- for people
    def describe(self, update: Update) -> str:
        """Return an update in words: kind, table, key, action; never fails on what it does not know."""
        kind = p4runtime_pb2.Update.Type.Name(update.type) if update.type else "(no type)"
        entity = update.entity
        which = entity.WhichOneof("entity")
        if which == "table_entry":
            try:
                return f"{kind} {self._describe_row(self.row(entity))}"
            except P4InfoError as error:
                return f"{kind} table entry ({error})"
        if which == "packet_replication_engine_entry":
            engine = entity.packet_replication_engine_entry
            if engine.WhichOneof("type") == "multicast_group_entry":
                group = engine.multicast_group_entry
                return f"{kind} multicast group {group.multicast_group_id} of {len(group.replicas)}"
            return f"{kind} clone session {engine.clone_session_entry.session_id}"
        if which == "meter_entry":
            cell = entity.meter_entry
            return f"{kind} meter {self._name(self._meters_by_id, cell.meter_id)}[{cell.index.index}]"
        if which == "digest_entry":
            return f"{kind} digest {self._name(self._digests_by_id, entity.digest_entry.digest_id)}"
        return f"{kind} {which or 'nothing'}"

    @staticmethod
    def _name(known: Mapping[int, Any], number: int) -> str:
        return str(known[number].name) if number in known else str(number)

    def _describe_row(self, row: Row) -> str:
        table = self.tables[row.table]
        parts = []
        for name, value in row.key.items():
            field = table.fields[name]
            shown = f"{field.show(value[0])}/{value[1]}" if isinstance(value, tuple) else field.show(value)
            parts.append(f"{name}={shown}")
        text = f"{row.table}[{', '.join(parts)}]"
        if row.action is None:
            return text
        params = table.actions[row.action].params if row.action in table.actions else {}
        args = ", ".join(
            f"{name}={params[name].show(value) if name in params else value}"
            for name, value in row.args.items()
        )
        return f"{text} -> {row.action.rpartition('.')[2]}({args})"

    def _action(self, table: Table, name: str) -> Action:
        for full, action in table.actions.items():
            if name in (full, full.rpartition(".")[2]):
                return action
        have = ", ".join(sorted(table.actions))
        raise P4InfoError(f"{table.name}: {name}", f"the table has no such action; it has {have}")


def _fields(messages: Iterable[Any]) -> dict[str, Field]:
    kinds = {p4info_pb2.MatchField.EXACT: "exact", p4info_pb2.MatchField.LPM: "lpm"}
    return {
        m.name: Field(m.id, m.name, m.bitwidth, kinds.get(getattr(m, "match_type", 0), "")) for m in messages
    }


def _named(known: Mapping[Any, T], name: str | int, what: str) -> T:
    try:
        return known[name]
    except KeyError:
        have = ", ".join(sorted(str(n) for n in known)) or "none"
        raise P4InfoError(
            str(name), f"the switch's program has no such {what} ({have}); is it another version's?"
        ) from None


def _same_names(owner: str, what: str, known: Mapping[str, Field], given: Mapping[str, object]) -> None:
    for name in known:
        if name not in given:
            raise P4InfoError(f"{owner}.{name}", f"this {what} is missing")
    for name in given:
        if name not in known:
            have = f"; there is {', '.join(known)}" if known else ", nor any other"
            raise P4InfoError(f"{owner}.{name}", f"there is no such {what}{have}")


def _add_match(entry: Any, name: str, field: Field, value: MatchValue) -> None:
    if field.kind == "exact":
        if isinstance(value, tuple):
            raise FieldError(name, value, "is an exact field: it takes one value, no prefix")
        entry.match.add(field_id=field.id).exact.value = encode(value, field.bits, name)
    elif field.kind == "lpm":
        if not isinstance(value, tuple):
            raise FieldError(name, value, "is an lpm field: it takes (value, prefix length)")
        plain, length = number(value[0], field.bits, name), value[1]
        if not 0 <= length <= field.bits:
            raise FieldError(name, value, f"a prefix length is 0..{field.bits}")
        if plain & ((1 << (field.bits - length)) - 1):
            raise FieldError(name, value, "the value has bits beyond its prefix length")
        if length:  # P4Runtime leaves a field out that matches everything (spec 9.1.1)
            lpm = entry.match.add(field_id=field.id).lpm
            lpm.value, lpm.prefix_len = encode(plain, field.bits, name), length
    else:
        raise FieldError(name, value, "the controller writes exact and lpm fields only")
