# SPDX-License-Identifier: Apache-2.0
"""A program that cannot be run is refused at load, with the construct and the source line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import LoadError
from switch.load import load_program
from tests.switch.everything import everything
from tests.switch.programs import assign, call, const, expr, extract, field, key, simple, to_port, value

FORWARD = Path(__file__).parent / "fixtures" / "forward.json"
FIELDS = [("a", 8), ("b", 56), ("w", 128)]


def refuse(text: str, *parts: str) -> None:
    with pytest.raises(LoadError) as e:
        emit_program(load_program(text))
    for part in parts:
        assert part in str(e.value)


def body(*calls: Any) -> str:
    return simple(FIELDS, list(calls)).json


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "top level"),
        ("{}", "header_types"),
        ('{"header_types": 1}', "header_types"),
        ("[" * 100000, "nested too deeply"),
    ],
)
def test_not_a_program(text: str, part: str) -> None:
    refuse(text, part)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read"):
        SwitchDevice.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("calls", "parts"),
    [
        ([call("teleport", const(1), line=42)], ["teleport", "test.p4:42"]),
        ([call("assign", const(1), const(2), line=7)], ["operand 1 is not a field", "test.p4:7"]),
        ([call("assign", field("h", "a"), line=8)], ["1 operands instead of 2", "test.p4:8"]),
        ([assign(field("h", "nothing"), const(1))], ["'nothing'", "h_t"]),
        ([assign(field("x", "a"), const(1))], ["header 'x'"]),
        ([assign(field("h", "a"), value("magic", 1))], ["value type 'magic'"]),
        ([assign(field("h", "a"), expr("**", const(1), const(2)))], ["'**'"]),
        ([assign(field("h", "a"), expr("==", const(1), const(2)))], ["operand 2 is not a number"]),
        ([call("_jump", const(9), line=3)], ["jumps out of the action", "test.p4:3"]),
        (
            [call("register_read", field("h", "a"), value("register_array", "r"), const(0))],
            ["register_array 'r'"],
        ),
        ([assign(field("h", "a"), expr("<<", field("h", "a"), const(-1)))], ["negative"]),
        ([assign(field("h", "a"), value("runtime_data", 0))], ["no such parameter"]),
        ([assign(field("h", "a"), value("hexstr", "zz"))], ["'zz'"]),
    ],
)
def test_actions(calls: list[Any], parts: list[str]) -> None:
    refuse(body(*calls), *parts)


def test_a_value_too_wide_to_compare() -> None:
    shifted = expr("<<", field("h", "a"), field("h", "w"))
    refuse(body(assign(field("h", "a"), expr("b2d", None, expr("==", shifted, const(1))))), "4096 bits")
    # where only the low bits count, the same shift is fine
    emit_program(load_program(body(assign(field("h", "a"), shifted))))


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    b = simple(FIELDS)
    act = b.action("act", [to_port(1)])
    b.table("t", [key("exact", "h", "a")], [act], act)
    b.register("r", 32, 4)
    b.calculation("c", "csum16", [field("h", "a")])
    return b.changed(change)


def table(root: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = root["pipelines"][0]["tables"][0]
    return found


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda r: r["pipelines"].pop(), ["pipeline 'egress'"]),
        (
            lambda r: r["pipelines"].append(
                {"name": "x", "action_profiles": [{"name": "ap", "max_size": "x"}]}
            ),
            ["'ap'"],
        ),
        (lambda r: r["header_types"][1]["fields"].append(["x", 4, False]), ["whole bytes"]),
        (lambda r: r["header_types"][1]["fields"].append(["x", 5000, False]), ["h_t.x", "width 5000"]),
        (lambda r: r["header_types"][1]["fields"].append(["x", 5000, False]), ["5000"]),
        (lambda r: r["header_types"][1]["fields"].append(["x", "*"]), ["varbit", "max_length"]),
        (lambda r: r["headers"][1].update(header_type="no_t"), ["'no_t'"]),
        (lambda r: r["headers"].append(dict(r["headers"][1])), ["defined twice"]),
        (lambda r: r["header_types"][0]["fields"].pop(1), ["egress_spec"]),
        (lambda r: r["calculations"][0].update(algo="md5"), ["'md5'", "csum16"]),
        (lambda r: r["register_arrays"][0].update(size=1 << 40), ["'r'", "size"]),
        (lambda r: r["register_arrays"][0].update(bitwidth=0), ["'r'", "width"]),
        (lambda r: table(r).update(type="indirect"), ["'t'", "indirect", "test.p4:77"]),
        (lambda r: table(r).update(match_type="fuzzy"), ["fuzzy", "test.p4:77"]),
        (lambda r: table(r)["key"][0].update(match_type="fuzzy"), ["fuzzy", "h.a"]),
        (lambda r: table(r).update(action_ids=[99]), ["does not exist", "test.p4:77"]),
        (lambda r: table(r).update(next_tables={"act": "t"}), ["comes back"]),
        (lambda r: table(r).update(next_tables={"act": "nowhere"}), ["nowhere"]),
        (lambda r: table(r)["default_entry"].update(action_data=["0x1"]), ["0 arguments"]),
        (lambda r: r["pipelines"][0].update(init_table="nowhere"), ["nowhere"]),
        (lambda r: r["parsers"][0].update(init_state="nowhere"), ["nowhere"]),
        (
            lambda r: r["parsers"][0]["parse_states"][0]["parser_ops"].append(
                {"op": "warp", "parameters": []}
            ),
            ["warp"],
        ),
        (
            lambda r: r["parsers"][0]["parse_states"][0]["transitions"].append(
                {"type": "hexstr", "value": "0x1", "mask": None, "next_state": "away"}
            ),
            ["away"],
        ),
        (lambda r: r["deparsers"][0]["order"].append("standard_metadata"), ["metadata"]),
        (lambda r: r["extern_instances"].append({"name": "e", "type": "x"}), ["extern 'e'"]),
        (
            lambda r: r["meter_arrays"].append({"name": "m", "size": 1, "type": "bytes", "rate_count": 3}),
            ["two-rate"],
        ),
        (lambda r: r.update(actions=[{"id": 0}]), ["actions[0].name", "missing"]),
        (lambda r: r["actions"].append(dict(r["actions"][0])), ["action id 0", "defined twice"]),
        (lambda r: r["pipelines"].append(dict(r["pipelines"][0])), ["pipeline 'ingress'", "defined twice"]),
        (lambda r: r["pipelines"][1].update(tables=[table(r)]), ["table 't'", "other pipeline"]),
        (
            lambda r: r["parsers"][0]["parse_states"].append(r["parsers"][0]["parse_states"][0]),
            ["parser state 'start'", "defined twice"],
        ),
        (
            lambda r: r["header_stacks"].append(
                {"name": "s", "id": 0, "header_type": "h_t", "header_ids": [9]}
            ),
            ["header stack 's'", "no header of id 9"],
        ),
        (
            lambda r: r["header_unions"].append({"name": "u", "id": 0, "union_type": "x", "header_ids": []}),
            ["header union 'u'", "no union type 'x'"],
        ),
        (lambda r: r["header_types"][0]["fields"][1].append(True), ["egress_spec", "unsigned"]),
        (lambda r: r["header_types"][0]["fields"][1].__setitem__(1, 65), ["egress_spec", "up to 64 bits"]),
    ],
)
def test_structure(change: Callable[[dict[str, Any]], None], parts: list[str]) -> None:
    refuse(changed(change), *parts)


@pytest.mark.parametrize("section", ["field_lists", "learn_lists"])
@pytest.mark.parametrize("bad", [5, True, {"a": 1}, "h", [], ["<null>", 1]])
def test_what_is_no_element_of_a_list(section: str, bad: Any) -> None:
    def change(root: dict[str, Any]) -> None:
        root[section] = [{"name": "kept", "id": 1, "elements": [value("field", bad)]}]

    refuse(changed(change), "kept")


def test_an_expression_that_is_nested_too_deeply() -> None:
    """Wherever Python's stack ends: reading the JSON, loading or emitting."""
    text = body(assign(field("h", "a"), const(1)))
    inner = json.dumps(const(1))
    assert text.count(inner) == 1
    outcomes = []
    for depth in (50, *range(100, 1000, 30), 100_000):
        before = '{"type": "expression", "value": {"op": "~", "left": null, "right": ' * depth
        try:
            emit_program(load_program(text.replace(inner, before + inner + "}}" * depth)))
            outcomes.append("fine")
        except LoadError as e:
            outcomes.append("deep" if "nested too deeply" in str(e) else str(e))
    assert (outcomes[0], outcomes[-1]) == ("fine", "deep")
    assert set(outcomes) == {"fine", "deep"}


