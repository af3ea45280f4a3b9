# SPDX-License-Identifier: Apache-2.0
"""One's complement sums of large headers, kept until the header changes.

Each header that csum16 sums as a whole has a version: a number of the device's that stands for its present
content and never stood for another. Whatever writes to the header gives it a new one (an assignment only
where the value differs), and putting back what egress changed puts back the version. So a sum that was kept
for a version is that of every phv with it: the check of a packet finds what the port had added up already,
copies of a multicast packet share one sum, and a port need not add up what the program just has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switch import ir
from switch.emit_bytes import load_fields, summed_run
from switch.emit_code import LARGE, Block, Layout, storage
from switch.emit_expr import Expressions
from switch.emit_writes import stored_to
from switch.hashes import HASHES


class Known:
    """Which headers of a program these are, and the C around their sums."""

    def __init__(self, program: ir.Program, layout: Layout, targets: set[str]) -> None:
        """Add the versions to the layout's phv. `targets` names the headers that the target itself writes."""
        self._layout = layout
        self._numbers: dict[int, int] = {}  # by header id
        # clones, resubmitted and recirculated packets get such fields put in place by the target
        lists = {
            e.header.header.id
            for f in program.field_lists.values()
            for e in f.elements
            if isinstance(e, ir.FieldRef) and e.header.header is not None
        }
        many = {h.id for s in program.stacks.values() for h in s.elements} | set(layout.union_of)
        for c in program.calculations.values():
            if HASHES[c.algorithm] != "sw_hash_csum16":
                continue
            for header in _summed(c):
                if (
                    not header.metadata
                    and header.id not in self._numbers
                    and header.id not in many | lists
                    and header.name not in targets
                    and header.type.varbit is None
                    and header.type.max_bits >= LARGE
                    and header.type.max_bits % 16 == 0
                ):
                    self._numbers[header.id] = len(self._numbers)
                    layout.add_version(self._member(header))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def version(self, header: ir.Header) -> str | None:
        """Name of a header's version in the phv; None where it has none."""
        return self._member(header) if self.has(header) else None

    def _member(self, header: ir.Header) -> str:
        return f"sw_version_{self._numbers[header.id]}"

    def has(self, header: ir.Header | None) -> bool:
        """Whether a header has a version."""
        return header is not None and header.id in self._numbers

    def sum(self, header: ir.Header) -> str:
        """C lvalue of what is kept, if `test` holds: 16 bits, 0 only where all bytes are."""
        return f"s->known[{self._numbers[header.id]}].sum"

    def test(self, header: ir.Header) -> str:
        """C condition: the sum of this header's content is kept."""
        version = f"h->{self._member(header)}"
        return f"{version} != 0 && s->known[{self._numbers[header.id]}].version == {version}"

    def keep(self, b: Block, header: ir.Header, value: str) -> None:
        """Keep a sum for the present content."""
        own = f"s->known[{self._numbers[header.id]}]"
        b.line(f"{own} = (sw_known){{h->{self._member(header)}, {value}}};")

    def change(self, b: Block, header: ir.Header | None) -> None:
        """The header may have another content from here on."""
        if header is not None and self.has(header):
            b.line(f"h->{self._member(header)} = ++s->versions;")

    def extract(self, b: Block, header: ir.Header, q: str) -> None:
        """The header takes the next bytes of the packet, at `q`; a sum nobody knew is made on the way."""
        own, size = f"h->{self._layout.places[header.id]}", header.type.max_bits // 8
        self.change(b, header)
        b.line("uint64_t known;")
        part = f"sw_sum_of_part(&k->sum, k->data, k->pos, k->pos + {size}, &known)"
        summed = summed_run(self._layout, header.type, own, q)
        if summed is None:
            load_fields(b, self._layout, header.type, own, q)
            with b.nest(f"if ({part})"):
                self.keep(b, header, "known")
            return
        with b.nest(f"if ({part})"):
            load_fields(b, self._layout, header.type, own, q)
        with b.nest("else"):
            b.line(f"known = sw_fold16({summed});")
        self.keep(b, header, "known")

    def guards(self, target: ir.FieldRef) -> bool:
        """Whether `assign` is to be used for a field."""
        return self.has(target.header.header) and target.field.width <= 64

    def assign(self, b: Block, x: Expressions, target: ir.FieldRef, value: ir.Expr) -> None:
        """An assignment of up to 64 bits to such a header: one of the value that is there stores nothing.

        So the header keeps its version, and no load of many fields waits for the store of one.
        """
        with b.nest(""):
            place, new = x.field(b, target), b.temp()
            b.line(f"uint{storage(target.field.width)}_t {new};")
            x.store(b, target, value, new)
            with b.nest(f"if ({place} != {new})"):
                b.line(f"{place} = {new};")
                self.change(b, target.header.header)

    @contextmanager
    def changes(self, b: Block, calls: tuple[ir.Call, ...]) -> Iterator[None]:
        """Around primitives: new versions for what they write to."""
        operands = [x for call in calls for x in stored_to(call)]
        written = {h.id: h for x in operands if (h := _header(x)) is not None and self.has(h)}
        only = operands[0] if len(operands) == 1 and len(calls) == 1 else None
        if written and isinstance(only, ir.FieldRef) and only.field.width <= 64:
            header = _header(only)
            assert header is not None
            place = self._layout.field(f"h->{self._layout.places[header.id]}", header.type, only.index)
            before = b.temp()
            b.line(f"const uint64_t {before} = (uint64_t){place};")
            yield
            with b.nest(f"if ((uint64_t){place} != {before})"):
                self.change(b, header)
            return
        yield
        for header in written.values():
            self.change(b, header)


def _summed(c: ir.Calculation) -> Iterator[ir.Header]:
    """The headers that are inputs as a whole, by themselves or as their fields in order."""
    for i, part in enumerate(c.inputs):
        if isinstance(part, ir.HeaderRef) and part.header is not None:
            yield part.header
        elif isinstance(part, ir.FieldRef) and part.index == 0 and part.header.header is not None:
            n = len(part.header.type.fields)
            following = [
                p.index
                for p in c.inputs[i : i + n]
                if isinstance(p, ir.FieldRef) and p.header.header is part.header.header
            ]
            if following == list(range(n)):
                yield part.header.header


def _header(operand: object) -> ir.Header | None:
    """The header that an operand is, or lies in; None for unions and stacks, which have no version."""
    if isinstance(operand, ir.FieldRef):
        return operand.header.header
    return operand.header if isinstance(operand, ir.HeaderRef) else None
