# SPDX-License-Identifier: Apache-2.0
"""Exact tables with a short key, whose entries stand in an array: against a dict of what is in them."""

from __future__ import annotations

import random

import pytest

from switch.device import Exact, SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.switch.programs import arg, assign, const, field, key, pack, simple, to_port, unpack

FIELDS = [("a", 8), ("p", 9), ("pad", 7), ("s", 16), ("t", 17), ("pad2", 7), ("result", 24)]
MISS = 0xFFFFFF


def program(*keys: str, match: str = "exact") -> str:
    b = simple(FIELDS)
    hit = b.action("hit", [assign(field("h", "result"), arg(0)), to_port(1)], [("v", 24)])
    miss = b.action("miss", [assign(field("h", "result"), const(MISS)), to_port(1)])
    b.table("t", [key(match, "h", k) for k in keys], [hit, miss], miss, max_size=70_000)
    return b.json


def answers(d: SwitchDevice, name: str, keys: list[int]) -> list[int]:
    packets = [(0, pack(FIELDS, [k if f == name else 0 for f, _ in FIELDS])) for k in keys]
    return [unpack(FIELDS, data)[-1] for _, data in d.process(packets)]


@pytest.mark.parametrize(("name", "width"), [("p", 9), ("s", 16), ("t", 17)])
def test_entries_come_change_and_go(name: str, width: int) -> None:
    r = random.Random(width)
    corners = [0, 1, 15, 16, 17, (1 << width) - 1]
    handles: dict[int, int] = {}
    wanted: dict[int, int] = {}
    with SwitchDevice.load(program(name)) as d:
        assert answers(d, name, corners) == [MISS] * len(corners)
        for _ in range(400):
            k, v = r.choice([*corners, r.getrandbits(width), r.getrandbits(4)]), r.getrandbits(20)
            if k not in handles:
                handles[k] = d.table_insert("t", [Exact(k)], "hit", [v])
                wanted[k] = v
            elif r.random() < 0.5:
                d.table_modify("t", handles[k], "hit", [v])
                wanted[k] = v
            else:
                d.table_delete("t", handles.pop(k))
                del wanted[k]
            some = [*corners, k, r.choice([*wanted, 0]), r.getrandbits(width)]
            assert answers(d, name, some) == [wanted.get(x, MISS) for x in some]
        for handle in handles.values():
            d.table_delete("t", handle)
        assert answers(d, name, corners) == [MISS] * len(corners)
        d.table_insert("t", [Exact(16)], "hit", [5])
        assert answers(d, name, [15, 16, 17]) == [MISS, 5, MISS]


def test_only_one_short_exact_key_is_an_index() -> None:
    def small(*keys: str, match: str = "exact") -> bool:
        return "sw_lookup_small(t, key[0])" in emit_program(load_program(program(*keys, match=match)))

    assert small("a")
    assert small("s")
    assert not small("t")
    assert not small("a", "a")
    assert not small("s", match="ternary")
