# SPDX-License-Identifier: Apache-2.0
"""What bmv2 JSON looks like: the type of every value that the loader takes (docs/JSON_format.md of bmv2).

The loader may index and hash what has passed; what a name or number refers to is the loader's to check, and
so is the inside of an operand (`value`), whose type depends on what stands beside it (`load_expr`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from switch.errors import LoadError
from switch.load_expr import source_of

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Misfit:
    """A value that is not of its shape, by its path from the root."""

    path: Path
    why: str


Shape = Callable[[Any, Path], Misfit | None]


def check_shape(root: Any) -> None:
    """Raise `LoadError` for the first value of a wrong type: its path, the object it is of, its source."""
    misfit = PROGRAM(root, ())
    if misfit is None:
        return
    inner, name, source, path = root, "", "", ""
    for step in misfit.path:
        if isinstance(inner, dict):
            name = inner["name"] if isinstance(inner.get("name"), str) else name
            source = str(source_of(inner)) or source
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
        # a missing value is the last step of its path
        inner = inner.get(step) if isinstance(inner, dict) and isinstance(step, str) else inner[step]
    what = path.removeprefix(".") or "the JSON"
    why = misfit.why if len(misfit.path) > 1 else f"{misfit.why}: is this the output of p4c-bm2-ss?"
    raise LoadError(f"{what} of {name!r}" if name else what, why, source)


# ---- kinds of shapes


def _wrong(path: Path, wanted: str, found: Any) -> Misfit:
    return Misfit(path, f"expected {wanted}, found {found!r:.80}")


def anything(_: Any, path: Path) -> Misfit | None:
    """No demands."""
    return None


def text(v: Any, path: Path) -> Misfit | None:
    """A string that UTF-8 can hold (JSON may escape half a surrogate pair)."""
    if not isinstance(v, str):
        return _wrong(path, "a string", v)
    try:
        v.encode()
    except UnicodeEncodeError:
        return _wrong(path, "Unicode text", v)
    return None


def flag(v: Any, path: Path) -> Misfit | None:
    """true or false."""
    return None if isinstance(v, bool) else _wrong(path, "true or false", v)


def sign(v: Any, path: Path) -> Misfit | None:
    """true or false; p4c writes 0 for fields of P4's type bool."""
    return None if v in (0, 1) and isinstance(v, int) else _wrong(path, "true or false", v)


def whole(least: int, most: int) -> Shape:
    """An integer in a range."""

    def shape(v: Any, path: Path) -> Misfit | None:
        if isinstance(v, int) and not isinstance(v, bool) and least <= v <= most:
            return None
        return _wrong(path, f"a whole number in {least}..{most}", v)

    return shape


def number(v: Any, path: Path) -> Misfit | None:
    """A hexadecimal string or an integer; `load_expr.integer` reads it."""
    if isinstance(v, str | int) and not isinstance(v, bool):
        return None
    return _wrong(path, "a number", v)


def either(*shapes: Shape, wanted: str) -> Shape:
    """Any of several."""

    def shape(v: Any, path: Path) -> Misfit | None:
        return None if any(s(v, path) is None for s in shapes) else _wrong(path, wanted, v)

    return shape


def optional(inner: Shape) -> Shape:
    """Or null."""

    def shape(v: Any, path: Path) -> Misfit | None:
        return None if v is None else inner(v, path)

    return shape


def items(inner: Shape) -> Shape:
    """A list of such."""

    def shape(v: Any, path: Path) -> Misfit | None:
        if not isinstance(v, list):
            return _wrong(path, "a list", v)
        found = (inner(x, (*path, i)) for i, x in enumerate(v))
        return next((m for m in found if m is not None), None)

    return shape


def row(*inner: Shape, least: int | None = None) -> Shape:
    """A list with a shape for each place; the ones from `least` on may be left out."""
    need = len(inner) if least is None else least

    def shape(v: Any, path: Path) -> Misfit | None:
        if not isinstance(v, list) or not need <= len(v) <= len(inner):
            size = str(need) if need == len(inner) else f"{need} to {len(inner)}"
            return _wrong(path, f"a list of {size}", v)
        found = (s(x, (*path, i)) for i, (s, x) in enumerate(zip(inner, v, strict=False)))
        return next((m for m in found if m is not None), None)

    return shape


def mapping(inner: Shape) -> Shape:
    """An object whose values are such."""

    def shape(v: Any, path: Path) -> Misfit | None:
        if not isinstance(v, dict):
            return _wrong(path, "an object", v)
        found = (inner(x, (*path, k)) for k, x in v.items())
        return next((m for m in found if m is not None), None)

    return shape


