# SPDX-License-Identifier: Apache-2.0
"""The primitives of bmv2's core and of simple_switch, one function each: what they take and the C they become.

A signature names the operand kinds that `check` demands:
  field  a fixed-width field to store to     varbit  a varbit field        number  a numeric expression
  header header or metadata                  stack   header or union stack union   header union
  truth-or-number, counter, meter, register, calculation, text, vector, field-or-varbit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from switch import ir
from switch.emit_code import Block, c_string, limbs
from switch.emit_expr import Expressions, Val

Emit = Callable[["Context", Block, Any], None]


@dataclass
class Context:
    """What a primitive's emitter works with: expressions of the enclosing function, names of calculations."""

    expressions: Expressions
    calculations: dict[str, str]
    uses_exit: bool = False
    labels: set[int] = field(default_factory=set)
    position: int = 0


@dataclass(frozen=True)
class Primitive:
    """A registered primitive."""

    name: str
    signature: tuple[str, ...]
    emit: Emit


PRIMITIVES: dict[str, Primitive] = {}


def primitive(name: str, *signature: str) -> Callable[[Emit], Emit]:
    """Register an emitter under its JSON name."""

    def add(emit: Emit) -> Emit:
        PRIMITIVES[name] = Primitive(name, signature, emit)
        return emit

    return add


# ---- assignment and arithmetic


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
        call = f"({c.calculations[a[2].name]}(s, k, h) % ({size} ? {size} : 1) + {base})"
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


# ---- headers


def mark_valid(x: Expressions, b: Block, ref: ir.HeaderRef) -> str:
    """Make a header valid, the other members of its union invalid; its C lvalue."""
    others: list[str] = []
    if ref.union is not None:
        place = x.union(b, ref.union)
        names = x.layout.union_members[ref.union.example.type]
        own = f"{place}.{names[ref.member]}"
        others = [f"{place}.{n}" for i, n in enumerate(names) if i != ref.member]
    else:
        own = x.header(b, ref)
        union = x.layout.union_of.get(ref.header.id) if ref.header is not None else None
        if union is not None:
            others = [f"h->{x.layout.places[m.id]}" for m in union.members if m is not ref.header]
    for other in others:
        b.line(f"{other}.valid = 0;")
    b.line(f"{own}.valid = 1;")
    return own


