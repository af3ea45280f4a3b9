# SPDX-License-Identifier: Apache-2.0
"""P4Info by names: canonical bytestrings, widths, round trips, and what errors say."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

from controller.entities import INSERT, clone_session, multicast_group, updates
from controller.errors import FieldError, P4InfoError
from controller.p4info import P4Info, encode, number
from controller.program.admission import Admission, Pool, Sender, Uplink
from p4src.forms import FORMS
from tests.controller.fakes import our_p4info


@given(st.integers(0, 2**64 - 1))
def test_bytestrings_are_canonical(value: int) -> None:
    data = encode(value, 64, "f")
    assert int.from_bytes(data, "big") == value
    assert data == (struct.pack(">Q", value).lstrip(b"\0") or b"\0")


@given(st.integers(1, 64), st.integers(-(2**65), 2**65))
def test_a_value_is_taken_exactly_when_it_fits(bits: int, value: int) -> None:
    if 0 <= value < 2**bits:
        assert number(value, bits, "f") == value
    else:
        with pytest.raises(FieldError, match=f"the field: {bits} bits|does not fit {bits} bits"):
            number(value, bits, "the field")


@given(st.binary(min_size=6, max_size=6), st.binary(min_size=4, max_size=4))
def test_addresses_are_numbers(mac: bytes, ip: bytes) -> None:
    assert number(":".join(f"{b:02x}" for b in mac), 48, "f") == int.from_bytes(mac, "big")
    assert number(".".join(map(str, ip)), 32, "f") == int.from_bytes(ip, "big")


@pytest.mark.parametrize(
    ("value", "bits", "says"),
    [
        ("10.0.0.1", 48, "is an IPv4 address, but the field has 48 bits"),
        ("02:00:00:00:00:01", 32, "is a MAC address, but the field has 32 bits"),
        ("10.0.0.256", 32, "neither a MAC address nor an IPv4 address"),
        ("two", 9, "neither a MAC address nor an IPv4 address"),
        (True, 1, "must be a number"),
        (512, 9, r"does not fit 9 bits \(0..511\)"),
    ],
)
def test_a_wrong_value_names_its_field(value: object, bits: int, says: str) -> None:
    with pytest.raises(FieldError, match=says) as raised:
        number(value, bits, "table.field")  # type: ignore[arg-type]
    assert raised.value.field == "table.field"
    assert str(raised.value).startswith("table.field = ")


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_every_form_is_our_program(form) -> None:
    from controller.program import Program

    Program(P4Info.from_file(form.p4info_path))


@given(
    port=st.integers(0, 511),
    ip=st.integers(0, 2**32 - 1),
    udp=st.integers(0, 65535),
    bit=st.integers(0, 63),
    base=st.integers(0, 65535),
    epoch=st.integers(1, 2**32 - 1),
)
def test_a_leaf_entry_comes_back_as_it_went(
    port: int, ip: int, udp: int, bit: int, base: int, epoch: int
) -> None:
    uplink = Uplink(port, "02:01:00:00:00:01", "02:01:00:00:00:02", "10.0.255.1", "10.0.255.2", udp, 0xBE07)
    sender = Sender(port, ".".join(map(str, struct.pack(">I", ip))), udp, 0xBE07)
    entity = Admission(our_p4info()).leaf_worker(sender, bit, 64, Pool(base, 7, epoch, 3), uplink)
    row = our_p4info().row(entity)
    assert row.key == {"port": port, "ip_src": ip, "udp_src": udp, "udp_dst": 0xBE07}
    assert row.action is not None
    assert row.action.endswith(".leaf_worker")
    assert row.args == {
        "bit_index": bit,
        "mask": 2**bit,
        "full": 2**64 - 1,
        "base": base,
        "window": 7,
        "epoch": epoch,
        "up_port": port,
        "src_mac": 0x020100000001,
        "dst_mac": 0x020100000002,
        "src_ip": 0x0A00FF01,
        "dst_ip": 0x0A00FF02,
        "src_port": udp,
        "dst_port": 0xBE07,
    }


@given(st.integers(0, 32), st.integers(0, 2**32 - 1))
def test_lpm_takes_only_bits_of_the_prefix(length: int, value: int) -> None:
    info = our_p4info()
    table = "SwitchIngress.handle.routing.routes"
    masked = value >> (32 - length) << (32 - length)
    entity = info.key(table, {"prefix": (masked, length)})
    assert info.row(entity).key == {"prefix": (masked, length)}
    assert len(entity.table_entry.match) == (1 if length else 0)  # P4Runtime: 0 bits are left out
    if value != masked:
        with pytest.raises(FieldError, match="beyond its prefix"):
            info.key(table, {"prefix": (value, length)})


def test_names_that_the_program_has_not(p4info: P4Info) -> None:
    ports = "SwitchIngress.receive.ports"
    with pytest.raises(P4InfoError, match=r"no such table .*SwitchIngress.receive.ports"):
        p4info.table("ports")
    with pytest.raises(P4InfoError, match="no such action; it has NoAction, "):
        p4info.entry(ports, {"port": 1}, "forward")
    with pytest.raises(P4InfoError, match=r"ports\.port: this key field is missing"):
        p4info.entry(ports, {}, "host_port")
    with pytest.raises(P4InfoError, match=r"ports\.prot: there is no such key field; there is port"):
        p4info.entry(ports, {"port": 1, "prot": 1}, "host_port")
    with pytest.raises(P4InfoError, match=r"forward\.dst_mac: this parameter is missing"):
        p4info.entry(
            "SwitchIngress.handle.routing.routes", {"prefix": (0, 0)}, "forward", {"port": 1, "src_mac": 1}
        )
    with pytest.raises(FieldError, match="takes one value, no prefix"):
        p4info.key(ports, {"port": (1, 9)})
    with pytest.raises(FieldError, match=r"the array has the cells 0\.\.32767"):
        p4info.cell("SwitchIngress.port_verdicts", 32768)


def test_an_unreadable_file(tmp_path) -> None:
    (tmp_path / "x").write_text("tables { nonsense }")
    for path in (tmp_path / "x", tmp_path / "absent"):
        with pytest.raises(P4InfoError, match=r"is no P4Info.*make p4"):
            P4Info.from_file(path)


def test_updates_in_words(p4info: P4Info, program) -> None:
    entities = [
        program.routing.route(
            "10.0.0.0", 16, port=3, src_mac="02:01:0a:00:ff:01", dst_mac="02:00:0a:00:00:03"
        ),
        program.addresses.own("10.0.255.1"),
        p4info.key(program.ports.TABLE, {"port": 5}),
        multicast_group(9, [(1, 1), (2, 2)]),
        clone_session(3, 2),
        p4info.cell("SwitchIngress.port_verdicts", 1),
    ]
    unknown = p4runtime_pb2.Entity()
    unknown.table_entry.table_id = 1
    words = [p4info.describe(u) for u in updates(INSERT, [*entities, unknown, p4runtime_pb2.Entity()])]
    assert words[:6] == [
        "INSERT SwitchIngress.handle.routing.routes[prefix=10.0.0.0/16] -> "
        "forward(port=3, src_mac=02:01:0a:00:ff:01, dst_mac=02:00:0a:00:00:03)",
        "INSERT SwitchIngress.receive.addresses[ip=10.0.255.1] -> NoAction()",
        "INSERT SwitchIngress.receive.ports[port=5]",
        "INSERT multicast group 9 of 2",
        "INSERT clone session 3",
        "INSERT counter_entry",
    ]
    assert words[6].startswith("INSERT table entry (1: ")
    assert words[7] == "INSERT nothing"


def test_packet_metadata(program) -> None:
    packet = program.peek.question(700, 1, b"cookie")
    assert {m.metadata_id: bytes(m.value) for m in packet.metadata} == {1: b"\1", 2: b"\1", 3: b"\x02\xbc"}
    assert packet.payload == b"cookie"
    answer = p4runtime_pb2.PacketIn(payload=b"cookie")
    for id_, value in enumerate([b"\1", b"\1", b"\x02\xbc", b"\x10", b"\x20", b"\x03", b"\x01"], 1):
        answer.metadata.add(metadata_id=id_, value=value)
    state = program.peek.answer(answer)
    assert (state.epoch, state.tag, state.seen, state.done) == (16, 32, 3, True)
    with pytest.raises(FieldError, match="versions 0 and 1"):
        program.peek.question(0, 2, b"")
