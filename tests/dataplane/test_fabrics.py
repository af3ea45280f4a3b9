# SPDX-License-Identifier: Apache-2.0
"""Ordinary traffic through several switches: all reach all, flows spread, nothing goes round."""

from __future__ import annotations

import binascii
import struct
from collections import Counter, deque
from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.fabric import Dead
from controller.readback import difference, read_all
from controller.setup import network_entities
from tests.dataplane.frames import checksum, ip, mac
from tests.dataplane.test_network_duties import echo, mixed
from tests.dataplane.wired import Trip, Wired, fat_tree, leaf_spine, network, wired
from topologies.parts import HostRecord, SwitchRecord
from topologies.record import NetRecord
from topologies.spec import mac_of, switch_address
from wire.verdicts import Verdict

Node = HostRecord | SwitchRecord
TCP, UDP, ICMP = 6, 17, 1


@pytest.fixture(scope="module")
def racks() -> Iterator[Wired]:
    """Three leaves s1..s3 with two hosts each, spines s4 and s5."""
    with wired(leaf_spine(3, 2, 2)) as net:
        yield net


def packet(
    record: NetRecord,
    source: str,
    target: str,
    payload: bytes,
    protocol: int = UDP,
    *,
    fragment: int = 0,
    **changes: bytes,
) -> bytes:
    """A frame as a host sends it; `target` is an address or a host's name."""
    host = record.host(source)
    address = next((h.ip for h in record.hosts if h.name == target), target)
    head = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(payload), 7, fragment, 64, protocol)
    rest = changes.get("ip_src", ip(host.ip)) + ip(address)
    total = struct.pack("!H", checksum(head + b"\0\0" + rest))
    ethernet = mac("02:01:0a:00:ff:01") + changes.get("eth_src", mac(host.mac)) + b"\x08\x00"
    return ethernet + head + total + rest + payload


def datagram(source: int, target: int, data: bytes = b"data") -> bytes:
    return struct.pack("!HHHH", source, target, 8 + len(data), 0) + data


def hops(record: NetRecord, source: str, target: str) -> int:
    """Switches on a shortest way between two nodes."""
    names = {switch.name for switch in record.switches}
    found, waiting = {source: 0}, deque([source])
    while waiting:
        node = waiting.popleft()
        for end in record.peers(node).values() if node == source or node in names else ():
            if end.node not in found:
                found[end.node] = found[node] + (end.node in names)
                waiting.append(end.node)
    return found[target]


def check_arrived(record: NetRecord, trip: Trip, sent: bytes, target: str) -> None:
    """One copy came out at its host, of the last switch, and is what was sent but for the TTL."""
    ((where, got),) = trip.arrived
    assert where == target
    last = record.switch(trip.switches[-1])
    assert got[:14] == mac(record.host(target).mac) + mac(last.mac) + b"\x08\x00"
    assert got[22] == 64 - len(trip.crossed)
    assert checksum(got[14:34]) == 0
    assert got[14:22] + got[23:24] + got[26:] == sent[14:22] + sent[23:24] + sent[26:]


def check_all_pairs(net: Wired) -> None:
    for source, target in permutations([host.name for host in net.record.hosts], 2):
        sent = packet(net.record, source, target, datagram(4000, 5000))
        trip = net.send(source, sent)
        check_arrived(net.record, trip, sent, target)
        assert len(trip.crossed) == hops(net.record, source, target)


def test_every_host_reaches_every_other(racks: Wired) -> None:
    check_all_pairs(racks)


def test_flows_spread_as_the_hash_says(racks: Wired) -> None:
    record = racks.record
    taken: Counter[str] = Counter()
    for protocol in (TCP, UDP):
        for port in range(4000, 4150):
            payload = datagram(port, 5201) + bytes(12)
            trip = racks.send("h1", packet(record, "h1", "h5", payload, protocol))
            flow = (
                ip(record.host("h1").ip)
                + ip(record.host("h5").ip)
                + struct.pack("!BHH", protocol, port, 5201)
            )
            device_id = record.switch("s1").device_id
            spine = "s4" if mixed(binascii.crc32(flow) ^ device_id) >> 31 == 0 else "s5"
            assert trip.switches == ["s1", spine, "s3"]
            taken[spine] += 1
    assert min(taken.values()) > 0.4 * taken.total()


