# SPDX-License-Identifier: Apache-2.0
"""Small v1model programs as p4c would emit them, built in Python: a header or two, an action, a table."""

from __future__ import annotations

import copy
import json
from typing import Any

J = dict[str, Any]

STANDARD = [
    ("ingress_port", 9),
    ("egress_spec", 9),
    ("egress_port", 9),
    ("instance_type", 32),
    ("packet_length", 32),
    ("enq_timestamp", 32),
    ("enq_qdepth", 19),
    ("deq_timedelta", 32),
    ("deq_qdepth", 19),
    ("ingress_global_timestamp", 48),
    ("egress_global_timestamp", 48),
    ("mcast_grp", 16),
    ("egress_rid", 16),
    ("checksum_error", 1),
    ("parser_error", 32),
    ("priority", 3),
    ("_padding", 3),
]
ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


def field(header: str, name: str) -> J:
    return {"type": "field", "value": [header, name]}


def const(value: int) -> J:
    return {"type": "hexstr", "value": f"-{-value:#x}" if value < 0 else f"{value:#x}"}


def arg(index: int) -> J:
    return {"type": "runtime_data", "value": index}


def expr(op: str, left: J | None, right: J | int | None, cond: J | None = None) -> J:
    body: J = {"op": op, "left": left, "right": right}
    if cond is not None:
        body["cond"] = cond
    return {"type": "expression", "value": body}


def call(op: str, *params: J, line: int = 0) -> J:
    source = {"filename": "test.p4", "line": line, "column": 1, "source_fragment": op}
    return {"op": op, "parameters": list(params), "source_info": source}


def assign(target: J, value: J) -> J:
    return call("assign", target, value)


def value(kind: str, what: Any) -> J:
    return {"type": kind, "value": what}


META = "standard_metadata"


