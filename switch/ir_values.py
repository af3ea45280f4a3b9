# SPDX-License-Identifier: Apache-2.0
"""The part of the IR that says values: headers, places in them, and expressions.

Expressions are integers of unlimited precision (`is_bool` False) or truth values; a field's value is what
its width and sign say, and only a store truncates. Nodes compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

# ---- headers


@dataclass(frozen=True)
class Field:
    """A field of a header type; `width` in bits, the largest possible for varbit."""

    name: str
    width: int
    signed: bool = False
    saturating: bool = False
    varbit: bool = False


@dataclass(frozen=True, eq=False)
class HeaderType:
    """Fields in the order in which they stand in the packet."""

    name: str
    fields: tuple[Field, ...]

    def index(self, name: str) -> int:
        """Position of a field, the first of its name; KeyError when there is none."""
        return self._places[name]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {f.name: i for i, f in reversed(list(enumerate(self.fields)))}

    def offset(self, index: int) -> int:
        """Bits before a field, a varbit at its longest."""
        return self._offsets[index]

    @cached_property
    def _offsets(self) -> list[int]:
        return list(accumulate((f.width for f in self.fields), initial=0))

    @property
    def varbit(self) -> int | None:
        """Index of the varbit field, if any."""
        return next((i for i, f in enumerate(self.fields) if f.varbit), None)

    @property
    def fixed_bits(self) -> int:
        """Bits of all fields but the varbit one."""
        return sum(f.width for f in self.fields if not f.varbit)

    @property
    def max_bits(self) -> int:
        """Bits of all fields, a varbit one at its longest."""
        return sum(f.width for f in self.fields)


@dataclass(frozen=True, eq=False)
class Header:
    """One header or metadata instance."""

    id: int
    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True, eq=False)
class Stack:
    """A header stack: its elements are header instances."""

    id: int
    name: str
    type: HeaderType
    elements: tuple[Header, ...]


@dataclass(frozen=True, eq=False)
class Union:
    """A header union: at most one member is valid."""

    id: int
    name: str
    type: str
    members: tuple[Header, ...]
    member_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class UnionStack:
    """A stack of header unions."""

    id: int
    name: str
    type: str
    elements: tuple[Union, ...]


# ---- places


@dataclass(frozen=True, eq=False)
class UnionRef:
    """A union: itself, or an element of a stack (`index` None: the last one pushed)."""

    union: Union | None = None
    stack: UnionStack | None = None
    index: Expr | None = None

    @property
    def example(self) -> Union:
        """One union of this kind: for member names and types."""
        if self.union is not None:
            return self.union
        assert self.stack is not None
        return self.stack.elements[0]


@dataclass(frozen=True, eq=False)
class HeaderRef:
    """A header: itself, an element of a stack (`index` None: the last one), or a member of a union."""

    header: Header | None = None
    stack: Stack | None = None
    index: Expr | None = None
    union: UnionRef | None = None
    member: int = 0

    @property
    def type(self) -> HeaderType:
        """Its header type."""
        if self.header is not None:
            return self.header.type
        if self.stack is not None:
            return self.stack.type
        assert self.union is not None
        return self.union.example.members[self.member].type

    @property
    def metadata(self) -> bool:
        """Whether it is metadata, which is always valid."""
        return self.header is not None and self.header.metadata


# ---- expressions


@dataclass(frozen=True, eq=False)
class Expr:
    """Root of all expressions."""

    is_bool = False


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """An integer, possibly negative."""

    value: int


@dataclass(frozen=True, eq=False)
class Truth(Expr):
    """true or false."""

    value: bool
    is_bool = True


@dataclass(frozen=True, eq=False)
class FieldRef(Expr):
    """A field's value."""

    header: HeaderRef
    index: int

    @property
    def field(self) -> Field:
        """The field's description."""
        return self.header.type.fields[self.index]


@dataclass(frozen=True, eq=False)
class ValidBit(Expr):
    """The hidden field `$valid$` as a number, 0 or 1."""

    header: HeaderRef


@dataclass(frozen=True, eq=False)
class Arg(Expr):
    """An action's parameter."""

    index: int
    width: int


@dataclass(frozen=True, eq=False)
class RegisterArray:
    """`size` elements of `width` bits."""

    name: str
    id: int
    size: int
    width: int


@dataclass(frozen=True, eq=False)
class RegisterRef(Expr):
    """A register array's element, read in an expression."""

    array: RegisterArray
    index: Expr


@dataclass(frozen=True, eq=False)
class StackCount(Expr):
    """How many elements a stack holds, plus `offset` (-1: last index)."""

    stack: Stack | UnionStack
    offset: int


@dataclass(frozen=True, eq=False)
class Lookahead(Expr):
    """Bits of the packet beyond what was parsed (parser only)."""

    offset: int
    width: int


@dataclass(frozen=True, eq=False)
class Unary(Expr):
    """`~` on a number, `not` on a truth value, `b2d` and `d2b` between them."""

    op: str
    x: Expr

    @property
    def is_bool(self) -> bool:  # type: ignore[override]
        """By the operator."""
        return self.op in ("not", "d2b")


@dataclass(frozen=True, eq=False)
class Binary(Expr):
    """Arithmetic, comparison, `and`/`or`, and the casts whose right side is a width."""

    op: str
    left: Expr
    right: Expr

    @property
    def is_bool(self) -> bool:  # type: ignore[override]
        """By the operator."""
        return self.op in ("==", "!=", "<", "<=", ">", ">=", "and", "or")


@dataclass(frozen=True, eq=False)
class Select(Expr):
    """`cond ? left : right`: only the chosen side is evaluated."""

    cond: Expr
    left: Expr
    right: Expr

    @property
    def is_bool(self) -> bool:  # type: ignore[override]
        """As its sides."""
        return self.left.is_bool


@dataclass(frozen=True, eq=False)
class Valid(Expr):
    """Whether a header, or any member of a union, is valid."""

    what: HeaderRef | UnionRef
    is_bool = True


@dataclass(frozen=True, eq=False)
class SameHeader(Expr):
    """Whether two headers (or unions) of one type are both valid and equal."""

    left: HeaderRef | UnionRef
    right: HeaderRef | UnionRef
    is_bool = True


def lookaheads(x: object) -> Iterator[Lookahead]:
    """All lookaheads inside anything of the IR that may hold such, in any order."""
    todo: list[Any] = [x]
    while todo:
        part = todo.pop()
        if isinstance(part, Lookahead):
            yield part
        elif not (isinstance(part, HeaderRef) and part.header is not None):  # those are most, and end here
            todo += inside(part)


def inside(x: Any) -> Sequence[Any]:
    """What a tuple, expression or other object of the IR holds, but for names, numbers and where it stands.

    Headers, stacks and arrays it only names.
    """
    if x.__class__ is tuple:
        return x  # type: ignore[no-any-return]
    return [getattr(x, name) for name in _attributes(x.__class__)]


@cache
def _attributes(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind) or issubclass(kind, Header | Union | Stack | UnionStack | RegisterArray):
        return ()
    return tuple(f.name for f in fields(kind) if f.type not in ("str", "int", "bool", "Source"))
