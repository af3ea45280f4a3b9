# SPDX-License-Identifier: Apache-2.0
"""What a switch does besides summing: ARP, ping, guarded routing, peeks, faults."""

from __future__ import annotations

import binascii
import itertools
import struct
from collections.abc import Callable

import pytest

from tests.dataplane.frames import Frame, checksum, ip, mac
from tests.dataplane.rig import (
    AGGREGATION,
    JOB_PORT,
    SWITCH_IP,
    SWITCH_MAC,
    Rig,
    host_ip,
    host_mac,
    number,
    udp_port,
)
from wire.verdicts import Verdict


def arp(rig: Rig, port: int, target: str, **changes: bytes) -> bytes:
    fields = {
        "eth_dst": b"\xff" * 6,
        "eth_src": mac(host_mac(port)),
        "kind": b"\x00\x01\x08\x00\x06\x04",
        "operation": b"\x00\x01",
        "sender_mac": mac(host_mac(port)),
        "sender_ip": ip(host_ip(port)),
        "target_mac": b"\0" * 6,
        "target_ip": ip(target),
    } | changes
    f = fields
    return (
        f["eth_dst"] + f["eth_src"] + b"\x08\x06" + f["kind"] + f["operation"]
        + f["sender_mac"] + f["sender_ip"] + f["target_mac"] + f["target_ip"]
    )  # fmt: skip


@pytest.mark.parametrize(("target", "its_mac"), [(SWITCH_IP, SWITCH_MAC), (host_ip(5), host_mac(5))])
def test_arp_is_answered_for_every_known_address(rig: Rig, target: str, its_mac: str) -> None:
    padding = b"\0" * 18
    ((port, data),) = rig.send(0, arp(rig, 1, target) + padding)
    assert port == 1
    assert data == (
        mac(host_mac(1)) + mac(its_mac) + b"\x08\x06" + b"\x00\x01\x08\x00\x06\x04" + b"\x00\x02"
        + mac(its_mac) + ip(target) + mac(host_mac(1)) + ip(host_ip(1)) + padding
    )  # fmt: skip
    assert rig.verdicts(1) == {Verdict.ARP_ANSWERED: 1}


def test_arp_for_others_is_not_answered_nor_flooded(rig: Rig) -> None:
    assert rig.send(0, arp(rig, 1, "10.0.9.9")) == []
    assert rig.send(0, arp(rig, 1, host_ip(1))) == []  # a probe for its own address
    assert rig.send(0, arp(rig, 1, host_ip(2), operation=b"\x00\x02")) == []
    assert rig.send(0, arp(rig, 1, host_ip(2), sender_mac=mac(host_mac(3)))) == []
    assert rig.send(0, arp(rig, 1, host_ip(2), kind=b"\x00\x06\x08\x00\x06\x04")) == []
    assert rig.verdicts(1) == {Verdict.ARP_UNKNOWN: 5}


def ipv4(
    source: str,
    target: str,
    protocol: int,
    payload: bytes,
    *,
    ttl: int = 64,
    options: bytes = b"",
    eth_src: str = host_mac(1),
) -> bytes:
    ihl = 5 + len(options) // 4
    head = struct.pack("!BBHHHBB", 0x40 | ihl, 0, 4 * ihl + len(payload), 7, 0, ttl, protocol)
    rest = ip(source) + ip(target) + options
    total = struct.pack("!H", checksum(head + b"\0\0" + rest))
    return mac(SWITCH_MAC) + mac(eth_src) + b"\x08\x00" + head + total + rest + payload


def echo(kind: int, data: bytes) -> bytes:
    body = struct.pack("!HH", 0x1234, 1) + data
    return struct.pack("!BBH", kind, 0, checksum(struct.pack("!BBH", kind, 0, 0) + body)) + body