def test_what_has_no_ports_goes_by_addresses(racks: Wired) -> None:
    record = racks.record
    for protocol in (ICMP, 89):
        ways = {
            racks.send(
                "h2", packet(record, "h2", "h3", bytes([8, 0]) + struct.pack("!HI", n, n), protocol)
            ).switches[1]
            for n in range(20)
        }
        assert len(ways) == 1


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_all_fragments_of_a_datagram_take_one_way(racks: Wired, protocol: int) -> None:
    record = racks.record
    ways = set()
    for port in range(4000, 4040):
        payload = datagram(port, 5001) + bytes(16)
        parts = [(0x2000, payload), (0x2003, bytes([port % 256]) * 24), (0x0006, b"end")]
        for fragment, part in parts:
            sent = packet(record, "h1", "h6", part, protocol, fragment=fragment)
            trip = racks.send("h1", sent)
            check_arrived(record, trip, sent, "h6")
            ways.add(trip.switches[1])
    assert len(ways) == 1


def test_to_a_switch_there_is_one_way(racks: Wired) -> None:
    """What aggregates is admitted by the port that it comes in at."""
    record = racks.record
    for port in range(4000, 4040):
        for switch, path in (("s3", ["s1", "s4", "s3"]), ("s5", ["s1", "s5"]), ("s1", ["s1"])):
            job = packet(record, "h1", record.switch(switch).ip, datagram(port, 0xBE07))
            trip = racks.send("h1", job)
            assert (trip.switches, trip.arrived) == (path, [])
    ping = packet(record, "h1", record.switch("s3").ip, echo(8, b"ping"), ICMP)
    trip = racks.send("h1", ping)
    ((where, got),) = trip.arrived
    assert where == "h1"
    assert got[26:34] == ip(record.switch("s3").ip) + ip(record.host("h1").ip)
    assert trip.switches[:3] == ["s1", "s4", "s3"]


def test_a_fat_tree_uses_all_its_paths() -> None:
    """Two levels that choose: alike, half of the paths would never be taken."""
    with wired(fat_tree()) as net:
        check_all_pairs(net)
        taken = Counter(
            tuple(net.send("h1", packet(net.record, "h1", "h16", datagram(port, 5201))).switches)
            for port in range(4000, 4400)
        )
        assert {path[0] for path in taken} == {"s1"}
        assert len(taken) == 4
        assert min(taken.values()) > 0.18 * taken.total()


def cable(record: NetRecord, a: str, b: str) -> frozenset[tuple[str, int]]:
    (link,) = [one for one in record.links if {one.a.node, one.b.node} == {a, b}]
    return frozenset({(link.a.node, link.a.port), (link.b.node, link.b.port)})


def test_what_is_dead_is_gone_round() -> None:
    record = leaf_spine(3, 2, 2)
    with wired(record) as net:
        for dead, gone in (
            (Dead(), set()),
            (Dead(switches=frozenset({"s4"})), {"s4"}),
            (Dead(cables=frozenset({cable(record, "s1", "s5")})), set()),
            (Dead(), set()),
        ):
            for name, switch in net.switches.items():
                wanted = network_entities(record, name, net.program, dead)
                found = difference(switch.p4info, wanted, read_all(switch))
                for updates in found.batches():
                    switch.write(updates)
                left = difference(switch.p4info, wanted, read_all(switch))
                assert (left.strays, left.missing, left.changed) == ((), (), ())
            check_all_pairs(net)
            ways = {
                (source, net.send(source, packet(record, source, "h5", datagram(port, 1))).switches[1])
                for source in ("h1", "h3")
                for port in range(20)
            }
            from_1 = {"s4"} if dead.cables else {"s4", "s5"} - gone
            assert ways == {("h1", spine) for spine in from_1} | {("h3", s) for s in {"s4", "s5"} - gone}


def test_who_cannot_be_reached_has_no_route() -> None:
    record = leaf_spine(2, 1, 2)
    dead = Dead(cables=frozenset({cable(record, "s2", "s3"), cable(record, "h2", "s1")}))
    with wired(record, dead) as net:
        for target in ("h2", "h3", "h4"):
            assert net.send("h1", packet(record, "h1", target, datagram(1, 2))).arrived == []
        assert net.verdicts("s1", 1) == {Verdict.NO_ROUTE: 3}
        assert len(net.send("h3", packet(record, "h3", "h4", datagram(1, 2))).arrived) == 1


