# SPDX-License-Identifier: Apache-2.0
"""Numeric expressions -> C.

`low(e, n)` gives C whose value agrees with `e` in its low n bits: ring operations need no more of their
operands, so a 32-bit sum stays a 32-bit sum. `exact(e)` gives the whole value, for comparisons, divisions
and right shifts; `widths.Bounds` says how large it can be. Up to 64 bits are uint64_t, up to 128
sw_u128, more are arrays of limbs (wide.h) held in temporaries.
"""

from __future__ import annotations

from switch import ir
from switch.emit_code import Block, limbs
from switch.emit_places import Places, Val, literal, type_width
from switch.errors import LoadError
from switch.widths import LIMIT, bits


class Numbers(Places):
    """Emits numbers of one function into a block."""

    def low(self, b: Block, e: ir.Expr, n: int) -> Val:
        """The low n bits of a numeric expression (more may come; see Val)."""
        if n > LIMIT + 128:
            raise LoadError(
                "expression", f"it needs {n} bits; this switch computes with up to {LIMIT}", str(self.source)
            )
        v = self._low(b, e, n)
        return self.fit(b, v, type_width(n))

    def fit(self, b: Block, v: Val, tw: int) -> Val:
        """The same value in a representation of tw bits, zero-extended or cut."""
        if v.tw == tw:
            return v
        known = min(v.known, tw)
        if tw == 64:
            return Val(f"(uint64_t){v.code}" if v.tw == 128 else f"{v.code}[0]", 64, known)
        if tw == 128:
            return Val(f"(sw_u128){v.code}" if v.tw == 64 else f"sw_ld128({v.code})", 128, known)
        t = self._array(b, tw)
        if v.tw <= 128:
            b.line(f"sw_big_from{v.tw}({t}, {v.code}, {tw // 64});")
        else:
            b.line(f"sw_big_copy({t}, {tw // 64}, {v.code}, {v.tw // 64});")
        return Val(t, tw, known)

    def _array(self, b: Block, tw: int) -> str:
        t = b.temp()
        b.line(f"uint64_t {t}[{tw // 64}];")
        return t

    def mask(self, b: Block, v: Val, n: int) -> Val:
        """Zero from bit n up."""
        if v.known <= n:
            return v
        if v.tw <= 128:
            if n >= v.tw:
                return v
            return Val(f"({v.code} & {literal((1 << n) - 1, v.tw)})", v.tw, n)
        t = self._array(b, v.tw)
        b.line(f"memcpy({t}, {v.code}, sizeof {t});")
        b.line(f"sw_big_mask({t}, {v.tw // 64}, {n});")
        return Val(t, v.tw, n)

    def extend(self, b: Block, v: Val, width: int, tw: int) -> Val:
        """Sign-extend from `width` bits to all of tw."""
        v = self.fit(b, v, tw)
        if width >= tw:
            return Val(v.code, tw, tw)
        if tw <= 128:
            return Val(f"sw_sext{tw}({v.code}, {width})", tw, tw)
        t = self._array(b, tw)
        b.line(f"memcpy({t}, {v.code}, sizeof {t});")
        b.line(f"sw_big_sext({t}, {tw // 64}, {width});")
        return Val(t, tw, tw)

    def exact(self, b: Block, e: ir.Expr, tw: int = 64) -> Val:
        """The whole value, in at least tw bits, sign-extended where it can be negative."""
        if not self.bounds.exact(e):
            raise LoadError(
                "expression",
                f"a shift makes a value of more than {LIMIT} bits, and all of it matters",
                str(self.source),
            )
        interval = self.bounds.of(e)
        n = bits(interval)
        tw = max(tw, type_width(n))
        if interval[0] >= 0:
            return self.fit(b, self.mask(b, self.low(b, e, n), n), tw)
        return self.extend(b, self.low(b, e, n), n, tw)

    def saturated(self, b: Block, e: ir.Expr) -> str:
        """uint64_t: the value, or 2^64-1 where it is larger or negative (indexes, shift amounts)."""
        lo, hi = self.bounds.of(e)
        if lo >= 0 and hi < 1 << 64:
            return self.exact(b, e).code
        v = self.exact(b, e)
        if v.tw == 64:
            return f"{v.code}" if lo >= 0 else f"((int64_t){v.code} < 0 ? UINT64_MAX : {v.code})"
        t = b.temp()
        if v.tw == 128:
            b.line(f"sw_u128 {t} = {v.code};")
            return f"({t} >> 64 ? UINT64_MAX : (uint64_t){t})"
        b.line(f"uint64_t {t} = 0;")
        b.line(f"for (unsigned i = 1; i < {v.tw // 64}; i++) {t} |= {v.code}[i];")
        return f"({t} ? UINT64_MAX : {v.code}[0])"

    def _low(self, b: Block, e: ir.Expr, n: int) -> Val:
        if isinstance(e, ir.Const):
            return self._const(b, e.value, n)
        if isinstance(e, ir.FieldRef):
            f = e.field
            if f.varbit:
                return self._varbit(b, e)
            return self._stored(b, self.field(b, e), f.width, n, f.signed)
        if isinstance(e, ir.ValidBit):
            return Val(f"(uint64_t){self.validity(b, e.header)}", 64, 1)
        if isinstance(e, ir.Arg):
            at = self.args[e.index]
            if e.width <= 64:
                return Val(f"args[{at}]", 64, e.width)
            return self._stored(b, f"(args + {at})", e.width, n, False)
        if isinstance(e, ir.RegisterRef):
            index = self.index(b, e.index, e.array.size, e.array.name)
            return self._stored(b, self.register(b, e.array, index), e.array.width, n, False)
        if isinstance(e, ir.StackCount):
            name = self.layout.stack_names[id(e.stack)]
            count = f"(uint64_t)h->{name}.next"
            v = Val(f"({count} + {literal(e.offset, 64)})" if e.offset else count, 64, 64 if e.offset else 32)
            return self.extend(b, v, 64, type_width(n)) if n > 64 and e.offset else v
        if isinstance(e, ir.Lookahead):
            return self._lookahead(b, e)
        if isinstance(e, ir.Select):
            return self._select(b, e, n)
        if isinstance(e, ir.Unary):
            if e.op == "b2d":
                return Val(f"(uint64_t)({self.truth(b, e.x)})", 64, 1)
            return self._bitwise_not(b, self.low(b, e.x, n))
        assert isinstance(e, ir.Binary), e
        return self._binary(b, e, n)

    def _const(self, b: Block, value: int, n: int) -> Val:
        tw = type_width(n)
        value &= (1 << tw) - 1
        if tw <= 128:
            return Val(literal(value, tw), tw, value.bit_length())
        t = b.temp()
        words = ", ".join(f"UINT64_C({value >> 64 * i & (1 << 64) - 1:#x})" for i in range(tw // 64))
        b.line(f"const uint64_t {t}[{tw // 64}] = {{{words}}};")
        return Val(t, tw, value.bit_length())

    def _stored(self, b: Block, place: str, width: int, n: int, signed: bool) -> Val:
        if width <= 64:
            v = Val(f"(uint64_t){place}", 64, width)
            return self.extend(b, v, width, type_width(n)) if signed and n > width else v
        have = limbs(width)
        if n <= 64 and not (signed and n > width):
            return Val(f"{place}[0]", 64, 64)
        if n <= 128 and have == 2:
            v = Val(f"sw_ld128({place})", 128, width)
        elif n <= 128 and not signed:
            return Val(f"sw_ld128({place})", 128, 128)
        else:
            v = Val(f"({place})", 64 * have, width)
            t = self._array(b, max(64 * have, type_width(n)))
            tw = max(64 * have, type_width(n))
            b.line(f"sw_big_copy({t}, {tw // 64}, {place}, {have});")
            v = Val(t, tw, width)
        return self.extend(b, v, width, max(v.tw, type_width(n))) if signed and n > width else v

    def _varbit(self, b: Block, e: ir.FieldRef) -> Val:
        """A varbit as a number, as bmv2 compares it: its length plays no part."""
        own, width = self.header(b, e.header), e.field.width
        tw = type_width(width)
        t = b.temp()
        b.line(f"uint64_t {t}[{max(tw // 64, 2)}] = {{0}};")
        place = self.layout.field(own, e.header.type, e.index)
        b.line(f"sw_load_wide({t}, {place}, 0, {own}.vl_bits);")
        code = t if tw > 128 else f"sw_ld128({t})" if tw == 128 else f"{t}[0]"
        return Val(code, tw, width)

    def _lookahead(self, b: Block, e: ir.Lookahead) -> Val:
        # the parser has checked that the bits are there
        at, shift = e.offset // 8, e.offset % 8
        if e.width + shift <= 64:
            count = (shift + e.width + 7) // 8
            down = 8 * count - shift - e.width
            load = f"sw_load(k->data + k->pos + {at}, {count})"
            v = Val(f"({load} >> {down})" if down else load, 64, e.width + shift)
            return self.mask(b, v, e.width)
        tw = max(type_width(e.width), 128)
        t = b.temp()
        b.line(f"uint64_t {t}[{tw // 64}] = {{0}};")
        b.line(f"sw_load_wide({t}, k->data + k->pos, {e.offset}, {e.width});")
        return Val(f"sw_ld128({t})", 128, e.width) if tw == 128 else Val(t, tw, e.width)

    def _bitwise_not(self, b: Block, v: Val) -> Val:
        if v.tw <= 128:
            return Val(f"(~{v.code})", v.tw, v.tw)
        t = self._array(b, v.tw)
        b.line(f"sw_big_not({t}, {v.code}, {v.tw // 64});")
        return Val(t, v.tw, v.tw)

    def _select(self, b: Block, e: ir.Select, n: int) -> Val:
        tw = type_width(n)
        cond = self.truth(b, e.cond)
        then, other = b.inner(), b.inner()
        left, right = (
            self.fit(then, self.low(then, e.left, n), tw),
            self.fit(other, self.low(other, e.right, n), tw),
        )
        known = max(left.known, right.known)
        if tw <= 128 and not then.lines and not other.lines:
            return Val(f"({cond} ? {left.code} : {right.code})", tw, known)
        t = b.temp()
        b.line(f"uint64_t {t}[{tw // 64}];" if tw > 128 else f"{'uint64_t' if tw == 64 else 'sw_u128'} {t};")
        for head, block, v in ((f"if ({cond})", then, left), ("else", other, right)):
            with b.nest(head):
                b.lines += block.lines
                b.line(f"memcpy({t}, {v.code}, sizeof {t});" if tw > 128 else f"{t} = {v.code};")
        return Val(t, tw, known)

    def _binary(self, b: Block, e: ir.Binary, n: int) -> Val:
        op = e.op
        if op == "&":
            return self._and(b, e, n)
        if op in ("+", "-", "*", "|", "^"):
            tw = type_width(n)
            return self._ring(
                b, op, self.fit(b, self.low(b, e.left, n), tw), self.fit(b, self.low(b, e.right, n), tw)
            )
        if op == "<<":
            return self._shift_left(b, e, n)
        if op == ">>":
            return self._shift_right(b, e, n)
        if op in ("/", "%"):
            return self._divide(b, e)
        return self._cast(b, e, n)

    def _ring(self, b: Block, op: str, x: Val, y: Val) -> Val:
        tw = x.tw
        known = {"+": max(x.known, y.known) + 1, "*": x.known + y.known, "-": tw}.get(
            op, max(x.known, y.known)
        )
        known = min(known, tw)
        if tw <= 128:
            return Val(f"({x.code} {op} {y.code})", tw, known)
        name = {"+": "add", "-": "sub", "*": "mul", "|": "or", "^": "xor", "&": "and"}[op]
        t = self._array(b, tw)
        b.line(f"sw_big_{name}({t}, {x.code}, {y.code}, {tw // 64});")
        return Val(t, tw, known)

    def _and(self, b: Block, e: ir.Binary, n: int) -> Val:
        for side, other in ((e.right, e.left), (e.left, e.right)):
            if isinstance(side, ir.Const) and side.value >= 0:
                width = side.value.bit_length()
                if width == 0:
                    return self._const(b, 0, n)
                v = self.low(b, other, min(n, width))
                if side.value == (1 << width) - 1:
                    # garbage above n is allowed, so a mask that keeps all n bits is none
                    return v if n <= width else self.mask(b, v, width)
                tw = v.tw
                c = self.fit(b, self._const(b, side.value & ((1 << tw) - 1), tw), tw)
                r = self._ring(b, "&", v, c)
                return Val(r.code, r.tw, min(width, v.known, tw))
        tw = type_width(n)
        x, y = self.fit(b, self.low(b, e.left, n), tw), self.fit(b, self.low(b, e.right, n), tw)
        r = self._ring(b, "&", x, y)
        return Val(r.code, r.tw, min(x.known, y.known))

    def _shift_left(self, b: Block, e: ir.Binary, n: int) -> Val:
        tw = type_width(n)
        if isinstance(e.right, ir.Const):
            by = e.right.value
            if by < 0:
                raise LoadError("operator <<", "a negative amount", str(self.source))
            if by >= n:
                return self._const(b, 0, n)
            v = self.fit(b, self.low(b, e.left, n - by), tw)
            known = min(v.known + by, tw)
            if tw <= 128:
                return Val(f"({v.code} << {by})" if by else v.code, tw, known)
            t = self._array(b, tw)
            b.line(f"sw_big_shl({t}, {v.code}, {by}, {tw // 64});")
            return Val(t, tw, known)
        self._not_negative(e)
        v, by_code = self.fit(b, self.low(b, e.left, n), tw), self.saturated(b, e.right)
        if tw <= 128:
            return Val(f"sw_shl{tw}({v.code}, {by_code})", tw, tw)
        t = self._array(b, tw)
        b.line(f"sw_big_shl({t}, {v.code}, {by_code}, {tw // 64});")
        return Val(t, tw, tw)

    def _not_negative(self, e: ir.Binary) -> None:
        if self.bounds.of(e.right)[0] < 0:
            raise LoadError(f"operator {e.op}", "its amount could be negative", str(self.source))

    def _shift_right(self, b: Block, e: ir.Binary, n: int) -> Val:
        interval = self.bounds.of(e.left)
        by = e.right.value if isinstance(e.right, ir.Const) else None
        if by is not None:
            if by < 0:
                raise LoadError("operator >>", "a negative amount", str(self.source))
            if interval[0] >= 0 and by >= interval[1].bit_length():
                return self._const(b, 0, n)
            sliced = self._slice(b, e.left, by, n)
            if sliced is not None:
                return sliced
            by = min(by, LIMIT)
            # only bits by .. by+n-1 matter: garbage above them is garbage above n in the result
            if not self.bounds.exact(e.left) or bits(interval) > n + by:
                v = self.low(b, e.left, n + by)
                signed = False
            else:
                v, signed = self.exact(b, e.left), interval[0] < 0
            known = v.tw if signed else max(v.known - by, 1)
            return self._shifted(b, v, str(by), signed, known, n)
        self._not_negative(e)
        signed = interval[0] < 0
        v = self.exact(b, e.left, type_width(n) if signed else 64)
        return self._shifted(b, v, self.saturated(b, e.right), signed, v.tw if signed else v.known, n)

    def _shifted(self, b: Block, v: Val, by: str, signed: bool, known: int, n: int) -> Val:
        if signed and v.tw < type_width(n):
            v = self.extend(b, v, v.tw, type_width(n))
            known = v.tw
        if v.tw <= 128:
            constant = by.isdigit() and int(by) < v.tw
            if constant and not signed:
                return Val(f"({v.code} >> {by})", v.tw, known)
            return Val(f"sw_{'sar' if signed else 'shr'}{v.tw}({v.code}, {by})", v.tw, known)
        t = self._array(b, v.tw)
        fill = f"(uint64_t)((int64_t){v.code}[{v.tw // 64 - 1}] >> 63)" if signed else "0"
        b.line(f"sw_big_shr({t}, {v.code}, {by}, {v.tw // 64}, {fill});")
        return Val(t, v.tw, known)

    def _slice(self, b: Block, e: ir.Expr, by: int, n: int) -> Val | None:
        """A slice of up to 64 bits straight from a wide field, register or argument."""
        if n > 64:
            return None
        if isinstance(e, ir.FieldRef) and not e.field.signed and e.field.width > 64:
            place, width = self.field(b, e), e.field.width
        elif isinstance(e, ir.Arg) and e.width > 64:
            place, width = f"(args + {self.args[e.index]})", e.width
        else:
            return None
        return Val(f"sw_slice({place}, {limbs(width)}, {by})", 64, min(64, width - by))

    def _divide(self, b: Block, e: ir.Binary) -> Val:
        (a, _), (c, _) = self.bounds.of(e.left), self.bounds.of(e.right)
        tw = max(type_width(bits(self.bounds.of(e.left))), type_width(bits(self.bounds.of(e.right))))
        if tw > 128:
            raise LoadError(f"operator {e.op}", "operands of more than 128 bits", str(self.source))
        x, y = self.exact(b, e.left, tw), self.exact(b, e.right, tw)
        kind = "uint64_t" if tw == 64 else "sw_u128"
        tx, ty = b.temp(), b.temp()
        b.line(f"{kind} {tx} = {x.code}, {ty} = {y.code};")
        signed_kind = "int64_t" if tw == 64 else "sw_i128"
        if c <= 0 or a < 0:
            bad = [f"{ty} == 0"] if c <= 0 else []
            bad += [f"({signed_kind}){ty} < 0"] if c < 0 else []
            bad += [f"({signed_kind}){tx} < 0"] if a < 0 else []
            condition = " || ".join(bad)
            self.fault(b, condition, f"operator {e.op}: division by zero or of negative numbers")
            b.line(f"if ({condition}) {{ {tx} = 0; {ty} = 1; }}")
        return Val(f"({tx} {e.op} {ty})", tw, x.known if a >= 0 else tw)

    def _cast(self, b: Block, e: ir.Binary, n: int) -> Val:
        if not isinstance(e.right, ir.Const) or not 1 <= e.right.value <= LIMIT:
            raise LoadError(f"operator {e.op}", "its width must be a constant", str(self.source))
        width = e.right.value
        lo, hi = self.bounds.of(e.left)
        least, most = (
            (0, (1 << width) - 1) if e.op == "usat_cast" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        )
        if least <= lo and hi <= most:
            return self.low(b, e.left, n)
        if e.op == "two_comp_mod":
            v = self.low(b, e.left, min(n, width))
            return v if n <= width else self.extend(b, v, width, type_width(n))
        return self._saturate(b, e.left, least, most, n)

    def _saturate(self, b: Block, e: ir.Expr, least: int, most: int, n: int) -> Val:
        interval = self.bounds.of(e)
        tw = type_width(
            max(bits((min(interval[0], least), max(interval[1], most))) + 1, n if least < 0 else 1)
        )
        v = self.exact(b, e, tw)
        tw = v.tw
        t = b.temp()
        if tw <= 128:
            kind = "int64_t" if tw == 64 else "sw_i128"
            b.line(f"{kind} {t} = ({kind}){v.code};")
            if interval[1] > most:
                b.line(f"if ({t} > ({kind}){literal(most, tw)}) {t} = ({kind}){literal(most, tw)};")
            if interval[0] < least:
                b.line(f"if ({t} < ({kind}){literal(least, tw)}) {t} = ({kind}){literal(least, tw)};")
            kind = "uint64_t" if tw == 64 else "sw_u128"
            return Val(f"({kind}){t}", tw, most.bit_length() if least == 0 else tw)
        b.line(f"uint64_t {t}[{tw // 64}];")
        b.line(f"memcpy({t}, {v.code}, sizeof {t});")
        for limit, sign in ((most, ">"), (least, "<")):
            c = self._const(b, limit, tw)
            beyond = f"sw_big_cmp({t}, {c.code}, {tw // 64}, true) {sign} 0"
            b.line(f"if ({beyond}) memcpy({t}, {c.code}, sizeof {t});")
        return Val(t, tw, most.bit_length() if least == 0 else tw)
