# SPDX-License-Identifier: Apache-2.0
"""Calculations -> C: csum16 adds its inputs where they are, others are laid out in the scratch buffer."""

from __future__ import annotations

from switch import ir
from switch.emit_code import PARAMETERS, PAYLOAD_BYTES, Block, Layout, c_comment
from switch.emit_expr import Expressions
from switch.emit_known import Known
from switch.emit_locals import Locals
from switch.emit_sum import Sums, same_header
from switch.hashes import HASHES
from switch.widths import Bounds


class Calculations:
    """Emits one function per calculation."""

    def __init__(
        self, program: ir.Program, layout: Layout, bounds: Bounds, known: Known, local: Locals
    ) -> None:
        self.program = program
        self.local = local
        self.known = known
        self.layout = layout
        self.bounds = bounds

    def calculation(self, c: ir.Calculation, name: str) -> str:
        """A function that hashes the inputs."""
        x = Expressions(self.layout, self.bounds, c.source)
        hashed = HASHES[c.algorithm]
        b = Sums(self.layout, x, self.known).body(c.inputs) if hashed == "sw_hash_csum16" else None
        if b is None:
            b = self._laid_out(c, x, hashed)
        head = f"/* {c_comment(c.name)}: {c.algorithm} {c_comment(str(c.source))} */\n"
        signature = f"{self.local.head(c)} SW_UNUSED uint64_t {name}({PARAMETERS}{self.local.parameter(c)})"
        return f"{head}{signature} {{\n{b.text()}}}\n"

    def _laid_out(self, c: ir.Calculation, x: Expressions, hashed: str) -> Block:
        """Lay the inputs out in the scratch buffer and hash its bytes."""
        b = Block()
        b.line("(void)k; (void)h;")
        b.line("sw_bits w = {s->scratch, 0};")
        aligned, i = True, 0  # `aligned`: we know at compile time that w stands on a byte
        while i < len(c.inputs):
            part = c.inputs[i]
            if isinstance(part, ir.FieldRef):
                j = i + 1
                while j < len(c.inputs) and same_header(part, c.inputs[j]):
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
                b.line(f"sw_bits_put_bytes(&w, k->data + k->pos, {PAYLOAD_BYTES});")
                aligned = True
            i += 1
        b.line(f"return {hashed}(s->scratch, (w.bit + 7) / 8);")
        return b

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
            local = self.layout.is_local(own, indexes[i])
            if aligned and f.width in (8, 16, 32, 64) and not f.varbit and not local:
                j = i
                while (
                    j + 1 < len(indexes)
                    and indexes[j + 1] == indexes[j] + 1
                    and not self.layout.is_local(own, indexes[j + 1])
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