def test_a_rack_is_one_route_where_all_its_hosts_lie_the_same_way(racks: Wired) -> None:
    record = racks.record

    def prefixes(name: str) -> set[object]:
        switch = racks.switches[name]
        rows = switch.read([switch.p4info.all_entries(racks.program.routing.TABLE)])
        return {switch.p4info.row(row).key["prefix"] for row in rows if not row.table_entry.is_default_action}

    def number(address: str) -> int:
        return int.from_bytes(ip(address), "big")

    others = {(number(s.ip), 32) for s in record.switches}
    assert prefixes("s4") == {(number(f"10.0.{r}.0"), 24) for r in range(3)} | others - {
        (number(switch_address(4)), 32)
    }
    assert prefixes("s1") == {
        *((number(f"10.0.0.{n}"), 32) for n in (1, 2)),
        *((number(f"10.0.{r}.0"), 24) for r in (1, 2)),
        *(others - {(number(switch_address(1)), 32)}),
    }
    # Nobody has this address: it is refused where the rack's hosts are.
    trip = racks.send("h1", packet(record, "h1", "10.0.2.77", datagram(1, 2)))
    assert (len(trip.crossed), trip.arrived) == (3, [])


@given(
    source=st.sampled_from(["h1", "h4", "h6"]),
    forged=st.sampled_from(["h2", "h5", "s1", "s4", "s3"]),
    target=st.sampled_from(["10.0.0.2", "10.0.1.1", "10.0.2.2", "10.0.255.1", "10.0.255.4", "10.0.255.3"]),
    protocol=st.sampled_from([TCP, UDP, ICMP, 89]),
    fragment=st.sampled_from([0, 0x4000, 0x2000, 0x0003]),
    with_mac=st.booleans(),
    payload=st.binary(max_size=60) | st.builds(datagram, st.just(0xBE07), st.integers(0, 0xFFFF)),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_forged_sources_stay_at_their_first_switch(
    racks: Wired,
    source: str,
    forged: str,
    target: str,
    protocol: int,
    fragment: int,
    with_mac: bool,
    payload: bytes,
) -> None:
    everybody: list[Node] = [*racks.record.hosts, *racks.record.switches]
    nodes = {node.name: node for node in everybody}
    changes = {"ip_src": ip(nodes[forged].ip)}
    if with_mac:
        changes["eth_src"] = mac(nodes[forged].mac)
    sent = packet(racks.record, source, target, payload, protocol, fragment=fragment, **changes)
    trip = racks.send(source, sent)
    assert len(trip.crossed) == 1
    assert trip.arrived == []


@st.composite
def graphs(draw: st.DrawFn) -> NetRecord:
    """Six switches, connected by a tree and by more cables, some twice; up to two hosts each."""
    cables = [(draw(st.integers(1, n - 1)), n) for n in range(2, 7)]
    pairs = st.tuples(st.integers(1, 6), st.integers(1, 6)).filter(lambda pair: pair[0] != pair[1])
    cables += draw(st.lists(pairs, max_size=8))
    return network(draw(st.lists(st.integers(0, 2), min_size=6, max_size=6).filter(any)), cables, 6)


@pytest.fixture(scope="module")
def six() -> Iterator[Wired]:
    with wired(network([1], [(n, n + 1) for n in range(1, 6)], 6)) as net:
        yield net


@given(record=graphs(), draw=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_goes_round_in_any_network(six: Wired, record: NetRecord, draw: st.DataObject) -> None:
    net = Wired(record, six.devices)
    nodes: list[Node] = [*record.hosts, *record.switches]
    for _ in range(10):
        host = draw.draw(st.sampled_from(record.hosts))
        target = draw.draw(st.sampled_from([*(node.ip for node in nodes), "10.0.3.9", "192.0.2.1"]))
        payload = draw.draw(st.binary(max_size=40))
        protocol = draw.draw(st.sampled_from([TCP, UDP, 89]))
        trip = net.send(host.name, packet(record, host.name, target, payload, protocol))
        # A ping's answer aside, every switch is crossed once at most.
        assert len(set(trip.switches)) == len(trip.switches)
        names = {node.ip: node.name for node in record.hosts}
        if target in names and names[target] != host.name and not (protocol != 89 and len(payload) < 8):
            check_arrived(record, trip, packet(record, host.name, target, payload, protocol), names[target])
            assert len(trip.crossed) == hops(record, host.name, names[target])


def test_macs_of_the_wires(racks: Wired) -> None:
    """Between switches too a packet is addressed to the next one."""
    record = racks.record
    sent = packet(record, "h1", "h3", datagram(1, 2))
    ((port, first),) = racks.devices["s1"].process([(1, sent)])
    spine = record.peers("s1")[port].node
    assert first[:12] == mac(record.switch(spine).mac) + mac(mac_of(1, switch_address(1)))
