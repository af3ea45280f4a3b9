# SPDX-License-Identifier: Apache-2.0
"""What the switch tells the primary by itself, value sets, and direct resources of default entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4

from switch.device import Exact, SwitchDevice
from switch.p4runtime.digests import Digests
from switch.p4runtime.errors import RpcError
from switch.p4runtime.idle import IdleEntries
from switch.p4runtime.p4info import P4InfoView
from tests.switch.p4rt import (
    DELETE,
    FIXTURES,
    INSERT,
    MODIFY,
    Controller,
    Served,
    octets,
    p4info,
    program,
    read_table,
    table,
    update,
)
from tests.switch.test_notify import SOURCES, Clock, frame, tagged

HOUR = 3600 * 10**9


@pytest.fixture
def client() -> Iterator[Controller]:
    """The primary of a switch of its own, as `client.served`."""
    served = Served()
    client = Controller(served.address, 1)
    client.served = served  # type: ignore[attr-defined]
    client.info = p4info("notify")
    client.arbitrate()
    client.set_pipeline(p4info=client.info, json=program("notify"))
    yield client
    client.close()
    served.close()


@pytest.fixture
def served(client: Controller) -> Served:
    served: Served = client.served  # type: ignore[attr-defined]
    return served


# ---- digests


def digest(client: Controller, name: str = "learn_t", **config: int) -> dict[str, Any]:
    entry = p4.DigestEntry(digest_id=client.id("digests", name), config=p4.DigestEntry.Config(**config))
    return {"digest_entry": entry}


def values(message: p4.DigestList) -> list[tuple[bytes, ...]]:
    return [tuple(member.bitstring for member in one.struct.members) for one in message.data]


def learned(src: int, dst: int = 6, port: int = 3) -> tuple[bytes, ...]:
    return octets(src), octets(port), octets(0xABCD0000 << 48 | dst)


def test_each_sample_arrives_at_once(served: Served, client: Controller) -> None:
    served.receive(3, frame(src=99))  # nobody wants it yet
    client.write(update(INSERT, **digest(client)))
    for number, src in enumerate((1, 2, 1, 0), start=1):
        served.receive(3, frame(src=src))
        message = client.receive().digest
        assert message.digest_id == client.id("digests", "learn_t")
        assert (message.list_id, values(message), message.timestamp > 0) == (number, [learned(src)], True)


def test_lists_hold_distinct_samples(served: Served, client: Controller) -> None:
    client.write(update(INSERT, **digest(client, max_list_size=3, max_timeout_ns=HOUR, ack_timeout_ns=HOUR)))
    for src in (1, 2, 1, 1, 3, 1, 4, 5, 2, 6):
        served.receive(3, frame(src=src))
    lists = [client.receive().digest for _ in range(2)]
    assert [values(one) for one in lists] == [
        [learned(n) for n in (1, 2, 3)],
        [learned(n) for n in (4, 5, 6)],
    ]
    client.send(digest_ack=p4.DigestListAck(digest_id=lists[0].digest_id, list_id=1))
    client.send(digest_ack=p4.DigestListAck(digest_id=77, list_id=1))
    error = client.receive().error
    assert (error.canonical_code, error.digest_list_ack.digest_list_ack.digest_id) == (3, 77)
    for src in (4, 3, 2, 6, 1):  # 4 and 6 wait for their acknowledgement
        served.receive(3, frame(src=src))
    assert values(client.receive().digest) == [learned(n) for n in (3, 2, 1)]


def test_bools_and_other_digests(served: Served, client: Controller) -> None:
    client.write(update(INSERT, **digest(client, "seen_t")))
    served.receive(3, frame(src=1))
    served.receive(3, frame(0x9999))
    message = client.receive().digest
    assert message.digest_id == client.id("digests", "seen_t")
    kind, flag = message.data[0].struct.members
    assert (kind.WhichOneof("data"), kind.bitstring) == ("bitstring", b"\x99\x99")
    assert (flag.WhichOneof("data"), flag.bool) == ("bool", False)


def test_digest_entries(client: Controller) -> None:
    config = digest(client, max_list_size=5, max_timeout_ns=7, ack_timeout_ns=9)
    everything = p4.Entity(digest_entry=p4.DigestEntry())
    one = p4.Entity(digest_entry=p4.DigestEntry(digest_id=client.id("digests", "learn_t")))
    cases = [
        ("NOT_FOUND", update(MODIFY, **config)),
        ("NOT_FOUND", update(DELETE, **config)),
        ("INVALID_ARGUMENT", update(INSERT, **digest(client, max_timeout_ns=-1))),
        ("INVALID_ARGUMENT", update(INSERT, digest_entry=p4.DigestEntry(digest_id=5))),
    ]
    assert [code for code, _ in client.refused(*[case for _, case in cases])] == [code for code, _ in cases]
    assert client.read(everything) == []
    with pytest.raises(Exception, match="not configured"):
        client.read(one)
    client.write(update(INSERT, **config))
    assert client.refused(update(INSERT, **config))[0][0] == "ALREADY_EXISTS"
    assert client.read(everything) == client.read(one) == [p4.Entity(**config)]
    config["digest_entry"].config.max_list_size = 6
    client.write(update(MODIFY, **config))
    client.set_pipeline("RECONCILE_AND_COMMIT", p4info=client.info, json=program("notify"))
    assert client.read(one) == [p4.Entity(**config)]
    client.write(update(DELETE, **config))
    assert client.read(everything) == []


def test_times_of_digests() -> None:
    view = P4InfoView(p4info("notify"))
    with SwitchDevice.load(FIXTURES / "notify.json") as device:
        digests = Digests(view, device)
        assert digests.poll(0) == ([], None)
        learn = next(number for number, one in view.digests.items() if one.name == "learn_t")
        config = p4.DigestEntry.Config(max_timeout_ns=1000, ack_timeout_ns=5000)
        digests.write(INSERT, p4.DigestEntry(digest_id=learn, config=config))

        def poll(now: int, *sources: int) -> list[list[tuple[bytes, ...]]]:
            device.process([(3, frame(src=src)) for src in sources])
            return [values(one) for one in digests.poll(now)[0]]

        assert poll(100, 1, 2) == []
        assert poll(1099, 3) == []
        assert poll(1100) == [[learned(1), learned(2), learned(3)]]
        assert poll(6000, 1, 4) == []
        assert poll(6100, 2) == []  # what was sent at 1100 may come again from here on
        assert poll(7000) == [[learned(4), learned(2)]]
        assert poll(7001, 1) == []
        assert poll(9000) == [[learned(1)]]


# ---- idle timeouts


def source(client: Controller, address: int, timeout: int = 0, **rest: Any) -> p4.TableEntry:
    return client.entry(
        "sources", {1: ("exact", address)}, client.action("known"), idle_timeout_ns=timeout, **rest
    )


def test_idle_entries_are_told_again_and_again(client: Controller) -> None:
    quick = source(client, 1, 1_000_000, metadata=b"cookie", controller_metadata=7)
    slow = source(client, 2, HOUR)
    client.write(table(INSERT, quick), table(INSERT, slow), table(INSERT, source(client, 3)))
    assert read_table(client, "sources") == [quick, slow, source(client, 3)]
    expected = p4.TableEntry()
    expected.CopyFrom(quick)
    expected.ClearField("action")
    for _ in range(3):
        message = client.receive().idle_timeout_notification
        assert (list(message.table_entry), message.timestamp > 0) == ([expected], True)
    client.write(table(DELETE, quick))
    client.write(table(MODIFY, source(client, 3, 2_000_000)))
    told = client.receive().idle_timeout_notification.table_entry
    while told[0].match[0].exact.value == b"\x01":  # was on its way
        told = client.receive().idle_timeout_notification.table_entry
    assert [entry.match[0].exact.value for entry in told] == [b"\x03"]


def test_time_since_last_hit(client: Controller) -> None:
    client.write(table(INSERT, source(client, 1)))
    since = p4.TableEntry.IdleTimeout()
    (entry,) = read_table(client, "sources", time_since_last_hit=since)
    assert entry.HasField("time_since_last_hit")
    assert 0 <= entry.time_since_last_hit.elapsed_ns < 60 * 10**9
    everything = client.read(p4.Entity(table_entry=p4.TableEntry(time_since_last_hit=since)))
    assert [entity.table_entry.HasField("time_since_last_hit") for entity in everything] == [True]
    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("destinations", {}),
        ("sources", {"is_default_action": True}),
    ]
    for name, rest in wrongs:
        with pytest.raises(Exception, match="time_since_last_hit"):
            read_table(client, name, time_since_last_hit=since, **rest)


def test_wrong_idle_timeouts(client: Controller) -> None:
    key = {1: ("ternary", 1, 1)}
    other = client.entry("destinations", key, client.action("police", 1), priority=1, idle_timeout_ns=5)
    default = client.entry(
        "sources", action=client.action("known"), is_default_action=True, idle_timeout_ns=5
    )
    negative = source(client, 1, -1)
    refused = client.refused(table(INSERT, other), table(MODIFY, default), table(INSERT, negative))
    assert [code for code, _ in refused] == ["INVALID_ARGUMENT"] * 3


def test_when_entries_are_idle() -> None:
    clock = Clock()
    with SwitchDevice.load(FIXTURES / "notify.json", clock=clock) as device:
        idle = IdleEntries(device)
        first, second = (device.table_insert(SOURCES, [Exact(n)], "ingress.known") for n in (1, 2))

        def poll(ms: int) -> list[int]:
            clock.us = 1000 * ms
            device.process([])
            return [handle for _, handle in idle.poll(10**6 * ms)[0]]

        def hit(ms: int, address: int) -> None:
            clock.us = 1000 * ms
            device.process([(0, frame(src=address))])

        assert idle.poll(0) == ([], None)
        idle.set((SOURCES, first), 100 * 10**6, 0)
        idle.set((SOURCES, second), 150 * 10**6, 0)
        assert idle.poll(0) == ([], 100 * 10**6)
        hit(60, 1)
        assert poll(100) == []
        assert poll(150) == [second]
        assert poll(160) == [first]
        assert poll(259) == []
        assert poll(260) == [first]
        hit(270, 2)
        assert poll(400) == [first]
        assert poll(420) == [second]
        idle.set((SOURCES, first), 0, 0)
        device.table_delete(SOURCES, second)
        assert poll(9000) == []
        assert idle.poll(10**15) == ([], None)


def test_one_look_sees_to_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes wait for it, and all of a large table may be due at once."""
    monkeypatch.setattr("switch.p4runtime.idle.MOST", 3)
    clock = Clock()
    with SwitchDevice.load(FIXTURES / "notify.json", clock=clock) as device:
        idle = IdleEntries(device)
        handles = [device.table_insert(SOURCES, [Exact(n)], "ingress.known") for n in range(5)]
        for handle in handles:
            idle.set((SOURCES, handle), 10**8, 0)
        clock.us = 100_000
        device.process([])
        (first, at_once), (second, later) = idle.poll(10**8), idle.poll(10**8)
        assert (len(first), at_once, later) == (3, 0, 10**8)
        assert [handle for _, handle in first + second] == handles