@pytest.mark.parametrize("data", [b"", b"abcdefgh" * 7, bytes(range(256)), b"\xff" * 31])
def test_ping_is_answered(rig: Rig, data: bytes) -> None:
    ((port, got),) = rig.send(0, ipv4(host_ip(1), SWITCH_IP, 1, echo(8, data), ttl=1))
    assert port == 1
    assert got[:14] == mac(host_mac(1)) + mac(SWITCH_MAC) + b"\x08\x00"
    assert checksum(got[14:34]) == 0
    assert (got[22], got[23], got[26:30], got[30:34]) == (64, 1, ip(SWITCH_IP), ip(host_ip(1)))
    assert checksum(got[34:]) == 0
    assert got[34:36] == b"\0\0"
    assert got[38:] == echo(8, data)[4:]


def test_nothing_else_is_answered_by_the_switch_itself(rig: Rig) -> None:
    assert rig.send(0, ipv4(host_ip(1), SWITCH_IP, 1, echo(13, b""))) == []
    assert rig.send(0, ipv4(host_ip(1), SWITCH_IP, 6, b"\0" * 20)) == []
    assert rig.send(0, ipv4(host_ip(1), SWITCH_IP, 17, struct.pack("!HHHH", 1, 53, 8, 0))) == []
    assert rig.verdicts(1) == {Verdict.NOT_FOR_SWITCH: 3}
    assert rig.send(0, ipv4(host_ip(2), SWITCH_IP, 1, echo(8, b""))) == []
    assert rig.verdicts(1)[Verdict.SPOOFED_SOURCE] == 1


@pytest.mark.parametrize("options", [b"", b"\x01" * 4, b"\x01" * 40])
def test_ordinary_ipv4_is_routed(rig: Rig, options: bytes) -> None:
    payload = struct.pack("!HHHH", 7000, 7001, 12, 0) + b"data"
    sent = ipv4(host_ip(1), host_ip(2), 17, payload, ttl=9, options=options)
    ((port, got),) = rig.send(0, sent)
    assert port == 2
    assert got[:14] == mac(host_mac(2)) + mac(SWITCH_MAC) + b"\x08\x00"
    header = 20 + len(options)
    assert checksum(got[14 : 14 + header]) == 0
    assert got[22] == 8
    assert got[14:22] + got[23:24] + got[26:] == sent[14:22] + sent[23:24] + sent[26:]
    assert rig.verdicts(1) == {Verdict.ROUTED: 1}


def test_aggregation_to_another_address_is_ordinary_traffic(rig: Rig) -> None:
    sent = rig.contribution(0, 0, [7], ip_dst=host_ip(2))
    ((port, got),) = rig.send(0, sent)
    assert port == 2
    assert got == sent.but(eth_src=SWITCH_MAC, eth_dst=host_mac(2), ttl=63).pack()


def test_guarded_routing(rig: Rig) -> None:
    payload = b"\0" * 20
    assert rig.send(0, ipv4(host_ip(3), host_ip(2), 6, payload)) == []
    assert rig.send(0, ipv4(host_ip(1), host_ip(2), 6, payload, eth_src=host_mac(3))) == []
    # A forged result: from the switch's address, or from one's own with a job's port.
    forged = rig.result(1, rig.contribution(1, 0, [1]), [1] * rig.elements, eth_dst=SWITCH_MAC)
    assert rig.send(0, forged.but(eth_src=host_mac(1))) == []
    assert rig.send(0, forged) == []
    assert rig.verdicts(1) == {Verdict.SPOOFED_SOURCE: 4}
    assert rig.send(0, ipv4(host_ip(1), host_ip(2), 6, payload, ttl=1)) == []
    assert rig.send(0, ipv4(host_ip(1), "10.9.9.9", 6, payload)) == []
    assert rig.send(0, mac(SWITCH_MAC) + mac(host_mac(1)) + b"\x86\xdd" + payload) == []
    counted = rig.verdicts(1)
    assert (counted[Verdict.TTL_EXPIRED], counted[Verdict.NO_ROUTE], counted[Verdict.NOT_IPV4]) == (1, 1, 1)


def test_a_switch_port_may_bring_any_source(rig: Rig) -> None:
    rig.add("SwitchIngress.receive.ports", [100], "switch_port")
    sent = ipv4("10.0.200.1", host_ip(2), 6, b"\0" * 20, eth_src="02:00:00:00:ff:02")
    ((port, _),) = rig.device.process([(100, sent)])
    assert port == 2


