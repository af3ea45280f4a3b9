# SPDX-License-Identifier: Apache-2.0
"""What switches of a described network get before there are jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.entities import insert
from controller.p4info import P4Info
from controller.program import Program
from controller.setup import SetupError, connect, network_entities, seat
from tests.controller.fakes import FakeSwitch
from topologies.record import NetRecord, new_record
from topologies.spec import End, HostSpec, LinkSpec, NetworkSpec, SwitchSpec, mac_of, star


def record_of(spec: NetworkSpec, tmp_path: Path) -> NetRecord:
    return new_record(
        "t", spec, target="embedded", elements=64, slots=1024, root=tmp_path, interfaces=tmp_path
    )


def two_racks() -> NetworkSpec:
    """s1 - s2 - s3 in a row, h1 and h2 on s1, h3 on s3, s3 also on s1 by a second way."""
    hosts = tuple(HostSpec(f"h{n}", f"10.0.0.{n}", mac_of(0, f"10.0.0.{n}")) for n in (1, 2, 3))
    switches = tuple(SwitchSpec(f"s{n}", n, f"10.0.255.{n}", mac_of(1, f"10.0.255.{n}")) for n in (1, 2, 3))
    ends = [
        (("h1", 0), ("s1", 1)),
        (("h2", 0), ("s1", 2)),
        (("s1", 3), ("s2", 1)),
        (("s2", 2), ("s3", 1)),
        (("h3", 0), ("s3", 5)),
    ]
    return NetworkSpec("row", hosts, switches, tuple(LinkSpec(End(*a), End(*b)) for a, b in ends))


def ip(text: str) -> int:
    return int.from_bytes(bytes(map(int, text.split("."))), "big")


def mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def rows(switch: FakeSwitch, table: str) -> list[tuple[Any, ...]]:
    return sorted(
        (*row.key.values(), str(row.action).rpartition(".")[2], *row.args.values())
        for row in switch.rows(table)
    )


def test_star(program: Program, switch: FakeSwitch, tmp_path: Path) -> None:
    record = record_of(star(3), tmp_path)
    insert(switch, network_entities(record, "s1", program))
    s1 = record.switch("s1")
    hosts = record.hosts
    assert rows(switch, program.ports.TABLE) == [(n, "host_port") for n in (1, 2, 3)]
    assert rows(switch, program.addresses.TABLE) == [(ip(s1.ip), "NoAction")]
    assert rows(switch, program.sources.TABLE) == [
        (n, mac(h.mac), ip(h.ip), "NoAction") for n, h in enumerate(hosts, 1)
    ]
    neighbors = [(ip(host.ip), "known", mac(host.mac)) for host in hosts]
    assert rows(switch, program.arp.TABLE) == [*neighbors, (ip(s1.ip), "known", mac(s1.mac))]
    assert rows(switch, program.routing.TABLE) == [
        ((ip(h.ip), 32), "forward", n, mac(s1.mac), mac(h.mac)) for n, h in enumerate(hosts, 1)
    ]
    sessions = {
        e.packet_replication_engine_entry.clone_session_entry.session_id: [
            r.egress_port for r in e.packet_replication_engine_entry.clone_session_entry.replicas
        ]
        for e in switch.held.values()
        if e.HasField("packet_replication_engine_entry")
    }
    assert sessions == {512: [1], 2: [1], 3: [2], 4: [3]}


def test_several_switches(program: Program, tmp_path: Path) -> None:
    record = record_of(two_racks(), tmp_path)
    nodes: list[Any] = [*record.hosts, *record.switches]
    macs = {node.name: mac(node.mac) for node in nodes}
    ips = {node.name: ip(node.ip) for node in nodes}
    expected = {
        "s1": {"h1": (1, "h1"), "h2": (2, "h2"), "s2": (3, "s2"), "s3": (3, "s2"), "h3": (3, "s2")},
        "s2": {"h1": (1, "s1"), "h2": (1, "s1"), "s1": (1, "s1"), "s3": (2, "s3"), "h3": (2, "s3")},
        "s3": {"h1": (1, "s2"), "h2": (1, "s2"), "s1": (1, "s2"), "s2": (1, "s2"), "h3": (5, "h3")},
    }
    for name, hops in expected.items():
        switch = FakeSwitch()
        insert(switch, network_entities(record, name, program))
        assert rows(switch, program.routing.TABLE) == sorted(
            ((ips[to], 32), "forward", port, macs[name], macs[via]) for to, (port, via) in hops.items()
        )
        assert len(rows(switch, program.arp.TABLE)) == 6
    assert rows(switch, program.ports.TABLE) == [(1, "switch_port"), (5, "host_port")]
    assert rows(switch, program.sources.TABLE) == [(5, macs["h3"], ips["h3"], "NoAction")]


def test_seats(tmp_path: Path) -> None:
    record = record_of(two_racks(), tmp_path)
    made = seat(record, "h3", 4000)
    assert (made.host, made.ip, made.mac, made.port, made.udp_port) == (
        "h3",
        "10.0.0.3",
        mac_of(0, "10.0.0.3"),
        5,
        4000,
    )


def test_a_network_that_starts_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="s1: the record has no P4Runtime address"):
        connect(record_of(star(1), tmp_path), "s1")


def test_another_program(p4info: P4Info) -> None:
    from controller.errors import P4InfoError

    with pytest.raises(P4InfoError, match="another version's"):
        Program(P4Info(type(p4info.message)()))
