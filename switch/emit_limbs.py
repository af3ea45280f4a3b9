# SPDX-License-Identifier: Apache-2.0
"""Values of more than 64 bits that are put together from parts -> C, word by word.

Where nothing carries from one 64-bit word to the next (a concatenation, a mask, a shift by a constant), each
word of the value is an expression of its own, of the words and small numbers that it is made of: no array of
limbs is built for every operator on the way.
"""

from __future__ import annotations

from switch import ir
from switch.emit_code import Block, limbs
from switch.emit_numbers import Numbers
from switch.emit_places import Val, literal
from switch.widths import bits

MOST_LIMBS = 8
"""Values of more are left to the loops of wide.h."""
_ZERO = Val("UINT64_C(0)", 64, 0)


class _Carries(Exception):  # noqa: N818 (ends the attempt, tells nobody)
    """A word of the value does not follow from a few words of the operands."""


class Limbs(Numbers):
    """Emits wide numbers of one function into a block."""

    def put(self, b: Block, place: str, width: int, value: ir.Expr) -> None:
        """Store the low `width` bits of a value at a C lvalue."""
        words = self._words(b, value, width) if 64 < width <= 64 * MOST_LIMBS else None
        if words is None:
            self.store_val(b, place, width, self.low(b, value, width))
            return
        names = [b.temp() for _ in words]  # all are read before one is written: the place may be an operand
        for name, word in zip(names, words, strict=True):
            b.line(f"const uint64_t {name} = {word};")
        for i, name in enumerate(names):
            b.line(f"{place}[{i}] = {name};")

    def store_val(self, b: Block, place: str, width: int, v: Val) -> None:
        """See Expressions."""
        raise NotImplementedError

    def _words(self, b: Block, e: ir.Expr, width: int) -> list[str] | None:
        """C of each word of the low `width` bits; None, and nothing emitted, where that is no gain."""
        inner, small = Block(b.depth, b.counter), dict[int, Val]()
        try:
            words = [self._word(inner, e, 64 * i, small) for i in range(limbs(width))]
        except _Carries:
            return None
        b.lines += inner.lines
        return [self.mask(b, w, min(64, width - 64 * i)).code for i, w in enumerate(words)]

    def _word(self, b: Block, e: ir.Expr, at: int, small: dict[int, Val]) -> Val:
        """Bits at .. at + 63. `small` has what was computed already of up to 64 bits, by expression."""
        interval = self.bounds.of(e)
        if interval[0] < 0 or not self.bounds.exact(e):
            raise _Carries
        if at >= interval[1].bit_length():
            return _ZERO
        if isinstance(e, ir.Const):
            part = e.value >> at & (1 << 64) - 1
            return Val(literal(part, 64), 64, part.bit_length())
        if bits(interval) <= 64:
            v = small.get(id(e))
            if v is None:
                v = small[id(e)] = self._once(b, self.exact(b, e))
            if not at:
                return v
            return Val(f"({v.code} >> {at})", 64, v.known - at) if at < v.known else _ZERO
        if isinstance(e, ir.FieldRef) and e.header.header is not None and not e.field.varbit:
            return self._stored_word(self.field(b, e), e.field.width, at)
        if isinstance(e, ir.Arg):
            return self._stored_word(f"(args + {self.args[e.index]})", e.width, at)
        if not isinstance(e, ir.Binary):
            raise _Carries
        if e.op == "&":
            for side, other in ((e.right, e.left), (e.left, e.right)):
                if isinstance(side, ir.Const):
                    return _masked(self._word(b, other, at, small), side.value >> at & (1 << 64) - 1)
        if e.op in ("|", "^", "&"):
            return _both(e.op, self._word(b, e.left, at, small), self._word(b, e.right, at, small))
        if e.op not in ("<<", ">>") or not isinstance(e.right, ir.Const) or e.right.value < 0:
            raise _Carries
        from_bit = at + e.right.value if e.op == ">>" else at - e.right.value
        if from_bit >= 0:
            return self._word(b, e.left, from_bit, small)
        if from_bit <= -64:
            return _ZERO
        v = self._word(b, e.left, 0, small)
        return Val(f"({v.code} << {-from_bit})", 64, min(v.known - from_bit, 64)) if v.known else _ZERO

    @staticmethod
    def _once(b: Block, v: Val) -> Val:
        """The value in a variable, unless it is one."""
        name = b.temp()
        b.line(f"const uint64_t {name} = {v.code};")
        return Val(name, 64, v.known)

    @staticmethod
    def _stored_word(place: str, width: int, at: int) -> Val:
        if at % 64 == 0:
            return Val(f"{place}[{at // 64}]", 64, min(64, width - at))
        return Val(f"sw_slice({place}, {limbs(width)}, {at})", 64, min(64, width - at))


def _masked(x: Val, mask: int) -> Val:
    """A word with a constant's bits only."""
    if (1 << x.known) - 1 & ~mask == 0:
        return x
    known = min(x.known, mask.bit_length())
    return Val(f"({x.code} & {literal(mask, 64)})", 64, known) if known else _ZERO


def _both(op: str, x: Val, y: Val) -> Val:
    """A word of `x op y` of words of the two."""
    if op == "&":
        return Val(f"({x.code} & {y.code})", 64, min(x.known, y.known)) if x.known and y.known else _ZERO
    if not x.known or not y.known:
        return y if not x.known else x
    return Val(f"({x.code} {op} {y.code})", 64, max(x.known, y.known))
