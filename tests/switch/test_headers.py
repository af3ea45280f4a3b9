# SPDX-License-Identifier: Apache-2.0
"""Parsing and deparsing: odd widths, varbits, stacks, unions, errors, lookahead, select."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from switch.device import SwitchDevice
from switch.ir import FieldRef
from switch.load import load_program
from tests.switch.programs import (
    META,
    Builder,
    J,
    assign,
    call,
    const,
    expr,
    extract,
    field,
    pack,
    simple,
    to_port,
    unpack,
    value,
)

LAYOUTS: list[list[tuple[str, int]]] = [
    [("a", 8)],
    [("a", 1), ("b", 7)],
    [("a", 4), ("b", 12), ("c", 48), ("d", 16)],
    [("a", 3), ("b", 61), ("c", 8)],
    [("a", 3), ("b", 66), ("c", 3)],
    [("a", 128), ("b", 136), ("c", 200), ("d", 8)],
    [("a", 12), ("b", 300), ("c", 8)],
    [(f"v{i}", 32) for i in range(256)],
    [(f"v{i}", 16) for i in range(9)] + [("x", 5), ("y", 3)] + [(f"w{i}", 64) for i in range(5)],
    [("n", 0), ("a", 3), ("o", 0), ("b", 66), ("c", 3), ("m", 0)],
    [("p", 4), ("q", 4)] + [(f"v{i}", 8) for i in range(7)] + [("z", 24)],
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fields_stand_where_they_should(layout: list[tuple[str, int]]) -> None:
    """Fields are swapped with a second header of the same layout and must come out at the same bits."""
    b = simple(layout)
    b.header("g", layout)
    b.root["parsers"][0]["parse_states"][0]["parser_ops"].append(extract("g"))
    b.header("t", layout, metadata=True)
    copy = [assign(field("t", n), field("h", n)) for n, _ in layout]
    copy += [assign(field("h", n), field("g", n)) for n, _ in layout]
    copy += [assign(field("g", n), field("t", n)) for n, _ in layout]
    b.run("swap", [*copy, to_port(1)])
    r = random.Random(1)
    size = sum(w for _, w in layout) // 8
    packets = [r.randbytes(2 * size + extra) for extra in (0, 1, 50)]
    with SwitchDevice.load(b.json) as d:
        out = d.process([(0, p) for p in packets])
    assert out == [(1, p[size : 2 * size] + p[:size] + p[2 * size :]) for p in packets]


def test_short_packets_set_the_error_and_go_on() -> None:
    b = simple([("a", 32)])
    b.header("g", [("b", 16)])
    b.root["parsers"][0]["parse_states"][0]["parser_ops"].append(extract("g"))
    b.run("port", [assign(field(META, "egress_spec"), expr("+", field(META, "parser_error"), const(1)))])
    with SwitchDevice.load(b.json) as d:
        packets = [bytes(range(n)) for n in range(8)]
        out = d.process([(0, p) for p in packets])
    # PacketTooShort is 1: what was extracted before is kept, the rest is payload
    assert out == [(2 if n < 6 else 1, p) for n, p in enumerate(packets)]


def parse_with(ops: list[J], **headers: list[Any]) -> Builder:
    b = Builder()
    for name, fields in headers.items():
        b.header(name, fields)
    b.state("start", ops)
    b.run("port", [assign(field(META, "egress_spec"), expr("+", field(META, "parser_error"), const(1)))])
    return b


def test_varbit() -> None:
    b = Builder()
    b.header("h", [("len", 8)])
    b.header("v", [("x", 8), ("options", "*"), ("y", 16)], max_length=43)
    bits = expr("<<", field("h", "len"), const(3))
    b.state("start", [extract("h"), {"op": "extract_VL", "parameters": [value("regular", "v"), bits]}])
    swap = [assign(field("v", "x"), const(0xAA)), assign(field("v", "y"), const(0xBBCC))]
    b.run(
        "port", [*swap, assign(field(META, "egress_spec"), expr("+", field(META, "parser_error"), const(1)))]
    )
    with SwitchDevice.load(b.json) as d:
        for n in (0, 1, 7, 40, 41):
            options = bytes(range(100, 100 + n))
            sent = bytes([n]) + b"\x01" + options + b"\x02\x03rest"
            fits = n <= 40
            want = bytes([n]) + b"\xaa" + options + b"\xbb\xccrest" if fits else sent
            assert d.process([(0, sent)]) == [(1 if fits else 5, want)], n
        assert d.process([(0, bytes([9]) + b"short")]) == [(2, bytes([9]) + b"short")]


def test_varbit_length_must_be_whole_bytes() -> None:
    b = Builder()
    b.header("v", [("options", "*")], max_length=4)
    b.state("start", [{"op": "extract_VL", "parameters": [value("regular", "v"), const(9)]}])
    b.run("port", [assign(field(META, "egress_spec"), field(META, "parser_error"))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"abcd")]) == [(6, b"abcd")]


def test_lookahead_of_a_bool() -> None:
    b = Builder()
    b.header("m", [("flag", 8)], metadata=True)
    peek = expr("b2d", None, value("lookahead", [3, 1]))
    b.state("start", [{"op": "set", "parameters": [field("m", "flag"), peek]}])
    b.run("port", [assign(field(META, "egress_spec"), field("m", "flag"))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\xef"), (0, b"\x10")]) == [(0, b"\xef"), (1, b"\x10")]


def test_a_header_in_a_field_list_is_not_kept() -> None:
    """p4c writes that it has no name for it, and simple_switch runs the program."""
    b = simple([("a", 8)])
    elements = [field("scalars", "<null>"), field("h", "a")]
    b.root["field_lists"] = [{"name": "kept", "id": 1, "elements": elements}]
    (kept,) = load_program(b.json).field_lists[1].elements
    assert isinstance(kept, FieldRef)
    assert kept.field.name == "a"


def test_stack_fills_up() -> None:
    b = Builder()
    b.header("s_elem", [("more", 8)], emit=False)
    b.stack("s", "s_elem_t", 3)
    last: J = {"type": "stack_field", "value": ["s", "more"]}
    again = [{"type": "hexstr", "value": "0x01", "mask": None, "next_state": "start"}]
    again.append({"type": "default", "value": None, "mask": None, "next_state": None})
    b.state("start", [{"op": "extract", "parameters": [value("stack", "s")]}], [last], again)
    count = expr("size_stack", None, value("header_stack", "s"))
    error = expr("<<", field(META, "parser_error"), const(4))
    b.run("port", [assign(field(META, "egress_spec"), expr("|", count, error))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x00z")]) == [(1, b"\x00z")]
        assert d.process([(0, b"\x01\x01\x00z")]) == [(3, b"\x01\x01\x00z")]
        assert d.process([(0, b"\x01\x01\x01\x01z")]) == [
            (0x33, b"\x01\x01\x01\x01z")
        ]  # StackOutOfBounds is 3


@pytest.mark.parametrize("op", ["push", "pop"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9])
def test_push_and_pop(op: str, n: int) -> None:
    b = Builder()
    b.header("s_elem", [("v", 8)], emit=False)
    b.stack("s", "s_elem_t", 3)
    b.state("start", [{"op": "extract", "parameters": [value("stack", "s")]}] * 3)
    b.run("port", [call(op, value("header_stack", "s"), const(n)), to_port(1)])
    model: list[int | None] = [1, 2, 3]
    gap: list[int | None] = [None] * min(n, 3)
    model = gap + model[: 3 - len(gap)] if op == "push" else model[len(gap) :] + gap
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x01\x02\x03z")]) == [(1, bytes(x for x in model if x is not None) + b"z")]


@pytest.mark.parametrize("op", ["push", "pop"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_elements_change_places_in_push_and_pop(op: str, n: int) -> None:
    """What an invalid element holds no language tells; simple_switch's stacks.cpp swaps the elements."""
    b = Builder()
    b.header("seen", [(f"v{i}", 8) for i in range(4)])
    b.header("s_elem", [("v", 8)], emit=False)
    b.stack("s", "s_elem_t", 4)
    b.state("start", [{"op": "extract", "parameters": [value("stack", "s")]}] * 4)
    copies = [assign(field("seen", f"v{i}"), field(f"s[{i}]", "v")) for i in range(4)]
    show = [call("add_header", value("header", "seen")), *copies]
    b.run("port", [call(op, value("header_stack", "s"), const(n)), *show, to_port(1)])
    model = [1, 2, 3, 4]
    for i in range(3, n - 1, -1) if op == "push" else range(4 - n):
        j = i - n if op == "push" else i + n
        model[i], model[j] = model[j], model[i]
    with SwitchDevice.load(b.json) as d:
        ((_, out),) = d.process([(0, b"\x01\x02\x03\x04z")])
    assert list(out[:4]) == model


