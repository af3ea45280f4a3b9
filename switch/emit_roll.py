# SPDX-License-Identifier: Apache-2.0
"""Straight-line primitives that repeat over a header's fields and a register group's lanes -> loops.

P4 has no loops over fields: a program writes one statement a field, or lets the preprocessor do so. Where
each repetition differs from the one before only in that some fields are the next ones of their header, of
the same width, and some registers the next lanes of their group, one loop over arrays does the same in the
same order, and the compiler can vectorise it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from switch import ir
from switch.emit_code import Block, Layout, storage
from switch.emit_expr import Expressions

# a loop is made from this many repetitions on, of at most so many primitives
REPETITIONS = 8
PERIOD = 8

Leaf = ir.FieldRef | ir.RegisterArray


@dataclass(frozen=True)
class Roll:
    """calls[start : start + period * count] repeat; `strides` are those of the first repetition's leaves."""

    start: int
    period: int
    count: int
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first call after it."""
        return self.start + self.period * self.count


@dataclass(frozen=True)
class Shape:
    """What two repetitions have in common, and the fields and registers in which they may differ."""

    form: tuple[object, ...]
    leaves: tuple[Leaf, ...]
    at: tuple[int, ...]


class Roller:
    """Finds repetitions."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._places = layout.register_place

    def split(self, calls: tuple[ir.Call, ...]) -> Iterator[Roll | ir.Call]:
        """The calls in order, repetitions as one."""
        shapes = [self._shape(c) for c in calls]
        i = 0
        while i < len(calls):
            roll = self._find(shapes, i)
            if roll is not None:
                yield roll
                i = roll.end
            else:
                yield calls[i]
                i += 1

    def leaves(self, calls: tuple[ir.Call, ...]) -> list[Leaf]:
        """Fields and registers of calls that have a shape, in the order of `Roll.strides`."""
        return [leaf for c in calls if (s := self._shape(c)) is not None for leaf in s.leaves]

    def _find(self, shapes: list[Shape | None], start: int) -> Roll | None:
        for period in range(1, PERIOD + 1):
            if start + REPETITIONS * period > len(shapes):
                return None
            if shapes[start + period - 1] is None:
                return None
            strides = self._strides(shapes, start, start + period, period)
            if strides is None or not any(strides):
                continue
            count = 2
            while (
                self._strides(shapes, start + (count - 1) * period, start + count * period, period) == strides
            ):
                count += 1
            roll = Roll(start, period, count, strides)
            if count >= REPETITIONS and self._apart(shapes, roll):
                return roll
        return None

    @staticmethod
    def _strides(shapes: list[Shape | None], a: int, b: int, n: int) -> tuple[int, ...] | None:
        """How far each leaf of shapes[b : b + n] is from that of shapes[a : a + n], each 0 or 1."""
        out: list[int] = []
        for i in range(n):
            x, y = shapes[a + i], shapes[b + i] if b + i < len(shapes) else None
            if x is None or y is None or x.form != y.form:
                return None
            steps = [q - p for p, q in zip(x.at, y.at, strict=True)]
            if any(step not in (0, 1) for step in steps):
                return None
            out += steps
        return tuple(out)

    def _apart(self, shapes: list[Shape | None], roll: Roll) -> bool:
        """Whether no leaf that stands still lies where another one moves."""
        leaves = [leaf for s in shapes[roll.start : roll.start + roll.period] if s is not None
                  for leaf in zip(s.leaves, s.at, strict=True)]  # fmt: skip
        places = [
            (*self._home(leaf), at, stride) for (leaf, at), stride in zip(leaves, roll.strides, strict=True)
        ]
        still = [p for p in places if p[3] == 0]
        return not any(
            p[:2] == q[:2] and q[2] <= p[2] < q[2] + roll.count for p in still for q in places if q[3] == 1
        )

    def _home(self, leaf: Leaf) -> tuple[str, int]:
        if isinstance(leaf, ir.RegisterArray):
            return "register", self._places[leaf.name][0]
        assert leaf.header.header is not None
        return "header", leaf.header.header.id

    # ---- shapes

    def _shape(self, call: ir.Call) -> Shape | None:
        """None for what no loop is made of."""
        if call.op == "assign":
            operands = call.args
        elif call.op == "register_read":
            operands = call.args[:2]  # the index is the same in the whole run
        elif call.op == "register_write":
            operands = (call.args[0], call.args[2])
        else:
            return None
        form: list[object] = [call.op]
        leaves: list[Leaf] = []
        at: list[int] = []
        for operand in operands:
            if not self._walk(operand, form, leaves, at):
                return None
        return Shape(tuple(form), tuple(leaves), tuple(at))

    def _walk(self, e: object, form: list[object], leaves: list[Leaf], at: list[int]) -> bool:
        if isinstance(e, ir.FieldRef):
            f = e.field
            if e.header.header is None or f.varbit or f.width > 64:
                return False
            block = self._layout.block(e.header.header, e.index)
            form += ["field", e.header.header.id, block, f.width, f.signed, f.saturating]
            leaves.append(e)
            at.append(e.index)
            return True
        if isinstance(e, ir.RegisterArray):
            if e.width > 64:
                return False
            group, lane = self._places[e.name]
            form += ["register", group, e.width]
            leaves.append(e)
            at.append(lane)
            return True
        if isinstance(e, ir.Const):
            form += ["const", e.value]
            return True
        if isinstance(e, ir.Arg):
            form += ["arg", e.index]
            return True
        if isinstance(e, ir.Unary) and not e.is_bool and not e.x.is_bool:
            form += ["unary", e.op]
            return self._walk(e.x, form, leaves, at)
        if isinstance(e, ir.Binary) and not e.is_bool:
            form += ["binary", e.op]
            return self._walk(e.left, form, leaves, at) and self._walk(e.right, form, leaves, at)
        return False


