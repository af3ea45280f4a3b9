# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON values and expressions -> IR (source: behavioral-model docs/JSON_format.md, P4Objects.cpp)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from switch import ir
from switch.errors import LoadError

NUMERIC = {"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"}
CASTS = {"two_comp_mod", "usat_cast", "sat_cast"}
COMPARE = {"==", "!=", "<", "<=", ">", ">="}
K = TypeVar("K")
V = TypeVar("V")

LOGIC = {"and", "or"}
MAX_LOOKAHEAD = 1 << 20
"""Bits: beyond the longest packet."""


def source_of(j: Any) -> ir.Source:
    """The `source_info` of a JSON object, or NOWHERE."""
    s = j.get("source_info") if isinstance(j, dict) else None
    if not isinstance(s, dict):
        return ir.NOWHERE
    return ir.Source(
        _text(s.get("filename")), _int(s.get("line")), _int(s.get("column")), _text(s.get("source_fragment"))
    )


def _text(v: Any) -> str:
    return v.encode(errors="replace").decode() if isinstance(v, str) else ""


def _int(v: Any) -> int:
    return v if isinstance(v, int) else 0


def integer(text: Any, what: str, source: ir.Source) -> int:
    """A hexstr such as 0x1f, -0x1 or a plain number."""
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise LoadError(what, f"expected a number, found {text!r}", str(source))
    try:
        return text if isinstance(text, int) else int(text, 16)
    except ValueError:
        raise LoadError(what, f"{text!r} is not a hexadecimal number", str(source)) from None


def whole_number(v: Any) -> bool:
    """A JSON integer."""
    return isinstance(v, int) and not isinstance(v, bool)


def known(objects: Mapping[K, V], name: K, construct: str, what: str, source: ir.Source = ir.NOWHERE) -> V:
    """What a construct refers to; `what` is the kind of it."""
    try:
        return objects[name]
    except KeyError:
        raise LoadError(construct, f"no {what} {name!r:.80}", str(source)) from None


@contextmanager
def within(what: str) -> Iterator[None]:
    """Name the object around a construct that p4c gives no source line."""
    try:
        yield
    except LoadError as e:
        if e.source or what in e.construct:
            raise
        raise LoadError(f"{e.construct} in {what}", e.why) from e


