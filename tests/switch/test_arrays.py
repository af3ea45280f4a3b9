# SPDX-License-Identifier: Apache-2.0
"""Counters, registers, meters."""

from __future__ import annotations

import numpy as np
import pytest

from switch.device import Exact, MeterRates, SwitchDevice
from switch.errors import BadIndex, NoSuchObject
from tests.switch.programs import (
    META,
    Builder,
    arg,
    assign,
    call,
    const,
    expr,
    field,
    key,
    pack,
    simple,
    to_port,
    unpack,
    value,
)

WIDTHS = [1, 8, 9, 16, 32, 33, 64, 65, 128, 136, 500]


@pytest.mark.parametrize("width", WIDTHS)
def test_registers_hold_their_width(width: int) -> None:
    fields = [("i", 8), ("new", width), ("old", width), ("pad", -2 * width % 8 or 8)]
    b = simple(fields)
    for name in ("before", "r", "after"):
        b.register(name, width, 3)
    r = value("register_array", "r")
    body = [
        call("register_read", field("h", "old"), r, field("h", "i")),
        call("register_write", r, field("h", "i"), expr("+", field("h", "new"), const(1))),
        to_port(1),
    ]
    b.run("body", body)
    top = (1 << width) - 1
    with SwitchDevice.load(b.json) as d:
        d.register_write("before", 1, top)
        d.register_write("after", 1, top)
        d.register_write("r", 1, top & 0x5A5A5A5A5A5A5A5A5A5A)
        packets = [
            (0, pack(fields, [i, new, 1, 0]))
            for i, new in ((1, 0), (1, top), (1, 5), (3, 9), (0, 1), (255, 2))
        ]
        old = [unpack(fields, out)[2] for _, out in d.process(packets)]
        # beyond the array nothing is read or written, and the field keeps its value
        assert old == [top & 0x5A5A5A5A5A5A5A5A5A5A, 1, 0, 1, 0, 1]
        assert d.register_read_range("r", 0, 3) == [2 & top, 6 & top, 0]
        assert d.register_read_range("before", 0, 3) == d.register_read_range("after", 0, 3) == [0, top, 0]
        with pytest.raises(BadIndex):
            d.register_write("r", 0, top + 1)
        with pytest.raises(BadIndex):
            d.register_read("r", 3)
        with pytest.raises(NoSuchObject, match="after, before, r"):
            d.register_read("q", 0)
        d.reset()
        assert d.register_read_range("before", 0, 3) == [0, 0, 0]


def adder(elements: int, slots: int) -> Builder:
    """Adds `elements` values to the registers of a slot and answers with the sums."""
    fields = [("i", 16), *[(f"v{k}", 32) for k in range(elements)]]
    b = simple(fields)
    b.header("m", [("t", 32)], metadata=True)
    body = []
    for k in range(elements):
        b.register(f"r{k}", 32, slots)
        r, v = value("register_array", f"r{k}"), field("h", f"v{k}")
        body += [
            call("register_read", field("m", "t"), r, field("h", "i")),
            assign(v, expr("&", expr("+", v, field("m", "t")), const(0xFFFFFFFF))),
            call("register_write", r, field("h", "i"), v),
        ]
    b.run("add", [*body, to_port(1)])
    return b


def test_a_slot_of_registers_adds_like_numpy() -> None:
    rng = np.random.default_rng(5)
    slots, elements, n = 8, 64, 400
    sums = np.zeros((slots, elements), np.uint32)
    with SwitchDevice.load(adder(elements, slots).json) as d:
        index = rng.integers(0, slots + 2, n)
        values = rng.integers(0, 1 << 32, (n, elements), dtype=np.uint32)
        packets = [
            (0, int(i).to_bytes(2, "big") + v.astype(">u4").tobytes())
            for i, v in zip(index, values, strict=True)
        ]
        stale = 0  # the last value read: what an index beyond the array adds
        for (_, out), i, v in zip(d.process(packets), index, values, strict=True):
            got = np.frombuffer(out[2:], ">u4")
            if i < slots:
                sums[i] += v
                assert np.array_equal(got, sums[i])
            else:
                assert np.array_equal(got, v + np.uint32(stale))
        for k in (0, 17, elements - 1):
            assert d.register_read_range(f"r{k}", 0, slots) == sums[:, k].tolist()


