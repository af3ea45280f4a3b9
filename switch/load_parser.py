# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON parsers and deparsers -> IR."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.errors import LoadError
from switch.load_expr import Names, integer, lookahead, source_of, typed, within


def _call(j: Any, names: Names) -> ir.Call:
    from switch.load import load_call

    return load_call(j, names, ())


class ValueSets:
    """The value sets that transitions use, with the widths of the keys that are looked for in them."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self.used: dict[str, ir.ValueSet] = {}

    def use(self, name: Any, widths: tuple[int, ...]) -> ir.ValueSet:
        """The value set of this name. Raises `LoadError` where its keys are not all of one shape."""
        if not isinstance(name, str) or name not in self._sizes:
            raise LoadError(f"value set {name!r:.80}", "does not exist")
        found = self.used.setdefault(name, ir.ValueSet(name, len(self.used), self._sizes[name], widths))
        if found.widths != widths:
            raise LoadError(f"value set {name!r}", f"keys of {found.widths} and of {widths} bits look in it")
        return found


def load_parser(j: Any, root: dict[str, Any], names: Names) -> ir.Parser:
    """The parser's states, and the value sets that they look at (they start empty)."""
    vsets = ValueSets({v["name"]: v.get("max_size", 1024) for v in root.get("parse_vsets") or ()})
    states: dict[str, ir.State] = {}
    for s in j["parse_states"]:
        if s["name"] in states:
            raise LoadError(f"parser state {s['name']!r}", "defined twice")
        with within(f"parser state {s['name']!r}"):
            states[s["name"]] = _state(s, names, vsets)
    for state in states.values():
        for t in state.transitions:
            if t.next is not None and t.next not in states:
                raise LoadError(f"parser state {state.name!r}", f"goes to {t.next!r}, which does not exist")
    start = j.get("init_state")
    if start is not None and start not in states:
        raise LoadError(f"parser state {start!r}", "does not exist")
    return ir.Parser(start, states, vsets.used)


def _state(j: Any, names: Names, vsets: ValueSets) -> ir.State:
    ops = tuple(_op(o, names) for o in j.get("parser_ops") or ())
    key = tuple(_key(k, names, ir.NOWHERE) for k in j.get("transition_key") or ())
    transitions = tuple(_transition(t, key, vsets) for t in j.get("transitions") or ())
    return ir.State(j["name"], ops, key, transitions)


def _op(j: Any, names: Names) -> ir.ParserOp:
    source = source_of(j)
    op, args = j["op"], j.get("parameters")
    if op in ("extract", "extract_VL"):
        return _extract(op, args, names, source)
    if op == "set":
        target = names.value(args[0], (), source)
        if not isinstance(target, ir.FieldRef):
            raise LoadError("parser op set", "its target must be a field", str(source))
        value = names.value(args[1], (), source)
        if target.field.varbit:
            if isinstance(value, ir.FieldRef) and value.field.varbit:
                return ir.Call("assign_VL", (target, value), source)
            raise LoadError("parser op set", "a varbit takes only a varbit", str(source))
        if isinstance(value, ir.Expr) and not value.is_bool:
            return ir.Set(target, value)
        raise LoadError("parser op set", "its value must be a number", str(source))
    if op == "verify":
        return ir.Verify(names.truth(args[0], (), source), names.number(args[1], (), source))
    if op == "shift":
        count = integer(args[0], "shift", source)
        return ir.Advance(ir.Const(8 * count))
    if op == "advance":
        return ir.Advance(names.number(args[0], (), source))
    if op == "primitive":
        return _call(args[0], names)
    raise LoadError(f"parser op {op!r}", "this switch does not know it", str(source))


def _extract(op: str, args: list[Any], names: Names, source: ir.Source) -> ir.Extract:
    kind, value = typed(args[0], source)
    length = names.number(args[1], (), source) if op == "extract_VL" else None
    header: ir.HeaderRef | None = None
    stack: ir.Stack | None = None
    union_stack: ir.UnionStack | None = None
    member = 0
    if kind == "regular":
        header = names.header(value, source)
        kind_type = header.type
    elif kind == "stack":
        stack = names.stack(value, source)
        kind_type = stack.type
    elif kind == "union_stack":
        if not isinstance(value, list) or len(value) != 2:
            raise LoadError("extract", f"expected [union stack, member], found {value!r:.80}", str(source))
        union_stack = names.union_stack(value[0], source)
        ref = names.union_member(ir.UnionRef(stack=union_stack), value[1], source)
        member, kind_type = ref.member, ref.type
    else:
        raise LoadError(f"extract of {kind!r}", "this switch does not know it", str(source))
    if (kind_type.varbit is not None) != (length is not None):
        raise LoadError(f"op {op!r}", f"does not fit header type {kind_type.name}", str(source))
    return ir.Extract(header, stack, union_stack, member, length)


def _key(j: Any, names: Names, source: ir.Source) -> ir.FieldRef | ir.Lookahead | ir.ValidBit:
    kind, value = typed(j, source)
    if kind == "lookahead":
        return lookahead(value, source)
    ref = names.value(j, (), source)
    if (isinstance(ref, ir.FieldRef) and not ref.field.varbit) or isinstance(ref, ir.ValidBit):
        return ref
    raise LoadError(f"select on {kind!r}", "a parser's key must be fields or lookaheads", str(source))


def key_width(k: ir.FieldRef | ir.Lookahead | ir.ValidBit) -> int:
    """Bits of one component of a parser's key."""
    if isinstance(k, ir.FieldRef):
        return k.field.width
    return k.width if isinstance(k, ir.Lookahead) else 1


def _transition(j: Any, key: tuple[Any, ...], vsets: ValueSets) -> ir.Transition:
    kind, value, after = j.get("type", "hexstr"), j.get("value"), j.get("next_state")
    if kind == "default" or value == "default":
        return ir.Transition(None, after)
    values = vsets.use(value, tuple(key_width(k) for k in key)) if kind == "parse_vset" else None
    if kind not in ("hexstr", "parse_vset"):
        raise LoadError(f"transition type {kind!r}", "this switch does not know it")
    # the key's components are padded to whole bytes and written one after the other
    widths = [(key_width(k) + 7) // 8 * 8 for k in key]
    total = sum(widths)
    number = 0 if values is not None else integer(value, "transition", ir.NOWHERE)
    mask = (1 << total) - 1
    if j.get("mask") is not None:
        mask = integer(j["mask"], "mask", ir.NOWHERE)
    parts = []
    for w in widths:
        total -= w
        part = (1 << w) - 1
        parts.append(((number >> total) & (mask >> total) & part, (mask >> total) & part))
    return ir.Transition(tuple(parts), after, values)


def load_deparser(j: Any, names: Names) -> ir.Deparser:
    """The order of headers, and what runs before they are emitted."""
    order = []
    for name in j["order"]:
        h = names.header(name, source_of(j)).header
        assert h is not None
        if h.metadata:
            raise LoadError(f"deparser emits {name!r}", "it is metadata", str(source_of(j)))
        order.append(h)
    return ir.Deparser(tuple(_call(c, names) for c in j.get("primitives") or ()), tuple(order))
