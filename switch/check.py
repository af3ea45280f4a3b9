# SPDX-License-Identifier: Apache-2.0
"""The executable spec of `ir.Program`: what must hold before C is made of it.

Each rule raises `LoadError` with the construct and its source line; nothing is left to be found at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from switch import ir
from switch.errors import LoadError
from switch.hashes import HASHES


def check(program: ir.Program) -> None:
    """Verify a whole program."""
    for action in program.actions.values():
        _body(action.body, f"action {action.name!r}", jumps=len(action.body))
        for call in action.body:
            _no_lookahead(call.args, f"action {action.name!r}", action.source)
    for state in program.parser.states.values():
        calls = [op for op in state.ops if isinstance(op, ir.Call)]
        _body(calls, f"parser state {state.name!r}", jumps=None)
    _body(program.deparser.body, "the deparser", jumps=None)
    _no_lookahead(program.deparser.body, "the deparser", ir.NOWHERE)
    for k in program.checksums:
        _no_lookahead(k.condition, f"checksum {k.name!r}", k.source)
    for c in program.calculations.values():
        if c.algorithm not in HASHES:
            known = ", ".join(sorted(HASHES))
            raise LoadError(f"hash algorithm {c.algorithm!r}", f"not one of {known}", str(c.source))
    for pipeline in (program.ingress, program.egress):
        _pipeline(pipeline)
        for node in pipeline.nodes.values():
            if isinstance(node, ir.Table):
                _table(node)
            elif isinstance(node, ir.Branch):
                _no_lookahead(node.condition, f"node {node.name!r}", node.source)
    both = (n for n in program.tables if n in program.ingress.nodes and n in program.egress.nodes)
    for name in both:
        raise LoadError(f"table {name!r}", "the other pipeline has something of this name")


# ---- operands


def _is_field(a: object) -> bool:
    return isinstance(a, ir.FieldRef) and not a.field.varbit


def _is_varbit(a: object) -> bool:
    return isinstance(a, ir.FieldRef) and a.field.varbit


def _is_number(a: object) -> bool:
    return isinstance(a, ir.Expr) and not a.is_bool and not _is_varbit(a)


KINDS: dict[str, Callable[[object], bool]] = {
    "field": _is_field,
    "varbit": _is_varbit,
    "number": _is_number,
    "truth-or-number": lambda a: isinstance(a, ir.Expr) and not _is_varbit(a),
    "header": lambda a: isinstance(a, ir.HeaderRef),
    "union": lambda a: isinstance(a, ir.UnionRef),
    "stack": lambda a: isinstance(a, ir.Stack | ir.UnionStack),
    "counter": lambda a: isinstance(a, ir.CounterArray) and not a.direct,
    "meter": lambda a: isinstance(a, ir.MeterArray) and not a.direct,
    "register": lambda a: isinstance(a, ir.RegisterArray),
    "calculation": lambda a: isinstance(a, ir.Calculation),
    "text": lambda a: isinstance(a, ir.Text),
    "vector": lambda a: isinstance(a, ir.Vector),
}


def _body(body: Iterable[ir.Call], where: str, jumps: int | None) -> None:
    from switch.primitives import PRIMITIVES

    for call in body:
        known = PRIMITIVES.get(call.op)
        source = str(call.source)
        if known is None:
            raise LoadError(f"primitive {call.op!r} in {where}", "this switch does not have it", source)
        if len(call.args) != len(known.signature):
            raise LoadError(
                f"primitive {call.op!r} in {where}",
                f"{len(call.args)} operands instead of {len(known.signature)}",
                source,
            )
        for i, (arg, kind) in enumerate(zip(call.args, known.signature, strict=True)):
            if not KINDS[kind](arg):
                raise LoadError(
                    f"primitive {call.op!r} in {where}", f"operand {i + 1} is not a {kind}", source
                )
        _same_types(call, where)
        if call.op.startswith("_jump"):
            target = call.args[-1]
            if jumps is None or not isinstance(target, ir.Const) or not 0 <= target.value <= jumps:
                raise LoadError(f"primitive {call.op!r} in {where}", "it jumps out of the action", source)


def _no_lookahead(x: object, where: str, source: ir.Source) -> None:
    if next(ir.lookaheads(x), None) is not None:
        raise LoadError(f"lookahead in {where}", "only the parser can look ahead", str(source))


def _same_types(call: ir.Call, where: str) -> None:
    ok = True
    if call.op in ("assign_header", "copy_header"):
        ok = call.args[0].type is call.args[1].type  # type: ignore[union-attr]
    elif call.op == "assign_union":
        ok = call.args[0].example.type == call.args[1].example.type  # type: ignore[union-attr]
    elif call.op in ("assign_header_stack", "assign_union_stack"):
        a, b = call.args
        ok = type(a) is type(b) and a.type == b.type and len(a.elements) == len(b.elements)  # type: ignore[union-attr]
    if not ok:
        raise LoadError(
            f"primitive {call.op!r} in {where}", "its operands are of different types", str(call.source)
        )


# ---- control flow


def _after(node: ir.Table | ir.Branch | ir.Invoke) -> set[str | None]:
    if isinstance(node, ir.Branch):
        return {node.then, node.otherwise}
    if isinstance(node, ir.Invoke):
        return {node.next}
    after = set(node.next.values()) | {node.base_next}
    for edge in (node.next_hit, node.next_miss):
        if edge is not None:
            after.add(edge[0])
    return after


def _pipeline(p: ir.Pipeline) -> None:
    """Every edge leads to a node, and none back: a packet passes each node at most once."""
    for node in p.nodes.values():
        for name in _after(node):
            if name is not None and name not in p.nodes:
                raise LoadError(
                    f"node {node.name!r}", f"leads to {name!r}, which does not exist", str(node.source)
                )
    if p.start is not None and p.start not in p.nodes:
        raise LoadError(f"pipeline {p.name!r}", f"starts at {p.start!r}, which does not exist")
    done: set[str] = set()
    for root in p.nodes:
        path: list[tuple[str, list[str]]] = []
        if root not in done:
            path.append((root, [n for n in _after(p.nodes[root]) if n is not None]))
        on_path = {root}
        while path:
            name, todo = path[-1]
            if not todo:
                path.pop()
                on_path.discard(name)
                done.add(name)
                continue
            nxt = todo.pop()
            if nxt in on_path:
                raise LoadError(
                    f"node {nxt!r}", "the control flow comes back to it", str(p.nodes[nxt].source)
                )
            if nxt not in done:
                on_path.add(nxt)
                path.append((nxt, [n for n in _after(p.nodes[nxt]) if n is not None]))


def _table(t: ir.Table) -> None:
    source = str(t.source)
    kinds = {k.match for k in t.keys}
    wanted = next((m for m in ("range", "ternary", "lpm", "exact") if m in kinds), "exact")
    if t.keys and t.match != wanted and not (t.match == "ternary" and wanted == "lpm"):
        raise LoadError(f"table {t.name!r}", f"match type {t.match} does not fit its keys ({wanted})", source)
    if t.match == "lpm" and sum(k.match == "lpm" for k in t.keys) > 1:
        raise LoadError(f"table {t.name!r}", "more than one lpm key", source)
    if t.next_miss is None and t.default_action is not None and t.default_action.id not in t.next:
        raise LoadError(
            f"table {t.name!r}", f"no next node for default action {t.default_action.name!r}", source
        )
    for e in t.entries:
        if e.action not in t.actions:
            raise LoadError(
                f"const entry of {t.name!r}", f"action {e.action.name!r} is not the table's", str(e.source)
            )
