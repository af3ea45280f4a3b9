# SPDX-License-Identifier: Apache-2.0
"""Counters, meters, registers, multicast groups and clone sessions over P4Runtime."""

from __future__ import annotations

from p4.v1 import p4runtime_pb2 as p4

from tests.switch.p4rt import (
    DELETE,
    INSERT,
    MODIFY,
    Controller,
    Served,
    ethernet,
    group,
    ipv4,
    octets,
    read_table,
    session,
    table,
    update,
)

# ---- counters, meters, registers


def test_counters(served: Served, client: Controller) -> None:
    counter_id = client.id("counters", "port_counter")

    def cells(index: int | None) -> list[tuple[int, int, int]]:
        wanted = p4.CounterEntry(counter_id=counter_id)
        if index is not None:
            wanted.index.index = index
        return [
            (entry.index.index, entry.data.packet_count, entry.data.byte_count)
            for entry in (entity.counter_entry for entity in client.read(p4.Entity(counter_entry=wanted)))
        ]

    for _ in range(3):
        served.receive(4, ethernet(1))
    assert cells(4) == [(4, 3, 3 * len(ethernet(1)))]
    assert cells(None) == [(n, *((3, 63) if n == 4 else (0, 0))) for n in range(512)]
    entry = p4.CounterEntry(
        counter_id=counter_id, index=p4.Index(index=9), data=p4.CounterData(packet_count=7, byte_count=8)
    )
    client.write(update(MODIFY, counter_entry=entry))
    assert cells(9) == [(9, 7, 8)]
    entry.ClearField("index")
    client.write(update(MODIFY, counter_entry=entry))
    assert {cell[1:] for cell in cells(None)} == {(7, 8)}
    entry.index.index = 512
    refused = client.refused(update(MODIFY, counter_entry=entry), update(INSERT, counter_entry=entry))
    assert [code for code, _ in refused] == ["OUT_OF_RANGE", "INVALID_ARGUMENT"]


def test_direct_counters(served: Served, client: Controller) -> None:
    entries = [client.entry("l2", {1: ("exact", n)}, client.action("drop")) for n in (1, 2)]
    client.write(*[table(INSERT, entry) for entry in entries])
    served.receive(1, ethernet(2))
    served.receive(1, ethernet(2))
    size = len(ethernet(2))
    wanted = p4.DirectCounterEntry(table_entry=client.entry("l2", {1: ("exact", 2)}))
    (single,) = client.read(p4.Entity(direct_counter_entry=wanted))
    data = single.direct_counter_entry.data
    assert (data.packet_count, data.byte_count) == (2, 2 * size)
    for table_entry in (client.entry("l2"), p4.TableEntry()):
        found = client.read(p4.Entity(direct_counter_entry=p4.DirectCounterEntry(table_entry=table_entry)))
        assert [entity.direct_counter_entry.data.packet_count for entity in found] == [0, 2]
    wanted.data.packet_count = 40
    client.write(update(MODIFY, direct_counter_entry=wanted))
    (entry,) = read_table(client, "l2", match={1: ("exact", 2)}, counter_data=p4.CounterData())
    assert (entry.counter_data.packet_count, entry.counter_data.byte_count) == (40, 0)
    client.write(table(MODIFY, entries[1]))
    (entry,) = read_table(client, "l2", match={1: ("exact", 2)}, counter_data=p4.CounterData())
    assert entry.counter_data.packet_count == 40
    wanted.table_entry.match[0].exact.value = b"\x09"
    assert client.refused(update(MODIFY, direct_counter_entry=wanted))[0][0] == "NOT_FOUND"
    wanted.table_entry.CopyFrom(client.entry("routes", {1: ("lpm", 0x0A000000, 8)}))
    assert client.refused(update(MODIFY, direct_counter_entry=wanted))[0][0] == "INVALID_ARGUMENT"


def test_meters_drop_what_is_too_much(served: Served, client: Controller) -> None:
    rates = p4.MeterConfig(cir=1, cburst=30, pir=1, pburst=60)
    entry = p4.MeterEntry(meter_id=client.id("meters", "port_meter"), index=p4.Index(index=3), config=rates)
    forward = client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))
    client.write(table(INSERT, forward), update(MODIFY, meter_entry=entry))
    assert [e.meter_entry for e in client.read(p4.Entity(meter_entry=entry))] == [entry]
    # 21 bytes each: green, yellow, then nothing left of the peak burst of 60.
    sent = [len(served.receive(3, ethernet(1))) for _ in range(4)]
    assert sent == [1, 1, 0, 0]
    entry.ClearField("config")
    client.write(update(MODIFY, meter_entry=entry))
    assert len(served.receive(3, ethernet(1))) == 1
    assert not client.read(p4.Entity(meter_entry=entry))[0].meter_entry.HasField("config")
    whole = client.read(p4.Entity(meter_entry=p4.MeterEntry(meter_id=entry.meter_id)))
    assert len(whole) == 16
    entry.config.cir = -2
    entry.index.index = 1
    assert client.refused(update(MODIFY, meter_entry=entry))[0][0] == "INVALID_ARGUMENT"