PEEK = value("lookahead", [0, 8])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda r: r["actions"][0]["primitives"].append(assign(field("h", "a"), PEEK)), "action 'act'"),
        (lambda r: r["deparsers"][0]["primitives"].append(assign(field("h", "a"), PEEK)), "the deparser"),
        (
            lambda r: r["pipelines"][0]["conditionals"].append(
                {"name": "if", "expression": expr("==", PEEK, const(1)), "true_next": None}
            ),
            "node 'if'",
        ),
        (
            lambda r: r["checksums"].append(
                {
                    "name": "sum",
                    "type": "generic",
                    "target": ["h", "a"],
                    "calculation": "c",
                    "if_cond": expr("==", const(1), expr("+", PEEK, const(1))),
                }
            ),
            "checksum 'sum'",
        ),
    ],
)
def test_only_the_parser_looks_ahead(change: Callable[[dict[str, Any]], None], where: str) -> None:
    refuse(changed(change), "lookahead", where)


@pytest.mark.parametrize(
    ("where", "path", "found", "part"),
    [
        (
            "forward",
            "pipelines 0 tables 6 base_default_next",
            [],
            ".base_default_next of 'ingress.flows' (forward.p4:157)",
        ),
        (
            "forward",
            "pipelines 1 conditionals 0 true_next",
            [],
            "conditionals[0].true_next of 'node_19' (forward.p4:212)",
        ),
        (
            "forward",
            "pipelines 1 init_table",
            {},
            "pipelines[1].init_table of 'egress' (forward.p4:210): expected a string",
        ),
        (
            "forward",
            "header_types 5 fields 4 0",
            True,
            "header_types[5].fields[4][0] of 'ipv4_t': expected a string",
        ),
        (
            "all",
            "pipelines 0 tables 0 max_size",
            -1,
            "max_size of 'exact' (test.p4:77): expected a whole number in 0..4294967295",
        ),
        ("all", "pipelines 0 tables 0 id", 1.5, ".id of 'exact' (test.p4:77): expected a whole number"),
        ("all", "actions 0 name", "\ud800", "expected Unicode text"),
        ("all", "errors 0 1", 1e999, "errors[0][1]: expected a whole number in 0..4294967295, found inf"),
        (
            "all",
            "learn_lists 0 id",
            1 << 16,
            "learn_lists[0].id of 'news': expected a whole number in 0..65535",
        ),
        (
            "all",
            "parsers 0 parse_states 0 parser_ops 0 parameters",
            [],
            "of 'start': expected a list of 1, found []",
        ),
        ("all", "parsers 0 parse_states 0 transitions 0 value", [], "transition in parser state 'start'"),
        (
            "all",
            "actions 0 primitives 0 op",
            ["assign"],
            "actions[0].primitives[0].op of 'act' (test.p4:0): expected a string",
        ),
        (
            "all",
            "calculations 0 input 0 value",
            [[], {}],
            "field in calculation 'sum': expected [header, field]",
        ),
        ("all", "checksums 0 if_cond value", {"op": []}, "operator [] in checksum 'check'"),
    ],
)
def test_a_value_of_another_type_is_named(where: str, path: str, found: Any, part: str) -> None:
    root = json.loads(FORWARD.read_text() if where == "forward" else everything().json)
    steps = [int(step) if step.isdigit() else step for step in path.split()]
    inside: Any = root
    for step in steps[:-1]:
        inside = inside[step]
    assert inside[steps[-1]] != found
    inside[steps[-1]] = found
    refuse(json.dumps(root), part)


def test_a_varbit_must_start_on_a_byte() -> None:
    b = simple([("a", 8)])
    b.header("v", [("x", 4), ("options", "*"), ("y", 4)], max_length=20)
    b.state("more", [{"op": "extract_VL", "parameters": [value("regular", "v"), const(8)]}])
    refuse(b.json, "'v_t'", "start on a byte")
    assert extract("h")
