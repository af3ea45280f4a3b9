# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors, in process: who is named by whom, and which member a packet gets."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import pytest

from switch.device import Exact, Group, Lpm, Member, SwitchDevice, Ternary
from switch.errors import BadAction, Immutable, InUse, LoadError, NoSuchEntry, NoSuchObject
from tests.switch.p4rt import FIXTURES
from tests.switch.programs import Builder

HOPS, REWRITES = "ingress.hops", "ingress.rewrites"
ROUTE, BY_PORT, BY_TYPE = "ingress.route", "ingress.by_port", "ingress.by_type"


@pytest.fixture
def device() -> Iterator[SwitchDevice]:
    with SwitchDevice.load(FIXTURES / "groups.json") as loaded:
        yield loaded


def frame(dst: int = 0x0A, flow: int = 0, port: int = 0, odd: int = 0, mark: int = 0, kind: int = 7) -> bytes:
    bits = flow << 32 | port << 16 | odd << 4 | mark
    return dst.to_bytes(6, "big") + bytes(6) + kind.to_bytes(2, "big") + bits.to_bytes(8, "big") + b"rest"


def key_hash(flow: int, port: int, odd: int) -> int:
    """The selector's: crc32 over 32 + 16 + 12 bits, filled up with zeroes to whole bytes."""
    return zlib.crc32((flow << 32 | port << 16 | odd << 4).to_bytes(8, "big"))


def ports(device: SwitchDevice, data: bytes, ingress: int = 1) -> list[int]:
    return [port for port, _ in device.process([(ingress, data)])]


def test_a_group_spreads_packets_by_the_hash(device: SwitchDevice) -> None:
    members = [device.member_add(HOPS, "ingress.forward", [10 + i]) for i in range(5)]
    group = device.group_add(HOPS, members[1:])
    device.table_insert(ROUTE, [Lpm(0, 0)], Group(group))
    r = random.Random(1)
    for _ in range(200):
        flow, port, odd = r.getrandbits(32), r.getrandbits(16), r.getrandbits(12)
        out = ports(device, frame(flow=flow, port=port, odd=odd, mark=r.getrandbits(4)))
        assert out == [11 + key_hash(flow, port, odd) % 4]


def test_changes_reach_packets_at_once(device: SwitchDevice) -> None:
    first, second = (device.member_add(HOPS, "ingress.forward", [p]) for p in (3, 4))
    group = device.group_add(HOPS, [first])
    entry = device.table_insert(ROUTE, [Lpm(0, 0)], Group(group))
    assert ports(device, frame()) == [3]
    device.group_set(HOPS, group, [second])
    assert ports(device, frame()) == [4]
    device.member_modify(HOPS, second, "ingress.reach", [5, 0xABCDEF])
    assert [(5, frame(dst=0xABCDEF))] == device.process([(1, frame())])
    device.table_modify(ROUTE, entry, Member(first))
    assert ports(device, frame()) == [3]
    assert device.table_entries(ROUTE)[0].action == Member(first)
    device.table_delete(ROUTE, entry)
    assert ports(device, frame()) == [0]


def test_an_empty_group_does_nothing_and_counts_as_a_hit(device: SwitchDevice) -> None:
    entry = device.table_insert(ROUTE, [Lpm(0, 0)], Group(device.group_add(HOPS)))
    assert device.process([(1, frame())]) == [(0, frame())]
    assert device.direct_counter_read(ROUTE, entry) == (1, len(frame()))


def test_tables_of_one_profile_have_actions_and_next_nodes_of_their_own(device: SwitchDevice) -> None:
    out = device.member_add(HOPS, "ingress.forward", [2])
    away = device.member_add(HOPS, "ingress.reach", [3, 0xB])
    device.table_insert(ROUTE, [Lpm(0xA, 48)], Member(out))
    device.table_insert(ROUTE, [Lpm(0xB, 48)], Member(away))
    mark = device.member_add(REWRITES, "ingress.mark", [9])
    device.table_insert(BY_PORT, [Exact(1)], Member(mark))
    device.table_insert(BY_TYPE, [Ternary(7, 0xFFFF)], Member(mark), priority=1)
    assert device.process([(1, frame(0xA)), (2, frame(0xA))]) == [(2, frame(0xA, mark=9)), (2, frame(0xA))]
    assert device.process([(2, frame(0xB)), (1, frame(0xB, kind=8))]) == [
        (3, frame(0xB, mark=9)),
        (3, frame(0xB, kind=8)),
    ]
    source = device.member_add(REWRITES, "ingress.set_source", [0x010203040506])
    device.table_modify(BY_PORT, device.table_entries(BY_PORT)[0].handle, Member(source))
    assert device.process([(1, frame(0xA))])[0][1][6:12] == bytes(range(1, 7))


