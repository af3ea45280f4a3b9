# SPDX-License-Identifier: Apache-2.0
"""Primitives on counters, meters and registers."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.emit_code import Block, limbs
from switch.emit_expr import Expressions, Val
from switch.primitive import Context, primitive


@primitive("count", "counter", "number")
def _count_at(c: Context, b: Block, a: Any) -> None:
    array = a[0]
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {c.expressions.saturated(b, a[1])};")
        with b.nest(f"if ({i} < {array.size})"):
            counter = b.temp()
            b.line(f"sw_counter *{counter} = &s->counters[{array.id}][{i}];")
            b.line(f"sw_count({counter}, k);")
            b.line(f"sw_tally(s, &{counter}->packets, &{counter}->bytes);")


@primitive("execute_meter", "meter", "number", "field")
def _meter(c: Context, b: Block, a: Any) -> None:
    x, array = c.expressions, a[0]
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {x.saturated(b, a[1])};")
        with b.nest(f"if ({i} < {array.size})"):
            units = "k->ingress_len" if array.octets else "1"
            call = f"(uint64_t)sw_meter_run(&s->meters[{array.id}][{i}], s->now_us, {units}, k)"
            x.store_val(b, x.field(b, a[2]), a[2].field.width, Val(call, 64, 2))


def register_value(x: Expressions, array: ir.RegisterArray, index: str) -> Val:
    """A register's value as it is stored."""
    place = x.register(Block(), array, index)
    if array.width <= 64:
        return Val(f"(uint64_t){place}", 64, array.width)
    if array.width <= 128:
        return Val(f"sw_ld128({place})", 128, array.width)
    return Val(place, 64 * limbs(array.width), array.width)


def read_register(x: Expressions, b: Block, target: ir.FieldRef, array: ir.RegisterArray, index: str) -> None:
    """Read at an index known to be in range."""
    x.store_val(b, x.field(b, target), target.field.width, register_value(x, array, index))


def write_register(x: Expressions, b: Block, array: ir.RegisterArray, index: str, value: ir.Expr) -> None:
    """Write at an index known to be in range."""
    x.put(b, x.register(b, array, index), array.width, value)


@primitive("register_read", "field", "register", "number")
def _register_read(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {c.expressions.saturated(b, a[2])};")
        with b.nest(f"if ({i} < {a[1].size})"):
            read_register(c.expressions, b, a[0], a[1], i)


@primitive("register_write", "register", "number", "number")
def _register_write(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {c.expressions.saturated(b, a[1])};")
        with b.nest(f"if ({i} < {a[0].size})"):
            write_register(c.expressions, b, a[0], i, a[2])