def test_run_time_index_beyond_the_stack_drops_the_packet() -> None:
    b = Builder()
    b.header("h", [("i", 8)])
    b.header("s_elem", [("v", 8)], emit=False)
    b.stack("s", "s_elem_t", 2)
    b.state("start", [extract("h"), *[{"op": "extract", "parameters": [value("stack", "s")]}] * 2])
    element = expr("dereference_header_stack", value("header_stack", "s"), field("h", "i"))
    target = expr("access_field", element, 0)
    b.run("set", [assign(target, const(0xEE)), to_port(1)])
    with SwitchDevice.load(b.json) as d:
        packets = [(0, bytes([i, 1, 2])) for i in range(4)]
        assert d.process(packets) == [(1, b"\x00\xee\x02"), (1, b"\x01\x01\xee")]
        assert d.stats().faults == 2
        assert "index beyond the 2 elements of s" in d.log()[0]


def test_what_only_an_index_reads_is_read() -> None:
    """Metadata that nothing but the index of an operand, or of whose validity is asked, reads (p4c's
    control-hs-index-test5): written in the block that reads it, or in the other one."""
    b = Builder()
    b.header("h", [("i", 8), ("j", 8), ("valid", 8)])
    b.header("m", [("here", 8), ("there", 8), ("of", 8)], metadata=True)
    b.header("s_elem", [("v", 8)], emit=False)
    b.instance("own", "s_elem_t")
    b.stack("s", "s_elem_t", 2)
    b.state("start", [extract("h"), {"op": "extract", "parameters": [value("stack", "s")]}])

    def element(name: str) -> J:
        return expr("dereference_header_stack", value("header_stack", "s"), field("m", name))

    b.run(
        "indexes",
        [assign(field("m", n), field("h", f)) for n, f in (("here", "i"), ("there", "i"), ("of", "j"))],
    )
    b.run("copy", [call("assign_header", value("header", "own"), element("here"))])
    b.run("ask", [assign(field("h", "valid"), expr("b2d", None, expr("valid", None, element("of"))))])
    b.run("send", [to_port(1)])
    b.run("again", [call("assign_header", element("there"), value("header", "own"))], pipeline=1)
    b.run("other", [assign(field("m", "of"), const(1))], pipeline=1)
    with SwitchDevice.load(b.json) as d:
        for i in range(2):
            for j in range(2):
                ((_, out),) = d.process([(0, bytes([i, j, 0xFF, 0x77]))])
                own = b"\x77" if i == 0 else b""  # s[1] is not valid, and so is what it is copied to
                assert out == bytes([i, j, j == 0]) + own + b"\x77"


