# SPDX-License-Identifier: Apache-2.0
"""One program with a bit of every construct: for tests that damage programs."""

from __future__ import annotations

from tests.switch.programs import (
    META,
    Builder,
    J,
    arg,
    assign,
    call,
    const,
    expr,
    extract,
    field,
    key,
    to_port,
    value,
)


def everything() -> Builder:
    """Stacks, unions, varbits, lookaheads, arrays, lists, checksums, and const entries of each kind."""
    b = Builder()
    b.header("h", [("a", 8), ("b", 56), ("w", 128), ("i", 8, True)])
    b.header("v", [("x", 8), ("options", "*")], max_length=20)
    b.header("e", [("y", 8)], emit=False)
    b.stack("s", "e_t", 3)
    b.header("u.a", [("x", 8)])
    b.header("u.b", [("y", 16)])
    b.header("m", [("colour", 2), ("n", 14)], metadata=True)
    ids = {h["name"]: h["id"] for h in b.root["headers"]}
    b.root["header_union_types"].append({"name": "U", "id": 0, "headers": [["a", "u.a_t"], ["b", "u.b_t"]]})
    union = {"name": "u", "id": 0, "union_type": "U", "header_ids": [ids["u.a"], ids["u.b"]]}
    b.root["header_unions"].append(union)
    b.register("r", 32, 16)
    b.counter("c", 16)
    b.meter("mt", 16)
    b.root["meter_arrays"].append(
        {
            "name": "dm",
            "id": 1,
            "is_direct": True,
            "rate_count": 2,
            "type": "bytes",
            "binding": "lpm",
            "result_target": ["m", "colour"],
        }
    )
    b.root["counter_arrays"].append({"name": "dc", "id": 1, "is_direct": True, "binding": "lpm"})
    constant = {"type": "hexstr", "value": "0x0102", "bitwidth": 16}
    inputs = [field("h", "a"), value("header", "h"), constant, {"type": "payload"}]
    b.calculation("sum", "csum16", inputs)
    b.field_list(1, [field("m", "n")])
    b.root["learn_lists"].append({"name": "news", "id": 1, "elements": [field("h", "w"), constant]})
    b.root["checksums"].append(
        {
            "name": "check",
            "id": 0,
            "type": "generic",
            "target": ["m", "n"],
            "calculation": "sum",
            "verify": True,
            "update": True,
            "if_cond": expr("valid", None, value("header", "h")),
        }
    )
    _parser(b)
    _tables(b)
    p = b.root["pipelines"][0]
    sign = expr("and", expr("<", field("h", "i"), const(-1)), value("bool", True))
    p["conditionals"].append(
        {"name": "if", "id": 0, "expression": sign, "true_next": p["init_table"], "false_next": "egg"}
    )
    p["action_calls"] = [{"name": "egg", "id": 0, "action_id": 0, "next_node": None}]
    p["init_table"] = "if"
    return b


def _parser(b: Builder) -> None:
    b.root["parse_vsets"].append({"name": "set", "id": 0, "compressed_bitwidth": 8, "max_size": 4})
    default: J = {"type": "default", "value": None, "mask": None, "next_state": None}
    b.state(
        "start",
        [
            extract("h"),
            {"op": "set", "parameters": [field("m", "n"), value("lookahead", [0, 8])]},
            {"op": "verify", "parameters": [expr("!=", field("h", "a"), const(9)), const(2)]},
        ],
        [field("h", "a"), value("lookahead", [0, 8])],
        [
            {"type": "hexstr", "value": "0x0102", "mask": "0xff0f", "next_state": "more"},
            {"type": "parse_vset", "value": "set", "mask": None, "next_state": "more"},
            default,
        ],
    )
    b.state(
        "more",
        [
            {"op": "extract", "parameters": [value("stack", "s")]},
            {"op": "extract_VL", "parameters": [value("regular", "v"), const(16)]},
            {"op": "shift", "parameters": [1]},
            {"op": "advance", "parameters": [const(8)]},
            {"op": "primitive", "parameters": [call("add_header", value("header", "u.b"))]},
        ],
    )


def _tables(b: Builder) -> None:
    last = value("stack_field", ["s", "y"])
    second = expr("dereference_header_stack", value("header_stack", "s"), const(1))
    act = b.action(
        "act",
        [
            assign(field(META, "egress_spec"), arg(0)),
            assign(field("h", "w"), expr("?", arg(1), expr("usat_cast", last, const(7)), sign())),
            assign(field("h", "a"), value("expression", expr("access_field", second, 0)["value"])),
            call("register_write", value("register_array", "r"), field("h", "a"), field("h", "b")),
            call("register_read", field("h", "b"), value("register_array", "r"), const(3)),
            call("count", value("counter_array", "c"), field("h", "a")),
            call("execute_meter", value("meter_array", "mt"), const(1), field("m", "colour")),
            call(
                "log_msg", value("string", "a is {}"), value("parameters_vector", [field("h", "a"), const(1)])
            ),
            call("_jump_if_zero", field("h", "a"), const(10)),
            call("generate_digest", const(0), const(1)),
            call("clone_ingress_pkt_to_egress", const(1), const(1)),
            call("push", value("header_stack", "s"), const(1)),
            call("mark_to_drop", value("header", META)),
        ],
        [("port", 9), ("wide", 72)],
    )
    none = b.action("none", [])
    own: J = {"action_id": act, "action_data": ["0x1", "0x123456789012345678"]}
    matches: dict[str, J] = {
        "exact": {"match_type": "exact", "key": "0x01"},
        "lpm": {"match_type": "lpm", "key": "0x10", "prefix_length": 4},
        "ternary": {"match_type": "ternary", "key": "0x10", "mask": "0xf0"},
        "range": {"match_type": "range", "start": "0x10", "end": "0x20"},
    }
    for kind, match in matches.items():
        entry: J = {"match_key": [match], "action_entry": own, "priority": 1, "source_info": {}}
        more: J = {"entries": [entry]}
        if kind == "lpm":
            more.update(with_counters=True, support_timeout=True, direct_meters="dm")
        b.table(kind, [key(kind, "h", "a")], [act, none], none, **more)
    valid: J = {"match_type": "valid", "name": "h.$valid$", "target": "h", "mask": None}
    b.table("valid", [valid, {**key("exact", "h", "b"), "mask": "0xff"}], [act, none], none, pipeline=1)
    b.run("egress", [to_port(1)], pipeline=1)


def sign() -> J:
    """A condition in which every kind of truth value occurs."""
    union = expr("valid_union", None, value("header_union", "u"))
    bit = expr("d2b", None, expr("%", field("h", "b"), const(2)))
    return expr("or", expr("not", None, union), expr("==", bit, value("bool", False)))
