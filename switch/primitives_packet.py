# SPDX-License-Identifier: Apache-2.0
"""Primitives that decide what becomes of the packet, jumps inside an action, and messages."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.emit_code import Block, c_string
from switch.emit_expr import Val
from switch.primitive import Context, primitive


@primitive("mark_to_drop", "header")
def _mark_to_drop(c: Context, b: Block, a: Any) -> None:
    x, ref = c.expressions, a[0]
    own = x.header(b, ref)
    values = {"egress_spec": Val("(uint64_t)s->drop_port", 64, 32), "mcast_grp": Val("0", 64, 0)}
    for i, f in enumerate(ref.type.fields):
        if f.name in values and not f.varbit:
            x.store_val(b, x.layout.field(own, ref.type, i), f.width, values[f.name])


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