def test_counters() -> None:
    b = simple([("i", 32)], [call("count", value("counter_array", "c"), field("h", "i")), to_port(1)])
    b.counter("c", 100000)
    with SwitchDevice.load(b.json) as d:
        d.process([(0, i.to_bytes(4, "big") + bytes(i % 7)) for i in (0, 5, 5, 99999, 100000, 2**32 - 1)])
        assert d.counter_read("c", 5) == (2, 2 * 9)
        assert d.counter_read("c", 99999) == (1, 4 + 99999 % 7)
        everything = d.counter_read_all("c")
        assert everything.shape == (100000, 2)
        assert everything[:, 0].sum() == 4
        d.counter_write("c", 7, 3, 2**64 - 1)
        assert d.counter_read("c", 7) == (3, 2**64 - 1)
        for bad in (
            lambda: d.counter_read("c", 100000),
            lambda: d.counter_read("c", -1),
            lambda: d.counter_write("c", 0, -1, 0),
        ):
            with pytest.raises(BadIndex):
                bad()
        with pytest.raises(NoSuchObject):
            d.counter_read("x", 0)


class Bucket:
    """RFC 2698, colour blind, peak asked first; whole tokens since the start."""

    def __init__(self, rates: MeterRates) -> None:
        self.limits = [(rates.pir, rates.pburst, 2), (rates.cir, rates.cburst, 1)]
        self.tokens = [rates.pburst, rates.cburst]
        self.given = [0, 0]

    def run(self, now_us: int, units: int) -> int:
        for k, (rate, burst, colour) in enumerate(self.limits):
            total = int(now_us * (rate / 1e6))
            self.tokens[k] = min(burst, self.tokens[k] + total - self.given[k])
            self.given[k] = total
            if self.tokens[k] < units:
                return colour
            self.tokens[k] -= units
        return 0


@pytest.mark.parametrize("kind", ["packets", "bytes"])
def test_meters(kind: str) -> None:
    b = simple([("c", 8)])
    b.meter("m", 4, kind)
    b.run("body", [call("execute_meter", value("meter_array", "m"), const(2), field("h", "c")), to_port(1)])
    unit = 1 if kind == "packets" else 100
    rates = MeterRates(cir=1000.0 * unit, cburst=5 * unit, pir=2000.0 * unit, pburst=10 * unit)
    now = [0]
    with SwitchDevice.load(b.json, clock=lambda: now[0]) as d:
        assert d.process([(0, b"\x07" + bytes(99))])[0][1][0] == 0  # unconfigured is green
        assert d.meter_get("m", 2) is None
        d.meter_set("m", 2, rates)
        assert d.meter_get("m", 2) == rates
        model = Bucket(rates)
        rng = np.random.default_rng(1)
        colours = set()
        for _ in range(300):
            now[0] += int(rng.choice([0, 0, 250, 500, 1000, 20000]))
            got = d.process([(0, b"\x07" + bytes(99))])[0][1][0]
            assert got == model.run(now[0], unit)
            colours.add(got)
        assert colours == {0, 1, 2}
        d.meter_set("m", 2, None)
        assert d.meter_get("m", 2) is None
        with pytest.raises(BadIndex):
            d.meter_set("m", 2, MeterRates(2.0, 1, 1.0, 1))
        with pytest.raises(BadIndex):
            d.meter_get("m", 4)


def test_direct_meters() -> None:
    b = simple([("a", 8), ("c", 8)])
    b.root["meter_arrays"].append(
        {
            "name": "dm",
            "id": 0,
            "size": 16,
            "is_direct": True,
            "rate_count": 2,
            "type": "packets",
            "binding": "t",
            "result_target": ["h", "c"],
        }
    )
    forward = b.action("forward", [assign(field(META, "egress_spec"), arg(0))], [("port", 9)])
    b.table(
        "t",
        [key("exact", "h", "a")],
        [forward],
        forward,
        direct_meters="dm",
        default_entry={
            "action_id": forward,
            "action_const": False,
            "action_data": ["0x9"],
            "action_entry_const": False,
        },
    )
    with SwitchDevice.load(b.json, clock=lambda: 0) as d:
        one = d.table_insert("t", [Exact(1)], "forward", [1])
        two = d.table_insert("t", [Exact(2)], "forward", [2])
        rates = MeterRates(0.0, 1, 0.0, 2)
        d.direct_meter_set("t", one, rates)
        assert d.direct_meter_get("t", one) == rates
        assert d.direct_meter_get("t", two) is None
        out = d.process([(0, b"\x01\x07")] * 3 + [(0, b"\x02\x07"), (0, b"\x03\x07")])
        assert out == [
            (1, b"\x01\x00"),
            (1, b"\x01\x01"),
            (1, b"\x01\x02"),
            (2, b"\x02\x00"),
            (9, b"\x03\x07"),
        ]