def test_what_is_named_stays(device: SwitchDevice) -> None:
    member = device.member_add(HOPS, "ingress.drop")
    group = device.group_add(HOPS, [member, member])
    assert device.groups(HOPS) == {group: (member,)}
    with pytest.raises(InUse, match="named by 1"):
        device.member_delete(HOPS, member)
    entry = device.table_insert(ROUTE, [Lpm(0, 0)], Group(group))
    other = device.table_insert(ROUTE, [Lpm(0, 1)], Member(member))
    with pytest.raises(InUse):
        device.group_delete(HOPS, group)
    device.table_modify(ROUTE, entry, Member(member))
    device.group_delete(HOPS, group)
    with pytest.raises(InUse, match="named by 2"):
        device.member_delete(HOPS, member)
    device.table_delete(ROUTE, entry)
    device.table_delete(ROUTE, other)
    device.member_delete(HOPS, member)
    assert device.members(HOPS) == {}


def test_handles_are_the_lowest_free_ones(device: SwitchDevice) -> None:
    assert [device.member_add(HOPS, "ingress.drop") for _ in range(3)] == [0, 1, 2]
    device.member_delete(HOPS, 1)
    assert device.member_add(HOPS, "ingress.forward", [7]) == 1
    assert device.members(HOPS)[1] == ("ingress.forward", (7,))
    assert [device.group_add(HOPS, [1]) for _ in range(2)] == [0, 1]
    device.reset()
    assert (device.members(HOPS), device.groups(HOPS)) == ({}, {})
    assert device.member_add(HOPS, "ingress.drop") == 0


def test_refusals(device: SwitchDevice) -> None:
    member = device.member_add(REWRITES, "ingress.mark", [1])
    with pytest.raises(BadAction, match=r"has no action 'ingress\.forward'"):
        device.member_add(REWRITES, "ingress.forward", [1])
    with pytest.raises(BadAction, match="4 bits"):
        device.member_modify(REWRITES, member, "ingress.mark", [16])
    with pytest.raises(NoSuchObject, match="no selector"):
        device.group_add(REWRITES, [member])
    with pytest.raises(NoSuchObject, match=r"there are ingress\.hops"):
        device.member_add("nothing", "ingress.mark", [1])
    for call in (
        lambda: device.member_delete(REWRITES, 5),
        lambda: device.group_add(HOPS, [0]),
        lambda: device.group_set(HOPS, 0, []),
        lambda: device.group_delete(HOPS, 0),
        lambda: device.table_insert(ROUTE, [Lpm(0, 0)], Group(0)),
        lambda: device.table_insert(BY_PORT, [Exact(0)], Member(9)),
    ):
        with pytest.raises(NoSuchEntry):
            call()
    with pytest.raises(BadAction, match="Member or Group"):
        device.table_insert(BY_PORT, [Exact(0)], "ingress.mark", [1])
    with pytest.raises(BadAction, match="no arguments"):
        device.table_insert(BY_PORT, [Exact(0)], Member(member), [1])
    with pytest.raises(Immutable):
        device.table_set_default(BY_PORT, "ingress.mark", [1])
    assert device.table_entries(BY_PORT) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"action_profile": "nothing"}, "no profile 'nothing'"),
        ({"action_profile": "plain"}, "does not fit"),
        ({"type": "odd"}, "'odd' is unknown"),
        ({"actions": ["other"], "action_ids": [1], "next_tables": {"other": None}}, "other actions"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], why: str) -> None:
    b = Builder()
    b.state("start", [])
    for number, name in enumerate(("act", "other")):
        b.root["actions"].append({"name": name, "id": number, "runtime_data": [], "primitives": []})
    selector = {"algo": "crc16", "input": [{"type": "field", "value": ["standard_metadata", "ingress_port"]}]}
    b.root["pipelines"][0]["action_profiles"] = [
        {"name": "spread", "id": 0, "max_size": 4, "selector": selector},
        {"name": "plain", "id": 1, "max_size": 4},
    ]
    for number, name in enumerate(("first", "second")):
        table = {
            "name": name, "id": number, "key": [], "match_type": "exact", "type": "indirect_ws",
            "action_profile": "spread", "actions": ["act"], "action_ids": [0], "next_tables": {"act": None},
            **(change if name == "second" else {}),
        }  # fmt: skip
        b.root["pipelines"][0]["tables"].append(table)
    with pytest.raises(LoadError, match=why):
        SwitchDevice.load(b.json)