def peek(rig: Rig, slot: int, version: int, operation: int = 1) -> list[tuple[int, bytes]]:
    return rig.device.process([(510, struct.pack("!BBH", operation, version, slot) + b"cookie")])


def test_the_controller_peeks_at_a_slot(rig: Rig) -> None:
    rig.send(1, rig.contribution(1, 2**32 + 6, []))
    ((port, got),) = peek(rig, rig.base + 2, 1)
    assert port == 510
    assert got == struct.pack("!BBHIIQB", 1, 1, rig.base + 2, rig.epoch, 6, 0b10, 0) + b"cookie"
    rig.send(0, rig.contribution(0, 2**32 + 6, []))
    ((_, got),) = peek(rig, rig.base + 2, 1)
    assert struct.unpack("!QB", got[12:21]) == (0b11, 1)
    for bad in ((rig.slots, 0, 1), (0, 2, 1), (0, 0, 9)):
        assert peek(rig, *bad) == []
    assert rig.verdicts(510) == {Verdict.PEEKED: 2, Verdict.BAD_PACKET_OUT: 3}


def test_a_copy_without_a_receiver_is_dropped(rig: Rig) -> None:
    rig.device.multicast_set(1, [(1, 101), (2, 999)])
    rig.send(0, rig.contribution(0, 0, []))
    out = rig.send(1, rig.contribution(1, 0, []))
    assert [port for port, _ in out] == [1]
    index = 2 * 64 + Verdict.NO_RECEIVER
    assert rig.device.counter_read("SwitchEgress.port_verdicts", index)[0] == 1


