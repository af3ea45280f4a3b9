# SPDX-License-Identifier: Apache-2.0
"""The typed program that `load` makes of bmv2 JSON, `check` verifies and `emit` turns into C."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from switch.ir_values import (
    Arg,
    Binary,
    Const,
    Expr,
    Field,
    FieldRef,
    Header,
    HeaderRef,
    HeaderType,
    Lookahead,
    RegisterArray,
    RegisterRef,
    SameHeader,
    Select,
    Stack,
    StackCount,
    Truth,
    Unary,
    Union,
    UnionRef,
    UnionStack,
    Valid,
    ValidBit,
    inside,
    lookaheads,
)

__all__ = [
    "NOWHERE",
    "Action",
    "Advance",
    "Arg",
    "Binary",
    "Branch",
    "Calculation",
    "Call",
    "Checksum",
    "Const",
    "ConstEntry",
    "Constant",
    "CounterArray",
    "Deparser",
    "Expr",
    "Extract",
    "Field",
    "FieldList",
    "FieldRef",
    "Header",
    "HeaderRef",
    "HeaderType",
    "Invoke",
    "Key",
    "Lookahead",
    "Match",
    "MeterArray",
    "Operand",
    "Param",
    "Parser",
    "ParserOp",
    "Payload",
    "Pipeline",
    "Profile",
    "Program",
    "RegisterArray",
    "RegisterRef",
    "SameHeader",
    "Select",
    "Set",
    "Source",
    "Stack",
    "StackCount",
    "State",
    "Table",
    "Text",
    "Transition",
    "Truth",
    "Unary",
    "Union",
    "UnionRef",
    "UnionStack",
    "Valid",
    "ValidBit",
    "ValueSet",
    "Vector",
    "Verify",
    "inside",
    "lookaheads",
]


@dataclass(frozen=True)
class Source:
    """Where p4c says a construct stands in the P4 program."""

    filename: str
    line: int
    column: int
    fragment: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.filename else ""


NOWHERE = Source("", 0, 0, "")


# ---- arrays, calculations, lists


@dataclass(frozen=True, eq=False)
class CounterArray:
    """Packets and bytes; direct ones live in the entries of their table."""

    name: str
    id: int
    size: int
    direct: bool
    table: str | None = None


@dataclass(frozen=True, eq=False)
class MeterArray:
    """Two-rate meters; a direct one writes its colour to `target` on each hit."""

    name: str
    id: int
    size: int
    octets: bool
    direct: bool
    target: FieldRef | None = None
    table: str | None = None


@dataclass(frozen=True)
class Payload:
    """The rest of the packet, as input of a calculation."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant of given width, as input of a calculation or list."""

    value: int
    width: int


@dataclass(frozen=True, eq=False)
class Calculation:
    """A hash or checksum over fields, headers, constants and the payload."""

    name: str
    algorithm: str
    inputs: tuple[FieldRef | HeaderRef | Constant | Payload, ...]
    source: Source


@dataclass(frozen=True, eq=False)
class Checksum:
    """A field that holds a calculation's result, checked after parsing or written before deparsing."""

    name: str
    target: FieldRef
    calculation: Calculation
    verify: bool
    update: bool
    condition: Expr | None
    source: Source


@dataclass(frozen=True, eq=False)
class FieldList:
    """Metadata to carry with clone, resubmit, recirculate; or a digest's values."""

    name: str
    id: int
    elements: tuple[FieldRef | Constant, ...]


# ---- actions


@dataclass(frozen=True)
class Text:
    """A string operand."""

    value: str


@dataclass(frozen=True, eq=False)
class Vector:
    """Several values as one operand (log_msg)."""

    values: tuple[Expr, ...]


Operand = (
    Expr
    | HeaderRef
    | UnionRef
    | Stack
    | UnionStack
    | CounterArray
    | MeterArray
    | RegisterArray
    | Calculation
    | Text
    | Vector
)


@dataclass(frozen=True, eq=False)
class Call:
    """One primitive with its operands."""

    op: str
    args: tuple[Operand, ...]
    source: Source


@dataclass(frozen=True)
class Param:
    """An action's parameter; width in bits."""

    name: str
    width: int


@dataclass(frozen=True, eq=False)
class Action:
    """A named list of primitives. Names may repeat (p4c makes one NoAction per table), ids do not."""

    id: int
    name: str
    params: tuple[Param, ...]
    body: tuple[Call, ...]
    source: Source


# ---- tables and control flow


@dataclass(frozen=True, eq=False)
class Key:
    """One key of a table. `match` is exact, lpm, ternary (also P4's optional) or range."""

    name: str
    match: str
    value: FieldRef | ValidBit
    width: int
    mask: int | None


