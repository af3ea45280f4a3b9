# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server over real gRPC: arbitration, pipelines, streams. Entities: test_p4runtime_entities."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2 as p4
from p4runtime_sh.p4runtime import P4RuntimeClient

from switch.p4runtime import codec
from switch.p4runtime.arbitration import Client
from switch.p4runtime.errors import RpcError
from tests.switch.p4rt import (
    CPU_PORT,
    DELETE,
    DEVICE_ID,
    FIXTURES,
    INSERT,
    MODIFY,
    Controller,
    Served,
    ethernet,
    group,
    octets,
    p4info,
    program,
    table,
    update,
)

Connect = Callable[..., Controller]


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def connect(served: Served) -> Iterator[Connect]:
    clients: list[Controller] = []

    def make(election: int = 0, **options: Any) -> Controller:
        clients.append(Controller(served.address, election, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def primary(connect: Connect) -> Controller:
    client = connect(1)
    assert client.arbitrate().status.code == 0
    client.set_pipeline()
    return client


def code(call: Callable[[], object]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    name: str = caught.value.code().name
    return name


# ---- arbitration


def test_highest_election_id_is_primary(connect: Connect) -> None:
    low, high = connect(5), connect(2**64 + 1)
    first = low.arbitrate()
    assert (first.status.code, first.status.message, first.device_id) == (0, "Is primary", DEVICE_ID)
    assert high.arbitrate().status.message == "Is primary"
    told = low.receive().arbitration
    assert (told.status.code, told.status.message) == (6, "Is backup")
    assert (told.election_id.high, told.election_id.low) == (1, 1)
    middle = connect(6)
    assert middle.arbitrate().status.code == 6


def test_next_highest_becomes_primary(connect: Connect) -> None:
    one, two, three = connect(1), connect(2), connect(3)
    for client in (one, two, three):
        client.arbitrate()
    one.receive(), one.receive(), two.receive()
    three.close()
    assert two.receive().arbitration.status.message == "Is primary"
    backup = one.receive().arbitration
    assert (backup.status.message, backup.election_id.low) == ("Is backup", 2)
    two.half_close()
    assert one.receive().arbitration.status.message == "Is primary"


def test_duplicate_election_id_closes_the_stream(connect: Connect) -> None:
    first, second = connect(4), connect(4)
    first.arbitrate()
    assert code(second.arbitrate) == "INVALID_ARGUMENT"
    first.election = p4.Uint128(low=5)
    assert first.arbitrate().election_id.low == 5


def test_only_the_primary_writes(connect: Connect) -> None:
    primary, backup, stranger = connect(9), connect(8), connect(0)
    primary.arbitrate(), backup.arbitrate()
    assert code(backup.set_pipeline) == "PERMISSION_DENIED"
    assert code(stranger.set_pipeline) == "PERMISSION_DENIED"
    primary.set_pipeline()
    assert code(lambda: backup.write(update(INSERT))) == "PERMISSION_DENIED"
    assert backup.read(p4.Entity(table_entry=p4.TableEntry()))


def drop(client: Controller, mac: int) -> p4.Update:
    return table(INSERT, client.entry("l2", {1: ("exact", mac)}, client.action("drop")))


def test_each_role_has_a_primary(served: Served, connect: Connect) -> None:
    default, first, second = connect(5), connect(5, role="routes"), connect(3, role="routes")
    assert [client.arbitrate().status.code for client in (default, first)] == [0, 0]
    answer = second.arbitrate()
    assert (answer.status.code, answer.election_id.low, answer.role.name) == (6, 5, "routes")
    default.set_pipeline()
    first.write(drop(first, 1))
    default.write(drop(default, 2))
    assert code(lambda: second.write(drop(second, 3))) == "PERMISSION_DENIED"
    assert code(lambda: connect(5, role="nobody").write(drop(first, 3))) == "PERMISSION_DENIED"
    default.write(table(INSERT, default.entry("l2", {1: ("exact", 9)}, default.action("to_controller", 1))))
    served.receive(1, ethernet(9))
    assert [client.receive().packet.payload for client in (default, first)] == [ethernet(9)] * 2
    first.close()
    assert second.receive().arbitration.status.code == 0
    second.write(drop(second, 3))


def test_a_stream_keeps_its_role(connect: Connect) -> None:
    client = connect(1, role="routes")
    client.arbitrate()
    client.role = "acls"
    assert code(client.arbitrate) == "FAILED_PRECONDITION"
    other = connect(1)
    update = p4.MasterArbitrationUpdate(device_id=DEVICE_ID, election_id=p4.Uint128(low=1))
    update.role.config.type_url = "type.googleapis.com/some.Scheme"
    other.send(arbitration=update)
    assert code(other.receive) == "INVALID_ARGUMENT"


def test_without_streams_no_election_id_is_needed(connect: Connect) -> None:
    client = connect(0)
    client.set_pipeline()
    client.write(table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("drop"))))
    assert code(lambda: connect(3).write()) == "PERMISSION_DENIED"


def test_other_devices_are_not_found(connect: Connect) -> None:
    client = connect(1, device_id=8)
    assert code(client.arbitrate) == "NOT_FOUND"
    assert code(client.set_pipeline) == "NOT_FOUND"
    assert code(client.get_pipeline) == "NOT_FOUND"
    assert code(lambda: client.read(p4.Entity())) == "NOT_FOUND"
    assert code(lambda: client.write()) == "NOT_FOUND"


def test_a_client_that_does_not_read_loses_packets_only() -> None:
    client = Client(limit=2)
    message = p4.StreamMessageResponse()
    assert [client.put(message) for _ in range(3)] == [True, True, False]
    assert client.put(message, droppable=False)
    client.close(RpcError(grpc.StatusCode.ABORTED, "why"))
    client.close()
    assert [client.get() for _ in range(3)] == [message] * 3
    with pytest.raises(RpcError, match="why"):
        client.get()
    assert client.lost == 1


# ---- pipelines


def test_before_a_pipeline_everything_is_refused(connect: Connect) -> None:
    client = connect(1)
    client.arbitrate()
    assert code(lambda: client.read(p4.Entity())) == "FAILED_PRECONDITION"
    assert code(lambda: client.write()) == "FAILED_PRECONDITION"
    assert code(client.get_pipeline) == "FAILED_PRECONDITION"
    assert client.stub.Capabilities(p4.CapabilitiesRequest()).p4runtime_api_version == "1.3.0"


def test_config_is_given_back(primary: Controller) -> None:
    primary.set_pipeline(cookie=77)
    whole = primary.get_pipeline()
    assert (whole.p4info, whole.p4_device_config, whole.cookie.cookie) == (p4info(), program(), 77)
    parts = {
        kind: primary.get_pipeline(kind)
        for kind in ("COOKIE_ONLY", "P4INFO_AND_COOKIE", "DEVICE_CONFIG_AND_COOKIE")
    }
    assert {kind: bool(part.p4_device_config) for kind, part in parts.items()} == {
        "COOKIE_ONLY": False,
        "P4INFO_AND_COOKIE": False,
        "DEVICE_CONFIG_AND_COOKIE": True,
    }
    assert [part.HasField("p4info") for part in parts.values()] == [False, True, False]
    assert all(part.cookie.cookie == 77 for part in parts.values())


def other_sizes() -> Any:
    info = p4info()
    info.counters[0].size += 1
    return info


def other_key() -> Any:
    info = p4info()
    del info.tables[0].match_fields[0]
    return info


def other_scope() -> Any:
    info = p4info()
    info.tables[0].action_refs[0].scope = 9
    return info


@pytest.mark.parametrize(
    "config",
    [
        {"json": b"no json"},
        {"json": b""},
        {"json": b'{"program": '},
        {"p4info": other_sizes()},
        {"p4info": other_key()},
        {"p4info": other_scope()},
        {"p4info": p4info().__class__(actions=[{"preamble": {"id": 1}}, {"preamble": {"id": 1}}])},
    ],
)
def test_a_wrong_config_changes_nothing(primary: Controller, config: dict[str, Any]) -> None:
    primary.write(table(INSERT, primary.entry("l2", {1: ("exact", 1)}, primary.action("drop"))))
    for action in ("VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT", "RECONCILE_AND_COMMIT"):
        assert code(partial(primary.set_pipeline, action, **config)) == "INVALID_ARGUMENT"
    assert len(primary.read(p4.Entity(table_entry=primary.entry("l2")))) == 1


def test_verify_save_commit(served: Served, primary: Controller) -> None:
    entry = primary.entry("l2", {1: ("exact", 1)}, primary.action("forward", 3))
    everything = p4.Entity(table_entry=primary.entry("l2"))
    primary.write(table(INSERT, entry))
    primary.set_pipeline("VERIFY")
    assert len(primary.read(everything)) == 1
    assert code(lambda: primary.set_pipeline("COMMIT")) == "NOT_FOUND"
    primary.set_pipeline("VERIFY_AND_SAVE")
    assert not primary.read(everything)
    assert served.receive(1, ethernet(1))[0][0] == 3
    entry.action.CopyFrom(primary.action("forward", 4))
    primary.write(table(INSERT, entry))
    assert served.receive(1, ethernet(1))[0][0] == 3
    assert code(lambda: primary.set_pipeline("COMMIT", json=program())) == "INVALID_ARGUMENT"
    primary.set_pipeline("COMMIT")
    assert served.receive(1, ethernet(1))[0][0] == 4
    primary.set_pipeline()
    assert not primary.read(everything)


def test_a_config_that_no_check_foresaw_is_still_an_answer(
    served: Served, primary: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last net: a fault of ours while loading is INVALID_ARGUMENT, and what ran goes on."""
    caplog.set_level(logging.CRITICAL, logger="switch.p4runtime")
    for name, error, want in (
        ("switch.device.generate", TypeError("unhashable"), "INVALID_ARGUMENT"),
        ("switch.p4runtime.service.P4InfoView", KeyError("x"), "INVALID_ARGUMENT"),
        ("switch.p4runtime.target.agree", IndexError("x"), "INVALID_ARGUMENT"),
        ("switch.device.build", OSError(28, "No space left on device"), "INTERNAL"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(grpc.RpcError) as caught:
                primary.set_pipeline()
        assert caught.value.code().name == want
        assert str(error) in caught.value.details()
    primary.write(table(INSERT, primary.entry("l2", {1: ("exact", 1)}, primary.action("drop"))))
    primary.set_pipeline()


def test_reconcile_keeps_the_forwarding_state(served: Served, primary: Controller) -> None:
    primary.write(
        table(INSERT, primary.entry("l2", {1: ("exact", 1)}, primary.action("flood", 6), metadata=b"m")),
        table(INSERT, primary.entry("routes", {1: ("lpm", 0x0A000000, 8)}, primary.action("forward", 5))),
        update(INSERT, packet_replication_engine_entry=group(6, [(2, 1), (3, 1)])),
        update(
            MODIFY,
            meter_entry=p4.MeterEntry(
                meter_id=primary.id("meters", "port_meter"),
                index=p4.Index(index=3),
                config=p4.MeterConfig(cir=1000, cburst=10, pir=2000, pburst=20),
            ),
        ),
    )
    served.receive(1, ethernet(1))
    whole = [
        p4.Entity(table_entry=p4.TableEntry(counter_data=p4.CounterData())),
        p4.Entity(counter_entry=p4.CounterEntry()),
        p4.Entity(meter_entry=p4.MeterEntry()),
        p4.Entity(packet_replication_engine_entry=group(0, [])),
    ]
    before = primary.read(*whole)
    primary.set_pipeline("RECONCILE_AND_COMMIT")
    assert primary.read(*whole) == before
    assert [port for port, _ in served.receive(1, ethernet(1))] == [2, 3]


def test_reconcile_refuses_what_does_not_fit(primary: Controller) -> None:
    primary.write(table(INSERT, primary.entry("l2", {1: ("exact", 1)}, primary.action("drop"))))
    less = p4info()
    del less.tables[:]
    assert code(lambda: primary.set_pipeline("RECONCILE_AND_COMMIT", p4info=less)) == "INVALID_ARGUMENT"
    assert len(primary.read(p4.Entity(table_entry=primary.entry("l2")))) == 1


# ---- packets


def test_packet_in_carries_the_header(served: Served, primary: Controller) -> None:
    primary.write(table(INSERT, primary.entry("l2", {1: ("exact", 9)}, primary.action("to_controller", 6))))
    served.dataplane.receive(257, ethernet(9))
    packet = primary.receive().packet
    assert packet.payload == ethernet(9)
    assert {m.metadata_id: m.value for m in packet.metadata} == {1: octets(257), 2: b"\6", 3: b"\0"}


def test_packet_out_leaves_where_it_says(served: Served, primary: Controller) -> None:
    packet = p4.PacketOut(payload=ethernet(1))
    packet.metadata.add(metadata_id=1, value=octets(300))
    primary.send(packet=packet)
    # The stream is served in order: when the second one is refused, the first is out.
    primary.send(packet=p4.PacketOut(metadata=[p4.PacketMetadata(metadata_id=99)]))
    assert primary.receive().HasField("error")
    assert served.out == [(300, ethernet(1))]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ([(9, b"\1")], "unknown metadata id 9"),
        ([(1, b"\2\0")], "does not fit within 9 bits"),
        ([(1, b"")], "empty"),
        ([(1, b"\1"), (1, b"\1")], "twice"),
    ],
)
def test_a_wrong_packet_out_is_answered(
    served: Served, primary: Controller, metadata: list[tuple[int, bytes]], why: str
) -> None:
    packet = p4.PacketOut(payload=b"x" * 60)
    for number, value in metadata:
        packet.metadata.add(metadata_id=number, value=value)
    primary.send(packet=packet)
    error = primary.receive().error
    assert (error.canonical_code, error.packet_out.packet_out) == (3, packet)
    assert why in error.message
    assert not served.out


def test_a_backup_sends_no_packets(connect: Connect, primary: Controller) -> None:
    backup = connect(0)
    backup.arbitrate()
    backup.send(packet=p4.PacketOut(payload=b"x"))
    assert backup.receive().error.canonical_code == 7


@given(
    st.lists(
        st.integers(1, 40).flatmap(lambda b: st.tuples(st.integers(0, 2**b - 1), st.just(b))), min_size=1
    )
)
def test_header_bits_equal_a_string_of_bits(fields: list[tuple[int, int]]) -> None:
    text = "".join(f"{value:0{bits}b}" for value, bits in fields)
    text += "0" * (-len(text) % 8)
    packed = codec.pack_bits(fields)
    assert packed == bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    assert codec.unpack_bits(packed, [bits for _, bits in fields]) == [value for value, _ in fields]


# ---- a client that others wrote


def test_p4runtime_shells_client(served: Served) -> None:
    client = P4RuntimeClient(DEVICE_ID, served.address, (0, 1))
    try:
        client.set_fwd_pipe_config(FIXTURES / "forward.p4info.txtpb", FIXTURES / "forward.json")
        assert client.get_p4info() == p4info()
        assert client.api_version() == "1.3.0"
        names = Controller(served.address)
        entry = names.entry("l2", {1: ("exact", 9)}, names.action("to_controller", 1))
        client.write_update(table(INSERT, entry))
        (response,) = client.read_one(p4.Entity(table_entry=p4.TableEntry(table_id=entry.table_id)))
        assert [entity.table_entry for entity in response.entities] == [entry]
        served.dataplane.receive(1, ethernet(9))
        assert client.get_stream_packet("packet", timeout=10).packet.payload == ethernet(9)
        client.write_update(table(DELETE, entry))
        names.close()
    finally:
        client.tear_down()
    assert CPU_PORT not in [port for port, _ in served.out]
