# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON, as p4c-bm2-ss emits it, -> a checked `ir.Program`. What cannot be run raises `LoadError`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from switch import ir
from switch.check import check
from switch.errors import LoadError
from switch.load_expr import Names, bare, integer, known, source_of, within
from switch.load_parser import load_deparser, load_parser
from switch.load_pipeline import load_pipeline
from switch.shape import check_shape

MAX_WIDTH = 4096
MAX_ARRAY = 1 << 28
ON_HEADERS = ("assign_header", "copy_header", "add_header", "add_header_fast", "remove_header")
"""Primitives all of whose operands are headers."""
REQUIRED = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")


def load_program(text: str | bytes) -> ir.Program:
    """Parse and check a program. Raises `LoadError` naming the construct and its source line."""
    try:
        root = json.loads(text)
    except ValueError as e:
        raise LoadError("the JSON", f"not valid JSON: {e}; is this the output of p4c-bm2-ss?") from e
    except RecursionError as e:
        raise LoadError("the JSON", "it is nested too deeply: use variables for parts of expressions") from e
    if not isinstance(root, dict):
        raise LoadError("the JSON", "the top level must be an object: is this the output of p4c-bm2-ss?")
    check_shape(root)
    try:
        program = _program(root)
        check(program)
    except RecursionError as e:
        raise LoadError("an expression", "it is nested too deeply: use variables for its parts") from e
    return program


def _program(root: dict[str, Any]) -> ir.Program:
    if root.get("extern_instances"):
        first = root["extern_instances"][0]
        raise LoadError(f"extern {first.get('name')!r}", "v1model has no user externs", str(source_of(first)))
    names = Names()
    _headers(root, names)
    _aliases(root, names)
    _arrays(root, names)
    _calculations(root, names)
    _unique((j["id"] for j in root.get("actions") or ()), "action id")
    actions = {a.id: a for a in (_action(j, names) for j in root.get("actions") or ())}
    for section in ("field_lists", "learn_lists"):
        _unique((j["id"] for j in root.get(section) or ()), f"{section} id")
    parser = load_parser(_one(root["parsers"], "parser"), root, names)
    _unique((p["name"] for p in root["pipelines"]), "pipeline")
    pipelines = {p["name"]: load_pipeline(p, names, actions) for p in root["pipelines"]}
    for name in ("ingress", "egress"):
        if name not in pipelines:
            raise LoadError(f"pipeline {name!r}", "missing: this switch runs v1model programs")
    return ir.Program(
        name=root.get("program") or "",
        header_types=names.types,
        headers=names.headers,
        stacks=names.stacks,
        unions=names.unions,
        union_stacks=names.union_stacks,
        errors=dict(root.get("errors") or ()),
        actions=actions,
        counters=names.counters,
        meters=names.meters,
        registers=names.registers,
        calculations=names.calculations,
        checksums=tuple(_checksum(j, names) for j in root.get("checksums") or ()),
        field_lists={f.id: f for f in (_field_list(j, names) for j in root.get("field_lists") or ())},
        digests={f.id: f for f in (_field_list(j, names) for j in root.get("learn_lists") or ())},
        parser=parser,
        ingress=pipelines["ingress"],
        egress=pipelines["egress"],
        deparser=load_deparser(_one(root["deparsers"], "deparser"), names),
        profiles=names.profiles,
        aliases=names.aliases,
    )


def _one(items: list[Any], name: str) -> Any:
    found = [j for j in items if j.get("name") == name]
    if len(found) != 1:
        raise LoadError(f"{name!r}", f"expected one of this name, found {len(found)}")
    return found[0]


def _unique(items: Iterable[Any], what: str) -> None:
    seen: set[Any] = set()
    for name in items:
        if name in seen:
            raise LoadError(f"{what} {name!r}", "defined twice")
        seen.add(name)


# ---- headers