def test_direct_meters(served: Served, client: Controller) -> None:
    flow = {1: ("exact", 0x0A000001), 2: ("exact", 5)}
    entry = client.entry("flows", flow, client.action("police"))
    entry.meter_config.CopyFrom(p4.MeterConfig(cir=1, cburst=1, pir=1, pburst=2))
    client.write(table(INSERT, client.entry("routes", {}, client.action("forward", 1))), table(INSERT, entry))
    assert [len(served.receive(3, ipv4(5))) for _ in range(4)] == [1, 1, 0, 0]
    wanted = p4.DirectMeterEntry(table_entry=client.entry("flows", flow))
    (read,) = client.read(p4.Entity(direct_meter_entry=wanted))
    assert read.direct_meter_entry.config == entry.meter_config
    client.write(update(MODIFY, direct_meter_entry=wanted))
    assert len(served.receive(3, ipv4(5))) == 1
    (entry,) = read_table(client, "flows", meter_config=p4.MeterConfig())
    assert not entry.HasField("meter_config")


def test_registers(served: Served, client: Controller) -> None:
    register = client.id("registers", "last_source")
    served.receive(2, ethernet(1, src=0x0200_0000_00AB))
    entry = p4.RegisterEntry(register_id=register, index=p4.Index(index=2))
    assert client.read(p4.Entity(register_entry=entry))[0].register_entry.data.bitstring == octets(
        0x0200_0000_00AB
    )
    entry.ClearField("index")
    entry.data.bitstring = b"\x05"
    client.write(update(MODIFY, register_entry=entry))
    found = client.read(p4.Entity(register_entry=p4.RegisterEntry()))
    assert [e.register_entry.data.bitstring for e in found] == [b"\x05"] * 8
    entry.index.index = 8
    assert client.refused(update(MODIFY, register_entry=entry))[0][0] == "OUT_OF_RANGE"
    entry.data.bitstring = b"\1" + bytes(6)
    assert client.refused(update(MODIFY, register_entry=entry))[0][0] == "INVALID_ARGUMENT"


# ---- replication


def test_multicast_groups(served: Served, client: Controller) -> None:
    client.write(
        update(INSERT, packet_replication_engine_entry=group(5, [(1, 10), (2, 20), (2, 21)])),
        table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("flood", 5))),
    )
    expected = [(port, ethernet(1, src=rid)) for port, rid in ((1, 10), (2, 20), (2, 21))]
    assert served.receive(9, ethernet(1)) == expected
    client.write(update(MODIFY, packet_replication_engine_entry=group(5, [(3, 30)])))
    assert served.receive(9, ethernet(1)) == [(3, ethernet(1, src=30))]
    for number in (0, 5):
        found = client.read(p4.Entity(packet_replication_engine_entry=group(number, [])))
        assert [e.packet_replication_engine_entry for e in found] == [group(5, [(3, 30)])]
    refused = client.refused(
        update(INSERT, packet_replication_engine_entry=group(5, [])),
        update(MODIFY, packet_replication_engine_entry=group(6, [])),
        update(DELETE, packet_replication_engine_entry=group(6, [])),
        update(INSERT, packet_replication_engine_entry=group(0, [])),
        update(INSERT, packet_replication_engine_entry=group(2**16, [])),
        update(INSERT, packet_replication_engine_entry=group(6, [(1, 1), (1, 1)])),
        update(INSERT, packet_replication_engine_entry=group(6, [(1, 2**16)])),
        update(DELETE, packet_replication_engine_entry=group(5, [])),
    )
    assert [code for code, _ in refused] == [
        "ALREADY_EXISTS",
        "NOT_FOUND",
        "NOT_FOUND",
        "INVALID_ARGUMENT",
        "OUT_OF_RANGE",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "OK",
    ]
    assert served.receive(9, ethernet(1)) == []


def test_clone_sessions(served: Served, client: Controller) -> None:
    client.write(
        table(INSERT, client.entry("routes", {}, client.action("forward", 1))),
        table(INSERT, client.entry("acl", {}, client.action("mirror", 100), priority=1)),
    )
    frame = ipv4(7)
    assert served.receive(9, frame) == [(1, frame)]
    client.write(update(INSERT, packet_replication_engine_entry=session(100, [(4, 0)])))
    assert sorted(served.receive(9, frame)) == [(1, frame), (4, frame)]
    short = session(100, [(4, 0)], packet_length_bytes=20)
    client.write(update(MODIFY, packet_replication_engine_entry=short))
    assert sorted(served.receive(9, frame)) == [(1, frame), (4, frame[:20])]
    for number in (0, 100):
        found = client.read(p4.Entity(packet_replication_engine_entry=session(number, [])))
        assert [e.packet_replication_engine_entry for e in found] == [short]
    refused = client.refused(
        update(INSERT, packet_replication_engine_entry=short),
        update(INSERT, packet_replication_engine_entry=session(0, [])),
        update(INSERT, packet_replication_engine_entry=session(2**15, [])),
        update(INSERT, packet_replication_engine_entry=session(3, [], class_of_service=1)),
        update(DELETE, packet_replication_engine_entry=session(4, [])),
        update(DELETE, packet_replication_engine_entry=session(100, [])),
    )
    assert [code for code, _ in refused] == [
        "ALREADY_EXISTS",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "UNIMPLEMENTED",
        "NOT_FOUND",
        "OK",
    ]
    assert served.receive(9, frame) == [(1, frame)]
