# SPDX-License-Identifier: Apache-2.0
"""A checked view of P4Info: each object once, by id, with what the server asks of it (spec 1.4, 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from p4.config.v1 import p4info_pb2

from switch.p4runtime.errors import invalid, unimplemented


class MatchKind(Enum):
    """How a key field matches, by the name of its oneof member in p4.v1.FieldMatch."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


PRIORITY_KINDS = frozenset({MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL})
"""A table with such a field needs a priority in each entry; any other must not have one (spec 9.1.1)."""


@dataclass(frozen=True)
class Field:
    """A key field, an action parameter or a controller metadata field.

    bits is 0 where P4Info gives no width: a key of type error, or a string by @p4runtime_translation.
    """

    id: int
    name: str
    bits: int


@dataclass(frozen=True)
class MatchField(Field):
    """A key field of a table."""

    kind: MatchKind


@dataclass(frozen=True)
class Action:
    """An action and its parameters, in the order of the program."""

    id: int
    name: str
    params: tuple[Field, ...]


class Scope(Enum):
    """Where a table may use an action."""

    ANYWHERE = 0
    ENTRIES_ONLY = 1
    DEFAULT_ONLY = 2


@dataclass(frozen=True)
class Array:
    """A counter, meter or register array, or a direct one (then `table` is its table's id and size is 0)."""

    id: int
    name: str
    size: int
    bytes: bool
    packets: bool
    table: int = 0
    bits: int = 0
    """Width of a register's element; 0 where it is no bit<W>."""


@dataclass(frozen=True)
class Table:
    """A table: its key, the scope of each of its actions, and its direct resources."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    scopes: Mapping[int, Scope]
    size: int
    const: bool
    const_default: bool
    implementation: int
    idle_timeout: bool
    counter: Array | None
    meter: Array | None

    @property
    def has_priority(self) -> bool:
        """Whether entries need a priority."""
        return any(field.kind in PRIORITY_KINDS for field in self.fields)


@dataclass(frozen=True)
class Profile:
    """An action profile; sizes are 0 where there is no limit.

    `counts_members`: the size of a selector's group is the number of its members, not the sum of weights.
    """

    id: int
    name: str
    tables: tuple[int, ...]
    selector: bool
    size: int
    max_group_size: int
    counts_members: bool
    max_member_weight: int


@dataclass(frozen=True)
class ValueSet:
    """A parser value set and the components of its members.

    `complete` is False where the program has more of them: p4c tells nothing of those in
    a struct of its struct.
    """

    id: int
    name: str
    fields: tuple[MatchField, ...]
    complete: bool = True


@dataclass(frozen=True)
class Digest:
    """A digest: the member of P4Data that carries each value, in a struct, in a tuple, or (None) alone.

    `kinds` is None where the values have other types.
    """

    id: int
    name: str
    shape: str | None
    kinds: tuple[str, ...] | None


@dataclass(frozen=True)
class PacketHeader:
    """The metadata of packet_in or packet_out, in the order of the header."""

    name: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Bytes of the header on the wire, padding included."""
        return (sum(field.bits for field in self.fields) + 7) // 8


T = TypeVar("T")