@dataclass(frozen=True)
class Match:
    """One key's value in a const entry: value and mask, or low and high for range keys."""

    value: int
    mask: int
    prefix_len: int = 0


@dataclass(frozen=True, eq=False)
class ConstEntry:
    """An entry that the program brings along; `priority` as bmv2 counts (smaller wins)."""

    key: tuple[Match, ...]
    action: Action
    args: tuple[int, ...]
    priority: int
    source: Source


@dataclass(frozen=True, eq=False)
class Profile:
    """An action profile; with a selector, its members may form groups.

    `actions` are those of one of its tables: the others' have the same names and parameters, and other ids.
    """

    name: str
    max_size: int
    selector: Calculation | None
    actions: tuple[Action, ...]
    source: Source


@dataclass(frozen=True, eq=False)
class Table:
    """A match-action table. `next` maps action ids to node names (None ends the pipeline).

    With a `profile`, entries name a member or group of it instead of an action.
    """

    name: str
    id: int
    match: str
    keys: tuple[Key, ...]
    actions: tuple[Action, ...]
    max_size: int
    counters: bool
    idle_timeout: bool
    meter: MeterArray | None
    profile: Profile | None
    default_action: Action | None
    default_args: tuple[int, ...]
    default_const: bool
    entries: tuple[ConstEntry, ...]
    immutable: bool
    next_hit: tuple[str | None] | None
    next_miss: tuple[str | None] | None
    next: dict[int, str | None]
    base_next: str | None
    source: Source

    def action(self, name: str) -> Action | None:
        """The table's action of this name."""
        return next((a for a in self.actions if a.name == name), None)


@dataclass(frozen=True, eq=False)
class Branch:
    """An if in a pipeline."""

    name: str
    condition: Expr
    then: str | None
    otherwise: str | None
    source: Source


@dataclass(frozen=True, eq=False)
class Invoke:
    """An action called by the control flow itself."""

    name: str
    action: Action
    next: str | None
    source: Source


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Ingress or egress: nodes by name, without cycles."""

    name: str
    start: str | None
    nodes: dict[str, Table | Branch | Invoke]


# ---- parser and deparser


@dataclass(frozen=True, eq=False)
class Extract:
    """Take the next header: a header itself, or the next element of a stack (member of the next union)."""

    header: HeaderRef | None
    stack: Stack | None
    union_stack: UnionStack | None
    member: int
    length: Expr | None


@dataclass(frozen=True, eq=False)
class Advance:
    """Skip bits, a multiple of 8."""

    bits: Expr


@dataclass(frozen=True, eq=False)
class Verify:
    """Stop with an error unless a condition holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True, eq=False)
class Set:
    """Assign in the parser."""

    target: FieldRef
    value: Expr


ParserOp = Extract | Advance | Verify | Set | Call


@dataclass(frozen=True)
class ValueSet:
    """Keys that the control plane gives the parser to compare with; `widths` are those of the components."""

    name: str
    id: int
    max_size: int
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Transition:
    """Matches when the key equals value under the mask, per key component; None: always.

    With a value set, its members take the place of the values.
    """

    match: tuple[tuple[int, int], ...] | None
    next: str | None
    values: ValueSet | None = None


@dataclass(frozen=True, eq=False)
class State:
    """One parser state."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[FieldRef | Lookahead | ValidBit, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, eq=False)
class Parser:
    """States by name; `start` None parses nothing."""

    start: str | None
    states: dict[str, State]
    value_sets: dict[str, ValueSet]


@dataclass(frozen=True, eq=False)
class Deparser:
    """Primitives to run, then headers to emit in order."""

    body: tuple[Call, ...]
    order: tuple[Header, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """A whole v1model program. Dicts are keyed by full JSON names."""

    name: str
    header_types: dict[str, HeaderType]
    headers: dict[str, Header]
    stacks: dict[str, Stack]
    unions: dict[str, Union]
    union_stacks: dict[str, UnionStack]
    errors: dict[str, int]
    actions: dict[int, Action]
    counters: dict[str, CounterArray]
    meters: dict[str, MeterArray]
    registers: dict[str, RegisterArray]
    calculations: dict[str, Calculation]
    checksums: tuple[Checksum, ...]
    field_lists: dict[int, FieldList]
    digests: dict[int, FieldList]
    parser: Parser
    ingress: Pipeline
    egress: Pipeline
    deparser: Deparser
    profiles: dict[str, Profile] = field(default_factory=dict)
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """All tables by name, ingress first."""
        return {
            n.name: n for p in (self.ingress, self.egress) for n in p.nodes.values() if isinstance(n, Table)
        }
