# SPDX-License-Identifier: Apache-2.0
"""Checksums verified on the packet's bytes, and those that must not be: the parser changed a field."""

from __future__ import annotations

import random

import pytest

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.switch.programs import (
    META,
    Builder,
    J,
    assign,
    call,
    const,
    extract,
    field,
    pack,
    to_port,
    value,
)
from tests.switch.test_checksums import csum16

FIELDS = [("v", 4), ("n", 4), ("a", 8), ("b", 16), ("c", 5), ("d", 11), ("sum", 16), ("e", 48), ("bad", 16)]
SUMMED = ("v", "n", "a", "b", "c", "d", "e")


def checked(ops: list[J], summed: tuple[str, ...] = SUMMED) -> str:
    """A program whose parser extracts `lead` and `h`, then does `ops`."""
    b = Builder()
    b.header("lead", [("x", 24)])
    b.header("h", FIELDS)
    b.state("start", [extract("lead"), extract("h"), *ops])
    b.run("body", [assign(field("h", "bad"), field(META, "checksum_error")), to_port(1)])
    b.calculation("calc", "csum16", [field("h", f) for f in summed])
    target = {"target": ["h", "sum"], "type": "generic", "calculation": "calc"}
    b.root["checksums"] = [{"name": "v", "id": 0, **target, "verify": True, "update": False, "if_cond": None}]
    return b.json


def by_bytes(program: str) -> bool:
    c = emit_program(load_program(program))
    return "sw_raw4(" in c[c.index("static void p4_parse(") :]


def verdict(program: str, packets: list[bytes]) -> list[int]:
    with SwitchDevice.load(program) as d:
        return [int.from_bytes(out[-2:], "big") for _, out in d.process([(0, p) for p in packets])]


def packet(values: dict[str, int], total: int, lead: bytes = b"odd") -> bytes:
    return lead + pack(FIELDS, [total if f == "sum" else values.get(f, 0) for f, _ in FIELDS])


def random_values(seed: int) -> dict[str, int]:
    r = random.Random(seed)
    return {f: r.getrandbits(w) for f, w in FIELDS if f in SUMMED}


def summed_bytes(values: dict[str, int], summed: tuple[str, ...] = SUMMED) -> bytes:
    return pack([f for f in FIELDS if f[0] in summed], [values[f] for f in summed])


@pytest.mark.parametrize("seed", range(3))
def test_a_header_as_it_came_is_summed_by_its_bytes(seed: int) -> None:
    values = random_values(seed)
    right = csum16(summed_bytes(values))
    assert by_bytes(checked([]))
    assert verdict(checked([]), [packet(values, right), packet(values, right ^ 0x100)]) == [0, 1]


def test_zeroes_are_right_as_ffff_only() -> None:
    zeroes = dict.fromkeys(SUMMED, 0)
    assert verdict(checked([]), [packet(zeroes, 0xFFFF), packet(zeroes, 0)]) == [0, 1]


def test_fields_that_are_no_whole_words_are_summed_one_by_one() -> None:
    summed = ("a", "b", "e")
    values = random_values(9)
    right = csum16(summed_bytes(values, summed))
    program = checked([], summed)
    assert verdict(program, [packet(values, right), packet(values, right ^ 1)]) == [0, 1]


def test_the_last_of_two_extractions_counts() -> None:
    first, last = random_values(1), random_values(2)
    program = checked([extract("h")])
    data = packet(first, 0) + packet(last, csum16(summed_bytes(last)), b"")
    assert by_bytes(program)
    assert verdict(program, [data]) == [0]


def test_a_field_that_the_parser_sets_is_summed_as_it_is_then() -> None:
    values = random_values(3)
    program = checked([{"op": "set", "parameters": [field("h", "a"), const(7)]}])
    right = csum16(summed_bytes({**values, "a": 7}))
    assert not by_bytes(program)
    assert verdict(program, [packet(values, right)]) == [0]


def test_a_header_that_a_statement_of_the_parser_makes_valid_has_no_bytes() -> None:
    added = call("add_header", value("header", "h"))
    program = checked([{"op": "primitive", "parameters": [added]}])
    values = random_values(4)
    assert not by_bytes(program)
    assert verdict(program, [packet(values, csum16(summed_bytes(values)))]) == [0]
