# SPDX-License-Identifier: Apache-2.0
"""The STF runner itself: it must fail when it should, and read the language."""

import pytest

from switch.device import Exact, Lpm, Range, SwitchDevice, Ternary
from switch.ir import Const, Key, Source
from switch.stf import StfError, StfRunner, match_value, packet_matches, tokenize
from tests.switch.programs import (
    Builder,
    arg,
    assign,
    call,
    const,
    extract,
    field,
    key,
    simple,
    to_port,
    value,
)


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
    b.root["counter_arrays"].append(
        {
            "name": "ingress.t_counter",
            "id": len(b.root["counter_arrays"]),
            "is_direct": True,
            "binding": "ingress.t",
        }
    )
    return b


def replicated() -> Builder:
    """Its table clones to session 5, sends to a group, or puts a register or a meter's color into `b`."""
    b = simple([("a", 8), ("b", 8)])
    b.register("ingress.r", 8, 4)
    b.counter("ingress.c", 4)
    b.meter("ingress.m", 4)
    clone = b.action("ingress.clone", [call("clone_ingress_pkt_to_egress", const(5), const(0)), to_port(511)])
    group = b.action("ingress.group", [assign(field("standard_metadata", "mcast_grp"), arg(0))], [("g", 16)])
    read = b.action(
        "ingress.read",
        [
            call("register_read", field("h", "b"), value("register_array", "ingress.r"), arg(0)),
            call("count", value("counter_array", "ingress.c"), arg(0)),
            to_port(1),
        ],
        [("i", 32)],
    )
    meter = b.action(
        "ingress.meter",
        [call("execute_meter", value("meter_array", "ingress.m"), arg(0), field("h", "b")), to_port(1)],
        [("i", 32)],
    )
    drop = b.action("ingress.drop", [to_port(511)])
    b.table("ingress.t", [key("lpm", "h", "a")], [clone, group, read, meter, drop], drop, with_counters=True)
    b.root["counter_arrays"].append(
        {
            "name": "ingress.t_counter",
            "id": len(b.root["counter_arrays"]),
            "is_direct": True,
            "binding": "ingress.t",
        }
    )
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


COMMANDS = {
    "an lpm table takes a prefix length, and no priority": """
        add t 7 a:0x08/5 read(i:0)
        packet 0 0f01
        expect 1 0f00$
        packet 0 1001
        """,
    "clones to a group whose nodes come later": """
        add t a:0x01 clone()
        mirroring_add_mc 5 3
        mc_mgrp_create 3
        mc_node_create 9 4 6 4
        mc_node_associate 3 0
        packet 0 0177
        expect 4 0177$
        expect 6 0177
        """,
    "a group whose node changes": """
        add t a:0x02 group(g:3)
        mc_mgrp_create 3
        mc_node_create 9 4
        mc_node_associate 3 0
        mc_node_update 0 5
        packet 0 0277
        expect 5
        """,
    "a session that is to a port again, then gone": """
        add t a:0x01 clone()
        mc_mgrp_create 3
        mirroring_add_mc 5 3
        mirroring_add 5 8
        mirroring_get 5
        packet 0 0101
        expect 8 0101
        mirroring_delete 5
        packet 0 0102
        """,
    "registers and counters by the tail of their name": """
        add t a:0x03 read(i:2) = three  # a comment, "quoted" too
        register_write r 2 0x2a
        register_read r 2
        counter_write c 2 7 100
        check_counter c(2) packets == 7
        check_counter ingress.c(2) BYTES == 100
        packet 0 0300
        expect 1 032a
        check_counter c(2) packets == 8
        check_counter c(2) bytes == 102
        counter_write t_counter 0 5 50
        check_counter t_counter($three) bytes == 50
        register_reset r
        PACKET 0 0300
        Expect 1 0300
        """,
    "meters in units a microsecond, committed first": """
        add t a:0x04 meter(i:1)
        add t a:0x05 meter(i:2)
        meter_set_rates m 1 0.0:1 0.0:2
        meter_get_rates m 1
        packet 0 0400
        packet 0 0400
        packet 0 0400
        packet 0 0500
        expect 1 0400
        expect 1 0401
        expect 1 0402
        expect 1 0500
        meter_array_set_rates m 0.0:0 0.0:0
        packet 0 0500
        expect 1 0502
        """,
    "entries that are removed": """
        add t a:0x02 group(g:3)
        remove all
        packet 0 0277
        no_packet
        """,
    "decimals with leading zeros": """
        add t a:007 read(i:00)
        packet 0 0700
        expect 1 0700
        """,
}


@pytest.mark.parametrize("what", COMMANDS)
def test_commands(what: str) -> None:
    with SwitchDevice.load(replicated().json) as d:
        result = StfRunner(d).run(COMMANDS[what])
    assert result.passed, result.failures


def test_a_file_about_counters_alone() -> None:
    text = "add t a:5 forward(port:7) = e\npacket 0 0506\ncheck_counter c($e) packets == 1"
    with SwitchDevice.load(program().json) as d:
        assert StfRunner(d).run(text).passed
    with SwitchDevice.load(program().json) as d:
        assert not StfRunner(d).run("no_packet\n" + text).passed


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
    ("text", "empty"),
    [
        ("", True),
        ("# nothing\nadd t a:5 forward(port:7)\nno_packet", True),
        ("packet 0 0606", False),
        ("check_counter own(0) packets == 0", False),
        ("expect 7 05", False),
    ],
)
def test_a_file_that_checks_nothing_passes_and_says_so(text: str, empty: bool) -> None:
    b = program()
    b.counter("own", 1)
    with SwitchDevice.load(b.json) as d:
        result = StfRunner(d).run(text)
    assert result.passed is (result.verdict().startswith("passed"))
    assert ("no packet was sent or expected and no counter checked" in result.verdict()) is empty
    assert result.passed or not empty


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("frobnicate 1", "unknown command"),
        ("add nowhere a:5 forward(port:1)", "the program has no single table 'nowhere', it has .*t: "),
        ("add t a:5 fly(port:1)", "table .*t has no single action 'fly', it has .*forward"),
        ("add t a:5 forward()", "needs port"),
        ("add t a:5 forward(port:1, way:2)", "no parameter way"),
        ("add t q:5 forward(port:1)", r"no single key 'q', it has h\.a"),
        ("add t a:0x5/4 forward(port:1)", "only lpm"),
        ("add t", "something is missing at its end"),
        ("packet 1 020", "'020' is no packet: write two hexadecimal digits for each byte"),
        ("packet 1 0200zz", "'0200zz' is no packet"),
        ("add t a:x forward(port:1)", "x is no number"),
        ("packet 512 00", "port 512 is not in 0..511"),
        ("expect -1 00", "port -1 is not in 0..511"),
        (f"frobnicate {'x' * 1000}", "unknown command .{100,140}$"),
        ("packet 0 0", "hex"),
        ("expect 0 0g", "hex digits"),
        ("mc_node_associate 3 0", "no multicast group 3"),
        ("remove t", "remove all"),
        ("counter_write t_counter 4 1 1", "no number 4"),
    ],
)
def test_bad_lines_are_named(line: str, why: str) -> None:
    with SwitchDevice.load(program().json) as d, pytest.raises(StfError, match=f"line 2: .*{why}"):
        StfRunner(d).run(f"\n{line}")


def test_source_reads_as_file_and_line() -> None:
    assert str(Source("a.p4", 3, 1, "x")) == "a.p4:3"
    assert extract("h")["op"] == "extract"
