# SPDX-License-Identifier: Apache-2.0
"""What egress can change in a packet's phv, so that copies of a multicast packet need only that put back.

The headers that it changes lie side by side in the phv (Layout), so that this takes a few cache lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from switch import ir
from switch.emit_code import LARGE, Block, Layout
from switch.emit_locals import Locals
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

    def __init__(self, program: ir.Program, targets: set[str]) -> None:
        """`targets` names the headers that the target itself writes."""
        self._fields: dict[int, set[int]] = {}  # by header id
        self._headers = {h.id: h for h in program.headers.values()}
        self._unions = {h.id: u for u in program.unions.values() for h in u.members}
        self._whole: dict[int, None] = {}  # ids of headers, in order
        self._others: dict[ir.Union | ir.Stack | ir.UnionStack, None] = {}
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
        for h in program.headers.values():
            if h.name in targets:
                self._whole[h.id] = None

    def headers(self, local: Locals) -> set[int]:
        """Ids of the headers that have something written in the phv."""
        fields = {
            n for n, indexes in self._fields.items() if any((n, i) not in local.blocks for i in indexes)
        }
        return fields | set(self._whole)

    def _calls(self, calls: tuple[ir.Call, ...]) -> None:
        for operand in (x for c in calls for x in stored_to(c)):
            if isinstance(operand, ir.FieldRef):
                self._field(operand)
            elif isinstance(operand, ir.HeaderRef):
                self._header(operand)
            elif isinstance(operand, ir.UnionRef):
                self._union(operand)
            else:
                self._others[operand] = None

    def _field(self, ref: ir.FieldRef) -> None:
        header = ref.header.header
        if header is None or ref.field.varbit:
            self._header(ref.header)
        else:
            self._fields.setdefault(header.id, set()).add(ref.index)

    def _header(self, ref: ir.HeaderRef) -> None:
        if ref.header is not None:
            # a union's members change their validity together
            union = self._unions.get(ref.header.id)
            if union is None:
                self._whole[ref.header.id] = None
            else:
                self._others[union] = None
        elif ref.union is not None:
            self._union(ref.union)
        else:
            assert ref.stack is not None
            self._others[ref.stack] = None

    def _union(self, ref: ir.UnionRef) -> None:
        place = ref.union if ref.union is not None else ref.stack
        assert place is not None
        self._others[place] = None

    def function(self, layout: Layout, version: Callable[[ir.Header], str | None]) -> str:
        """p4_put_back: copies from one phv to another what egress can change, by whole cache lines.

        A header with a `version` in the phv (see Known) that is the same in both has not changed.
        """
        b, rest = Block(), Block()
        b.line("(void)to; (void)from;")
        for first, last, header in self._spans(layout):
            end = f"offsetof(phv, {last}) + sizeof to->{last}"
            copy = f"sw_copy_lines(to, from, offsetof(phv, {first}), {end});"
            own = version(header) if header is not None else None
            if own is None:
                rest.line(copy)
            else:
                b.line(f"if (to->{own} != from->{own} || from->{own} == 0) {copy}")
        b.lines += rest.lines  # the versions among them
        return f"static void p4_put_back(phv *restrict to, const phv *restrict from) {{\n{b.text()}}}\n"

    def _spans(self, layout: Layout) -> Iterator[tuple[str, str, ir.Header | None]]:
        """First and last of lvalues after "h->" that lie near each other, and the header that both are of."""
        if layout.written:
            yield layout.written[0], layout.written[-1], None
        for other in self._others:
            stack = not isinstance(other, ir.Union)
            place = layout.stack_names[id(other)] if stack else layout.union_places[other.id]
            yield place, place, None
        together = {*layout.written}
        for number in {**self._whole, **dict.fromkeys(self._fields)}:
            place, header = layout.places[number], self._headers[number]
            if place in together:
                continue
            if number in self._whole:
                yield place, place, header
                continue
            here = [i for i in sorted(self._fields[number]) if layout.block(header, i) is None]
            fields = [layout.field(place, header.type, i) for i in here]
            near = [header.type.offset(j) - header.type.offset(i) < LARGE for i, j in pairwise(here)]
            while fields:
                n = next((i + 1 for i, close in enumerate(near) if not close), len(fields))
                yield fields[0], fields[n - 1], header
                fields, near = fields[n:], near[n:]
