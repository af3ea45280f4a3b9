# SPDX-License-Identifier: Apache-2.0
"""Value sets, the direct resources of default entries, and what meters count by color, in process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switch.device import Colors, Exact, Lpm, MeterRates, Range, SwitchDevice, Ternary
from switch.errors import BadKey, DuplicateEntry, LoadError, NoSuchObject, TableFull
from tests.switch.p4rt import FIXTURES
from tests.switch.programs import Builder, field

SOURCES, DESTINATIONS = "ingress.sources", "ingress.destinations"
TAGS, INNER = "parse.tags", "parse.inner"


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def device(clock: Clock) -> Iterator[SwitchDevice]:
    with SwitchDevice.load(FIXTURES / "notify.json", clock=clock) as loaded:
        yield loaded


def frame(kind: int = 0x1234, src: int = 5, dst: int = 6, tag: bytes = b"") -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + kind.to_bytes(2, "big") + tag + b"payload"


def tagged(kind: int, level: int, vlan: int, inner: int) -> bytes:
    return frame(kind, tag=(level << 28 | vlan << 16 | inner).to_bytes(4, "big"))


def out(device: SwitchDevice, data: bytes) -> int:
    ((port, left),) = device.process([(3, data)])
    assert left == data
    return port


# ---- value sets


def test_a_value_set_leads_the_parser(device: SwitchDevice) -> None:
    data = tagged(0x8100, 7, 100, 0x0800)
    device.value_set(INNER, [(Exact(0x0800), Ternary(0b0101, 0b0101), Range(90, 100))])
    assert out(device, data) == 1
    device.value_set(TAGS, [(Exact(0x8100),), (Exact(0x88A8),)])
    assert device.value_set_get(TAGS) == ((Exact(0x8100),), (Exact(0x88A8),))
    assert out(device, data) == 9
    for other in (
        tagged(0x8101, 7, 100, 0x0800),
        tagged(0x88A8, 7, 101, 0x0800),
        tagged(0x88A8, 7, 89, 0x0800),
        tagged(0x88A8, 6, 95, 0x0800),
        tagged(0x88A8, 7, 95, 0x0801),
    ):
        assert out(device, other) == 1
    assert out(device, tagged(0x88A8, 0b1101, 90, 0x0800)) == 9
    device.value_set(
        INNER, [(Exact(1), Ternary(0, 0), Range(0, 4095)), (Lpm(0x0800, 4), Ternary(0, 0), Exact(3))]
    )
    keys = [(9, 1), (3, 0x0FFF), (3, 0x1000)]
    assert [out(device, tagged(0x8100, 1, vlan, inner)) for vlan, inner in keys] == [9, 9, 1]
    device.reset()
    assert device.value_set_get(INNER) == ()
    assert out(device, data) == 1


def test_wide_keys() -> None:
    b = Builder()
    b.header("h", [("wide", 128), ("wider", 200), ("narrow", 3), ("pad", 5)])
    key = [field("h", name) for name in ("wide", "wider", "narrow")]
    b.root["parse_vsets"] = [{"name": "set", "id": 0, "compressed_bitwidth": 331, "max_size": 2}]
    extract = {"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}
    found = {"type": "parse_vset", "value": "set", "mask": None, "next_state": "found"}
    default = {"type": "default", "value": None, "mask": None, "next_state": None}
    b.state("start", [extract], key, [found, default])
    target, one = field("standard_metadata", "egress_spec"), {"type": "hexstr", "value": "0x1"}
    b.state("found", [{"op": "set", "parameters": [target, one]}])
    wide, wider = 0x0123456789ABCDEF_FEDCBA9876543210, 1 << 198 | 0xABCDEF << 64 | 5
    with SwitchDevice.load(b.json) as device:

        def seen(*values: int) -> int:
            bits = (values[0] << 200 | values[1]) << 8 | values[2] << 5
            ((port, _),) = device.process([(0, bits.to_bytes(42, "big"))])
            return port

        device.value_set("set", [(Exact(wide), Range(wider - 1, wider + 1), Ternary(0b100, 0b100))])
        assert seen(wide, wider, 0b101) == 1
        assert seen(wide, wider + 1, 0b100) == 1
        assert seen(wide, wider + 2, 0b100) == 0
        assert seen(wide, wider ^ 1 << 199, 0b100) == 0
        assert seen(wide ^ 1 << 127, wider, 0b101) == 0
        assert seen(wide, wider - 2, 0b101) == 0
        assert seen(wide, wider - 1, 0b011) == 0


def test_what_a_value_set_refuses(device: SwitchDevice) -> None:
    kept = [(Exact(n),) for n in range(4)]
    device.value_set(TAGS, kept)
    with pytest.raises(TableFull, match="holds 4"):
        device.value_set(TAGS, [(Exact(n),) for n in range(5)])
    with pytest.raises(DuplicateEntry):
        device.value_set(TAGS, [(Exact(1),), (Exact(1),)])
    with pytest.raises(BadKey, match="16 bits"):
        device.value_set(TAGS, [(Exact(1 << 16),)])
    with pytest.raises(BadKey, match="3 components, not 1"):
        device.value_set(INNER, [(Exact(1),)])
    with pytest.raises(NoSuchObject, match=r"there are parse\.inner, parse\.tags"):
        device.value_set("nothing", [])
    assert device.value_set_get(TAGS) == tuple(kept)


def test_keys_of_one_value_set_have_one_shape() -> None:
    b = Builder()
    b.header("h", [("a", 8), ("b", 16)])
    b.root["parse_vsets"] = [{"name": "set", "id": 0, "max_size": 2}]
    found = {"type": "parse_vset", "value": "set", "mask": None, "next_state": "next"}
    b.state("start", [], [field("h", "a")], [found])
    b.state("next", [], [field("h", "b")], [{**found, "next_state": None}])
    with pytest.raises(LoadError, match="'set'"):
        SwitchDevice.load(b.json)


# ---- direct resources of default entries


def test_a_default_entry_counts_misses(device: SwitchDevice) -> None:
    entry = device.table_insert(SOURCES, [Exact(5)], "ingress.known")
    for src in (5, 7, 8, 5, 9):
        out(device, frame(src=src))
    size = len(frame())
    assert device.direct_counter_read(SOURCES, entry) == (2, 2 * size)
    assert device.direct_counter_read(SOURCES, None) == (3, 3 * size)
    device.direct_counter_write(SOURCES, None, 10, 20)
    out(device, frame(src=1))
    assert device.direct_counter_read(SOURCES, None) == (11, 20 + size)
    device.reset()
    assert device.direct_counter_read(SOURCES, None) == (0, 0)


def test_a_default_entry_has_a_meter(device: SwitchDevice) -> None:
    assert [len(device.process([(3, frame())])) for _ in range(4)] == [1] * 4
    device.direct_meter_set(DESTINATIONS, None, MeterRates(0, 2, 0, 3))
    # of three packets at the peak rate two are within the committed burst; the fourth is red, and dropped
    assert [len(device.process([(3, frame())])) for _ in range(4)] == [1, 1, 1, 0]
    assert device.direct_meter_get(DESTINATIONS, None) == MeterRates(0, 2, 0, 3)
    size = len(frame())
    colors = Colors((2, 2 * size), (1, size), (1, size))
    assert device.direct_meter_colors(DESTINATIONS, None) == colors
    device.direct_meter_set(DESTINATIONS, None, None)
    assert len(device.process([(3, frame())])) == 1
    assert device.direct_meter_colors(DESTINATIONS, None) == colors
    assert device.direct_meter_colors(DESTINATIONS, None, Colors((1, 2), (3, 4), (5, 6))).red == (5, 6)
    assert device.direct_meter_colors(DESTINATIONS, None) == Colors((1, 2), (3, 4), (5, 6))


def test_an_entry_without_rates_gives_green(device: SwitchDevice) -> None:
    entry = device.table_insert(DESTINATIONS, [Ternary(6, 0xFF)], "ingress.police", [4], priority=1)
    assert out(device, frame()) == 4
    assert device.direct_meter_colors(DESTINATIONS, entry) == Colors((1, len(frame())), (0, 0), (0, 0))
    assert device.direct_meter_colors(DESTINATIONS, None).green == (0, 0)