def union_program() -> Builder:
    b = Builder()
    b.header("h", [("which", 8)])
    b.header("u.a", [("x", 8)])
    b.header("u.b", [("y", 16)])
    ids = {h["name"]: h["id"] for h in b.root["headers"]}
    b.root["header_union_types"].append({"name": "U", "id": 0, "headers": [["a", "u.a_t"], ["b", "u.b_t"]]})
    b.root["header_unions"].append(
        {"name": "u", "id": 0, "union_type": "U", "header_ids": [ids["u.a"], ids["u.b"]]}
    )
    to = [{"type": "hexstr", "value": "0x01", "mask": None, "next_state": "b"}]
    to.append({"type": "default", "value": None, "mask": None, "next_state": "a"})
    b.state("start", [extract("h")], [field("h", "which")], to)
    b.state("a", [extract("u.a")])
    b.state("b", [extract("u.b")])
    return b


def test_a_union_has_one_valid_member() -> None:
    b = union_program()
    valid = expr("b2d", None, expr("valid_union", None, value("header_union", "u")))
    body = [call("add_header", value("header", "u.b")), assign(field("u.b", "y"), const(0x0A0B))]
    b.run("set", [*body, assign(field(META, "egress_spec"), expr("+", valid, const(4)))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x00\x07z")]) == [(5, b"\x00\x0a\x0bz")]  # a gave way to b
        assert d.process([(0, b"\x01\x07\x08z")]) == [(5, b"\x01\x0a\x0bz")]


def test_lookahead_select_and_masks() -> None:
    b = Builder()
    b.header("h", [("a", 4), ("b", 12)])
    b.header("m", [("peek", 20), ("pad", 4)], metadata=True)
    peek = {"op": "set", "parameters": [field("m", "peek"), value("lookahead", [4, 20])]}
    moves: list[J] = [
        {"type": "hexstr", "value": "0x01000f", "mask": "0xff000f", "next_state": "one"},
        {"type": "hexstr", "value": "0x020fff", "mask": None, "next_state": "two"},
        {"type": "default", "value": None, "mask": None, "next_state": None},
    ]
    b.state("start", [peek, extract("h")], [field("h", "a"), field("h", "b")], moves)
    b.state("one", [{"op": "set", "parameters": [field(META, "egress_spec"), const(1)]}])
    b.state("two", [{"op": "set", "parameters": [field(META, "egress_spec"), const(2)]}])
    b.run("port", [assign(field("h", "b"), field("m", "peek"))])

    def model(data: bytes) -> tuple[int, bytes]:
        a, low = unpack([("a", 4), ("b", 12)], data[:2])
        port = 1 if a == 1 and low & 15 == 15 else 2 if (a, low) == (2, 0xFFF) else 0
        peeked = int.from_bytes(data[:3], "big") & 0xFFFFF
        return port, pack([("a", 4), ("b", 12)], [a, peeked]) + data[2:]

    packets = [bytes.fromhex(x) for x in ("100f12", "1fff34", "200f56", "2fff78", "3fff9a", "1ff0bc")]
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, p) for p in packets]) == [model(p) for p in packets]