# ---- value sets


def test_value_sets(served: Served, client: Controller) -> None:
    def members(name: str, *wanted: dict[int, Any]) -> dict[str, Any]:
        entry = p4.ValueSetEntry(value_set_id=client.id("value_sets", name))
        for one in wanted:
            entry.members.add().match.extend(client.entry("sources", one).match)
        return {"value_set_entry": entry}

    tags = members("tags", {1: ("exact", 0x8100)}, {1: ("exact", 0x88A8)})
    inner = members("inner", {1: ("exact", 8), 2: ("ternary", 4, 4), 3: ("range", 5, 9)}, {1: ("exact", 1)})
    client.write(update(MODIFY, **tags), update(MODIFY, **inner))
    packets = [
        tagged(0x8100, 4, 5, 8),
        tagged(0x88A8, 0, 0, 1),
        tagged(0x8100, 3, 5, 8),
        tagged(0x8101, 0, 0, 1),
    ]
    assert [served.receive(3, data)[0][0] for data in packets] == [9, 9, 1, 1]
    assert client.read(p4.Entity(**members("inner"))) == [p4.Entity(**inner)]
    everything = client.read(p4.Entity(value_set_entry=p4.ValueSetEntry()))
    assert {str(entity) for entity in everything} == {str(p4.Entity(**one)) for one in (tags, inner)}
    twice = members("tags", {1: ("exact", 1)}, {1: ("exact", 1)})
    cases = [
        ("INVALID_ARGUMENT", update(INSERT, **tags)),
        ("INVALID_ARGUMENT", update(DELETE, **tags)),
        ("ALREADY_EXISTS", update(MODIFY, **twice)),
        ("RESOURCE_EXHAUSTED", update(MODIFY, **members("tags", *({1: ("exact", n)} for n in range(5))))),
        ("INVALID_ARGUMENT", update(MODIFY, **members("tags", {1: ("ternary", 1, 1)}))),
        ("INVALID_ARGUMENT", update(MODIFY, **members("inner", {2: ("ternary", 1, 1)}))),
    ]
    assert [code for code, _ in client.refused(*[case for _, case in cases])] == [code for code, _ in cases]
    client.set_pipeline("RECONCILE_AND_COMMIT", p4info=client.info, json=program("notify"))
    assert [served.receive(3, data)[0][0] for data in packets] == [9, 9, 1, 1]
    client.write(update(MODIFY, **members("tags")))
    assert [served.receive(3, data)[0][0] for data in packets] == [1, 1, 1, 1]