class Rolled(Expressions):
    """Expressions inside a loop: moving leaves are elements of arrays, standing fields are locals.

    `inside` gives the lvalue of a register that stands still.
    """

    def __init__(self, base: Expressions, inside: Callable[[ir.RegisterArray], str]) -> None:
        super().__init__(base.layout, base.bounds, base.source)
        self.args = base.args
        self._inside = inside
        self._fields: dict[tuple[int, int, int], str] = {}
        self._now: dict[int, str] = {}

    def emit(
        self,
        b: Block,
        calls: tuple[ir.Call, ...],
        leaves: list[Leaf],
        roll: Roll,
        emit_call: Callable[[Expressions, Block, ir.Call], None],
    ) -> None:
        """One loop that does `roll.count` times what `calls`, its first repetition, do once."""
        written = {id(c.args[0]) for c in calls if c.op != "register_write"}
        kept: dict[str, str] = {}
        i = b.temp()
        for leaf, stride in zip(leaves, roll.strides, strict=True):
            if isinstance(leaf, ir.RegisterArray):
                place = self._inside(leaf)
                self._now[id(leaf)] = f"(&{place})[{i}]" if stride else place
                continue
            assert leaf.header.header is not None
            key = (leaf.header.header.id, leaf.index, stride)
            if key not in self._fields:
                kind = f"uint{storage(leaf.field.width)}_t"
                place, name = super().field(b, leaf), b.temp()
                if stride:
                    # from h, not from the member: the compiler sees how the arrays of one phv lie
                    block = self.layout.block(leaf.header.header, leaf.index)
                    base, whole = place[0], "phv" if block is None else f"{block}_locals"
                    offset = f"offsetof({whole}, {place[3:]})"
                    b.line(f"{kind} *{name} = ({kind} *)((uint8_t *){base} + {offset});")
                    name = f"{name}[{i}]"
                else:
                    b.line(f"{kind} {name} = {place};")
                self._fields[key] = name
            self._now[id(leaf)] = self._fields[key]
            if id(leaf) in written and not stride:
                kept[super().field(b, leaf)] = self._fields[key]
        with b.nest(f"for (size_t {i} = 0; {i} < {roll.count}; {i}++)"):
            for call in calls:
                self.source = call.source
                emit_call(self, b, call)
        for place, name in kept.items():
            b.line(f"{place} = {name};")

    def field(self, b: Block, ref: ir.FieldRef) -> str:
        """A field of the loop's first repetition: what it is in each."""
        return self._now[id(ref)]

    def register(self, b: Block, array: ir.RegisterArray, index: str) -> str:
        """Likewise a register; `index` is the slot's."""
        return self._now[id(array)]