def mixed(x: int) -> int:
    """lowbias32 (Wellons, "Prospecting for hash functions", 2018)."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def fault_hashes(seed: int, port: int, direction: int, n: int) -> tuple[int, int, int]:
    drop = mixed(binascii.crc32(struct.pack("!IHBI", seed, port, direction, n)))
    duplicate = mixed((drop + 0x9E3779B9) % 2**32)
    return drop, duplicate, mixed((duplicate + 0x9E3779B9) % 2**32)


def threshold(share: float) -> int:
    return round(share * (2**32 - 1))


@pytest.mark.parametrize("value", [5, ~5])
def test_what_both_ends_of_a_link_corrupt_is_noticed(make_rig: Callable[..., Rig], value: int) -> None:
    """In a sum of 16-bit words two bits cancel each other if they are 16 apart, one set and one cleared."""
    every = [77, 0, 0, threshold(1.0)]
    sender, flips = make_rig(workers=1, window=64), list[int]()
    sender.add("SwitchEgress.faults.shares", [1], "inject", every)
    for chunk in range(64):
        ((_, data),) = sender.send(0, sender.contribution(0, chunk, [value]))
        flips.append(struct.unpack_from("!I", data, 52)[0] ^ value & 0xFFFF_FFFF)
    assert len(set(flips)) == 16
    receiver = make_rig(workers=1, window=64)
    receiver.add("SwitchIngress.receive.faults.shares", [1], "inject", every)
    for count, (first, second) in enumerate(itertools.product(sorted(set(flips)), flips[:16])):
        assert second == 1 << count % 16, "what the receiver flips in this packet, as the sender did"
        frame = bytearray(receiver.contribution(0, 0, [value]).pack())
        struct.pack_into("!I", frame, 52, (value ^ first) & 0xFFFF_FFFF)
        assert (receiver.send(0, bytes(frame)) != []) == (first == second), "noticed, or put right again"


@pytest.mark.parametrize("direction", [0, 1])
def test_faults_are_those_that_the_hash_names(make_rig: Callable[..., Rig], direction: int) -> None:
    rig = make_rig(workers=1, window=64)
    shares = [threshold(0.1), threshold(0.15), threshold(0.2)]
    control = ("SwitchIngress.receive.faults", "SwitchEgress.faults")[direction]
    rig.add(f"{control}.shares", [1], "inject", [77, *shares])
    rig.device.clone_session_set(512, [(3, 0)])
    rig.device.clone_session_set(2, [(1, 0)])
    dropped = duplicated = corrupted = 0
    for chunk in range(200):
        drop, duplicate, corrupt = (
            h <= t for h, t in zip(fault_hashes(77, 1, direction, chunk), shares, strict=True)
        )
        flip = 1 << chunk % 16 if corrupt and not drop else 0
        out = rig.send(0, rig.contribution(0, chunk, [5]))
        assert {port for port, _ in out} <= {1}
        dropped += drop
        duplicated += duplicate and not drop
        corrupted += flip != 0
        if direction == 0:
            # A corrupted original is refused; its duplicate comes from the bytes as they arrived.
            copies = 0 if drop else (not flip) + duplicate
            assert [Frame.parse(data).values[0] for _, data in out] == [5] * copies
        else:
            copies = 0 if drop else 1 + duplicate
            assert len(out) == copies
            for _, data in out:
                (value,) = struct.unpack_from("!I", data, 52)
                assert value == 5 ^ flip
                assert checksum(data[14:34]) == 0
                if flip:
                    with pytest.raises(AssertionError):
                        Frame.parse(data)
                else:
                    Frame.parse(data)
    assert min(dropped, duplicated, corrupted) > 10
    injected = [
        rig.device.counter_read(f"{control}.injected", 64 + v)[0]
        for v in (Verdict.FAULT_DROPPED, Verdict.FAULT_DUPLICATED, Verdict.FAULT_CORRUPTED)
    ]
    assert injected == [dropped, duplicated, corrupted]


def test_no_share_no_fault_and_a_share_of_1_always(rig: Rig) -> None:
    rig.add("SwitchIngress.receive.faults.shares", [1], "inject", [1, 0, 0, 0])
    rig.add("SwitchIngress.receive.faults.shares", [2], "inject", [1, threshold(1.0), 0, 0])
    for chunk in range(50):
        rig.send(0, rig.contribution(0, chunk % 4, []))
        assert rig.send(1, rig.contribution(1, chunk % 4, [])) == []
    assert rig.verdicts(1) == {Verdict.ABSORBED: 4, Verdict.DUPLICATE: 46}
    assert rig.verdicts(2) == {Verdict.FAULT_DROPPED: 50}


def test_only_what_somebody_would_notice_is_corrupted_and_counted(rig: Rig) -> None:
    control = "SwitchIngress.receive.faults"
    rig.add(f"{control}.shares", [1], "inject", [1, 0, 0, threshold(1.0)])
    assert len(rig.send(0, arp(rig, 1, SWITCH_IP))) == 1
    rig.send(0, rig.contribution(0, 0, [5], udp_checksum=0))
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1}
    rig.send(0, rig.contribution(0, 1, [5]))
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.BAD_UDP_CHECKSUM: 1}
    assert rig.device.counter_read(f"{control}.injected", 64 + Verdict.FAULT_CORRUPTED)[0] == 1


UPLINK = 64
PARENT_IP = "10.0.255.9"
PARENT_MAC = "02:00:00:00:ff:09"
LEAF_PORT = 6000


@pytest.fixture
def leaf(make_rig: Callable[..., Rig]) -> Rig:
    """Two hosts below a leaf whose parent is on port 64."""
    rig = make_rig(workers=2)
    for entry in rig.device.table_entries(f"{AGGREGATION}.admission.members"):
        rig.device.table_delete(f"{AGGREGATION}.admission.members", entry.handle)
    up = [
        *(
            UPLINK,
            number(mac(SWITCH_MAC)),
            number(mac(PARENT_MAC)),
            number(ip(SWITCH_IP)),
            number(ip(PARENT_IP)),
        ),
        *(LEAF_PORT, JOB_PORT),
    ]
    for bit in range(2):
        args = [bit, 1 << bit, 0b11, rig.base, rig.window, rig.epoch, *up]
        rig.add(f"{AGGREGATION}.admission.members", rig.member_key(bit + 1), "leaf_worker", args)
    key = [UPLINK, number(ip(PARENT_IP)), JOB_PORT, LEAF_PORT]
    rig.add(f"{AGGREGATION}.admission.members", key, "parent", [0b11, rig.base, rig.window, rig.epoch, 1])
    return rig


def test_a_leaf_sends_one_partial_up_and_the_result_down(leaf: Rig) -> None:
    frames = [leaf.contribution(w, 1, [10 + w], e0=w) for w in range(2)]
    assert leaf.send(0, frames[0]) == []
    ((port, data),) = leaf.send(1, frames[1])
    assert port == UPLINK
    partial = Frame.parse(data)
    up = {"eth_src": SWITCH_MAC, "eth_dst": PARENT_MAC, "ip_src": SWITCH_IP, "ip_dst": PARENT_IP}
    sums = (21, *[0] * (leaf.elements - 1))
    size = {64: 1, 256: 3}[leaf.elements]
    assert partial == frames[1].but(**up, udp_src=LEAF_PORT, udp_dst=JOB_PORT, values=sums, e0=1, size=size)
    # Lost on the way up: any child's repetition sends it again.
    ((port, data),) = leaf.send(0, frames[0])
    assert (port, Frame.parse(data)) == (UPLINK, partial)
    down = {"eth_src": PARENT_MAC, "eth_dst": SWITCH_MAC, "ip_src": PARENT_IP, "ip_dst": SWITCH_IP}
    total = (100, *[0] * (leaf.elements - 1))
    result = partial.but(**down, udp_src=JOB_PORT, udp_dst=LEAF_PORT, msg_type=2, values=total, e0=5)
    out = {port: Frame.parse(d) for port, d in leaf.device.process([(UPLINK, result.pack())])}
    assert out == {w + 1: leaf.result(w, frames[w], total, e0=5) for w in range(2)}
    assert leaf.device.process([(UPLINK, result.pack())]) == []  # a second time: not awaited any more
    ((port, data),) = leaf.send(0, frames[0])
    assert (port, Frame.parse(data)) == (1, leaf.result(0, frames[0], total, e0=5))
    assert leaf.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.PARTIAL_RESENT: 1, Verdict.REPLAYED: 1}
    assert leaf.worker_verdicts(1) == {Verdict.PARTIAL_SENT: 1}
    assert leaf.job_verdicts() == {Verdict.RESULT_STORED: 1, Verdict.RESULT_UNEXPECTED: 1}


def test_a_leaf_takes_no_result_that_its_slot_does_not_wait_for(leaf: Rig) -> None:
    base = {"eth_src": PARENT_MAC, "ip_src": PARENT_IP, "udp_src": JOB_PORT, "udp_dst": LEAF_PORT}
    result = leaf.contribution(0, 0, [1], **base, msg_type=2)
    assert leaf.device.process([(UPLINK, result.pack())]) == []  # nothing there yet
    leaf.send(0, leaf.contribution(0, 0, []))
    assert leaf.device.process([(UPLINK, result.pack())]) == []  # not all seen
    leaf.send(1, leaf.contribution(1, 0, []))
    assert leaf.device.process([(UPLINK, result.but(chunk=8).pack())]) == []  # another chunk
    assert leaf.device.process([(UPLINK, result.but(msg_type=1).pack())]) == []
    assert leaf.device.process([(1, result.pack())]) == []  # by a host's port
    assert leaf.job_verdicts() == {
        Verdict.RESULT_UNEXPECTED: 3,
        Verdict.WRONG_TYPE: 1,
        Verdict.NOT_ADMITTED: 1,
    }
    assert len(leaf.device.process([(UPLINK, result.pack())])) == 2


def test_members_are_told_apart_by_their_udp_port(rig: Rig) -> None:
    assert udp_port(1) != udp_port(2)
    assert rig.send(0, rig.contribution(0, 0, [], udp_src=udp_port(2))) == []
    assert rig.verdicts(1) == {Verdict.NOT_ADMITTED: 1}
