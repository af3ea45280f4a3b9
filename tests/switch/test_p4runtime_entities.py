# SPDX-License-Identifier: Apache-2.0
"""What can be written and read over P4Runtime, and with which codes a wrong write is refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2 as p4

from switch.p4runtime import codec
from switch.p4runtime.errors import RpcError, clip
from tests.switch.p4rt import (
    DELETE,
    INSERT,
    MODIFY,
    Controller,
    Served,
    ethernet,
    ipv4,
    octets,
    program,
    read_table,
    table,
)

# ---- tables


def test_exact_entries_are_written_read_and_forward(served: Served, client: Controller) -> None:
    entries = [client.entry("l2", {1: ("exact", mac)}, client.action("forward", mac)) for mac in (1, 2, 300)]
    client.write(*[table(INSERT, entry) for entry in entries])
    assert read_table(client, "l2") == entries
    assert read_table(client, "l2", match={1: ("exact", 300)}) == [entries[2]]
    assert read_table(client, "l2", match={1: ("exact", 4)}) == []
    assert served.receive(5, ethernet(300)) == [(300, ethernet(300))]
    entries[2].action.CopyFrom(client.action("forward", 77))
    client.write(table(MODIFY, entries[2]))
    assert served.receive(5, ethernet(300)) == [(77, ethernet(300))]
    client.write(table(DELETE, entries[2]))
    assert served.receive(5, ethernet(300)) == []
    assert read_table(client, "l2") == entries[:2]


def test_longest_prefix_wins(served: Served, client: Controller) -> None:
    routes = {8: 1, 32: 2, 24: 3, 0: 4}
    for length, port in routes.items():
        value = 0x0A0102FF & ~((1 << (32 - length)) - 1)
        match = {1: ("lpm", value, length)} if length else {}
        client.write(table(INSERT, client.entry("routes", match, client.action("forward", port))))
    for address, port in ((0x0A0102FF, 2), (0x0A0102FE, 3), (0x0A990000, 1), (0x0B000000, 4)):
        assert [out for out, _ in served.receive(9, ipv4(address))] == [port]


def test_priorities_of_ternary_optional_and_range(served: Served, client: Controller) -> None:
    client.write(table(INSERT, client.entry("routes", {}, client.action("forward", 1))))
    keep = client.action("NoAction")
    acl = [
        client.entry("acl", {1: ("ternary", 0x0A000000, 0xFF000000)}, client.action("drop"), priority=10),
        client.entry("acl", {1: ("ternary", 0x0A000001, 0xFFFFFFFF), 2: ("optional", 6)}, keep, priority=20),
        client.entry("acl", {3: ("range", 100, 200)}, keep, priority=30),
    ]
    client.write(*[table(INSERT, entry) for entry in acl])
    assert read_table(client, "acl") == acl
    assert read_table(client, "acl", priority=20) == [acl[1]]
    passed = [
        bool(served.receive(2, ipv4(5, src=src, protocol=protocol, total=total)))
        for src, protocol, total in (
            (0x0A000001, 17, 60),
            (0x0A000001, 6, 60),
            (0x0A000002, 6, 60),
            (0x0A000002, 6, 150),
            (0x0A000002, 6, 201),
            (0x0B000000, 17, 60),
        )
    ]
    assert passed == [False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("name", "match", "rest", "code", "why"),
    [
        ("l2", {}, {}, "INVALID_ARGUMENT", "Missing match on ingress.l2.hdr.ethernet.dst"),
        ("l2", {1: ("exact", 2**48)}, {}, "INVALID_ARGUMENT", "does not fit within 48 bits"),
        ("l2", {1: ("exact", 1), 2: ("exact", 1)}, {}, "INVALID_ARGUMENT", "Unknown field 2"),
        ("l2", {1: ("lpm", 1, 48)}, {}, "INVALID_ARGUMENT", "it is exact, not lpm"),
        ("l2", {1: ("exact", 1)}, {"priority": 1}, "INVALID_ARGUMENT", "Priority must be 0"),
        ("l2", {1: ("exact", 1)}, {"is_const": True}, "INVALID_ARGUMENT", "is_const"),
        ("l2", {1: ("exact", 1)}, {"idle_timeout_ns": 5}, "INVALID_ARGUMENT", "idle timeout"),
        ("l2", {1: ("exact", 1)}, {"meter_config": p4.MeterConfig()}, "INVALID_ARGUMENT", "no direct meter"),
        ("routes", {1: ("lpm", 0x0A000000, 33)}, {}, "INVALID_ARGUMENT", "1..32"),
        ("routes", {1: ("lpm", 0, 0)}, {}, "INVALID_ARGUMENT", "leave the field out"),
        ("routes", {1: ("lpm", 0x0A000001, 8)}, {}, "INVALID_ARGUMENT", "beyond its prefix"),
        ("acl", {}, {}, "INVALID_ARGUMENT", "Priority must be positive"),
        ("acl", {}, {"priority": -3}, "INVALID_ARGUMENT", "Priority must be positive"),
        ("acl", {1: ("ternary", 0, 0)}, {"priority": 1}, "INVALID_ARGUMENT", "leave the field out"),
        ("acl", {1: ("ternary", 3, 1)}, {"priority": 1}, "INVALID_ARGUMENT", "outside the mask"),
        ("acl", {3: ("range", 3, 1)}, {"priority": 1}, "INVALID_ARGUMENT", "is empty"),
        ("acl", {3: ("range", 0, 0xFFFF)}, {"priority": 1}, "INVALID_ARGUMENT", "whole range"),
        ("classes", {1: ("ternary", 1, 1)}, {"priority": 1}, "PERMISSION_DENIED", "const entries"),
    ],
)
def test_wrong_entries_are_refused(
    client: Controller, name: str, match: dict[int, Any], rest: dict[str, Any], code: str, why: str
) -> None:
    action = client.action("set_ttl", 1) if name == "classes" else client.action("drop")
    ((got, message),) = client.refused(table(INSERT, client.entry(name, match, action, **rest)))
    assert got == code
    assert why in message
    assert not [entry for entry in read_table(client, name) if not entry.is_const]


def test_wrong_actions_are_refused(client: Controller) -> None:
    good = client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))

    def with_action(change: Any) -> p4.Update:
        entry = p4.TableEntry()
        entry.CopyFrom(good)
        change(entry)
        return table(INSERT, entry)

    def other(alias: str, *values: int) -> Any:
        return lambda entry: entry.action.CopyFrom(client.action(alias, *values))

    refused = client.refused(
        with_action(lambda entry: entry.ClearField("action")),
        with_action(other("mirror", 1)),
        with_action(other("forward")),
        with_action(other("forward", 1, 2)),
        with_action(other("forward", 512)),
        with_action(other("NoAction")),
        with_action(lambda entry: setattr(entry.action, "action_profile_member_id", 1)),
        with_action(lambda entry: setattr(entry.action.action, "action_id", 12345)),
        with_action(lambda entry: setattr(entry, "table_id", 12345)),
        with_action(lambda entry: setattr(entry.action.action.params[0], "value", b"")),
    )
    denied = {5}
    assert [code for code, _ in refused] == [
        "PERMISSION_DENIED" if number in denied else "INVALID_ARGUMENT" for number in range(10)
    ]
    assert read_table(client, "l2") == []


def test_a_batch_goes_on_after_an_error(client: Controller) -> None:
    one = client.entry("l2", {1: ("exact", 1)}, client.action("drop"))
    two = client.entry("l2", {1: ("exact", 2)}, client.action("drop"))
    codes = [
        code
        for code, _ in client.refused(
            table(INSERT, one), table(INSERT, one), table(MODIFY, two), table(DELETE, two), table(INSERT, two)
        )
    ]
    assert codes == ["OK", "ALREADY_EXISTS", "NOT_FOUND", "NOT_FOUND", "OK"]
    assert len(read_table(client, "l2")) == 2
    with pytest.raises(grpc.RpcError) as caught:
        client.write(table(DELETE, one), atomicity=p4.WriteRequest.DATAPLANE_ATOMIC)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_errors_of_large_batches_still_arrive(client: Controller) -> None:
    one = client.entry("l2", {1: ("exact", 1)}, client.action("drop"))
    client.write(table(INSERT, one))
    refused = client.refused(*[table(INSERT, one)] * 150)
    assert refused == [("ALREADY_EXISTS", "")] * 150
    for count in (*range(1, 260, 13), 1000):
        with pytest.raises(grpc.RpcError) as caught:
            client.write(*[table(INSERT, one)] * count)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN, (count, caught.value)
        assert f"{count} of {count} updates failed, first update 0: ALREADY_EXISTS" in caught.value.details()


def test_errors_of_a_batch_far_beyond_the_table(client: Controller) -> None:
    count, size = 2_000, 64
    inserts = [
        table(INSERT, client.entry("l2", {1: ("exact", mac)}, client.action("drop"))) for mac in range(count)
    ]
    with pytest.raises(grpc.RpcError) as caught:
        client.write(*inserts)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert (
        f"{count - size} of {count} updates failed, first update {size}: RESOURCE_EXHAUSTED: "
        f"table 'ingress.l2' holds {size} entries" in caught.value.details()
    )
    assert len(read_table(client, "l2")) == size


@given(st.text(st.characters(), max_size=60), st.integers(3, 40))
def test_a_clipped_message_takes_no_more_than_its_limit(text: str, limit: int) -> None:
    def size(message: str) -> int:
        return len(quote(message, safe="".join(map(chr, range(0x20, 0x7F))).replace("%", "")))

    clipped = clip(text, limit)
    assert size(clipped) <= limit
    sound = text.encode(errors="replace").decode()
    if size(sound) <= limit:
        assert clipped == sound
    else:
        assert clipped.endswith("...")
        kept = clipped[:-3]
        assert sound.startswith(kept)
        assert size(sound[: len(kept) + 1]) > limit - 3


@pytest.mark.parametrize(
    "name", ["x" * 100_000, "é" * 100_000, "\n" * 100_000], ids=["ascii", "utf8", "lines"]
)
def test_a_message_of_any_length_arrives(client: Controller, name: str) -> None:
    root = json.loads(program())
    root["pipelines"][0]["init_table"] = name
    with pytest.raises(grpc.RpcError) as caught:
        client.set_pipeline(json=json.dumps(root).encode())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "pipeline 'ingress': starts at" in caught.value.details()


def test_a_full_table_says_so(client: Controller) -> None:
    entries = [
        client.entry("acl", {2: ("optional", n)}, client.action("drop"), priority=1) for n in range(1, 6)
    ]
    client.write(*[table(INSERT, entry) for entry in entries[:4]])
    ((code, _),) = client.refused(table(INSERT, entries[4]))
    assert code == "RESOURCE_EXHAUSTED"


def test_default_entries(served: Served, client: Controller) -> None:
    (initial,) = read_table(client, "l2", is_default_action=True)
    assert initial.action == client.action("NoAction")
    changed = client.entry("l2", {}, client.action("forward", 8), is_default_action=True, metadata=b"d")
    client.write(table(MODIFY, changed))
    assert read_table(client, "l2", is_default_action=True) == [changed]
    assert served.receive(1, ethernet(55)) == [(8, ethernet(55))]
    client.write(table(MODIFY, client.entry("l2", is_default_action=True)))
    assert read_table(client, "l2", is_default_action=True) == [initial]
    codes = [
        code
        for code, _ in client.refused(
            table(INSERT, changed),
            table(DELETE, changed),
            table(MODIFY, client.entry("l2", {1: ("exact", 1)}, is_default_action=True)),
            table(MODIFY, client.entry("l2", {}, client.action("set_ttl", 1), is_default_action=True)),
            table(MODIFY, client.entry("routes", {}, client.action("forward", 1), is_default_action=True)),
        )
    ]
    assert codes == ["INVALID_ARGUMENT"] * 3 + ["PERMISSION_DENIED"] * 2


def test_const_entries_are_read_only(client: Controller) -> None:
    first, second = read_table(client, "classes")
    assert first.is_const
    assert first.action == client.action("set_ttl", 100)
    assert (first.match[0].ternary.value, first.match[0].ternary.mask) == (b"\x20", b"\xe0")
    assert not second.match
    assert first.priority > second.priority > 0
    first.ClearField("is_const")
    codes = [code for code, _ in client.refused(table(MODIFY, first), table(DELETE, first))]
    assert codes == ["PERMISSION_DENIED"] * 2


def test_filters(client: Controller) -> None:
    entries = [
        client.entry("l2", {1: ("exact", 1)}, client.action("drop"), controller_metadata=5),
        client.entry("l2", {1: ("exact", 2)}, client.action("forward", 2), metadata=b"two"),
        client.entry("l2", {1: ("exact", 3)}, client.action("forward", 3)),
    ]
    client.write(*[table(INSERT, entry) for entry in entries])
    assert read_table(client, "l2", controller_metadata=5) == entries[:1]
    assert read_table(client, "l2", metadata=b"two") == entries[1:2]
    by_action = client.entry("l2")
    by_action.action.action.action_id = client.id("actions", "forward")
    assert len(client.read(p4.Entity(table_entry=by_action))) == 2
    everything = [e.table_entry for e in client.read(p4.Entity(table_entry=p4.TableEntry()))]
    assert [entry for entry in everything if not entry.is_const] == entries
    assert len(everything) == 5


def test_many_entries_come_in_several_messages(client: Controller) -> None:
    client.write(*[
        table(INSERT, client.entry("flows", {1: ("exact", n), 2: ("exact", n)}, client.action("NoAction")))
        for n in range(1024)
    ])  # fmt: skip
    request = p4.ReadRequest(device_id=client.device_id)
    request.entities.add().table_entry.table_id = client.id("tables", "flows")
    responses = list(client.stub.Read(request))
    assert [len(response.entities) for response in responses] == [1000, 24]
    values = [entity.table_entry.match[0].exact.value for r in responses for entity in r.entities]
    assert values == [octets(n) for n in range(1024)]


# ---- the rest


@pytest.mark.parametrize(
    "name",
    ["extern_entry"],
)
def test_what_is_not_supported_is_named(client: Controller, name: str) -> None:
    entity = p4.Entity()
    getattr(entity, name).SetInParent()
    ((code, message),) = client.refused(p4.Update(type=INSERT, entity=entity))
    assert (code, name in message) == ("UNIMPLEMENTED", True)
    with pytest.raises(grpc.RpcError, match=name):
        client.read(entity)


def test_empty_updates_are_refused(client: Controller) -> None:
    empty = p4.Update(entity=p4.Entity(table_entry=client.entry("l2")))
    refused = client.refused(empty, p4.Update(type=INSERT))
    assert [code for code, _ in refused] == ["INVALID_ARGUMENT"] * 2


@given(st.integers(1, 130).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(0, 2**bits - 1))))
def test_bytestrings(case: tuple[int, int]) -> None:
    bits, value = case
    shortest = codec.encode(value)
    assert int(shortest.hex(), 16) == value
    assert len(shortest) == 1 or shortest[0]
    for padded in (shortest, bytes(3) + shortest):
        assert codec.decode(padded, bits, "field") == value
    with pytest.raises(RpcError, match="does not fit"):
        codec.decode(codec.encode(value + 2**bits), bits, "field")
