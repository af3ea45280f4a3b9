# SPDX-License-Identifier: Apache-2.0
"""How large the value of an expression can get: intervals, from which the emitter chooses its types.

bmv2 computes with integers of any size and truncates on store, so the interval is the exact mathematical
one. `TOO_WIDE` stands for results beyond 4096 bits (shifts by run-time amounts): fine where only low bits
are wanted, refused where the exact value matters.
"""

from __future__ import annotations

from switch import ir

LIMIT = 4096
Interval = tuple[int, int]
TOO_WIDE = 1 << (LIMIT + 1)


def unsigned(width: int) -> Interval:
    """0 .. 2^width-1."""
    return 0, (1 << width) - 1


def signed(width: int) -> Interval:
    """-2^(width-1) .. 2^(width-1)-1."""
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def bits(interval: Interval) -> int:
    """Bits of the smallest type that holds the interval: two's complement where it has negative numbers."""
    lo, hi = interval
    if lo >= 0:
        return max(hi.bit_length(), 1)
    return max((-lo - 1).bit_length(), max(hi, 0).bit_length()) + 1


def _clip(interval: Interval) -> Interval:
    return max(interval[0], -TOO_WIDE), min(interval[1], TOO_WIDE)


class Bounds:
    """Intervals of expressions, remembered by node."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Expr, Interval]] = {}

    def of(self, e: ir.Expr) -> Interval:
        """The interval of a numeric expression."""
        known = self._known.get(id(e))
        if known is not None:
            return known[1]
        found = _clip(self._compute(e))
        self._known[id(e)] = (e, found)
        return found

    def exact(self, e: ir.Expr) -> bool:
        """Whether the interval is a real bound (not cut off at TOO_WIDE)."""
        lo, hi = self.of(e)
        return lo > -TOO_WIDE and hi < TOO_WIDE

    def _compute(self, e: ir.Expr) -> Interval:
        if isinstance(e, ir.Const):
            return e.value, e.value
        if isinstance(e, ir.FieldRef):
            f = e.field
            return signed(f.width) if f.signed else unsigned(f.width)
        if isinstance(e, ir.ValidBit):
            return 0, 1
        if isinstance(e, ir.Arg | ir.Lookahead):
            return unsigned(e.width)
        if isinstance(e, ir.RegisterRef):
            return unsigned(e.array.width)
        if isinstance(e, ir.StackCount):
            return e.offset, len(e.stack.elements) + e.offset
        if isinstance(e, ir.Select):
            (a, b), (c, d) = self.of(e.left), self.of(e.right)
            return min(a, c), max(b, d)
        if isinstance(e, ir.Unary):
            if e.op == "b2d":
                return 0, 1
            lo, hi = self.of(e.x)
            return ~hi, ~lo
        assert isinstance(e, ir.Binary), e
        return self._binary(e)

    def _binary(self, e: ir.Binary) -> Interval:
        (a, b), (c, d) = self.of(e.left), self.of(e.right)
        if e.op == "+":
            return a + c, b + d
        if e.op == "-":
            return a - d, b - c
        if e.op == "*":
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
        if e.op == "/":
            return 0, max(b, 0)
        if e.op == "%":
            return 0, max(min(b, d - 1), 0)
        if e.op == "<<":
            return self._shift_left(a, b, max(d, 0))
        if e.op == ">>":
            least, most = max(c, 0), max(d, 0)
            return min(a >> min(least, LIMIT + 2), a >> min(most, LIMIT + 2)), max(
                b >> min(least, LIMIT + 2), b >> min(most, LIMIT + 2)
            )
        if e.op in ("&", "|", "^"):
            return _bitwise(e.op, (a, b), (c, d))
        width = c if isinstance(e.right, ir.Const) else LIMIT
        width = min(max(width, 1), LIMIT)
        if e.op == "usat_cast":
            lo, hi = unsigned(width)
        else:
            lo, hi = signed(width)
        if e.op == "two_comp_mod":
            return (a, b) if lo <= a and b <= hi else (lo, hi)
        return min(max(a, lo), hi), max(min(b, hi), lo)

    @staticmethod
    def _shift_left(lo: int, hi: int, most: int) -> Interval:
        if most > LIMIT:
            return (-TOO_WIDE if lo < 0 else 0), (TOO_WIDE if hi > 0 else max(hi, 0))
        return min(lo, lo << most), max(hi, hi << most)


def _bitwise(op: str, left: Interval, right: Interval) -> Interval:
    (a, b), (c, d) = left, right
    if op == "&":
        if a >= 0 and c >= 0:
            return 0, min(b, d)
        if a >= 0:
            return 0, b
        if c >= 0:
            return 0, d
    if a >= 0 and c >= 0:
        return 0, (1 << max(b.bit_length(), d.bit_length())) - 1
    return signed(max(bits((min(a, -1), max(b, 0))), bits((min(c, -1), max(d, 0)))))