class P4InfoView:
    """P4Info, checked and indexed by id."""

    def __init__(self, message: p4info_pb2.P4Info) -> None:
        """Index the message.

        Raises:
            RpcError: INVALID_ARGUMENT where it contradicts itself, UNIMPLEMENTED for other match types.
        """
        self.actions: dict[int, Action] = _index("action", (_action(entry) for entry in message.actions))
        self.counters: dict[int, Array] = _index("counter", (_array(entry) for entry in message.counters))
        self.meters: dict[int, Array] = _index("meter", (_array(entry) for entry in message.meters))
        self.registers: dict[int, Array] = _index(
            "register", (_register(entry) for entry in message.registers)
        )
        self.direct_counters: dict[int, Array] = _index(
            "direct counter", (_array(entry) for entry in message.direct_counters)
        )
        self.direct_meters: dict[int, Array] = _index(
            "direct meter", (_array(entry) for entry in message.direct_meters)
        )
        self.tables: dict[int, Table] = _index("table", (self._table(entry) for entry in message.tables))
        self.profiles: dict[int, Profile] = _index(
            "action profile", (self._profile(entry) for entry in message.action_profiles)
        )
        for table in self.tables.values():
            if table.implementation and table.implementation not in self.profiles:
                raise invalid(
                    f"P4Info: table {table.name} refers to action profile {table.implementation}, "
                    "which is not there"
                )
        self.value_sets: dict[int, ValueSet] = _index(
            "value set", (_value_set(entry) for entry in message.value_sets)
        )
        self.digests: dict[int, Digest] = _index(
            "digest", (_digest(entry, message.type_info) for entry in message.digests)
        )
        headers = {
            entry.preamble.name: PacketHeader(entry.preamble.name, tuple(_field(f) for f in entry.metadata))
            for entry in message.controller_packet_metadata
        }
        self.packet_in = headers.get("packet_in")
        self.packet_out = headers.get("packet_out")

    def table(self, table_id: int) -> Table:
        """Return a table by id; INVALID_ARGUMENT if there is none."""
        return _get(self.tables, table_id, "table")

    def action(self, action_id: int) -> Action:
        """Return an action by id; INVALID_ARGUMENT if there is none."""
        return _get(self.actions, action_id, "action")

    def counter(self, counter_id: int) -> Array:
        """Return an indirect counter by id; INVALID_ARGUMENT if there is none, or it is direct."""
        if counter_id in self.direct_counters:
            raise invalid(
                f"Cannot use CounterEntry with direct counter {self.direct_counters[counter_id].name}"
            )
        return _get(self.counters, counter_id, "counter")

    def meter(self, meter_id: int) -> Array:
        """Return an indirect meter by id; INVALID_ARGUMENT if there is none, or it is direct."""
        if meter_id in self.direct_meters:
            raise invalid(f"Cannot use MeterEntry with direct meter {self.direct_meters[meter_id].name}")
        return _get(self.meters, meter_id, "meter")

    def register(self, register_id: int) -> Array:
        """Return a register by id; INVALID_ARGUMENT if there is none."""
        return _get(self.registers, register_id, "register")

    def profile(self, profile_id: int) -> Profile:
        """Return an action profile by id; INVALID_ARGUMENT if there is none."""
        return _get(self.profiles, profile_id, "action profile")

    def value_set(self, value_set_id: int) -> ValueSet:
        """Return a value set by id; INVALID_ARGUMENT if there is none."""
        return _get(self.value_sets, value_set_id, "value set")

    def digest(self, digest_id: int) -> Digest:
        """Return a digest by id; INVALID_ARGUMENT if there is none."""
        return _get(self.digests, digest_id, "digest")

    def _profile(self, entry: p4info_pb2.ActionProfile) -> Profile:
        name = entry.preamble.name
        for table in entry.table_ids:
            if table not in self.tables:
                raise invalid(f"P4Info: action profile {name} refers to table {table}, which is not there")
        return Profile(
            id=entry.preamble.id,
            name=name,
            tables=tuple(entry.table_ids),
            selector=entry.with_selector,
            size=entry.size,
            max_group_size=entry.max_group_size,
            counts_members=entry.HasField("sum_of_members"),
            max_member_weight=entry.sum_of_members.max_member_weight,
        )

    def _table(self, entry: p4info_pb2.Table) -> Table:
        name = entry.preamble.name
        for ref in entry.action_refs:
            if ref.id not in self.actions:
                raise invalid(f"P4Info: table {name} refers to action {ref.id}, which is not there")
            if ref.scope not in {s.value for s in Scope}:
                raise invalid(f"P4Info: table {name} gives action {ref.id} the unknown scope {ref.scope}")
        counter = meter = None
        for resource in entry.direct_resource_ids:
            if resource in self.direct_counters:
                counter = self.direct_counters[resource]
            elif resource in self.direct_meters:
                meter = self.direct_meters[resource]
            else:
                raise invalid(
                    f"P4Info: table {name} refers to direct resource {resource}, which is not there"
                )
        return Table(
            id=entry.preamble.id,
            name=name,
            fields=tuple(_match_field(name, field) for field in entry.match_fields),
            scopes={ref.id: Scope(ref.scope) for ref in entry.action_refs},
            size=entry.size,
            const=entry.is_const_table,
            const_default=entry.const_default_action_id != 0,
            implementation=entry.implementation_id,
            idle_timeout=entry.idle_timeout_behavior == p4info_pb2.Table.NOTIFY_CONTROL,
            counter=counter,
            meter=meter,
        )