# ---- direct resources of default entries, counters by color


def test_direct_resources_of_default_entries(served: Served, client: Controller) -> None:
    default = client.entry(
        "destinations", is_default_action=True, meter_config=p4.MeterConfig(cburst=1, pburst=2)
    )
    default.action.CopyFrom(client.action("police", 5))
    client.write(table(MODIFY, default))
    assert [len(served.receive(3, frame(src=1))) for _ in range(3)] == [1, 1, 0]
    size = len(frame())
    wanted = p4.DirectCounterEntry(table_entry=client.entry("sources", is_default_action=True))
    (entity,) = client.read(p4.Entity(direct_counter_entry=wanted))
    data = entity.direct_counter_entry.data
    assert (data.packet_count, data.byte_count) == (3, 3 * size)
    wanted.data.packet_count = 100
    client.write(update(MODIFY, direct_counter_entry=wanted))
    (entry,) = read_table(client, "sources", is_default_action=True, counter_data=p4.CounterData())
    assert entry.counter_data.packet_count == 100

    colors = p4.MeterCounterData()
    for one in (colors.green, colors.yellow, colors.red):
        one.packet_count, one.byte_count = 1, size
    asked = {"meter_config": p4.MeterConfig(), "meter_counter_data": p4.MeterCounterData()}
    (entry,) = read_table(client, "destinations", is_default_action=True, **asked)
    assert (entry.meter_config, entry.meter_counter_data) == (default.meter_config, colors)
    meter = p4.DirectMeterEntry(table_entry=client.entry("destinations", is_default_action=True))
    meter.counter_data.SetInParent()
    (entity,) = client.read(p4.Entity(direct_meter_entry=meter))
    assert (entity.direct_meter_entry.config, entity.direct_meter_entry.counter_data) == (
        default.meter_config,
        colors,
    )
    meter.counter_data.CopyFrom(colors)
    assert client.refused(update(MODIFY, direct_meter_entry=meter))[0][0] == "INVALID_ARGUMENT"
    meter.counter_data.Clear()
    client.write(update(MODIFY, direct_meter_entry=meter))
    (entity,) = client.read(p4.Entity(direct_meter_entry=meter))
    assert not entity.direct_meter_entry.HasField("config")
    assert entity.direct_meter_entry.counter_data.green.packet_count == 0

    client.write(table(MODIFY, default), table(MODIFY, client.entry("destinations", is_default_action=True)))
    (entry,) = read_table(client, "destinations", is_default_action=True, meter_config=p4.MeterConfig())
    assert not entry.HasField("meter_config")
    assert served.receive(3, frame())[0][0] == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info.digests[0].type_spec.struct.Clear(),
        lambda info: info.value_sets[0].match.add(id=2, bitwidth=3, match_type=2),
        lambda info: setattr(info.tables[1], "idle_timeout_behavior", 1),
    ],
)
def test_a_p4info_of_another_program(change: Callable[[Any], None], client: Controller) -> None:
    info = p4info("notify")
    change(info)
    with pytest.raises(Exception, match="of different programs"):
        client.set_pipeline(p4info=info, json=program("notify"))


