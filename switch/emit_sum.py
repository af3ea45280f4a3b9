# SPDX-License-Identifier: Apache-2.0
"""csum16 -> C without laying the inputs out: one's complement addition of the fields where they are.

16-bit one's complement sums are sums modulo 2^16 - 1, where 2^16 counts as 1: a field of any width is added
whole, shifted by where its last bit stands in its 16-bit word (RFC 1071, section 2). Only that position must
be known when the program is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping

from switch import ir
from switch.emit_bytes import LONGEST_SUM
from switch.emit_code import PAYLOAD_BYTES, Block, Layout
from switch.emit_expr import Expressions, literal
from switch.emit_known import Known

# Fields of one width in a row are added by a loop from this many on: a vector of fields just stored one by
# one would have to wait for them.
RUN = 16
# Bytes of a packet are added in line up to so many.
FEW_BYTES = 64

Input = ir.FieldRef | ir.HeaderRef | ir.Constant | ir.Payload


class _Unknown(Exception):  # noqa: N818 (ends the attempt, tells nobody)
    """An input's place in its 16-bit word depends on the packet."""


class Sums:
    """Emits the body of one csum16 calculation."""

    def __init__(
        self, layout: Layout, x: Expressions, known: Known, raw: Mapping[int, str] | None = None
    ) -> None:
        """`raw`: C pointers to the bytes in the packet that headers still have, by header id."""
        self._raw = raw or {}
        self._layout = layout
        self._known = known
        self._x = x
        self._bit: int | None = 0  # of a 16-bit word, where the next input starts; None: unknown

    def body(self, inputs: tuple[Input, ...]) -> Block | None:
        """The function's lines, or None where the inputs must be laid out after all."""
        b = Block()
        b.line("(void)s; (void)k; (void)h;")
        value = self.value(b, inputs)
        if value is None:
            return None
        b.line(f"return {value};")
        return b

    def value(self, outer: Block, inputs: tuple[Input, ...]) -> str | None:
        """C of the result, after the lines for it; None, and no lines, where the inputs must be laid out."""
        b = Block(outer.depth, outer.counter)
        b.line("uint64_t sum = 0;")
        try:
            i = 0
            while i < len(inputs):
                part = inputs[i]
                if isinstance(part, ir.FieldRef):
                    j = i + 1
                    while j < len(inputs) and same_header(part, inputs[j]):
                        j += 1
                    indexes = [p.index for p in inputs[i:j] if isinstance(p, ir.FieldRef)]
                    self._header(b, part.header, indexes)
                    i = j
                    continue
                if isinstance(part, ir.HeaderRef):
                    self._header(b, part, list(range(len(part.type.fields))))
                elif isinstance(part, ir.Constant):
                    shift = self._pass(part.width)
                    b.line(f"sum += {literal(_folded(part.value & ((1 << part.width) - 1)) << shift, 64)};")
                else:
                    self._bytes(b, "k->data + k->pos", PAYLOAD_BYTES)
                i += 1
        except _Unknown:
            return None
        outer.lines += b.lines
        return "sw_csum16_of(sum)"

    def _pass(self, width: int) -> int:
        """Go on by `width` bits; how far left the value passed stands in its word."""
        if self._bit is None:
            raise _Unknown
        self._bit = (self._bit + width) % 16
        return -self._bit % 16

    def _header(self, b: Block, ref: ir.HeaderRef, indexes: list[int]) -> None:
        own, kind = self._x.header(b, ref), ref.type
        valid, before = self._x.validity(b, ref), self._bit
        with b.nest("" if valid == "1" else f"if ({valid})"):
            if self._known.has(ref.header) and indexes == list(range(len(kind.fields))):
                self._whole(b, own, ref)
            elif ref.header is not None and ref.header.id in self._raw:
                self._bytes_of(b, self._raw[ref.header.id], own, kind, indexes)
            else:
                self._fields(b, own, kind, indexes)
        if valid != "1" and self._bit != before:
            self._bit = None

    def _whole(self, b: Block, own: str, ref: ir.HeaderRef) -> None:
        """A header whose sum may be known: an even number of bytes."""
        header, bit = ref.header, self._bit
        assert header is not None
        if bit is None:
            raise _Unknown
        with b.nest(f"if (!({self._known.test(header)}))"):
            b.line("uint64_t sum = 0;")
            self._bit = 0
            self._fields(b, own, ref.type, list(range(len(ref.type.fields))))
            self._bit = bit
            self._known.keep(b, header, "sw_fold16(sum)")
        b.line(f"sum += {_shifted(self._known.sum(header), -bit % 16)};")

    def _bytes_of(self, b: Block, p: str, own: str, kind: ir.HeaderType, indexes: list[int]) -> None:
        """Fields whose bytes stand at `p` still, header after header: whole words of them at once."""
        b.line("uint64_t raw = 0;")
        while indexes:
            n = next((i for i in range(1, len(indexes)) if indexes[i] != indexes[i - 1] + 1), len(indexes))
            run, indexes = indexes[:n], indexes[n:]
            start, end = kind.offset(run[0]), kind.offset(run[-1]) + kind.fields[run[-1]].width
            if self._bit != 0 or start % 8 or (end - start) % 16:
                self._fields(b, own, kind, run)
                continue
            if end - start > 8 * FEW_BYTES:
                b.line(f"sum += sw_sum_bytes({p} + {start // 8}, {(end - start) // 8});")
                continue
            for at in range(start // 8, end // 8, 4):
                b.line(f"raw += sw_raw{min(4, end // 8 - at)}({p} + {at});")
        b.line("sum += sw_swapped16(raw);")

    def _fields(self, b: Block, own: str, kind: ir.HeaderType, indexes: list[int]) -> None:
        i = 0
        while i < len(indexes):
            f, place = kind.fields[indexes[i]], self._layout.field(own, kind, indexes[i])
            if f.varbit:
                self._bytes(b, place, f"{own}.vl_bits / 8")
                i += 1
                continue
            n = self._run(own, kind, indexes, i)
            if RUN <= n <= LONGEST_SUM and f.width in (16, 32):
                shift = self._pass(f.width)
                call = f"sw_sum_run{f.width}(&{own}, {self._offset(own, kind, indexes[i])}, {n})"
                b.line(f"sum += {_shifted(call, shift)};")
                i += n
                continue
            shift = self._pass(f.width)
            if f.width > 64:
                words = (f.width + 63) // 64
                for w in range(words):
                    b.line(f"sum += {_shifted(f'sw_halves({place}[{w}])', shift)};")
            elif f.width + shift > 48:
                b.line(f"sum += {_shifted(f'sw_halves({place})', shift)};")
            else:
                b.line(f"sum += {_shifted(f'(uint64_t){place}', shift)};")
            i += 1

    def _offset(self, own: str, kind: ir.HeaderType, index: int) -> str:
        return f"offsetof({self._layout.struct_name(own, kind)}, {self._layout.field_names[id(kind)][index]})"

    def _run(self, own: str, kind: ir.HeaderType, indexes: list[int], start: int) -> int:
        """How many fields from `start` follow each other in the header with one width."""
        first, n = indexes[start], 1
        if self._layout.is_local(own, first):
            return 1
        while (
            start + n < len(indexes)
            and indexes[start + n] == first + n
            and not self._layout.is_local(own, first + n)
            and kind.fields[first + n].width == kind.fields[first].width
            and not kind.fields[first + n].varbit
        ):
            n += 1
        return n

    def _bytes(self, b: Block, data: str, length: str) -> None:
        """Whole bytes, as many as the packet says: what follows has no known place."""
        if self._bit is None or self._bit % 8:
            raise _Unknown
        b.line(f"sum += {_shifted(f'sw_sum_bytes({data}, {length})', self._bit)};")
        self._bit = None


def same_header(a: ir.FieldRef, b: object) -> bool:
    """Whether b is a field too, of the same header."""
    return isinstance(b, ir.FieldRef) and a.header.header is not None and a.header.header is b.header.header


def _shifted(code: str, shift: int) -> str:
    return f"{code} << {shift}" if shift else code


def _folded(value: int) -> int:
    """A number of at most 16 bits with the same one's complement sum; 0 only for 0."""
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value
