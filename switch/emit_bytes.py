# SPDX-License-Identifier: Apache-2.0
"""Moving fields between packet bytes and the phv."""

from __future__ import annotations

from dataclasses import dataclass

from switch import ir
from switch.emit_code import Block, Layout
from switch.errors import LoadError

# fields of 8, 16, 32 or 64 bits in a row are taken from a packet by a loop from this many on
RUN = 4
# and put into one from this many on: a vector of fields, one of which was just stored, would wait for it
STORED_RUN = 16
# and are summed in loops of at most so many: sw_sum_run32 adds in 32 bits
LONGEST_SUM = 65536


@dataclass(frozen=True)
class Piece:
    """Fields first..last that fill whole bytes from byte `at` (counted from the varbit, if passed)."""

    kind: str  # run, chunk, wide, varbit
    at: int
    first: int
    last: int
    bits: int


def pieces(t: ir.HeaderType, run: int) -> list[Piece]:
    """Cut a header: runs of natural fields, byte-aligned chunks of up to 64 bits, wide parts, the varbit.

    `run` is how many fields make a run.
    """
    out: list[Piece] = []
    i, bit = 0, 0
    fields = t.fields
    while i < len(fields):
        f = fields[i]
        if f.varbit:
            out.append(Piece("varbit", bit // 8, i, i, 0))
            bit, i = 0, i + 1
            continue
        if f.width in (8, 16, 32, 64) and bit % 8 == 0:
            j = i
            while j + 1 < len(fields) and fields[j + 1].width == f.width and not fields[j + 1].varbit:
                j += 1
            if j - i + 1 >= run:
                out.append(Piece("run", bit // 8, i, j, f.width))
                bit += f.width * (j - i + 1)
                i = j + 1
                continue
        j, total = i, f.width
        while total % 8 and j + 1 < len(fields) and not fields[j + 1].varbit:
            j += 1
            total += fields[j].width
        if total % 8:
            raise LoadError(f"varbit of header type {t.name!r}", "it does not start on a byte")
        out.append(Piece("chunk" if total <= 64 else "wide", bit // 8, i, j, total))
        bit, i = bit + total, j + 1
    return out


def load_fields(b: Block, layout: Layout, t: ir.HeaderType, own: str, q: str) -> None:
    """Bytes at `q` -> fields. A varbit's length stands in `vl` (bits)."""
    base = q
    for p in pieces(t, RUN):
        at = f"{base} + {p.at}" if p.at else base
        places = [layout.field(own, t, i) for i in range(p.first, p.last + 1)]
        fields = t.fields[p.first : p.last + 1]
        if p.kind == "varbit":
            b.line(f"memcpy({places[0]}, {at}, vl / 8);")
            b.line(f"{own}.vl_bits = vl;")
            base = f"({q} + {p.at} + vl / 8)"
        elif p.kind == "run":
            b.line(f"sw_load_run{p.bits}({_array(layout, t, own, p.first)}, {at}, {len(places)});")
        elif p.kind == "chunk":
            _load_chunk(b, places, fields, at, p.bits)
        else:
            _load_wide(b, places, fields, at)


def summed_run(layout: Layout, t: ir.HeaderType, own: str, q: str) -> str | None:
    """C expression: the sum of a header's fields, as sw_sum_run16 and 32, which loads them as load_fields.

    None for a header that is not one run of fields of 16 or 32 bits, at most LONGEST_SUM.
    """
    found = pieces(t, RUN)
    n = len(t.fields)
    if len(found) != 1 or found[0].kind != "run" or found[0].bits not in (16, 32) or n > LONGEST_SUM:
        return None
    return f"sw_load_sum{found[0].bits}({_array(layout, t, own, 0)}, {q}, {n})"


def _array(layout: Layout, t: ir.HeaderType, own: str, index: int) -> str:
    """The fields from one on, as bytes of their header: a member's address is good for that member only."""
    return f"(uint8_t *)&{own} + offsetof({layout.type_names[id(t)]}, {layout.field_names[id(t)][index]})"


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
            b.line(f"uint64_t {t} = 0;")
            b.line(f"sw_load_wide(&{t}, {at}, {bit}, {f.width});")
            b.line(f"{place} = {_cast(f)}{t};")
        bit += f.width


def store_fields(b: Block, layout: Layout, t: ir.HeaderType, own: str, q: str) -> None:
    """Fields -> bytes at `q`, which is advanced past the header by the caller."""
    base = q
    for p in pieces(t, STORED_RUN):
        at = f"{base} + {p.at}" if p.at else base
        places = [layout.field(own, t, i) for i in range(p.first, p.last + 1)]
        fields = t.fields[p.first : p.last + 1]
        if p.kind == "varbit":
            b.line(f"memcpy({at}, {places[0]}, {own}.vl_bits / 8);")
            base = f"({q} + {p.at} + {own}.vl_bits / 8)"
        elif p.kind == "run":
            b.line(f"sw_store_run{p.bits}({at}, {_array(layout, t, own, p.first)}, {len(places)});")
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
