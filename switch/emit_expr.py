# SPDX-License-Identifier: Apache-2.0
"""Conditions and stores -> C, on top of places and numbers."""

from __future__ import annotations

from switch import ir
from switch.emit_code import Block, limbs
from switch.emit_limbs import Limbs
from switch.emit_places import Val, literal, type_width
from switch.widths import TOO_WIDE, bits

__all__ = ["Expressions", "Val", "literal", "type_width"]


class Expressions(Limbs):
    """Emits expressions of one function into a block."""

    # ---- truth values

    def truth(self, b: Block, e: ir.Expr) -> str:
        """A C condition, 0 or 1."""
        if isinstance(e, ir.Truth):
            return "1" if e.value else "0"
        if isinstance(e, ir.Valid):
            return self.validity(b, e.what)
        if isinstance(e, ir.SameHeader):
            return self._same(b, e)
        if isinstance(e, ir.Unary):
            if e.op == "not":
                return f"!{self.truth(b, e.x)}"
            return self._compare(b, "!=", e.x, ir.Const(0))
        if isinstance(e, ir.Select):
            chosen = ir.Select(e.cond, ir.Unary("b2d", e.left), ir.Unary("b2d", e.right))
            return f"({self.low(b, chosen, 1).code} != 0)"
        assert isinstance(e, ir.Binary), e
        if e.op in ("and", "or"):
            return f"({self.truth(b, e.left)} {'&&' if e.op == 'and' else '||'} {self.truth(b, e.right)})"
        if e.left.is_bool:
            return f"(!{self.truth(b, e.left)} {e.op} !{self.truth(b, e.right)})"
        return self._compare(b, e.op, e.left, e.right)

    def _compare(self, b: Block, op: str, left: ir.Expr, right: ir.Expr) -> str:
        (a, p), (c, q) = self.bounds.of(left), self.bounds.of(right)
        signed = min(a, c) < 0
        n = bits((min(a, c), max(p, q)))
        if max(p, q) >= TOO_WIDE or min(a, c) <= -TOO_WIDE:
            n = 64  # exact() below refuses it with the reason
        tw = type_width(n)
        x, y = self.exact(b, left, tw), self.exact(b, right, tw)
        if tw > 128:
            flag = "true" if signed else "false"
            return f"(sw_big_cmp({x.code}, {y.code}, {tw // 64}, {flag}) {op} 0)"
        cast = "" if not signed else "(int64_t)" if tw == 64 else "(sw_i128)"
        return f"({cast}{x.code} {op} {cast}{y.code})"

    def _same(self, b: Block, e: ir.SameHeader) -> str:
        if isinstance(e.left, ir.HeaderRef):
            assert isinstance(e.right, ir.HeaderRef)
            pairs = [(self.header(b, e.left), self.header(b, e.right), e.left.type, e.left.metadata)]
        else:
            assert isinstance(e.right, ir.UnionRef)
            x, y = self.union(b, e.left), self.union(b, e.right)
            u = e.left.example
            members = self.layout.union_members[u.type]
            pairs = [(f"{x}.{m}", f"{y}.{m}", h.type, False) for m, h in zip(members, u.members, strict=True)]
        return "(" + " || ".join(self._same_fields(*p) for p in pairs) + ")"

    def _same_fields(self, x: str, y: str, kind: ir.HeaderType, metadata: bool) -> str:
        tests = [] if metadata else [f"{x}.valid", f"{y}.valid"]
        for i, f in enumerate(kind.fields):
            a, c = self.layout.field(x, kind, i), self.layout.field(y, kind, i)
            if f.varbit:
                tests.append(f"sw_same_number({a}, {x}.vl_bits / 8, {c}, {y}.vl_bits / 8)")
            elif f.width > 64:
                tests.append(f"memcmp({a}, {c}, sizeof {a}) == 0")
            else:
                tests.append(f"{a} == {c}")
        return "(" + " && ".join(tests or ["1"]) + ")"

    # ---- stores

    def store(self, b: Block, target: ir.FieldRef, value: ir.Expr, place: str | None = None) -> None:
        """Assign, truncated to the field's width (or saturated, where the field says so).

        `place` is a variable of the field's C type to be set in its place.
        """
        f = target.field
        if f.saturating:
            op = "sat_cast" if f.signed else "usat_cast"
            value = ir.Binary(op, value, ir.Const(f.width))
        self.put(b, self.field(b, target) if place is None else place, f.width, value)

    def store_val(self, b: Block, place: str, width: int, v: Val) -> None:
        """Store the low `width` bits."""
        if width <= 64:
            v = self.fit(b, v, 64)
            if width in (8, 16, 32, 64):
                b.line(f"{place} = (uint{width}_t){v.code};" if width < 64 else f"{place} = {v.code};")
                return
            v = self.mask(b, v, width)
            kind = next(n for n in (8, 16, 32, 64) if width <= n)
            b.line(f"{place} = (uint{kind}_t){v.code};")
            return
        v = self.mask(b, self.fit(b, v, type_width(width)), width)
        if v.tw == 128:
            b.line(f"sw_st128({place}, {v.code});")
        else:
            b.line(f"sw_big_put({place}, {v.code}, {limbs(width)});")
