# SPDX-License-Identifier: Apache-2.0
"""Parser and deparser -> C."""

from __future__ import annotations

from switch import ir
from switch.alike import DIFFERS, Alike
from switch.emit_action import Actions
from switch.emit_bytes import load_fields, store_fields
from switch.emit_code import PARAMETERS, Block, Layout, c_comment, limbs
from switch.emit_expr import Expressions, Val, literal
from switch.emit_known import Known
from switch.emit_parsed import Parsed
from switch.emit_sum import Sums
from switch.emit_trace import Trace
from switch.hashes import HASHES
from switch.load_parser import key_width
from switch.primitives_headers import header_bytes, mark_valid
from switch.widths import Bounds

CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


class Parsers:
    """Emits p4_parse and p4_deparse."""

    def __init__(
        self,
        program: ir.Program,
        layout: Layout,
        bounds: Bounds,
        actions: Actions,
        trace: Trace,
        alike: Alike,
        known: Known,
    ) -> None:
        self.program = program
        self.parsed = Parsed(program, layout)
        self.known = known
        self.alike = alike
        self.trace = trace
        self.layout = layout
        self.bounds = bounds
        self.actions = actions
        self.errors = {n: program.errors.get(n, i) for i, n in enumerate(CORE_ERRORS)}

    def fail(self, b: Block, error: str, condition: str) -> None:
        """Stop parsing with a core error when a condition holds."""
        b.line(f"if (SW_UNLIKELY({condition})) {{ k->error = {self.errors[error]}; goto done; }}")

    # ---- parser

    def parser(self) -> str:
        """p4_parse: states as labels, then the checksums to verify."""
        p, b, c = self.program.parser, Block(), self.actions.context()
        labels = {name: f"state_{i}" for i, name in enumerate(p.states)}
        b.line("unsigned budget = SW_PARSER_BUDGET;")
        b.line("(void)budget;")
        b.line(f"goto {labels[p.start]};" if p.start is not None else "goto done;")
        for i, (name, state) in enumerate(p.states.items()):
            b.label(labels[name])
            self.trace.event(b, "STATE", i)
            b.line(f"/* {c_comment(name)} */")
            self.fail(b, "ParserTimeout", "--budget == 0")
            if self.alike.state(name, state):
                b.line(DIFFERS)
            with b.nest(""):
                self._state(c.expressions, b, state, labels)
        b.label("done")
        for place in self.layout.late:
            b.line(f"if (!h->{place}.valid) memset(&h->{place}, 0, sizeof h->{place});")
        if self.trace.on:
            with b.nest("if (k->error)"):
                self.trace.event(b, "PARSER_ERROR", "k->error")
        checks = [k for k in self.program.checksums if k.verify]
        for k in checks:
            self._verify(b, k, self.program.checksums.index(k))
        return (
            f"static void p4_parse({PARAMETERS}) {{\n    (void)s;\n    (void)h;\n"
            f"{self.actions.local.variables('parser')}{self.parsed.variables()}{b.text()}}}\n"
        )

    def _state(self, x: Expressions, b: Block, state: ir.State, labels: dict[str, str]) -> None:
        for op in state.ops:
            with b.nest(""):
                self._op(x, b, op)
        self._look(b, state.key)
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
            if tr.values is not None:
                self._in_set(b, tr, values, after)
                continue
            tests = []
            for (value, mask), (code, width, tw) in zip(tr.match or (), values, strict=tr.match is not None):
                test = _test(value, mask, code, width, tw)
                if test is not None:
                    tests.append(test)
            if not tests:
                b.line(after)
                return
            b.line(f"if ({' && '.join(tests)}) {after}")
        # simple_switch stops quietly when no transition matches: p4c always emits a default
        b.line("goto done;")

    def _in_set(self, b: Block, tr: ir.Transition, values: list[tuple[str, int, int]], after: str) -> None:
        """Go on where the key is in a value set."""
        words = []
        assert tr.values is not None
        for (_, mask), (code, width, tw) in zip(tr.match or (), values, strict=True):
            for i in range(limbs(width)):
                word = (
                    f"{code}[{i}]"
                    if tw > 128
                    else f"(uint64_t)({code} >> {64 * i})"
                    if i
                    else f"(uint64_t){code}"
                )
                words.append(f"{word} & {literal(mask >> 64 * i & (1 << 64) - 1, 64)}")
        name = b.temp()
        b.line(f"const uint64_t {name}[] = {{{', '.join(words)}}};")
        b.line(f"if (sw_vset_match(s, {tr.values.id}, {name})) {after}")

    def value_sets(self) -> str:
        """The static descriptions of the value sets for the runtime."""
        out, rows = [], []
        for v in self.program.parser.value_sets.values():
            at, parts = 0, []
            for width in v.widths:
                parts.append(f"{{{at}, {limbs(width)}}}")
                at += limbs(width)
            out.append(f"static const sw_range_desc vset_{v.id}[] = {{{', '.join(parts)}}};")
            rows.append(f"    {{{at}, {len(parts)}, vset_{v.id}}}, /* {c_comment(v.name)} */")
        out += ["static const sw_vset_desc vset_descs[] = {", *rows, "    {0, 0, NULL}", "};"]
        return "\n".join(out) + "\n"

    def _look(self, b: Block, x: object) -> None:
        """Check that the bits are there which x looks ahead at: the emitted lookaheads rely on it."""
        for look in ir.lookaheads(x):
            self.fail(b, "PacketTooShort", f"k->len - k->pos < {(look.offset + look.width + 7) // 8}")

    def _op(self, x: Expressions, b: Block, op: ir.ParserOp) -> None:
        self._look(b, op)
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
            x.store(b, op.target, op.value)
            self.known.change(b, op.target.header.header)
        else:
            self.actions.call(self.actions.context(), b, op)

    def _extract(self, x: Expressions, b: Block, op: ir.Extract) -> None:
        ref = op.header
        name = ""
        stack = op.stack or op.union_stack
        if stack is not None:
            name = self.layout.stack_names[id(stack)]
            self.fail(b, "StackOutOfBounds", f"h->{name}.next >= {len(stack.elements)}")
            own = f"h->{name}.e[h->{name}.next]"
            if isinstance(stack, ir.UnionStack):
                kind = stack.elements[0].members[op.member].type
                own += f".{self.layout.union_members[stack.type][op.member]}"
            else:
                kind = stack.type
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
            if ref is not None and ref.header is not None and self.known.has(ref.header):
                self.known.extract(b, ref.header, "q")
            else:
                load_fields(b, self.layout, kind, own, "q")
        if ref is not None:
            if not ref.metadata:
                mark_valid(x, b, ref)
            here = self.parsed.extracted(ref.header) if ref.header is not None else None
            if here is not None:
                b.line(here)
        else:
            if op.union_stack is not None:
                for i, m in enumerate(self.layout.union_members[op.union_stack.type]):
                    if i != op.member:
                        b.line(f"h->{name}.e[h->{name}.next].{m}.valid = 0;")
            b.line(f"{own}.valid = 1;")
            b.line(f"h->{name}.next++;")
        b.line(f"k->pos += {size};")
        if self.trace.on:
            self.trace.event(b, "EXTRACT", self._number(b, op, name), size)

    def _number(self, b: Block, op: ir.Extract, name: str) -> str:
        """C expression: the id of the header that was extracted."""
        if op.stack is not None:
            ids = [e.id for e in op.stack.elements]
        elif op.union_stack is not None:
            ids = [u.members[op.member].id for u in op.union_stack.elements]
        else:
            assert op.header is not None
            return str(_header(op.header).id)
        b.line(f"static const uint32_t ids[] = {{{', '.join(map(str, ids))}}};")
        return f"ids[h->{name}.next - 1]"

    def _verify(self, b: Block, k: ir.Checksum, number: int) -> None:
        x = Expressions(self.layout, self.bounds, k.source)
        with b.nest(""):
            conditions = [x.validity(b, k.target.header)]
            if k.condition is not None:
                conditions.append(x.truth(b, k.condition))
            self._differs(b, k, " && ".join(conditions))
            with b.nest(f"if ({' && '.join(conditions)})"):
                wrong = f"{self._checksum(x, b, k.calculation)} != {x.exact(b, k.target).code}"
                if self.trace.on:
                    b.line(f"const bool wrong = {wrong};")
                    self.trace.event(b, "CHECKSUM", number, "!wrong")
                    wrong = "wrong"
                b.line(f"if ({wrong}) k->checksum_error = 1;")

    def _checksum(self, x: Expressions, b: Block, c: ir.Calculation) -> str:
        """C of a calculation after parsing."""
        value = None
        if HASHES[c.algorithm] == "sw_hash_csum16":
            value = Sums(self.layout, x, self.known, self.parsed.bytes()).value(b, c.inputs)
        return value if value is not None else self.actions.calculation(c)

    def _differs(self, b: Block, k: ir.Checksum, condition: str) -> None:
        if self.alike.reads(k.condition):
            b.line(DIFFERS)
        elif self.alike.checksum(k):
            b.line(f"if ({condition}) {DIFFERS}")

    # ---- deparser

    def deparser(self) -> str:
        """p4_deparse: checksums, primitives, then valid headers into `out`; returns their bytes."""
        d, b = self.program.deparser, Block()
        for k in self.program.checksums:
            if k.update:
                x = Expressions(self.layout, self.bounds, k.source)
                with b.nest(""):
                    cond = "1" if k.condition is None else x.truth(b, k.condition)
                    self._differs(b, k, f"{x.validity(b, k.target.header)} && {cond}")
                    with b.nest(f"if ({cond})"):
                        t = b.temp()
                        b.line(f"uint64_t {t} = {self.actions.calculation(k.calculation)};")
                        x.store_val(b, x.field(b, k.target), k.target.field.width, Val(t, 64, 64))
                        self.known.change(b, k.target.header.header)
        c = self.actions.context()
        for call in d.body:
            with b.nest(""):
                if self.alike.call(call):
                    b.line(DIFFERS)
                self.actions.call(c, b, call)
        b.line("uint8_t *q = out;")
        b.line("k->out_sum.from = k->out_sum.to = 0;")
        for header in d.order:
            own = f"h->{self.layout.places[header.id]}"
            with b.nest(f"if ({own}.valid)"):
                if header.type.fields:
                    store_fields(b, self.layout, header.type, own, "q")
                if self.known.has(header):
                    size, known = header.type.max_bits // 8, self.known.sum(header)
                    with b.nest(f"if ({self.known.test(header)})"):
                        b.line("const uint32_t at = (uint32_t)(q - out);")
                        b.line(f"k->out_sum.from = at, k->out_sum.to = at + {size};")
                        b.line(f"k->out_sum.sum = (uint32_t){known};")
                b.line(f"q += {header_bytes(own, header.type)};")
        b.line("return (uint32_t)(q - out);")
        return (
            f"static uint32_t p4_deparse({PARAMETERS}, uint8_t *restrict out) {{\n"
            f"    (void)s;\n    (void)k;\n    (void)h;\n{b.text()}}}\n"
        )

    def header_bytes(self) -> int:
        """The most bytes that the deparser emits."""
        return sum((h.type.max_bits + 7) // 8 for h in self.program.deparser.order)


def _header(ref: ir.HeaderRef) -> ir.Header:
    """What a parser's plain extract takes: a header, or a member of a union."""
    if ref.header is not None:
        return ref.header
    if ref.union is not None:
        return (ref.union.union or ref.union.example).members[ref.member]
    assert ref.stack is not None
    return ref.stack.elements[0]


def _test(value: int, mask: int, code: str, width: int, tw: int) -> str | None:
    """C condition: (code & mask) == value; None where it always holds."""
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