def _names(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and set(map(type, value)) == {str}


class Names:
    """The objects that expressions and operands may name."""

    def __init__(self) -> None:
        self.types: dict[str, ir.HeaderType] = {}
        self.headers: dict[str, ir.Header] = {}
        self._header_refs: dict[str, ir.HeaderRef] = {}
        self.stacks: dict[str, ir.Stack] = {}
        self.unions: dict[str, ir.Union] = {}
        self.union_stacks: dict[str, ir.UnionStack] = {}
        self.counters: dict[str, ir.CounterArray] = {}
        self.meters: dict[str, ir.MeterArray] = {}
        self.registers: dict[str, ir.RegisterArray] = {}
        self.calculations: dict[str, ir.Calculation] = {}
        self.objects: dict[str, Mapping[str, ir.Operand]] = {
            "calculation": self.calculations,
            "meter_array": self.meters,
            "counter_array": self.counters,
            "register_array": self.registers,
        }
        """By the types of operands that name them."""
        self.profiles: dict[str, ir.Profile] = {}
        self.aliases: dict[str, tuple[str, str]] = {}
        # what each header is part of: header refs are always made in their stack's or union's terms
        self.element_of: dict[str, tuple[ir.Stack, int]] = {}
        self.member_of: dict[str, tuple[ir.Union, int]] = {}
        self.union_element_of: dict[str, tuple[ir.UnionStack, int]] = {}

    def selector(self, name: str, j: Any, source: ir.Source) -> ir.Calculation:
        """The hash of an action selector, which is a calculation over fields; `name` is new."""
        refs = []
        for part in map(bare, j["input"]):
            ref = self.field(part.get("value"), source)
            if part["type"] != "field" or not isinstance(ref, ir.FieldRef):
                raise LoadError(name, "a selector hashes fields only", str(source))
            refs.append(ref)
        if name in self.calculations:
            raise LoadError(f"calculation {name!r}", "defined twice", str(source))
        made = self.calculations[name] = ir.Calculation(name, j["algo"], tuple(refs), source)
        return made

    # ---- places

    def header(self, name: Any, source: ir.Source) -> ir.HeaderRef:
        """A header instance by name."""
        found = self._header_refs.get(name) if isinstance(name, str) else None
        if found is not None:
            return found
        h = self.headers.get(name) if isinstance(name, str) else None
        if h is None:
            raise LoadError(f"header {name!r}", "no such header", str(source))
        made = self._header_refs[name] = ir.HeaderRef(header=h)
        return made

    def union(self, name: Any, source: ir.Source) -> ir.UnionRef:
        """A header union by name."""
        u = self.unions.get(name) if isinstance(name, str) else None
        if u is None:
            raise LoadError(f"header union {name!r}", "no such union", str(source))
        return ir.UnionRef(union=u)

    def stack(self, name: Any, source: ir.Source) -> ir.Stack:
        """A header stack by name."""
        s = self.stacks.get(name) if isinstance(name, str) else None
        if s is None:
            raise LoadError(f"header stack {name!r}", "no such stack", str(source))
        return s

    def union_stack(self, name: Any, source: ir.Source) -> ir.UnionStack:
        """A union stack by name."""
        s = self.union_stacks.get(name) if isinstance(name, str) else None
        if s is None:
            raise LoadError(f"header union stack {name!r}", "no such stack", str(source))
        return s

    def field_of(self, header: ir.HeaderRef, name: Any, source: ir.Source) -> ir.FieldRef | ir.ValidBit:
        """A field of a header, by name; `$valid$` is its validity."""
        if name == "$valid$":
            return ir.ValidBit(header)
        try:
            return ir.FieldRef(header, header.type.index(name))
        except KeyError:
            raise LoadError(
                f"field {name!r}", f"header type {header.type.name} has none", str(source)
            ) from None

    def header_of(self, j: Any, source: ir.Source) -> ir.HeaderRef | None:
        """The header that a value means where a header is wanted; None if p4c writes it like any value.

        p4c writes `stack.last` and `stack.next` as if they were fields of the stack, and a member of the last
        union of a stack so too: what it writes for the field `last` of the last header looks the same.
        """
        while isinstance(j, dict) and j.get("type") == "expression" and "op" not in j:
            j = j.get("value")
        if not (isinstance(j, dict) and j.get("type") == "stack_field" and _names(j.get("value"), 2)):
            return None
        return self.element(j["value"], source)

    def element(self, value: Any, source: ir.Source) -> ir.HeaderRef:
        """`[stack, "last" or "next"]`, or `[union stack, member]` of its last union."""
        if value[0] in self.union_stacks:
            return self.union_member(ir.UnionRef(stack=self.union_stacks[value[0]]), value[1], source)
        stack = self.stack(value[0], source)
        if value[1] not in ("last", "next"):
            raise LoadError(f"element {value[1]!r} of a stack", "only last and next are known", str(source))
        return ir.HeaderRef(stack=stack, index=ir.StackCount(stack, 0) if value[1] == "next" else None)

    def field(
        self, value: Any, source: ir.Source, params: tuple[ir.Param, ...] = ()
    ) -> ir.FieldRef | ir.ValidBit:
        """`[header, field]`, aliases resolved.

        p4c also writes `[expression, "$valid$"]` for an element at a computed index; in a parser
        `[[stack, "last"], "$valid$"]`, and of a stack's last union `[[union stack, member], "$valid$"]` and
        `[union stack, "member.field"]`.
        """
        if isinstance(value, list) and len(value) == 2 and not isinstance(value[0], str):
            if _names(value[0], 2):
                return self.field_of(self.element(value[0], source), value[1], source)
            header = self.expression(value[0], params, source) if isinstance(value[0], dict) else None
            if isinstance(header, ir.HeaderRef):
                return self.field_of(header, value[1], source)
        if _names(value, 2) and value[0] in self.union_stacks:
            member, _, name = value[1].partition(".")
            return self.field_of(self.element([value[0], member], source), name, source)
        if not _names(value, 2):
            raise LoadError("field", f"expected [header, field], found {value!r:.80}", str(source))
        if value[0] not in self.headers:
            alias = self.aliases.get(f"{value[0]}.{value[1]}")
            if alias is not None:
                value = list(alias)
        return self.field_of(self.header(value[0], source), value[1], source)

    def stack_field(self, value: Any, source: ir.Source) -> ir.FieldRef | ir.ValidBit:
        """`[stack, field]`: of the last element."""
        if not _names(value, 2):
            raise LoadError("stack_field", f"expected [stack, field], found {value!r:.80}", str(source))
        return self.field_of(ir.HeaderRef(stack=self.stack(value[0], source)), value[1], source)

    def union_member(self, union: ir.UnionRef, name: Any, source: ir.Source) -> ir.HeaderRef:
        """A member of a union, by name or index."""
        names = union.example.member_names
        if whole_number(name) and 0 <= name < len(names):
            return ir.HeaderRef(union=union, member=name)
        if name in names:
            return ir.HeaderRef(union=union, member=names.index(name))
        raise LoadError(f"member {name!r}", f"union type {union.example.type} has none", str(source))

    def union_stack_field(self, value: Any, source: ir.Source) -> ir.FieldRef | ir.ValidBit:
        """`[union stack, member, field]`: of the last element."""
        if not _names(value, 3):
            raise LoadError("union_stack_field", f"expected three names, found {value!r:.80}", str(source))
        last = ir.UnionRef(stack=self.union_stack(value[0], source))
        return self.field_of(self.union_member(last, value[1], source), value[2], source)

    # ---- values

    def operand(self, j: Any, params: tuple[ir.Param, ...], source: ir.Source) -> ir.Operand:
        """One `{"type": ..., "value": ...}` of a primitive."""
        kind, value = typed(j, source)
        if kind == "string":
            if not isinstance(value, str):
                raise LoadError("string", f"expected text, found {value!r:.80}", str(source))
            return ir.Text(value)
        if kind == "parameters_vector":
            if value == {}:  # so p4c writes an empty one: log_msg("text")
                value = []
            if not isinstance(value, list):
                raise LoadError("parameters_vector", f"expected a list, found {value!r:.80}", str(source))
            return ir.Vector(tuple(self.number(v, params, source) for v in value))
        objects = self.objects.get(kind)
        if objects is None:
            return self.value(j, params, source)
        found = objects.get(value) if isinstance(value, str) else None
        if found is None:
            raise LoadError(f"{kind} {value!r:.80}", "no such object", str(source))
        return found

    def number(self, j: Any, params: tuple[ir.Param, ...], source: ir.Source) -> ir.Expr:
        """A value that must be an integer."""
        v = self.value(j, params, source)
        if not isinstance(v, ir.Expr) or v.is_bool:
            raise LoadError("expression", f"expected a number, found {j!r:.80}", str(source))
        return v

    def truth(self, j: Any, params: tuple[ir.Param, ...], source: ir.Source) -> ir.Expr:
        """A value that must be a truth value."""
        v = self.value(j, params, source)
        if isinstance(v, ir.Lookahead):
            v = ir.Unary("d2b", v)  # so p4c writes lookahead<bool>()
        if not isinstance(v, ir.Expr) or not v.is_bool:
            raise LoadError("expression", f"expected a condition, found {j!r:.80}", str(source))
        return v

    def value(
        self, j: Any, params: tuple[ir.Param, ...], source: ir.Source
    ) -> ir.Expr | ir.HeaderRef | ir.UnionRef | ir.Stack | ir.UnionStack:
        """A value of any type."""
        kind, value = typed(j, source)
        if kind == "expression":
            return self.expression(value, params, source)
        if kind == "field":
            return self.field(value, source, params)
        if kind == "hexstr":
            return ir.Const(integer(value, "constant", source))
        if kind == "bool":
            if not isinstance(value, bool):
                raise LoadError("bool", f"expected true or false, found {value!r:.80}", str(source))
            return ir.Truth(value)
        if kind in ("local", "runtime_data"):
            if not (whole_number(value) and 0 <= value < len(params)):
                raise LoadError(f"{kind} {value!r:.80}", "the action has no such parameter", str(source))
            return ir.Arg(value, params[value].width)
        if kind == "stack_field":
            return self.stack_field(value, source)
        if kind == "union_stack_field":
            return self.union_stack_field(value, source)
        union = isinstance(value, str) and value in self.unions  # so p4c writes `choices[1]`
        if kind == "header" and not union:
            return self.header(value, source)
        if kind in ("header", "header_union"):
            return self.union(value, source)
        if kind == "header_stack":
            return self.stack(value, source)
        if kind == "header_union_stack":
            return self.union_stack(value, source)
        if kind == "lookahead":
            return lookahead(value, source)
        if kind == "register":
            pair = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
            array = self.registers.get(value[0]) if pair else None
            if array is None:
                raise LoadError(f"register {value!r:.80}", "no such array", str(source))
            index = value[1]
            at = ir.Const(index) if whole_number(index) else self.number(index, params, source)
            return ir.RegisterRef(array, at)
        raise LoadError(f"value type {kind!r}", "this switch does not know it", str(source))

    def expression(
        self, j: Any, params: tuple[ir.Param, ...], source: ir.Source
    ) -> ir.Expr | ir.HeaderRef | ir.UnionRef | ir.Stack | ir.UnionStack:
        """What stands in the `value` of an expression."""
        if not isinstance(j, dict):
            raise LoadError("expression", f"expected an object, found {j!r:.80}", str(source))
        if "op" not in j:
            return self.value(j, params, source)
        op, left, right = j["op"], j.get("left"), j.get("right")
        if not isinstance(op, str):
            raise LoadError(f"operator {op!r:.80}", "expected its name", str(source))
        if op in NUMERIC or op in CASTS:
            return ir.Binary(op, self.number(left, params, source), self.number(right, params, source))
        if op in ("==", "!="):
            return self.equality(
                op, self.value(left, params, source), self.value(right, params, source), source
            )
        if op in COMPARE:
            return ir.Binary(op, self.number(left, params, source), self.number(right, params, source))
        if op in LOGIC:
            return ir.Binary(op, self.truth(left, params, source), self.truth(right, params, source))
        if op in ("~", "b2d"):
            x = self.number(right, params, source) if op == "~" else self.truth(right, params, source)
            return ir.Unary(op, x)
        if op in ("not", "d2b"):
            x = self.truth(right, params, source) if op == "not" else self.number(right, params, source)
            return ir.Unary(op, x)
        if op == "?":
            sides = (self.value(left, params, source), self.value(right, params, source))
            cond = self.truth(j.get("cond"), params, source)
            a, b = sides
            if isinstance(a, ir.Expr) and isinstance(b, ir.Expr) and a.is_bool == b.is_bool:
                return ir.Select(cond, a, b)
            raise LoadError("operator ?", "its sides must both be numbers or both conditions", str(source))
        if op in ("valid", "valid_union"):
            what = self.value(right if right is not None else left, params, source)
            if isinstance(what, ir.HeaderRef | ir.UnionRef):
                return ir.Valid(what)
            raise LoadError(f"operator {op}", "expected a header or union", str(source))
        return self.access(op, left, right, params, source)

    def access(
        self, op: str, left: Any, right: Any, params: tuple[ir.Param, ...], source: ir.Source
    ) -> ir.Expr | ir.HeaderRef | ir.UnionRef:
        """The operators that reach into headers, stacks and unions."""
        if op in ("last_stack_index", "size_stack"):
            stack = self.value(right if right is not None else left, params, source)
            if isinstance(stack, ir.Stack | ir.UnionStack):
                return ir.StackCount(stack, -1 if op == "last_stack_index" else 0)
            raise LoadError(f"operator {op}", "expected a stack", str(source))
        base = self.value(left, params, source) if left is not None else None
        if op == "access_field" and isinstance(base, ir.HeaderRef) and whole_number(right):
            if 0 <= right < len(base.type.fields):
                return ir.FieldRef(base, right)
            if right == len(base.type.fields):
                return ir.ValidBit(base)
        if op == "access_union_header" and isinstance(base, ir.UnionRef):
            return self.union_member(base, right, source)
        if op in ("dereference_header_stack", "dereference_stack") and isinstance(base, ir.Stack):
            return ir.HeaderRef(stack=base, index=self.number(right, params, source))
        if op in ("dereference_union_stack", "dereference_header_union_stack") and isinstance(
            base, ir.UnionStack
        ):
            return ir.UnionRef(stack=base, index=self.number(right, params, source))
        raise LoadError(f"operator {op!r}", "this switch does not know it with these operands", str(source))

    def equality(self, op: str, left: Any, right: Any, source: ir.Source) -> ir.Expr:
        """`==` and `!=` on numbers, truth values, headers or unions."""
        if isinstance(left, ir.Expr) and isinstance(right, ir.Expr) and left.is_bool == right.is_bool:
            return ir.Binary(op, left, right)
        same: ir.Expr | None = None
        if isinstance(left, ir.HeaderRef) and isinstance(right, ir.HeaderRef):
            same = ir.SameHeader(left, right) if left.type is right.type else ir.Truth(False)
        unions = isinstance(left, ir.UnionRef) and isinstance(right, ir.UnionRef)
        if unions and left.example.type == right.example.type:
            same = ir.SameHeader(left, right)
        if same is None:
            raise LoadError(f"operator {op}", "its sides are of different kinds", str(source))
        return same if op == "==" else ir.Unary("not", same)


def bare(j: Any) -> Any:
    """What a hash takes in: p4c writes a bool as the condition that its field is not 0."""
    inside = j
    while isinstance(inside, dict) and inside.get("type") == "expression":
        inside = inside.get("value")
        if isinstance(inside, dict) and inside.get("op") == "d2b":
            inside = inside.get("right")
    return inside if isinstance(inside, dict) and isinstance(inside.get("type"), str) else j


def typed(j: Any, source: ir.Source) -> tuple[str, Any]:
    """The type and value of a JSON value."""
    if not (isinstance(j, dict) and isinstance(j.get("type"), str) and "value" in j):
        raise LoadError("value", f"expected type and value, found {j!r:.80}", str(source))
    return j["type"], j["value"]


def lookahead(value: Any, source: ir.Source) -> ir.Lookahead:
    """`[bit offset, width]`."""
    if not (isinstance(value, list) and len(value) == 2 and all(map(whole_number, value))):
        raise LoadError("lookahead", f"expected [offset, width], found {value!r:.80}", str(source))
    if not 0 <= value[0] <= MAX_LOOKAHEAD:
        raise LoadError("lookahead", f"offset {value[0]} is not in 0..{MAX_LOOKAHEAD}", str(source))
    if not 0 < value[1] <= 4096:
        raise LoadError("lookahead", f"width {value[1]} is not in 1..4096", str(source))
    return ir.Lookahead(value[0], value[1])
