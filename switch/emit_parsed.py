# SPDX-License-Identifier: Apache-2.0
"""Headers whose fields are still what the packet's bytes say when the parser has ended.

A checksum over them that is verified then is that of the bytes, which are added up by whole words.
"""

from __future__ import annotations

from switch import ir
from switch.emit_code import Layout
from switch.emit_writes import stored_to
from switch.hashes import HASHES


class Parsed:
    """Those headers of a program that a verified csum16 has fields of, and the C that says where they lie."""

    def __init__(self, program: ir.Program, layout: Layout) -> None:
        wanted: set[int] = set()
        for c in program.checksums:
            if c.verify and HASHES[c.calculation.algorithm] == "sw_hash_csum16":
                for part in c.calculation.inputs:
                    ref = part.header if isinstance(part, ir.FieldRef) else part
                    if isinstance(ref, ir.HeaderRef) and ref.header is not None:
                        wanted.add(ref.header.id)
        self._places = {
            h.id: layout.places[h.id]
            for h in program.headers.values()
            if h.id in wanted & _untouched(program) and h.id not in layout.union_of
        }

    def variables(self) -> str:
        """C: what p4_parse declares."""
        return "".join(f"    SW_UNUSED uint32_t at_{place} = 0;\n" for place in self._places.values())

    def extracted(self, header: ir.Header) -> str | None:
        """C: keeps the place of the header that comes next; None for one that nobody asks for."""
        return f"at_{self._places[header.id]} = k->pos;" if header.id in self._places else None

    def bytes(self) -> dict[int, str]:
        """C pointers to the bytes of these headers, where they are valid, by their ids."""
        return {number: f"(k->data + at_{place})" for number, place in self._places.items()}


def _untouched(program: ir.Program) -> set[int]:
    """Ids of headers that the parser makes valid by extracting them only, and then writes nothing to."""
    found = {h.id for h in program.headers.values() if not h.metadata and h.type.varbit is None}
    found -= {h.id for s in program.stacks.values() for h in s.elements}
    for op in (op for state in program.parser.states.values() for op in state.ops):
        written = [op.target] if isinstance(op, ir.Set) else stored_to(op) if isinstance(op, ir.Call) else []
        for place in written:
            header = place.header if isinstance(place, ir.FieldRef) else place
            if isinstance(header, ir.HeaderRef) and header.header is not None:
                found.discard(header.header.id)
    return found
