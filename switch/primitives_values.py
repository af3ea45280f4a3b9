# SPDX-License-Identifier: Apache-2.0
"""Primitives that compute: assignment, arithmetic, random numbers, hashes."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.emit_code import Block
from switch.emit_expr import Val
from switch.primitive import Context, primitive


@primitive("assign", "field", "number")
@primitive("modify_field", "field", "number")
def _assign(c: Context, b: Block, a: Any) -> None:
    c.expressions.store(b, a[0], a[1])


def _arithmetic(name: str, op: str, operands: int) -> None:
    @primitive(name, "field", *["number"] * operands)
    def emit(c: Context, b: Block, a: Any) -> None:
        left, right = (a[0], a[1]) if operands == 1 else (a[1], a[2])
        c.expressions.store(b, a[0], ir.Binary(op, left, right))


for _name, _op, _count in (
    ("add_to_field", "+", 1),
    ("subtract_from_field", "-", 1),
    ("add", "+", 2),
    ("subtract", "-", 2),
    ("bit_xor", "^", 2),
    ("bit_or", "|", 2),
    ("bit_and", "&", 2),
    ("shift_left", "<<", 2),
    ("shift_right", ">>", 2),
):
    _arithmetic(_name, _op, _count)


@primitive("modify_field_rng_uniform", "field", "number", "number")
def _random(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    lo, hi = b.temp(), b.temp()
    with b.nest(""):
        b.line(f"uint64_t {lo} = {x.low(b, a[1], 64).code}, {hi} = {x.low(b, a[2], 64).code};")
        with b.nest(f"if ({lo} <= {hi})"):
            x.store_val(b, x.field(b, a[0]), a[0].field.width, Val(f"sw_random(s, {lo}, {hi})", 64, 64))


@primitive("modify_field_with_hash_based_offset", "field", "number", "calculation", "number")
def _hash(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    size = b.temp()
    with b.nest(""):
        b.line(f"uint64_t {size} = {x.low(b, a[3], 64).code};")
        base = x.low(b, a[1], 64).code
        call = f"({c.calculation(a[2])} % ({size} ? {size} : 1) + {base})"
        x.store_val(b, x.field(b, a[0]), a[0].field.width, Val(call, 64, 64))


@primitive("assign_VL", "varbit", "varbit")
def _assign_varbit(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    dst, src = x.header(b, a[0].header), x.header(b, a[1].header)
    room = a[0].field.width
    with b.nest(""):
        n = b.temp()
        b.line(f"uint32_t {n} = {src}.vl_bits;")
        x.fault(b, f"{n} > {room}", "varbit longer than the field it is assigned to")
        b.line(f"if ({n} > {room}) {n} = {room};")
        b.line(f"memmove({x.field(b, a[0])}, {x.field(b, a[1])}, {n} / 8);")
        b.line(f"{dst}.vl_bits = {n};")
