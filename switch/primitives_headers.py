# SPDX-License-Identifier: Apache-2.0
"""Primitives on headers, unions and stacks."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.emit_code import Block
from switch.emit_expr import Expressions
from switch.primitive import Context, primitive


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

    n, i, kept = b.temp(), b.temp(), b.temp()

    def swap(loop: str, other: str) -> None:
        # What falls out of the stack comes to lie in the invalid elements, as stacks.cpp does it.
        with b.nest(loop):
            own = f"h->{name}.e[{i}]"
            b.line(f"__typeof__({own}) {kept} = {own};")
            b.line(f"{own} = {other};")
            b.line(f"{other} = {kept};")

    with b.nest(""):
        b.line(f"uint64_t {n} = {x.saturated(b, a[1])};")
        b.line(f"if ({n} > {size}) {n} = {size};")
        e = f"h->{name}.e"
        if push:
            swap(f"for (uint64_t {i} = {size}; {n} > 0 && {i}-- > {n};)", f"{e}[{i} - {n}]")
            with b.nest(f"for (uint64_t {i} = 0; {i} < {n}; {i}++)"):
                invalidate(i)
            b.line(
                f"h->{name}.next = h->{name}.next + {n} > {size} ? {size} : h->{name}.next + (uint32_t){n};"
            )
        else:
            swap(f"for (uint64_t {i} = 0; {n} > 0 && {i} < {size} - {n}; {i}++)", f"{e}[{i} + {n}]")
            with b.nest(f"for (uint64_t {i} = {size} - {n}; {i} < {size}; {i}++)"):
                invalidate(i)
            b.line(f"h->{name}.next -= h->{name}.next < {n} ? h->{name}.next : (uint32_t){n};")


@primitive("push", "stack", "number")
def _push(c: Context, b: Block, a: Any) -> None:
    _shift(c, b, a, push=True)


@primitive("pop", "stack", "number")
def _pop(c: Context, b: Block, a: Any) -> None:
    _shift(c, b, a, push=False)
