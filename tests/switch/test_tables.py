# SPDX-License-Identifier: Apache-2.0
"""Tables of every match kind against a list that is searched in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switch.device import Exact, Lpm, MatchValue, Range, SwitchDevice, Ternary
from switch.errors import (
    BadAction,
    BadKey,
    DuplicateEntry,
    Immutable,
    NoSuchEntry,
    NoSuchObject,
    TableFull,
)
from tests.switch.programs import META, Builder, arg, assign, const, field, key, pack, simple, to_port, unpack

FIELDS = [("a", 8), ("w", 100), ("r", 12), ("result", 24)]
WIDTH = {f[0]: f[1] for f in FIELDS}
TABLES = {
    "exact": ["exact:a", "exact:w"],
    "lpm": ["exact:a", "lpm:w"],
    "ternary": ["ternary:a", "ternary:w"],
    "range": ["range:r", "ternary:a", "range:w"],
}


def program(kinds: Sequence[str], **more: Any) -> Builder:
    b = simple(FIELDS)
    hit = b.action("hit", [assign(field("h", "result"), arg(0)), to_port(1)], [("v", 24)])
    miss = b.action("miss", [assign(field("h", "result"), const(0xFFFFFF)), to_port(2)])
    keys = [key(k.split(":")[0], "h", k.split(":")[1]) for k in kinds]
    b.table("t", keys, [hit, miss], miss, **more)
    return b


@pytest.fixture(scope="module", params=list(TABLES))
def device(request: pytest.FixtureRequest) -> Iterator[tuple[str, SwitchDevice]]:
    with SwitchDevice.load(program(TABLES[request.param]).json) as d:
        yield request.param, d


def corners(width: int) -> list[int]:
    return [0, 1, 2, (1 << width) - 1, 1 << (width - 1)]


def few(width: int) -> st.SearchStrategy[int]:
    """Values that often coincide."""
    return st.one_of(st.sampled_from(corners(width)), st.integers(0, (1 << width) - 1))


def match_of(kind: str, width: int) -> st.SearchStrategy[MatchValue]:
    if kind == "exact":
        return few(width).map(Exact)
    if kind == "lpm":
        return st.builds(Lpm, few(width), st.integers(0, width))
    if kind == "ternary":
        return st.builds(Ternary, few(width), few(width))
    return st.tuples(few(width), few(width)).map(lambda p: Range(min(p), max(p)))


def fits(m: MatchValue, value: int, width: int) -> bool:
    if isinstance(m, Exact):
        return m.value == value
    if isinstance(m, Lpm):
        return (m.value ^ value) >> (width - m.prefix_len) == 0
    if isinstance(m, Ternary):
        return (m.value ^ value) & m.mask == 0
    return m.low <= value <= m.high


def weight(entry: tuple[list[MatchValue], int, int]) -> int:
    lengths = [m.prefix_len for m in entry[0] if isinstance(m, Lpm)]
    return lengths[0] if lengths else entry[1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_lookups(device: tuple[str, SwitchDevice], data: st.DataObject) -> None:
    kind, d = device
    d.reset()
    names = [k.split(":") for k in TABLES[kind]]
    widths = [WIDTH[n] for _, n in names]
    priority = kind in ("ternary", "range")
    entries: list[tuple[list[MatchValue], int, int]] = []
    handles = []
    for i in range(data.draw(st.integers(0, 12))):
        match = [data.draw(match_of(k, w)) for (k, _), w in zip(names, widths, strict=True)]
        weight_ = data.draw(st.integers(1, 4)) if priority else 0
        try:
            handles.append(d.table_insert("t", match, "hit", [i], weight_ if priority else None))
        except DuplicateEntry:
            continue
        entries.append((match, weight_, i))
    shrink = data.draw(st.booleans())
    if entries and shrink:
        gone = data.draw(st.integers(0, len(entries) - 1))
        d.table_delete("t", handles.pop(gone))
        entries.pop(gone)
    assert [e.args for e in d.table_entries("t")] == [(i,) for _, _, i in entries]
    packets, expected = [], []
    r = random.Random(data.draw(st.integers(0, 1 << 32)))  # drawing each value would take most of the time
    for _ in range(20):
        values = {n: r.choice([*corners(w), r.getrandbits(w)]) for n, w in WIDTH.items() if n != "result"}
        chosen = r.randint(0, 2 * len(entries))
        for entry in entries[chosen : chosen + 1]:
            for m, (_, n) in zip(entry[0], names, strict=True):
                values[n] = m.low if isinstance(m, Range) else m.value  # often a hit
        packets.append((0, pack(FIELDS, [values["a"], values["w"], values["r"], 0])))
        found = [
            e
            for e in entries
            if all(fits(m, values[n], WIDTH[n]) for m, (_, n) in zip(e[0], names, strict=True))
        ]
        best = max(found, key=weight, default=None)  # the first of equals
        expected.append(0xFFFFFF if best is None else best[2])
    got = [unpack(FIELDS, out)[3] for _, out in d.process(packets)]
    assert got == expected


def test_ten_thousand_entries_of_each_kind() -> None:
    for kind in ("exact", "lpm", "ternary"):
        with SwitchDevice.load(program([f"{kind}:w"], max_size=20000).json) as d:
            for i in range(10000):
                v = i << 40
                m = (
                    Exact(v)
                    if kind == "exact"
                    else Lpm(v, 60)
                    if kind == "lpm"
                    else Ternary(v, (1 << 60) - 1 << 40)
                )
                d.table_insert("t", [m], "hit", [i], 5 if kind == "ternary" else None)
            packets = [(0, pack(FIELDS, [0, i << 40, 0, 0])) for i in range(0, 10000, 7)]
            assert [unpack(FIELDS, o)[3] for _, o in d.process(packets)] == list(range(0, 10000, 7))


def result(d: SwitchDevice, a: int) -> int:
    ((_, out),) = d.process([(0, pack(FIELDS, [a, 0, 0, 0]))])
    return unpack(FIELDS, out)[3]


@pytest.fixture
def small() -> Iterator[SwitchDevice]:
    with SwitchDevice.load(program(["exact:a"], max_size=2, with_counters=True).json) as d:
        yield d


def test_modify_delete_and_find(small: SwitchDevice) -> None:
    handle = small.table_insert("t", [Exact(5)], "hit", [9])
    assert result(small, 5) == 9
    small.table_modify("t", handle, "hit", [10])
    assert result(small, 5) == 10
    assert small.table_find("t", [Exact(5)]) == handle
    assert small.table_find("t", [Exact(6)]) is None
    assert small.direct_counter_read("t", handle) == (2, 2 * sum(f[1] for f in FIELDS) // 8)
    small.direct_counter_write("t", handle, 7, 8)
    assert small.direct_counter_read("t", handle) == (7, 8)
    small.table_delete("t", handle)
    assert result(small, 5) == 0xFFFFFF
    with pytest.raises(NoSuchEntry):
        small.table_delete("t", handle)
    with pytest.raises(NoSuchEntry):
        small.direct_counter_read("t", handle)


def test_defaults(small: SwitchDevice) -> None:
    assert small.table_get_default("t") == ("miss", ())
    small.table_set_default("t", "hit", [3])
    assert (result(small, 1), small.table_get_default("t")) == (3, ("hit", (3,)))
    small.table_reset_default("t")
    assert result(small, 1) == 0xFFFFFF


def test_what_a_table_refuses(small: SwitchDevice) -> None:
    small.table_insert("t", [Exact(1)], "hit", [1])
    with pytest.raises(DuplicateEntry, match="modify it"):
        small.table_insert("t", [Exact(1)], "hit", [2])
    with pytest.raises(BadKey, match="8 bits"):
        small.table_insert("t", [Exact(256)], "hit", [2])
    with pytest.raises(BadKey, match="Exact"):
        small.table_insert("t", [Lpm(1, 8)], "hit", [2])
    with pytest.raises(BadKey, match="1 keys"):
        small.table_insert("t", [], "hit", [2])
    with pytest.raises(BadKey, match="no priority"):
        small.table_insert("t", [Exact(2)], "hit", [2], priority=1)
    with pytest.raises(BadAction, match="24 bits"):
        small.table_insert("t", [Exact(2)], "hit", [1 << 24])
    with pytest.raises(BadAction, match="1 arguments"):
        small.table_insert("t", [Exact(2)], "hit", [])
    with pytest.raises(BadAction, match="hit, miss"):
        small.table_insert("t", [Exact(2)], "fly", [])
    with pytest.raises(NoSuchObject, match="'u'"):
        small.table_insert("u", [Exact(2)], "hit", [1])
    small.table_insert("t", [Exact(2)], "hit", [2])
    with pytest.raises(TableFull, match="2 entries"):
        small.table_insert("t", [Exact(3)], "hit", [3])
    assert [result(small, a) for a in (1, 2, 3)] == [1, 2, 0xFFFFFF]
    small.reset()
    assert result(small, 1) == 0xFFFFFF


def test_const_entries_and_bmv2_priorities() -> None:
    def entry(value: int, mask: int, arg_: int, priority: int) -> dict[str, object]:
        match = {"match_type": "ternary", "key": hex(value), "mask": hex(mask)}
        return {
            "match_key": [match],
            "action_entry": {"action_id": 0, "action_data": [hex(arg_)]},
            "priority": priority,
        }

    entries = [
        entry(0x10, 0xF0, 1, 3),
        entry(0x12, 0xFF, 2, 2),
        entry(0x13, 0xFF, 3, 9),
        entry(0x13, 0xFE, 4, 9),
    ]
    with SwitchDevice.load(program(["ternary:a"], entries=entries).json) as d:
        # the smaller number wins, the earlier entry among equals
        assert [result(d, a) for a in (0x11, 0x12, 0x13, 0x20)] == [1, 2, 1, 0xFFFFFF]
        assert all(e.const for e in d.table_entries("t"))
        for change in (
            lambda: d.table_insert("t", [Ternary(0, 0)], "hit", [1], 1),
            lambda: d.table_delete("t", d.table_entries("t")[0].handle),
            lambda: d.table_modify("t", d.table_entries("t")[0].handle, "hit", [1]),
        ):
            with pytest.raises(Immutable):
                change()


def test_a_const_default_stays() -> None:
    default = {"action_id": 1, "action_const": True, "action_data": [], "action_entry_const": True}
    with SwitchDevice.load(program(["exact:a"], default_entry=default).json) as d, pytest.raises(Immutable):
        d.table_set_default("t", "hit", [1])


def test_a_key_of_an_invalid_header_reads_as_zero() -> None:
    b = simple([("a", 8)])
    b.header("other", [("x", 8)])
    hit = b.action("hit", [to_port(5)])
    miss = b.action("miss", [to_port(6)])
    b.run("set", [assign(field("other", "x"), const(9))])
    b.table("t", [key("exact", "other", "x")], [hit, miss], miss)
    with SwitchDevice.load(b.json) as d:
        d.table_insert("t", [Exact(0)], "hit")
        assert d.process([(0, b"\x01")]) == [(5, b"\x01")]


@pytest.mark.parametrize(
    ("kind", "match", "priority"),
    [
        ("exact", Exact(0x35), None),
        ("lpm", Lpm(0x35, 8), None),
        ("ternary", Ternary(0x35, 0xFF), 1),
        ("range", Range(0x35, 0x35), 1),
    ],
)
def test_a_mask_of_the_key_holds_for_entries_too(kind: str, match: MatchValue, priority: int | None) -> None:
    b = program([f"{kind}:a"])
    b.root["pipelines"][0]["tables"][0]["key"][0]["mask"] = "0x0f"
    with SwitchDevice.load(b.json) as d:
        handle = d.table_insert("t", [match], "hit", [1], priority)
        found = [a for a in range(256) if result(d, a) == 1]
        # simple_switch masks where a range starts, not where it ends
        assert found == [a for a in range(256) if (a & 0xF >= 5 if kind == "range" else a & 0xF == 5)]
        if kind == "exact":
            assert d.table_find("t", [Exact(0xF5)], None) == handle
            with pytest.raises(DuplicateEntry):
                d.table_insert("t", [Exact(0xF5)], "hit", [2])


def test_hit_and_miss_lead_to_different_nodes() -> None:
    b = program(["exact:a"])
    ingress = b.root["pipelines"][0]
    b.run("hit_only", [to_port(3)])
    b.run("miss_only", [to_port(4)])
    tables = {t["name"]: t for t in ingress["tables"]}
    tables["t"]["next_tables"] = {"__HIT__": "tbl_hit_only", "__MISS__": "tbl_miss_only"}
    tables["tbl_hit_only"]["next_tables"] = {"hit_only": None}
    with SwitchDevice.load(b.json) as d:
        d.table_insert("t", [Exact(1)], "hit", [1])
        ports = [p for p, _ in d.process([(0, pack(FIELDS, [a, 0, 0, 0])) for a in (1, 2)])]
    assert ports == [3, 4]
    assert META == "standard_metadata"