class Builder:
    """Collects the parts of one program; `json` gives the text."""

    def __init__(self) -> None:
        self.root: J = {
            "program": "test.p4",
            "__meta__": {"version": [2, 23]},
            "header_types": [],
            "headers": [],
            "header_stacks": [],
            "header_union_types": [],
            "header_unions": [],
            "header_union_stacks": [],
            "field_lists": [],
            "errors": [[n, i] for i, n in enumerate(ERRORS)],
            "enums": [],
            "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": []}],
            "parse_vsets": [],
            "deparsers": [{"name": "deparser", "id": 0, "order": [], "primitives": []}],
            "meter_arrays": [],
            "counter_arrays": [],
            "register_arrays": [],
            "calculations": [],
            "learn_lists": [],
            "actions": [],
            "pipelines": [_pipeline("ingress", 0), _pipeline("egress", 1)],
            "checksums": [],
            "force_arith": [],
            "extern_instances": [],
            "field_aliases": [
                [f"{home}.{n}", [META, n]]
                for home, names in (
                    ("queueing_metadata", ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")),
                    (
                        "intrinsic_metadata",
                        (
                            "ingress_global_timestamp",
                            "egress_global_timestamp",
                            "mcast_grp",
                            "egress_rid",
                            "priority",
                        ),
                    ),
                )
                for n in names
            ],
        }
        self.header(META, STANDARD, metadata=True)

    def header(
        self,
        name: str,
        fields: list[Any],
        *,
        metadata: bool = False,
        emit: bool = True,
        max_length: int | None = None,
    ) -> None:
        """A header with a type of its own; fields are (name, width[, signed[, saturating]])."""
        kind: J = {
            "name": name + "_t",
            "id": len(self.root["header_types"]),
            "fields": [list(f) for f in fields],
        }
        if max_length is not None:
            kind["max_length"] = max_length
        self.root["header_types"].append(kind)
        self.instance(name, name + "_t", metadata=metadata, emit=emit)

    def instance(self, name: str, kind: str, *, metadata: bool = False, emit: bool = True) -> int:
        number = len(self.root["headers"])
        self.root["headers"].append({"name": name, "id": number, "header_type": kind, "metadata": metadata})
        if emit and not metadata:
            self.root["deparsers"][0]["order"].append(name)
        return number

    def stack(self, name: str, kind: str, size: int) -> None:
        ids = [self.instance(f"{name}[{i}]", kind) for i in range(size)]
        stacks = self.root["header_stacks"]
        stacks.append({"name": name, "id": len(stacks), "header_type": kind, "size": size, "header_ids": ids})

    def state(
        self, name: str, ops: list[J], key: list[J] | None = None, transitions: list[J] | None = None
    ) -> None:
        states = self.root["parsers"][0]["parse_states"]
        default = [{"type": "default", "value": None, "mask": None, "next_state": None}]
        states.append(
            {
                "name": name,
                "id": len(states),
                "parser_ops": ops,
                "transition_key": key or [],
                "transitions": transitions or default,
            }
        )

    def action(self, name: str, body: list[J], params: list[tuple[str, int]] | None = None) -> int:
        number = len(self.root["actions"])
        data = [{"name": n, "bitwidth": w} for n, w in params or ()]
        self.root["actions"].append({"name": name, "id": number, "runtime_data": data, "primitives": body})
        return number

    def table(
        self, name: str, key: list[J], actions: list[int], default: int, *, pipeline: int = 0, **more: Any
    ) -> None:
        """A table; tables of a pipeline run one after the other."""
        tables = self.root["pipelines"][pipeline]["tables"]
        names = [self.root["actions"][a]["name"] for a in actions]
        if tables:
            last = tables[-1]
            last["base_default_next"] = name
            last["next_tables"] = dict.fromkeys(last["next_tables"], name)
        else:
            self.root["pipelines"][pipeline]["init_table"] = name
        kinds = [k["match_type"] for k in key]
        match = next((m for m in ("range", "ternary", "lpm") if m in kinds), "exact")
        table: J = {
            "name": name,
            "id": len(tables),
            "key": key,
            "match_type": match,
            "type": "simple",
            "max_size": 1024,
            "with_counters": False,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": actions,
            "actions": names,
            "base_default_next": None,
            "next_tables": dict.fromkeys(names),
            "default_entry": {
                "action_id": default,
                "action_const": not key,
                "action_data": [],
                "action_entry_const": not key,
            },
            "source_info": {"filename": "test.p4", "line": 77, "column": 1, "source_fragment": name},
        }
        table.update(more)
        tables.append(table)

    def run(self, name: str, body: list[J], *, pipeline: int = 0) -> None:
        """Statements of a pipeline, as p4c wraps them: an action in a table without key."""
        self.table(f"tbl_{name}", [], [number := self.action(name, body)], number, pipeline=pipeline)

    def register(self, name: str, width: int, size: int) -> None:
        arrays = self.root["register_arrays"]
        arrays.append({"name": name, "id": len(arrays), "size": size, "bitwidth": width})

    def counter(self, name: str, size: int) -> None:
        arrays = self.root["counter_arrays"]
        arrays.append({"name": name, "id": len(arrays), "size": size, "is_direct": False})

    def meter(self, name: str, size: int, kind: str = "packets") -> None:
        arrays = self.root["meter_arrays"]
        arrays.append(
            {"name": name, "id": len(arrays), "size": size, "is_direct": False, "rate_count": 2, "type": kind}
        )

    def calculation(self, name: str, algorithm: str, inputs: list[J]) -> None:
        calcs = self.root["calculations"]
        calcs.append({"name": name, "id": len(calcs), "algo": algorithm, "input": inputs})

    def field_list(self, number: int, elements: list[J]) -> None:
        self.root["field_lists"].append({"id": number, "name": f"list_{number}", "elements": elements})

    @property
    def json(self) -> str:
        return json.dumps(self.root)

    def changed(self, change: Any) -> str:
        """The text after a change to a copy of the root."""
        root = copy.deepcopy(self.root)
        change(root)
        return json.dumps(root)


def _pipeline(name: str, number: int) -> J:
    return {
        "name": name,
        "id": number,
        "init_table": None,
        "tables": [],
        "action_profiles": [],
        "conditionals": [],
    }


def key(match: str, header: str, name: str) -> J:
    return {"match_type": match, "name": f"{header}.{name}", "target": [header, name], "mask": None}


def extract(name: str) -> J:
    return {"op": "extract", "parameters": [value("regular", name)]}


def simple(fields: list[Any], body: list[J] | None = None) -> Builder:
    """Header `h` of these fields is extracted; `body` runs in ingress."""
    b = Builder()
    b.header("h", fields)
    b.state("start", [extract("h")])
    if body is not None:
        b.run("body", body)
    return b


def to_port(port: int) -> J:
    return assign(field(META, "egress_spec"), const(port))


def pack(fields: list[Any], values: list[int]) -> bytes:
    """Field values as they stand in a packet."""
    total = number = 0
    for f, v in zip(fields, values, strict=True):
        number = number << f[1] | (v & ((1 << f[1]) - 1))
        total += f[1]
    assert total % 8 == 0
    return number.to_bytes(total // 8, "big")


def unpack(fields: list[Any], data: bytes) -> list[int]:
    """The inverse of `pack`; signed fields give signed values."""
    number, out = int.from_bytes(data, "big"), []
    for f in reversed(fields):
        v = number & ((1 << f[1]) - 1)
        number >>= f[1]
        if len(f) > 2 and f[2] and v >> (f[1] - 1):
            v -= 1 << f[1]
        out.append(v)
    return out[::-1]
