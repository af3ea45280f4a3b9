# SPDX-License-Identifier: Apache-2.0
"""Where values live in C: lvalues of headers, fields and registers, with their checks."""

from __future__ import annotations

from dataclasses import dataclass

from switch import ir
from switch.emit_code import Block, Layout, c_string, limbs
from switch.widths import Bounds


@dataclass(frozen=True)
class Val:
    """C text of type uint64_t (tw 64), sw_u128 (128) or uint64_t[tw/64]; bits from `known` up are zero."""

    code: str
    tw: int
    known: int


def type_width(n: int) -> int:
    """Bits of the C representation for n bits."""
    return 64 if n <= 64 else 128 if n <= 128 else 64 * limbs(n)


def literal(value: int, tw: int) -> str:
    """A C constant of up to 128 bits."""
    value &= (1 << tw) - 1
    if tw == 64:
        return f"UINT64_C({value:#x})" if value > 9 else f"UINT64_C({value})"
    return f"(((sw_u128)UINT64_C({value >> 64:#x}) << 64) | UINT64_C({value & (1 << 64) - 1:#x}))"


class Places:
    """Places of one function; numbers and conditions are added by its heirs."""

    def __init__(self, layout: Layout, bounds: Bounds, source: ir.Source = ir.NOWHERE) -> None:
        self.layout = layout
        self.bounds = bounds
        self.source = source
        self.args: list[int] = []

    def saturated(self, b: Block, e: ir.Expr) -> str:
        """See Numbers."""
        raise NotImplementedError

    def truth(self, b: Block, e: ir.Expr) -> str:
        """See Expressions."""
        raise NotImplementedError

    def fault(self, b: Block, condition: str, what: str) -> None:
        """Drop the packet when a condition holds; execution goes on with safe values."""
        b.line(
            f"if (SW_UNLIKELY({condition})) sw_fault(s, k, {c_string(what)}, {c_string(str(self.source))});"
        )

    def index(self, b: Block, index: ir.Expr, size: int, what: str) -> str:
        """A checked index: beyond `size` it faults and becomes 0."""
        if isinstance(index, ir.Const) and 0 <= index.value < size:
            return str(index.value)
        t = b.temp()
        b.line(f"uint64_t {t} = {self.saturated(b, index)};")
        self.fault(b, f"{t} >= {size}", f"index beyond the {size} elements of {what}")
        b.line(f"if ({t} >= {size}) {t} = 0;")
        return t

    def last(self, b: Block, name: str, what: str) -> str:
        """The last element's index of a stack."""
        t = b.temp()
        self.fault(b, f"h->{name}.next == 0", f"last element of the empty stack {what}")
        b.line(f"uint32_t {t} = h->{name}.next ? h->{name}.next - 1 : 0;")
        return t

    def union(self, b: Block, ref: ir.UnionRef) -> str:
        """C lvalue of a union."""
        if ref.union is not None:
            return f"h->{self.layout.union_places[ref.union.id]}"
        return self._element(b, ref)

    def header(self, b: Block, ref: ir.HeaderRef) -> str:
        """C lvalue of a header."""
        if ref.header is not None:
            return f"h->{self.layout.places[ref.header.id]}"
        if ref.union is not None:
            member = self.layout.union_members[ref.union.example.type][ref.member]
            return f"{self.union(b, ref.union)}.{member}"
        return self._element(b, ref)

    def _element(self, b: Block, ref: ir.HeaderRef | ir.UnionRef) -> str:
        assert ref.stack is not None
        name = self.layout.stack_names[id(ref.stack)]
        if ref.index is None:
            at = self.last(b, name, ref.stack.name)
        else:
            at = self.index(b, ref.index, len(ref.stack.elements), ref.stack.name)
        return f"h->{name}.e[{at}]"

    def field(self, b: Block, ref: ir.FieldRef) -> str:
        """C lvalue of a field."""
        return self.layout.field(self.header(b, ref.header), ref.header.type, ref.index)

    def register(self, b: Block, array: ir.RegisterArray, index: str) -> str:
        """C lvalue of a register (an array of limbs where wide)."""
        group, lane = self.layout.register_place[array.name]
        lanes = len(self.layout.groups[group][2])
        if array.width > 64:
            n = limbs(array.width)
            return f"((uint64_t *)s->groups[{group}] + ({index} * {lanes} + {lane}) * {n})"
        kind = f"uint{8 * self.layout.groups[group][1]}_t"
        return f"(({kind} *)s->groups[{group}])[{index} * {lanes} + {lane}]"

    def validity(self, b: Block, what: ir.HeaderRef | ir.UnionRef) -> str:
        """C condition: the header, or a member of the union, is valid."""
        if isinstance(what, ir.HeaderRef):
            return "1" if what.metadata else f"{self.header(b, what)}.valid"
        place = self.union(b, what)
        members = self.layout.union_members[what.example.type]
        return "(" + " || ".join(f"{place}.{m}.valid" for m in members) + ")"
