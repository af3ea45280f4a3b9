# SPDX-License-Identifier: Apache-2.0
"""A program that cannot be run is refused at load, with the construct and the source line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import LoadError
from switch.load import load_program
from tests.switch.programs import assign, call, const, expr, extract, field, key, simple, to_port, value

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
        ("[" * 100000, "not valid JSON"),
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
            lambda r: r["pipelines"].append({"name": "x", "tables": [], "action_profiles": [{"name": "ap"}]}),
            ["'ap'"],
        ),
        (lambda r: r["header_types"][1]["fields"].append(["x", 4, False]), ["whole bytes"]),
        (lambda r: r["header_types"][1]["fields"].append(["x", 0, False]), ["h_t.x", "width 0"]),
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
        (lambda r: r.update(actions=[{"id": 0}]), ["structure", "name"]),
    ],
)
def test_structure(change: Callable[[dict[str, Any]], None], parts: list[str]) -> None:
    refuse(changed(change), *parts)


def test_a_varbit_must_start_on_a_byte() -> None:
    b = simple([("a", 8)])
    b.header("v", [("x", 4), ("options", "*"), ("y", 4)], max_length=20)
    b.state("more", [{"op": "extract_VL", "parameters": [value("regular", "v"), const(8)]}])
    refuse(b.json, "'v_t'", "start on a byte")
    assert extract("h")