def _get(objects: Mapping[int, T], object_id: int, what: str) -> T:
    try:
        return objects[object_id]
    except KeyError:
        # one that the P4Info has and the program has not, is one that p4c found no use for
        raise invalid(f"Invalid P4 id: there is no {what} {object_id} in the program") from None


def _index(what: str, objects: Iterable[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for entry in objects:
        if entry.id == 0 or entry.id in found:
            raise invalid(f"P4Info: {what} {entry.name} has the id {entry.id}, which is 0 or taken")
        found[entry.id] = entry
    return found


def _field(field: Any) -> Field:
    return Field(field.id, field.name, field.bitwidth)


def _match_field(owner: str, field: p4info_pb2.MatchField) -> MatchField:
    kinds = {
        p4info_pb2.MatchField.EXACT: MatchKind.EXACT,
        p4info_pb2.MatchField.LPM: MatchKind.LPM,
        p4info_pb2.MatchField.TERNARY: MatchKind.TERNARY,
        p4info_pb2.MatchField.RANGE: MatchKind.RANGE,
        p4info_pb2.MatchField.OPTIONAL: MatchKind.OPTIONAL,
    }
    if field.match_type not in kinds:
        raise unimplemented(
            f"P4Info: {owner}.{field.name} has match type {field.other_match_type or field.match_type}"
        )
    return MatchField(field.id, field.name, field.bitwidth, kinds[field.match_type])


def _action(entry: p4info_pb2.Action) -> Action:
    return Action(entry.preamble.id, entry.preamble.name, tuple(_field(param) for param in entry.params))


def _array(entry: Any) -> Array:
    unit = entry.spec.unit
    counts = isinstance(entry, (p4info_pb2.Counter, p4info_pb2.DirectCounter))
    both = p4info_pb2.CounterSpec.BOTH
    return Array(
        id=entry.preamble.id,
        name=entry.preamble.name,
        size=getattr(entry, "size", 0),
        bytes=unit == p4info_pb2.CounterSpec.BYTES or (counts and unit == both),
        packets=unit == p4info_pb2.CounterSpec.PACKETS or (counts and unit == both),
        table=getattr(entry, "direct_table_id", 0),
    )


def _register(entry: p4info_pb2.Register) -> Array:
    bits = entry.type_spec.bitstring.bit.bitwidth
    return Array(entry.preamble.id, entry.preamble.name, entry.size, bytes=False, packets=False, bits=bits)


def _value_set(entry: p4info_pb2.ValueSet) -> ValueSet:
    name = entry.preamble.name
    return ValueSet(entry.preamble.id, name, tuple(_match_field(name, field) for field in entry.match))


def _digest(entry: p4info_pb2.Digest, types: Any) -> Digest:
    spec = entry.type_spec
    shape = spec.WhichOneof("type_spec")
    members = [spec]
    if shape == "struct":
        members = [member.type_spec for member in types.structs[spec.struct.name].members]
    elif shape == "tuple":
        members = list(spec.tuple.members)
    else:
        shape = None
    kinds = [_data_kind(member, types) for member in members]
    known = tuple(kind for kind in kinds if kind is not None)
    return Digest(entry.preamble.id, entry.preamble.name, shape, known if len(known) == len(kinds) else None)


def _data_kind(spec: Any, types: Any) -> str | None:
    """The member of P4Data that carries a value of a type, None where it is no number on the wire."""
    kind = spec.WhichOneof("type_spec")
    if kind == "new_type" and spec.new_type.name in types.new_types:
        made = types.new_types[spec.new_type.name]
        if made.WhichOneof("representation") == "original_type":
            return _data_kind(made.original_type, types)
        return "bitstring" if made.translated_type.WhichOneof("sdn_type") == "sdn_bitwidth" else None
    if kind == "bitstring" and spec.bitstring.WhichOneof("type_spec") == "varbit":
        return None
    return {"bitstring": "bitstring", "bool": "bool", "serializable_enum": "enum_value"}.get(kind or "")