def record(need: Mapping[str, Shape], may: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these members, and some that may be left out; others are nobody's concern."""
    both = {**need, **(may or {})}

    def shape(v: Any, path: Path) -> Misfit | None:
        if not isinstance(v, dict):
            return _wrong(path, "an object", v)
        for key, inner in both.items():
            if key in v:
                misfit = inner(v[key], (*path, key))
                if misfit is not None:
                    return misfit
            elif key in need:
                return Misfit((*path, key), "missing")
        return None

    return shape


# ---- bmv2's JSON

MAX_32 = (1 << 32) - 1
any_number = whole(-MAX_32, MAX_32)  # what it counts has limits of its own
id_number = whole(0, (1 << 31) - 1)
list_id = whole(0, (1 << 16) - 1)  # what a primitive can name (runtime.h)
name_or_none = optional(text)
field_name = row(text, text)
operand = record({"type": text, "value": anything})
call = record({"op": text}, {"parameters": optional(items(operand))})

PARSER_OPERANDS = {
    "extract": row(operand),
    "extract_VL": row(operand, operand),
    "set": row(operand, operand),
    "verify": row(operand, operand),
    "shift": row(number),
    "advance": row(operand),
    "primitive": row(call),
}


def parser_op(v: Any, path: Path) -> Misfit | None:
    """`op` says what the parameters are."""
    misfit = record({"op": text}, {"parameters": anything})(v, path)
    if misfit is not None:
        return misfit
    inner = PARSER_OPERANDS.get(v["op"], anything)
    return inner(v.get("parameters"), (*path, "parameters"))


def _named(need: Mapping[str, Shape] | None = None, may: Mapping[str, Shape] | None = None) -> Shape:
    return items(record({"name": text, **(need or {})}, may))


def star(v: Any, path: Path) -> Misfit | None:
    """The width of a varbit."""
    return None if v == "*" else _wrong(path, "'*'", v)


header_type = {
    "fields": items(row(text, either(any_number, star, wanted="a width or '*'"), sign, sign, least=2))
}
element = record({"type": text}, {"value": anything, "bitwidth": any_number})
action = {
    "runtime_data": optional(_named({"bitwidth": any_number})),
    "primitives": optional(items(call)),
}
state = {
    "parser_ops": optional(items(parser_op)),
    "transition_key": optional(items(operand)),
    "transitions": optional(
        items(
            record(
                {}, {"type": text, "value": anything, "mask": optional(number), "next_state": name_or_none}
            )
        )
    ),
}
computed = record({}, {"op": text, "type": text})
key_target = either(field_name, text, row(computed, text), computed, wanted="[header, field] or a header")
key = record(
    {"match_type": text, "target": key_target},
    {"name": name_or_none, "mask": optional(number)},
)
entry = record(
    {
        "match_key": items(
            record(
                {"match_type": text},
                {
                    "key": either(number, flag, wanted="a number"),
                    "mask": number,
                    "start": number,
                    "end": number,
                    "prefix_length": whole(0, MAX_32),
                },
            )
        ),
        "action_entry": record({"action_id": id_number}, {"action_data": optional(items(number))}),
    },
    {"priority": id_number},
)
default_entry = record(
    {"action_id": id_number}, {"action_data": optional(items(number)), "action_const": flag}
)
selector = record({"algo": text, "input": items(element)})
table = (
    {"id": any_number, "match_type": text, "key": items(key), "actions": items(text)},
    {
        "type": text,
        "action_profile": text,
        "act_prof_name": text,
        "selector": optional(selector),
        "action_ids": items(id_number),
        "max_size": whole(0, MAX_32),
        "with_counters": flag,
        "support_timeout": flag,
        "direct_meters": name_or_none,
        "default_entry": optional(default_entry),
        "next_tables": optional(mapping(name_or_none)),
        "base_default_next": name_or_none,
        "base_default_next_node": name_or_none,
        "entries": optional(items(entry)),
    },
)
pipeline = {
    "init_table": name_or_none,
    "tables": optional(_named(*table)),
    "conditionals": optional(
        _named({"expression": operand}, {"true_next": name_or_none, "false_next": name_or_none})
    ),
    "action_calls": optional(_named({}, {"action_id": id_number, "action": text, "next_node": name_or_none})),
    "action_profiles": optional(_named({}, {"max_size": whole(0, MAX_32), "selector": optional(selector)})),
}
array = {"size": any_number, "is_direct": flag, "binding": name_or_none}
checksum = (
    {"type": text, "target": field_name, "calculation": text},
    {"verify": flag, "update": flag, "if_cond": optional(operand)},
)
PROGRAM = record(
    {
        "header_types": _named(header_type, {"max_length": optional(any_number)}),
        "headers": _named({"id": any_number, "header_type": text}, {"metadata": flag}),
        "parsers": _named({"parse_states": _named({}, state)}, {"init_state": name_or_none}),
        "deparsers": _named({"order": items(text)}, {"primitives": optional(items(call))}),
        "pipelines": _named({}, pipeline),
    },
    {
        "program": optional(text),
        "header_stacks": optional(
            _named({"id": any_number, "header_type": text, "header_ids": items(any_number)})
        ),
        "header_union_types": optional(_named({"headers": items(field_name)})),
        "header_unions": optional(
            _named({"id": any_number, "union_type": text, "header_ids": items(any_number)})
        ),
        "header_union_stacks": optional(
            _named({"id": any_number, "union_type": text, "header_union_ids": items(any_number)})
        ),
        "errors": optional(items(row(text, whole(0, MAX_32)))),
        "field_aliases": optional(items(row(text, field_name))),
        "parse_vsets": optional(_named({}, {"max_size": whole(0, MAX_32)})),
        "actions": optional(_named({"id": id_number}, action)),
        "counter_arrays": optional(_named({}, array)),
        "meter_arrays": optional(
            _named({}, {**array, "rate_count": any_number, "type": text, "result_target": field_name})
        ),
        "register_arrays": optional(_named({}, {**array, "bitwidth": any_number})),
        "calculations": optional(_named({"algo": text, "input": items(element)})),
        "checksums": optional(_named(*checksum)),
        "field_lists": optional(_named({"id": list_id, "elements": items(element)})),
        "learn_lists": optional(_named({"id": list_id, "elements": items(element)})),
        "extern_instances": optional(_named()),
    },
)