def header_bytes(own: str, kind: ir.HeaderType) -> str:
    """C expression: the bytes a header takes in the packet."""
    fixed = str(kind.fixed_bits // 8)
    return f"({fixed} + {own}.vl_bits / 8)" if kind.varbit is not None else fixed


def clear_fields(x: Expressions, b: Block, own: str, kind: ir.HeaderType) -> None:
    """Zero all fields; a varbit keeps its length."""
    if kind.varbit is None:
        b.line(f"memset(&{own}, 0, sizeof {own});")
        return
    for i, f in enumerate(kind.fields):
        place = x.layout.field(own, kind, i)
        b.line(f"memset(&{place}, 0, sizeof {place});" if f.varbit or f.width > 64 else f"{place} = 0;")


@primitive("add_header", "header")
def _add_header(c: Context, b: Block, a: Any) -> None:
    x, ref = c.expressions, a[0]
    if ref.metadata:
        return
    own = x.header(b, ref)
    with b.nest(f"if (!{own}.valid)"):
        clear_fields(x, b, own, ref.type)
        mark_valid(x, b, ref)
        b.line(f"k->reg_len += {header_bytes(own, ref.type)};")


@primitive("add_header_fast", "header")
def _add_header_fast(c: Context, b: Block, a: Any) -> None:
    if not a[0].metadata:
        mark_valid(c.expressions, b, a[0])


@primitive("remove_header", "header")
def _remove_header(c: Context, b: Block, a: Any) -> None:
    x, ref = c.expressions, a[0]
    if ref.metadata:
        return
    own = x.header(b, ref)
    with b.nest(f"if ({own}.valid)"):
        b.line(f"k->reg_len -= {header_bytes(own, ref.type)};")
        b.line(f"{own}.valid = 0;")


def copy_fields(x: Expressions, b: Block, dst: str, src: str, kind: ir.HeaderType) -> None:
    """Copy every field, not the validity."""
    for i, f in enumerate(kind.fields):
        to, fr = x.layout.field(dst, kind, i), x.layout.field(src, kind, i)
        if f.varbit or f.width > 64:
            b.line(f"memmove({to}, {fr}, sizeof {to});")
        else:
            b.line(f"{to} = {fr};")
    if kind.varbit is not None:
        b.line(f"{dst}.vl_bits = {src}.vl_bits;")


def assign_header(x: Expressions, b: Block, dst: ir.HeaderRef, src: ir.HeaderRef) -> None:
    """Copy a header with its validity."""
    to, fr = x.header(b, dst), x.header(b, src)
    if to == fr:
        return
    with b.nest(f"if ({'1' if src.metadata else fr + '.valid'})"):
        if not dst.metadata:
            mark_valid(x, b, dst)
        copy_fields(x, b, to, fr, dst.type)
    if not src.metadata and not dst.metadata:
        b.line(f"else {to}.valid = 0;")


@primitive("assign_header", "header", "header")
@primitive("copy_header", "header", "header")
def _assign_header(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        assign_header(c.expressions, b, a[0], a[1])


@primitive("assign_union", "union", "union")
def _assign_union(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        to, fr = c.expressions.union(b, a[0]), c.expressions.union(b, a[1])
        b.line(f"memmove(&{to}, &{fr}, sizeof {to});")


@primitive("assign_header_stack", "stack", "stack")
@primitive("assign_union_stack", "stack", "stack")
def _assign_stack(c: Context, b: Block, a: Any) -> None:
    names = c.expressions.layout.stack_names
    to, fr = names[id(a[0])], names[id(a[1])]
    if to == fr:
        return
    if isinstance(a[0], ir.UnionStack):
        b.line(f"memcpy(&h->{to}, &h->{fr}, sizeof h->{to});")
        return
    b.line(f"h->{to}.next = h->{fr}.next;")
    for d, e in zip(a[0].elements, a[1].elements, strict=True):
        with b.nest(""):
            assign_header(c.expressions, b, ir.HeaderRef(header=d), ir.HeaderRef(header=e))


def _shift(c: Context, b: Block, a: Any, push: bool) -> None:
    x, stack = c.expressions, a[0]
    name, size = x.layout.stack_names[id(stack)], len(stack.elements)
    members = x.layout.union_members[stack.type] if isinstance(stack, ir.UnionStack) else []

    def invalidate(at: str) -> None:
        for m in [f".{m}" for m in members] or [""]:
            b.line(f"h->{name}.e[{at}]{m}.valid = 0;")

    n, i = b.temp(), b.temp()
    with b.nest(""):
        b.line(f"uint64_t {n} = {x.saturated(b, a[1])};")
        b.line(f"if ({n} > {size}) {n} = {size};")
        e = f"h->{name}.e"
        if push:
            b.line(f"memmove({e} + {n}, {e}, ({size} - {n}) * sizeof {e}[0]);")
            with b.nest(f"for (uint64_t {i} = 0; {i} < {n}; {i}++)"):
                invalidate(i)
            b.line(
                f"h->{name}.next = h->{name}.next + {n} > {size} ? {size} : h->{name}.next + (uint32_t){n};"
            )
        else:
            b.line(f"memmove({e}, {e} + {n}, ({size} - {n}) * sizeof {e}[0]);")
            with b.nest(f"for (uint64_t {i} = {size} - {n}; {i} < {size}; {i}++)"):
                invalidate(i)
            b.line(f"h->{name}.next -= h->{name}.next < {n} ? h->{name}.next : (uint32_t){n};")


@primitive("push", "stack", "number")
def _push(c: Context, b: Block, a: Any) -> None:
    _shift(c, b, a, push=True)


@primitive("pop", "stack", "number")
def _pop(c: Context, b: Block, a: Any) -> None:
    _shift(c, b, a, push=False)


# ---- the packet's fate


@primitive("mark_to_drop", "header")
def _mark_to_drop(c: Context, b: Block, a: Any) -> None:
    x, ref = c.expressions, a[0]
    own = x.header(b, ref)
    names = [f.name for f in ref.type.fields]
    if "egress_spec" in names:
        i = names.index("egress_spec")
        x.store_val(
            b,
            x.layout.field(own, ref.type, i),
            ref.type.fields[i].width,
            Val("(uint64_t)s->drop_port", 64, 32),
        )
    if "mcast_grp" in names:
        b.line(f"{x.layout.field(own, ref.type, names.index('mcast_grp'))} = 0;")


@primitive("drop")
def _drop(c: Context, b: Block, a: Any) -> None:
    b.line("sm_set_egress_spec(h, s->drop_port);")
    b.line("sm_set_mcast_grp(h, 0);")


def _clone(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    b.line(f"k->clone_session = (uint16_t)({x.low(b, a[0], 16).code} | 0x8000);")
    b.line(f"k->clone_list = (uint16_t){x.low(b, a[1], 16).code};")


primitive("clone_ingress_pkt_to_egress", "number", "number")(_clone)
primitive("clone_egress_pkt_to_egress", "number", "number")(_clone)


@primitive("resubmit", "number")
def _resubmit(c: Context, b: Block, a: Any) -> None:
    b.line(f"k->resubmit_list = (uint16_t){c.expressions.low(b, a[0], 16).code};")


@primitive("recirculate", "number")
def _recirculate(c: Context, b: Block, a: Any) -> None:
    b.line(f"k->recirculate_list = (uint16_t){c.expressions.low(b, a[0], 16).code};")


@primitive("generate_digest", "number", "number")
def _digest(c: Context, b: Block, a: Any) -> None:
    b.line(f"k->digest_list = (uint16_t){c.expressions.low(b, a[1], 16).code};")


@primitive("truncate", "number")
def _truncate(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        n = b.temp()
        b.line(f"uint64_t {n} = {c.expressions.saturated(b, a[0])};")
        b.line(f"if ({n} < k->truncate) k->truncate = (uint32_t){n};")


@primitive("no_op")
def _no_op(c: Context, b: Block, a: Any) -> None:
    pass


@primitive("exit")
def _exit(c: Context, b: Block, a: Any) -> None:
    b.line("k->exit = 1;")


@primitive("assert", "truth-or-number")
@primitive("assume", "truth-or-number")
def _assert(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    with b.nest(""):
        condition = x.truth(b, a[0] if a[0].is_bool else ir.Unary("d2b", a[0]))
        x.fault(b, f"!{condition}", "assertion failed")


@primitive("log_msg", "text", "vector")
def _log(c: Context, b: Block, a: Any) -> None:
    x = c.expressions
    with b.nest(""):
        codes = []
        text = a[0].value.replace("%", "%%")
        for v in a[1].values:
            lo, hi = x.bounds.of(v)
            if lo >= 0 and hi < 1 << 64:
                codes.append(f"(unsigned long long){x.exact(b, v).code}")
                form = "%llu"
            else:
                codes.append(f"(long long){x.low(b, v, 64).code}")
                form = "%lld"
            text = text.replace("{}", form, 1)
        b.line(f"sw_logf(s, {', '.join([c_string(text), *codes])});")


# ---- arrays


@primitive("count", "counter", "number")
def _count_at(c: Context, b: Block, a: Any) -> None:
    array = a[0]
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {c.expressions.saturated(b, a[1])};")
        b.line(f"if ({i} < {array.size}) sw_count(&s->counters[{array.id}][{i}], k);")


@primitive("execute_meter", "meter", "number", "field")
def _meter(c: Context, b: Block, a: Any) -> None:
    x, array = c.expressions, a[0]
    with b.nest(""):
        i = b.temp()
        b.line(f"uint64_t {i} = {x.saturated(b, a[1])};")
        with b.nest(f"if ({i} < {array.size})"):
            units = "k->ingress_len" if array.octets else "1"
            call = f"(uint64_t)sw_meter_run(&s->meters[{array.id}][{i}], s->now_us, {units})"
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
    x.store_val(b, x.register(b, array, index), array.width, x.low(b, value, array.width))


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


# ---- jumps inside an action


def _target(c: Context, a: Any) -> int:
    assert isinstance(a, ir.Const)
    return a.value


def _goto(c: Context, b: Block, target: int) -> None:
    if target <= c.position:
        with b.nest("if (SW_UNLIKELY(++k->steps > SW_STEP_BUDGET))"):
            where = c_string(str(c.expressions.source))
            b.line(f'sw_fault(s, k, "a loop in an action ran too long", {where});')
            b.line("return;")
    b.line(f"goto L{target};")


@primitive("_jump", "number")
def _jump(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        _goto(c, b, _target(c, a[0]))


@primitive("_jump_if_zero", "number", "number")
def _jump_if_zero(c: Context, b: Block, a: Any) -> None:
    with b.nest(""):
        condition = c.expressions.truth(b, ir.Unary("d2b", a[0]))
        with b.nest(f"if (!{condition})"):
            _goto(c, b, _target(c, a[1]))