def test_verify_and_advance() -> None:
    ops: Sequence[J] = [
        extract("h"),
        {"op": "verify", "parameters": [expr("!=", field("h", "n"), const(7)), const(9)]},
        {"op": "advance", "parameters": [expr("<<", field("h", "n"), const(3))]},
        extract("g"),
    ]
    b = parse_with(list(ops), h=[("n", 8)], g=[("x", 8)])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x02abcd")]) == [(1, b"\x02cd")]  # what was skipped is gone
        assert d.process([(0, b"\x07abcd")]) == [(10, b"\x07abcd")]
        assert d.process([(0, b"\x09abcd")]) == [(2, b"\x09abcd")]


def test_a_parser_that_never_ends_is_stopped() -> None:
    b = Builder()
    b.header("h", [("a", 8)])
    b.state(
        "start", [extract("h")], [], [{"type": "default", "value": None, "mask": None, "next_state": "loop"}]
    )
    b.state("loop", [], [], [{"type": "default", "value": None, "mask": None, "next_state": "loop"}])
    b.run("port", [assign(field(META, "egress_spec"), field(META, "parser_error"))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"ab")]) == [(5, b"ab")]  # ParserTimeout


def test_header_lengths_and_validity() -> None:
    b = simple([("a", 8)])
    b.header("g", [("x", 24)])
    b.root["parsers"][0]["parse_states"][0]["parser_ops"].append(extract("g"))
    b.header("new", [("y", 40)])
    add = [
        call("remove_header", value("header", "g")),
        call("add_header", value("header", "new")),
        to_port(1),
    ]
    b.run("body", add)
    b.run("length", [assign(field("h", "a"), field(META, "packet_length"))], pipeline=1)
    with SwitchDevice.load(b.json) as d:
        # 1 + 3 + 2 bytes in, g goes, new comes: zeroed
        assert d.process([(0, b"\x00gggpp")]) == [(1, bytes([6 - 3 + 5]) + bytes(5) + b"pp")]


def test_empty_and_large_packets() -> None:
    b = simple([("a", 8)], [to_port(1)])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"")]) == [(1, b"")]
        big = random.Random(2).randbytes(65535)
        assert d.process([(0, big)]) == [(1, big)]
        assert d.process([(0, big + b"x")]) == []
        assert d.stats().too_long == 1


@pytest.mark.parametrize("look", [False, True])
def test_a_large_header_is_zero_where_a_packet_lacks_it(look: bool) -> None:
    """Also after a packet that had it, and where the parser itself reads it before it is there."""
    large = [(f"v{i}", 32) for i in range(64)]
    b = simple([("a", 32), ("b", 32)])
    b.header("g", large)
    ops = b.root["parsers"][0]["parse_states"][0]["parser_ops"]
    if look:
        ops.append({"op": "set", "parameters": [field("h", "b"), field("g", "v63")]})
    ops.append(extract("g"))
    reads = [assign(field("h", "a"), field("g", "v0"))]
    reads += [] if look else [assign(field("h", "b"), field("g", "v63"))]
    b.run("read", [*reads, to_port(1)])
    whole = bytes(range(1, 201)) + bytes(range(1, 65))
    short = b"\xff" * 9
    with SwitchDevice.load(b.json) as d:
        for sent in ([short], [whole, short], [whole, short, whole]):
            for packet, (port, out) in zip(sent, d.process([(0, p) for p in sent]), strict=True):
                has = packet is whole
                first = packet[8:12] if has else bytes(4)
                last = packet[260:264] if has and not look else bytes(4)
                assert (port, out) == (1, first + last + packet[8:])