def test_a_value_set_that_the_p4info_tells_half_of(client: Controller) -> None:
    """p4c leaves out structs within a value set's struct (pvs-nested-struct): bmv2 loads such a program."""
    info = p4info("notify")
    inner = next(s for s in info.value_sets if s.preamble.name.endswith("inner"))
    del inner.match[1]
    client.set_pipeline(p4info=info, json=program("notify"))
    entry = p4.ValueSetEntry(value_set_id=inner.preamble.id)
    (found,) = client.read(p4.Entity(value_set_entry=entry))
    assert not found.value_set_entry.members
    entry.members.add().match.extend(client.entry("sources", {1: ("exact", 8)}).match)
    ((code, message),) = client.refused(update(MODIFY, value_set_entry=entry))
    assert code == "UNIMPLEMENTED"
    assert "more parts than the 2" in message


def test_values_that_cannot_be_sent() -> None:
    info = p4info("notify")
    learn = info.digests[0]
    info.type_info.structs["learn_t"].members[0].type_spec.header.name = "h"
    view = P4InfoView(info)
    with SwitchDevice.load(FIXTURES / "notify.json") as device:
        with pytest.raises(RpcError, match="learn_t"):
            Digests(view, device).write(INSERT, p4.DigestEntry(digest_id=learn.preamble.id))
