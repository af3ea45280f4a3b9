# SPDX-License-Identifier: Apache-2.0
"""Parser and deparser -> C: moving fields between packet bytes and the phv, and calculations over them."""

from __future__ import annotations

from dataclasses import dataclass

from switch import ir
from switch.emit_action import Actions
from switch.emit_code import Block, Layout, c_comment, limbs
from switch.emit_expr import Expressions
from switch.errors import LoadError
from switch.load_parser import key_width
from switch.primitives import header_bytes, mark_valid
from switch.widths import Bounds

# fields of 8, 16, 32 or 64 bits in a row are moved by a loop from this many on
RUN = 4
CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


@dataclass(frozen=True)
class Piece:
    """Fields first..last that together fill whole bytes from byte `at` (counted from the varbit, if passed)."""

    kind: str  # run, chunk, wide, varbit
    at: int
    first: int
    last: int
    bits: int


def pieces(t: ir.HeaderType) -> list[Piece]:
    """Cut a header into runs of natural fields, byte-aligned chunks of up to 64 bits, wide parts, the varbit."""
    out: list[Piece] = []
    i, bit = 0, 0
    fields = t.fields
    while i < len(fields):
        f = fields[i]
        if f.varbit:
            if bit % 8:
                raise LoadError(f"varbit field {t.name}.{f.name}", "it does not start on a byte")
            out.append(Piece("varbit", bit // 8, i, i, 0))
            bit, i = 0, i + 1
            continue
        if f.width in (8, 16, 32, 64) and bit % 8 == 0:
            j = i
            while j + 1 < len(fields) and fields[j + 1].width == f.width and not fields[j + 1].varbit:
                j += 1
            if j - i + 1 >= RUN:
                out.append(Piece("run", bit // 8, i, j, f.width))
                bit += f.width * (j - i + 1)
                i = j + 1
                continue
        j, total = i, f.width
        while total % 8 and j + 1 < len(fields) and not fields[j + 1].varbit:
            j += 1
            total += fields[j].width
        if total % 8:
            raise LoadError(f"header type {t.name!r}", "its fields before the varbit do not fill whole bytes")
        out.append(Piece("chunk" if total <= 64 else "wide", bit // 8, i, j, total))
        bit, i = bit + total, j + 1
    return out


def load_fields(b: Block, layout: Layout, t: ir.HeaderType, own: str, q: str) -> None:
    """Bytes at `q` -> fields. A varbit's length stands in `vl` (bits)."""
    base = q
    for p in pieces(t):
        at = f"{base} + {p.at}" if p.at else base
        places = [layout.field(own, t, i) for i in range(p.first, p.last + 1)]
        fields = t.fields[p.first : p.last + 1]
        if p.kind == "varbit":
            b.line(f"memcpy({places[0]}, {at}, vl / 8);")
            b.line(f"{own}.vl_bits = vl;")
            base = f"({q} + {p.at} + vl / 8)"
        elif p.kind == "run":
            b.line(f"sw_load_run{p.bits}(&{places[0]}, {at}, {len(places)});")
        elif p.kind == "chunk":
            _load_chunk(b, places, fields, at, p.bits)
        else:
            _load_wide(b, places, fields, at)


def _load_chunk(b: Block, places: list[str], fields: tuple[ir.Field, ...], at: str, total: int) -> None:
    if len(places) == 1:
        b.line(f"{places[0]} = {_cast(fields[0])}sw_load({at}, {total // 8});")
        return
    t = b.temp()
    b.line(f"uint64_t {t} = sw_load({at}, {total // 8});")
    left = total
    for place, f in zip(places, fields, strict=True):
        left -= f.width
        value = f"{t} >> {left}" if left else t
        if left + f.width < total:
            value = f"({value}) & {(1 << f.width) - 1:#x}"
        b.line(f"{place} = {_cast(f)}({value});")


def _cast(f: ir.Field) -> str:
    width = next(n for n in (8, 16, 32, 64) if f.width <= n)
    return "" if width == 64 else f"(uint{width}_t)"


def _load_wide(b: Block, places: list[str], fields: tuple[ir.Field, ...], at: str) -> None:
    bit = 0
    for place, f in zip(places, fields, strict=True):
        if f.width > 64:
            b.line(f"sw_load_wide({place}, {at}, {bit}, {f.width});")
        else:
            t = b.temp()
            b.line(f"uint64_t {t};")
            b.line(f"sw_load_wide(&{t}, {at}, {bit}, {f.width});")
            b.line(f"{place} = {_cast(f)}{t};")
        bit += f.width


def store_fields(b: Block, layout: Layout, t: ir.HeaderType, own: str, q: str) -> None:
    """Fields -> bytes at `q`, which is advanced past the header by the caller."""
    base = q
    for p in pieces(t):
        at = f"{base} + {p.at}" if p.at else base
        places = [layout.field(own, t, i) for i in range(p.first, p.last + 1)]
        fields = t.fields[p.first : p.last + 1]
        if p.kind == "varbit":
            b.line(f"memcpy({at}, {places[0]}, {own}.vl_bits / 8);")
            base = f"({q} + {p.at} + {own}.vl_bits / 8)"
        elif p.kind == "run":
            b.line(f"sw_store_run{p.bits}({at}, &{places[0]}, {len(places)});")
        elif p.kind == "chunk":
            left, parts = p.bits, []
            for place, f in zip(places, fields, strict=True):
                left -= f.width
                parts.append(f"(uint64_t){place} << {left}" if left else f"(uint64_t){place}")
            value = parts[0] if len(parts) == 1 else " | ".join(f"({x})" for x in parts)
            b.line(f"sw_store({at}, {value}, {p.bits // 8});")
        else:
            with b.nest(""):
                w = b.temp()
                b.line(f"sw_bits {w} = {{{at}, 0}};")
                for place, f in zip(places, fields, strict=True):
                    put = "sw_bits_put_wide" if f.width > 64 else "sw_bits_put"
                    b.line(f"{put}(&{w}, {place}, {f.width});")


class Parsers:
    """Emits p4_parse, p4_deparse and the calculations they use."""

    def __init__(self, program: ir.Program, layout: Layout, bounds: Bounds, actions: Actions) -> None:
        self.program = program
        self.layout = layout
        self.bounds = bounds
        self.actions = actions
        self.errors = {n: program.errors.get(n, i) for i, n in enumerate(CORE_ERRORS)}

    def fail(self, b: Block, error: str, condition: str) -> None:
        """Stop parsing with a core error when a condition holds."""
        b.line(f"if (SW_UNLIKELY({condition})) {{ k->error = {self.errors[error]}; goto done; }}")

    # ---- calculations

    def calculation(self, c: ir.Calculation, name: str) -> str:
        """A function that lays the inputs out in the scratch buffer and hashes them."""
        from switch.hashes import HASHES

        b, x = Block(), Expressions(self.layout, self.bounds, c.source)
        b.line("(void)k; (void)h;")
        b.line("sw_bits w = {s->scratch, 0};")
        aligned, i = True, 0  # `aligned`: we know at compile time that w stands on a byte
        while i < len(c.inputs):
            part = c.inputs[i]
            if isinstance(part, ir.FieldRef):
                j = i
                while j < len(c.inputs) and self._same_header(part, c.inputs[j]):
                    j += 1
                group = [p for p in c.inputs[i:j] if isinstance(p, ir.FieldRef)]
                aligned = self._put_fields(b, x, group, aligned)
                i = j
                continue
            if isinstance(part, ir.HeaderRef):
                own = x.header(b, part)
                with b.nest(f"if ({x.validity(b, part)})"):
                    self._put_list(b, own, part.type, list(range(len(part.type.fields))), aligned)
            elif isinstance(part, ir.Constant):
                for shift in range((part.width - 1) // 64 * 64, -1, -64):
                    n = min(64, part.width - shift)
                    b.line(f"sw_bits_put(&w, UINT64_C({(part.value >> shift) & ((1 << n) - 1):#x}), {n});")
                aligned = aligned and part.width % 8 == 0
            else:
                b.line("w.bit = (w.bit + 7) & ~(size_t)7;")
                b.line("sw_bits_put_bytes(&w, k->data + k->pos, k->len - k->pos);")
                aligned = True
            i += 1
        b.line(f"return {HASHES[c.algorithm]}(s->scratch, (w.bit + 7) / 8);")
        head = f"/* {c_comment(c.name)}: {c.algorithm} {c_comment(str(c.source))} */\n"
        return f"{head}static uint64_t {name}(sw *s, sw_pkt *k, phv *h) {{\n{b.text()}}}\n"

    @staticmethod
    def _same_header(a: ir.FieldRef, b: object) -> bool:
        return (
            isinstance(b, ir.FieldRef) and a.header.header is not None and a.header.header is b.header.header
        )

    def _put_fields(self, b: Block, x: Expressions, group: list[ir.FieldRef], aligned: bool) -> bool:
        ref = group[0].header
        own, kind = x.header(b, ref), ref.type
        valid = x.validity(b, ref)
        with b.nest("" if valid == "1" else f"if ({valid})"):
            self._put_list(b, own, kind, [f.index for f in group], aligned)
        return aligned and sum(f.field.width for f in group) % 8 == 0

    def _put_list(self, b: Block, own: str, kind: ir.HeaderType, indexes: list[int], aligned: bool) -> None:
        i = 0
        while i < len(indexes):
            f, place = kind.fields[indexes[i]], self.layout.field(own, kind, indexes[i])
            if aligned and f.width in (8, 16, 32, 64) and not f.varbit:
                j = i
                while (
                    j + 1 < len(indexes)
                    and indexes[j + 1] == indexes[j] + 1
                    and self._like(kind, indexes[j + 1], f)
                ):
                    j += 1
                b.line(f"sw_store_run{f.width}(w.buf + w.bit / 8, &{place}, {j - i + 1});")
                b.line(f"w.bit += {f.width * (j - i + 1)};")
                i = j + 1
                continue
            if aligned and not f.varbit:
                j, total, parts = i, 0, []
                while j < len(indexes) and not kind.fields[indexes[j]].varbit:
                    total += kind.fields[indexes[j]].width
                    j += 1
                    if total % 8 == 0:
                        break
                if total % 8 == 0 and total <= 64:
                    left = total
                    for n in indexes[i:j]:
                        left -= kind.fields[n].width
                        parts.append(f"((uint64_t){self.layout.field(own, kind, n)} << {left})")
                    b.line(f"sw_store(w.buf + w.bit / 8, {' | '.join(parts)}, {total // 8});")
                    b.line(f"w.bit += {total};")
                    i = j
                    continue
            if f.varbit:
                b.line(f"sw_bits_put_bytes(&w, {place}, {own}.vl_bits / 8);")
            else:
                put = "sw_bits_put_wide" if f.width > 64 else "sw_bits_put"
                b.line(f"{put}(&w, {place}, {f.width});")
                aligned = aligned and f.width % 8 == 0
            i += 1

    @staticmethod
    def _like(kind: ir.HeaderType, index: int, f: ir.Field) -> bool:
        return kind.fields[index].width == f.width and not kind.fields[index].varbit

    def scratch_bytes(self) -> int:
        """The most bytes that a calculation's inputs take, payload aside."""
        most = 0
        for c in self.program.calculations.values():
            total = 64
            for part in c.inputs:
                if isinstance(part, ir.FieldRef):
                    total += part.field.width
                elif isinstance(part, ir.HeaderRef):
                    total += part.type.max_bits
                elif isinstance(part, ir.Constant):
                    total += part.width
            most = max(most, total // 8 + 8)
        return most

    # ---- parser

    def parser(self) -> str:
        """p4_parse: states as labels, then the checksums to verify."""
        p, b, c = self.program.parser, Block(), self.actions.context()
        labels = {name: f"state_{i}" for i, name in enumerate(p.states)}
        b.line("unsigned budget = SW_PARSER_BUDGET;")
        b.line("(void)budget;")
        b.line(f"goto {labels[p.start]};" if p.start is not None else "goto done;")
        for name, state in p.states.items():
            b.label(labels[name])
            b.line(f"/* {c_comment(name)} */")
            self.fail(b, "ParserTimeout", "--budget == 0")
            with b.nest(""):
                self._state(c.expressions, b, state, labels)
        b.label("done")
        checks = [k for k in self.program.checksums if k.verify]
        for k in checks:
            self._verify(b, k)
        return (
            f"static void p4_parse(sw *s, sw_pkt *k, phv *h) {{\n    (void)s;\n    (void)h;\n{b.text()}}}\n"
        )

    def _state(self, x: Expressions, b: Block, state: ir.State, labels: dict[str, str]) -> None:
        for op in state.ops:
            with b.nest(""):
                self._op(x, b, op)
        for key in state.key:
            if isinstance(key, ir.Lookahead):
                self.fail(b, "PacketTooShort", f"k->len - k->pos < {(key.offset + key.width + 7) // 8}")
        values = []
        for key in state.key:
            width = key_width(key)
            v = x.exact(b, key)
            t = b.temp()
            if v.tw <= 128:
                b.line(f"{'uint64_t' if v.tw == 64 else 'sw_u128'} {t} = {v.code};")
            else:
                b.line(f"const uint64_t *{t} = {v.code};")
            values.append((t, width, v.tw))
        for tr in state.transitions:
            after = f"goto {labels[tr.next]};" if tr.next is not None else "goto done;"
            if tr.never:
                continue
            tests = [] if tr.match is None else [
                test for m, v in zip(tr.match, values, strict=True) if (test := _test(*m, *v)) is not None
            ]  # fmt: skip
            if not tests:
                b.line(after)
                return
            b.line(f"if ({' && '.join(tests)}) {after}")
        # simple_switch stops quietly when no transition matches: p4c always emits a default
        b.line("goto done;")

    def _op(self, x: Expressions, b: Block, op: ir.ParserOp) -> None:
        if isinstance(op, ir.Extract):
            self._extract(x, b, op)
        elif isinstance(op, ir.Advance):
            n = b.temp()
            b.line(f"uint64_t {n} = {x.saturated(b, op.bits)};")
            self.fail(b, "ParserInvalidArgument", f"{n} % 8")
            self.fail(b, "PacketTooShort", f"k->len - k->pos < {n} / 8")
            b.line(f"k->pos += (uint32_t)({n} / 8);")
        elif isinstance(op, ir.Verify):
            condition = x.truth(b, op.condition)
            with b.nest(f"if (!{condition})"):
                b.line(f"k->error = (uint32_t){x.low(b, op.error, 32).code};")
                b.line("goto done;")
        elif isinstance(op, ir.Set):
            for look in _lookaheads(op.value):
                self.fail(b, "PacketTooShort", f"k->len - k->pos < {(look.offset + look.width + 7) // 8}")
            x.store(b, op.target, op.value)
        else:
            self.actions.call(self.actions.context(), b, op)

    def _extract(self, x: Expressions, b: Block, op: ir.Extract) -> None:
        ref = op.header
        name = ""
        stack = op.stack or op.union_stack
        if stack is not None:
            name = self.layout.stack_names[id(stack)]
            self.fail(b, "StackOutOfBounds", f"h->{name}.next >= {len(stack.elements)}")
            kind = (
                op.stack.type if op.stack is not None else op.union_stack.elements[0].members[op.member].type
            )  # type: ignore[union-attr]
            own = f"h->{name}.e[h->{name}.next]"
            if op.union_stack is not None:
                members = self.layout.union_members[op.union_stack.type]
                own += f".{members[op.member]}"
        else:
            assert ref is not None
            kind, own = ref.type, x.header(b, ref)
        fixed = kind.fixed_bits // 8
        if op.length is not None:
            b.line(f"uint64_t vl64 = {x.saturated(b, op.length)};")
            self.fail(b, "ParserInvalidArgument", "vl64 % 8")
            self.fail(
                b, "PacketTooShort", f"vl64 / 8 > SW_MAX_PACKET || k->len - k->pos < {fixed} + vl64 / 8"
            )
            most = kind.max_bits - kind.fixed_bits
            self.fail(b, "HeaderTooShort", f"vl64 > {most}")
            b.line("uint32_t vl = (uint32_t)vl64;")
            size = f"{fixed} + vl / 8"
        else:
            self.fail(b, "PacketTooShort", f"k->len - k->pos < {fixed}")
            size = str(fixed)
        if kind.fields:
            b.line("const uint8_t *q = k->data + k->pos;")
            b.line("(void)q;")
            load_fields(b, self.layout, kind, own, "q")
        if ref is not None:
            if not ref.metadata:
                mark_valid(x, b, ref)
        else:
            if op.union_stack is not None:
                for i, m in enumerate(self.layout.union_members[op.union_stack.type]):
                    if i != op.member:
                        b.line(f"h->{name}.e[h->{name}.next].{m}.valid = 0;")
            b.line(f"{own}.valid = 1;")
            b.line(f"h->{name}.next++;")
        b.line(f"k->pos += {size};")

    def _verify(self, b: Block, k: ir.Checksum) -> None:
        x = Expressions(self.layout, self.bounds, k.source)
        with b.nest(""):
            conditions = [x.validity(b, k.target.header)]
            if k.condition is not None:
                conditions.append(x.truth(b, k.condition))
            call = f"{self.actions.calculations[k.calculation.name]}(s, k, h)"
            conditions.append(f"{call} != {x.exact(b, k.target).code}")
            b.line(f"if ({' && '.join(conditions)}) k->checksum_error = 1;")

    # ---- deparser

    def deparser(self) -> str:
        """p4_deparse: checksums, primitives, then valid headers into `out`; returns their bytes."""
        d, b = self.program.deparser, Block()
        for k in self.program.checksums:
            if k.update:
                x = Expressions(self.layout, self.bounds, k.source)
                with b.nest(""):
                    cond = "1" if k.condition is None else x.truth(b, k.condition)
                    with b.nest(f"if ({cond})"):
                        t = b.temp()
                        b.line(f"uint64_t {t} = {self.actions.calculations[k.calculation.name]}(s, k, h);")
                        from switch.emit_expr import Val

                        x.store_val(b, x.field(b, k.target), k.target.field.width, Val(t, 64, 64))
        c = self.actions.context()
        for call in d.body:
            with b.nest(""):
                self.actions.call(c, b, call)
        b.line("uint8_t *q = out;")
        for header in d.order:
            own = f"h->{self.layout.places[header.id]}"
            with b.nest(f"if ({own}.valid)"):
                if header.type.fields:
                    store_fields(b, self.layout, header.type, own, "q")
                b.line(f"q += {header_bytes(own, header.type)};")
        b.line("return (uint32_t)(q - out);")
        return (
            "static uint32_t p4_deparse(sw *s, sw_pkt *k, phv *h, uint8_t *out) {\n"
            f"    (void)s;\n    (void)k;\n    (void)h;\n{b.text()}}}\n"
        )

    def header_bytes(self) -> int:
        """The most bytes that the deparser emits."""
        return sum((h.type.max_bits + 7) // 8 for h in self.program.deparser.order)


def _lookaheads(e: ir.Expr) -> list[ir.Lookahead]:
    if isinstance(e, ir.Lookahead):
        return [e]
    if isinstance(e, ir.Binary):
        return _lookaheads(e.left) + _lookaheads(e.right)
    if isinstance(e, ir.Unary):
        return _lookaheads(e.x)
    if isinstance(e, ir.Select):
        return _lookaheads(e.cond) + _lookaheads(e.left) + _lookaheads(e.right)
    return []


def _test(value: int, mask: int, code: str, width: int, tw: int) -> str | None:
    """C condition: (code & mask) == value; None where it always holds."""
    from switch.emit_expr import literal

    full = (1 << width) - 1
    if value & ~full:
        return "0"
    if mask & full == 0:
        return None
    if tw <= 128:
        masked = code if mask & full == full else f"({code} & {literal(mask & full, tw)})"
        return f"{masked} == {literal(value, tw)}"
    words = []
    for i in range(limbs(width)):
        m, v = (mask & full) >> 64 * i & (1 << 64) - 1, value >> 64 * i & (1 << 64) - 1
        if m:
            words.append(f"({code}[{i}] & {literal(m, 64)}) == {literal(v, 64)}")
    return " && ".join(words)
