# SPDX-License-Identifier: Apache-2.0
"""The STF runner itself: it must fail when it should, and read the language."""

import pytest

from switch.device import Exact, Lpm, Range, SwitchDevice, Ternary
from switch.ir import Const, Key, Source
from switch.stf import StfError, StfRunner, match_value, packet_matches, tokenize
from tests.switch.programs import Builder, arg, assign, extract, field, key, simple, to_port


def _key(match: str, width: int) -> Key:
    return Key("h.f", match, Const(0), width, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("match", "width", "text", "value"),
    [
        ("exact", 16, "0x10", Exact(16)),
        ("exact", 16, "0b11", Exact(3)),
        ("lpm", 8, "0x1*", Lpm(0x10, 4)),
        ("lpm", 32, "0x0a000001", Lpm(0x0A000001, 32)),
        ("ternary", 16, "0x11**", Ternary(0x1100, 0xFF00)),
        ("ternary", 16, "0x5", Ternary(0x5, 0xF)),
        ("ternary", 4, "0b1*0*", Ternary(0b1000, 0b1010)),
        ("range", 8, "3..9", Range(3, 9)),
    ],
)
def test_match_values(match: str, width: int, text: str, value: object) -> None:
    assert match_value(_key(match, width), text) == value


@pytest.mark.parametrize(
    ("pattern", "data", "fits"),
    [
        ("01**", "0199", True),
        ("01**", "0299", False),
        ("01", "0102", True),
        ("01$", "0102", False),
        ("0102", "01", False),
        ("", "", True),
        ("$", "", True),
        ("$", "00", False),
    ],
)
def test_expectations(pattern: str, data: str, fits: bool) -> None:
    assert packet_matches(bytes.fromhex(data), pattern) is fits


def test_tokens() -> None:
    line = 'add "a b" 5 h.f:0x1* act(x:1, y:2) = e'
    assert tokenize(line) == [
        "add",
        "a b",
        "5",
        "h.f",
        ":",
        "0x1*",
        "act",
        "(",
        "x",
        ":",
        "1",
        ",",
        "y",
        ":",
        "2",
        ")",
        "=",
        "e",
    ]


def program() -> Builder:
    b = simple([("a", 8), ("b", 8)])
    forward = b.action(
        "ingress.forward", [assign(field("standard_metadata", "egress_spec"), arg(0))], [("port", 9)]
    )
    drop = b.action("ingress.drop", [to_port(511)])
    b.table("ingress.t", [key("exact", "h", "a")], [forward, drop], drop, with_counters=True)
    return b


def test_a_table_and_its_counter() -> None:
    text = """
    # a comment
    add t h.a:0x05 forward(port:7) = e
    packet 0 05 06
    expect 7 0506$
    packet 0 0607
    check_counter c($e) packets == 1
    """
    with SwitchDevice.load(program().json) as d:
        result = StfRunner(d).run(text)
    assert result.passed, result.failures


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("add t a:5 forward(port:7)\npacket 0 0506", "expected 0 packets, got 1"),
        ("expect 7 0506", "expected 1 packets, got 0"),
        ("add t a:5 forward(port:7)\npacket 0 0506\nexpect 7 0507", "expected 0507, got 0506"),
        ("add t a:5 forward(port:7) = e\ncheck_counter c($e) packets > 0", "it is 0"),
    ],
)
def test_failures_are_told(text: str, failure: str) -> None:
    with SwitchDevice.load(program().json) as d:
        result = StfRunner(d).run(text)
    assert not result.passed
    assert failure in " ".join(result.failures)


@pytest.mark.parametrize(
    "line", ["frobnicate 1", "add nowhere a:5 forward(port:1)", "add t a:5 fly(port:1)", "packet 0 0"]
)
def test_bad_lines_are_named(line: str) -> None:
    with SwitchDevice.load(program().json) as d, pytest.raises(StfError, match="line 2"):
        StfRunner(d).run(f"\n{line}")


def test_source_reads_as_file_and_line() -> None:
    assert str(Source("a.p4", 3, 1, "x")) == "a.p4:3"
    assert extract("h")["op"] == "extract"