def _header_type(j: Any) -> ir.HeaderType:
    name, source = j["name"], source_of(j)
    limit = j.get("max_length")
    fixed = sum(f[1] for f in j["fields"] if f[1] != "*")
    fields = []
    for f in j["fields"]:
        width = f[1]
        if width == "*":
            if limit is None or limit * 8 < fixed or limit > 4096:
                raise LoadError(
                    f"varbit field {name}.{f[0]}", "the header type gives no usable max_length", str(source)
                )
            fields.append(ir.Field(f[0], limit * 8 - fixed, varbit=True))
            continue
        if not 0 <= width <= MAX_WIDTH:
            raise LoadError(f"field {name}.{f[0]}", f"width {width!r} is not in 0..{MAX_WIDTH}", str(source))
        fields.append(ir.Field(f[0], width, bool(len(f) > 2 and f[2]), bool(len(f) > 3 and f[3])))
    if sum(f.varbit for f in fields) > 1:
        raise LoadError(f"header type {name!r}", "more than one varbit field", str(source))
    if any(f.varbit for f in fields) and j.get("length_exp") is not None:
        raise LoadError(f"header type {name!r}", "length_exp is P4_14 only", str(source))
    return ir.HeaderType(name, tuple(fields))


def _instances(root: dict[str, Any], members: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The headers and the header unions. A union in a struct of unions alone p4c writes as one header of
    the union's type, and refers to its members all the same."""
    headers = [j for j in root["headers"] if j["header_type"] not in members]
    unions = list(root.get("header_unions") or ())
    free = 1 + max((j["id"] for j in (*root["headers"], *unions)), default=0)
    for j in root["headers"]:
        if j["header_type"] in members:
            made = [
                {"name": f"{j['name']}.{name}", "id": free + i, "header_type": kind}
                for i, (name, kind) in enumerate(members[j["header_type"]])
            ]
            ids = [one["id"] for one in made]
            unions.append({"name": j["name"], "id": free, "union_type": j["header_type"], "header_ids": ids})
            headers += made
            free += len(made)
    return headers, unions


def _headers(root: dict[str, Any], names: Names) -> None:
    members = {j["name"]: j["headers"] for j in root.get("header_union_types") or ()}
    headers, all_unions = _instances(root, members)
    _unique((j["name"] for j in root["header_types"]), "header type")
    _unique((j["name"] for j in headers), "header")
    names.types = {j["name"]: _header_type(j) for j in root["header_types"]}
    by_id: dict[int, ir.Header] = {}
    for j in headers:
        if j["header_type"] not in names.types:
            raise LoadError(f"header {j['name']!r}", f"no header type {j['header_type']!r}")
        h = ir.Header(j["id"], j["name"], names.types[j["header_type"]], bool(j.get("metadata")))
        if not h.metadata and h.type.fixed_bits % 8:
            raise LoadError(f"header {h.name!r}", f"{h.type.fixed_bits} bits are not whole bytes")
        if h.id in by_id:
            raise LoadError(f"header {h.name!r}", f"id {h.id} is used twice")
        by_id[h.id] = names.headers[h.name] = h
    for section in ("header_stacks", "header_union_types", "header_union_stacks"):
        _unique((j["name"] for j in root.get(section) or ()), section)
    _unique((j["name"] for j in all_unions), "header union")
    for j in root.get("header_stacks") or ():
        what = f"header stack {j['name']!r}"
        elements = tuple(known(by_id, i, what, "header of id") for i in j["header_ids"])
        kind = known(names.types, j["header_type"], what, "header type")
        stack = ir.Stack(j["id"], j["name"], kind, elements)
        if not elements or any(e.type is not stack.type or e.metadata for e in elements):
            raise LoadError(f"header stack {stack.name!r}", "its elements are not headers of its type")
        names.stacks[stack.name] = stack
    unions: dict[int, ir.Union] = {}
    for j in all_unions:
        what = f"header union {j['name']!r}"
        wanted = known(members, j["union_type"], what, "union type")
        parts = tuple(known(by_id, i, what, "header of id") for i in j["header_ids"])
        if [p.type.name for p in parts] != [m[1] for m in wanted] or any(p.metadata for p in parts):
            raise LoadError(f"header union {j['name']!r}", "its members are not those of its type")
        u = ir.Union(j["id"], j["name"], j["union_type"], parts, tuple(m[0] for m in wanted))
        if u.id in unions:
            raise LoadError(what, f"id {u.id} is used twice")
        unions[u.id] = names.unions[u.name] = u
    for j in root.get("header_union_stacks") or ():
        what = f"header union stack {j['name']!r}"
        own = tuple(known(unions, i, what, "union of id") for i in j["header_union_ids"])
        us = ir.UnionStack(j["id"], j["name"], j["union_type"], own)
        if not us.elements or any(u.type != us.type for u in us.elements):
            raise LoadError(f"header union stack {us.name!r}", "its elements are not unions of its type")
        names.union_stacks[us.name] = us
    owned = [h.name for s in names.stacks.values() for h in s.elements]
    owned += [h.name for u in names.unions.values() for h in u.members]
    _unique(owned, "stack or union member")
    _unique((u.name for s in names.union_stacks.values() for u in s.elements), "union stack element")
    standard = names.headers.get("standard_metadata")
    if standard is None or not standard.metadata:
        raise LoadError("metadata 'standard_metadata'", "missing: this switch runs v1model programs")
    have = {f.name: f for f in standard.type.fields}
    for name in REQUIRED:
        what = f"field 'standard_metadata.{name}'"
        f = have.get(name)
        if f is None:
            raise LoadError(what, "missing: this switch runs v1model programs")
        if f.width > 64 or f.signed or f.varbit:
            raise LoadError(what, "it is not an unsigned field of up to 64 bits")


def _aliases(root: dict[str, Any], names: Names) -> None:
    for alias, target in root.get("field_aliases") or ():
        names.field(target, ir.NOWHERE)
        names.aliases[alias] = (target[0], target[1])


# ---- arrays


def _size(j: Any, what: str) -> int:
    size: int | None = j.get("size")
    if size is None or not 0 <= size <= MAX_ARRAY:
        raise LoadError(
            f"{what} {j.get('name')!r}", f"size {size!r} is not in 0..{MAX_ARRAY}", str(source_of(j))
        )
    return size


def _arrays(root: dict[str, Any], names: Names) -> None:
    for section in ("counter_arrays", "meter_arrays", "register_arrays"):
        _unique((j["name"] for j in root.get(section) or ()), section)
    for i, j in enumerate(root.get("counter_arrays") or ()):
        direct = bool(j.get("is_direct"))
        size = 0 if direct else _size(j, "counter")
        names.counters[j["name"]] = ir.CounterArray(j["name"], i, size, direct, j.get("binding"))
    for i, j in enumerate(root.get("meter_arrays") or ()):
        source, direct = source_of(j), bool(j.get("is_direct"))
        if j.get("rate_count") != 2 or j.get("type") not in ("packets", "bytes"):
            raise LoadError(f"meter {j['name']!r}", "only two-rate meters of packets or bytes", str(source))
        target = None
        if direct:
            ref = names.field(j.get("result_target"), source)
            if not isinstance(ref, ir.FieldRef) or ref.field.varbit:
                raise LoadError(f"meter {j['name']!r}", "its result must be a field", str(source))
            target = ref
        size = 0 if direct else _size(j, "meter")
        names.meters[j["name"]] = ir.MeterArray(
            j["name"], i, size, j["type"] == "bytes", direct, target, j.get("binding")
        )
    for i, j in enumerate(root.get("register_arrays") or ()):
        width = j.get("bitwidth")
        if width is None or not 0 < width <= MAX_WIDTH:
            raise LoadError(
                f"register {j['name']!r}", f"width {width!r} is not in 1..{MAX_WIDTH}", str(source_of(j))
            )
        names.registers[j["name"]] = ir.RegisterArray(j["name"], i, _size(j, "register"), width)


# ---- calculations, checksums, lists


def _constant(j: Any, source: ir.Source) -> ir.Constant:
    width = j.get("bitwidth")
    if width is None or not 0 < width <= MAX_WIDTH:
        raise LoadError("constant", "it has no bitwidth", str(source))
    return ir.Constant(integer(j.get("value"), "constant", source) & ((1 << width) - 1), width)


def _calculations(root: dict[str, Any], names: Names) -> None:
    _unique((j["name"] for j in root.get("calculations") or ()), "calculation")
    for j in root.get("calculations") or ():
        source = source_of(j)
        with within(f"calculation {j['name']!r}"):
            inputs = tuple(_input(part, names, source) for part in j["input"])
        names.calculations[j["name"]] = ir.Calculation(j["name"], j["algo"], inputs, source)


def _input(j: Any, names: Names, source: ir.Source) -> ir.FieldRef | ir.HeaderRef | ir.Constant | ir.Payload:
    j = bare(j)
    kind, value = j["type"], j.get("value")
    if kind == "field":
        ref = names.field(value, source)
        if not isinstance(ref, ir.FieldRef):
            raise LoadError("calculation input", "it is a validity", str(source))
        return ref
    if kind == "header":
        return names.header(value, source)
    if kind == "hexstr":
        return _constant(j, source)
    if kind == "payload":
        return ir.Payload()
    raise LoadError(f"calculation input {kind!r}", "this switch does not know it", str(source))


def _checksum(j: Any, names: Names) -> ir.Checksum:
    source = source_of(j)
    if j.get("type") != "generic":
        raise LoadError(f"checksum type {j.get('type')!r}", "only generic checksums", str(source))
    with within(f"checksum {j['name']!r}"):
        target = names.field(j["target"], source)
        cond = None if j.get("if_cond") is None else names.truth(j["if_cond"], (), source)
    if not isinstance(target, ir.FieldRef) or target.field.varbit or target.field.width > 64:
        raise LoadError(f"checksum {j['name']!r}", "its target must be a field of up to 64 bits", str(source))
    calc = names.calculations.get(j["calculation"])
    if calc is None:
        raise LoadError(f"checksum {j['name']!r}", f"no calculation {j['calculation']!r}", str(source))
    return ir.Checksum(
        j["name"],
        target,
        calc,
        bool(j.get("verify", True)),
        bool(j.get("update", True)),
        cond,
        source,
    )


def _field_list(j: Any, names: Names) -> ir.FieldList:
    source = source_of(j)
    with within(f"field list {j['name']!r}"):
        # p4c has no name for a header among them, and simple_switch does not keep it either.
        elements = [e for e in j["elements"] if not _unnamed(e.get("value"))]
        return ir.FieldList(j["name"], j["id"], tuple(_element(e, names, source) for e in elements))


def _unnamed(value: Any) -> bool:
    return isinstance(value, list) and value[-1:] == ["<null>"]


def _element(j: Any, names: Names, source: ir.Source) -> ir.FieldRef | ir.Constant:
    kind, value = j["type"], j.get("value")
    if kind == "hexstr":
        return _constant(j, source)
    if kind != "field":
        raise LoadError(f"element {kind!r}", "this switch does not know it", str(source))
    ref = names.field(value, source)
    if not isinstance(ref, ir.FieldRef) or ref.field.varbit:
        raise LoadError(f"element {value!r}", "it cannot be carried", str(source))
    return ref


# ---- actions


def load_call(j: Any, names: Names, params: tuple[ir.Param, ...]) -> ir.Call:
    """One primitive."""
    source = source_of(j)
    given = j.get("parameters") or ()
    if j["op"] in ON_HEADERS:
        args = tuple(names.header_of(p, source) or names.operand(p, params, source) for p in given)
    else:
        args = tuple(names.operand(p, params, source) for p in given)
    return ir.Call(j["op"], args, source)


def _action(j: Any, names: Names) -> ir.Action:
    source = source_of(j)
    what = f"action {j['name']!r}"
    params = tuple(ir.Param(p["name"], p["bitwidth"]) for p in j.get("runtime_data") or ())
    for p in params:
        if not 0 <= p.width <= MAX_WIDTH:
            raise LoadError(f"parameter {p.name!r} of {j['name']!r}", f"width {p.width!r}", str(source))
    with within(what):
        body = tuple(load_call(c, names, params) for c in j.get("primitives") or ())
    return ir.Action(j["id"], j["name"], params, body, source)
