# SPDX-License-Identifier: Apache-2.0
"""What egress can change in a packet's phv, so that copies of a multicast packet need only that put back."""

from __future__ import annotations

from collections.abc import Iterator

from switch import ir
from switch.emit_code import Block, Layout
from switch.primitives import PRIMITIVES

STORED_TO = ("field", "varbit", "field-or-varbit")

Stored = ir.FieldRef | ir.HeaderRef | ir.UnionRef | ir.Stack | ir.UnionStack


def stored_to(call: ir.Call) -> Iterator[Stored]:
    """The operands that a primitive may write to."""
    for operand, kind in zip(call.args, PRIMITIVES[call.op].signature, strict=True):
        if isinstance(operand, ir.FieldRef):
            if kind in STORED_TO:
                yield operand
        elif isinstance(operand, Stored):
            yield operand


class Writes:
    """Fields, and whole headers, unions and stacks, that egress and deparser may write."""

    def __init__(self, program: ir.Program, layout: Layout) -> None:
        self._layout = layout
        self._fields: dict[int, set[int]] = {}  # by header id
        self._headers = {h.id: h for h in program.headers.values()}
        self._whole: dict[str, None] = {}  # lvalues after "h->", in order
        for node in program.egress.nodes.values():
            if isinstance(node, ir.Invoke):
                self._calls(node.action.body)
            elif isinstance(node, ir.Table):
                for a in (*node.actions, *([node.default_action] if node.default_action else [])):
                    self._calls(a.body)
                if node.meter is not None and node.meter.target is not None:
                    self._field(node.meter.target)
        for k in program.checksums:
            if k.update:
                self._field(k.target)
        self._calls(program.deparser.body)

    def _calls(self, calls: tuple[ir.Call, ...]) -> None:
        for operand in (x for c in calls for x in stored_to(c)):
            if isinstance(operand, ir.FieldRef):
                self._field(operand)
            elif isinstance(operand, ir.HeaderRef):
                self._header(operand)
            elif isinstance(operand, ir.UnionRef):
                self._union(operand)
            else:
                self._stack(operand)

    def _field(self, ref: ir.FieldRef) -> None:
        header = ref.header.header
        if header is None or ref.field.varbit:
            self._header(ref.header)
        else:
            self._fields.setdefault(header.id, set()).add(ref.index)

    def _header(self, ref: ir.HeaderRef) -> None:
        if ref.header is not None:
            # a union's members change their validity together
            union = self._layout.union_of.get(ref.header.id)
            place = self._layout.places[ref.header.id]
            self._whole[place if union is None else self._layout.union_places[union.id]] = None
        elif ref.union is not None:
            self._union(ref.union)
        else:
            assert ref.stack is not None
            self._stack(ref.stack)

    def _union(self, ref: ir.UnionRef) -> None:
        if ref.union is not None:
            self._whole[self._layout.union_places[ref.union.id]] = None
        else:
            assert ref.stack is not None
            self._stack(ref.stack)

    def _stack(self, stack: ir.Stack | ir.UnionStack) -> None:
        self._whole[self._layout.stack_names[id(stack)]] = None

    def function(self, always: set[str], versions: list[str]) -> str:
        """p4_put_back: copies from one phv to another what egress can change, by whole cache lines.

        `always` names the headers that the target itself writes, `versions` are those of Known.
        """
        whole = dict(self._whole)
        for h in self._headers.values():
            if h.name in always:
                whole[self._layout.places[h.id]] = None
        places = [*whole, *versions]
        for number, indexes in self._fields.items():
            own, kind = self._layout.places[number], self._headers[number].type
            here = (i for i in sorted(indexes) if self._layout.block(self._headers[number], i) is None)
            places += [self._layout.field(own, kind, i) for i in here]
        b = Block()
        b.line("static const uint32_t written[][2] = {")
        for place in places:
            b.line(f"    {{offsetof(phv, {place}), sizeof ((phv *)NULL)->{place}}},")
        b.line("    {0, 0}")
        b.line("};")
        b.line("bool hit[sizeof(phv) / 64 + 1] = {false};")
        b.line("for (unsigned i = 0; written[i][1] != 0; i++)")
        b.line(
            "    for (uint32_t n = written[i][0] / 64; n <= (written[i][0] + written[i][1] - 1) / 64; n++)"
        )
        b.line("        hit[n] = true;")
        b.line("for (uint32_t n = 0; n < sizeof(phv) / 64; n++)")
        b.line("    if (hit[n]) lines[line_count++] = n;")
        return (
            "/* Cache lines that egress can write to: whole ones, a store across two holds up reading. */\n"
            "static uint32_t lines[sizeof(phv) / 64 + 1], line_count;\n"
            f"__attribute__((constructor)) static void find_lines(void) {{\n{b.text()}}}\n\n"
            "static void p4_put_back(phv *restrict to, const phv *restrict from) {\n"
            "    for (uint32_t i = 0; i < line_count; i++) {\n"
            "        const size_t at = 64 * (size_t)lines[i];\n"
            "        sw_copy_quads((uint8_t *)to + at, (const uint8_t *)from + at, 64);\n"
            "    }\n"
            "}\n"
        )
