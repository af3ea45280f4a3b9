# SPDX-License-Identifier: Apache-2.0
"""Super-packets through the port loop: what hosts with all offloads on send arrives as they sent it."""

from __future__ import annotations

import hashlib
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from switch import super_packets
from switch.device import Exact, Lpm, SwitchDevice
from switch.ports import Ports, io_library
from tests.switch.flows import ACK, CWR, FIN, PSH, TCP, Flow, total
from tests.switch.hosts import SOL_UDP, UDP_GRO, UDP_SEGMENT, Host, receive_datagrams
from tests.switch.p4rt import FIXTURES
from tests.switch.programs import META, Builder, arg, assign, call, const, extract, field, key, to_port, value
from tests.switch.test_process_ports import Patch, cross, until
from tests.switch.veth import LIMIT

pytestmark = pytest.mark.root

UDP_L4, TCPV4, TCPV6, NEEDS_CSUM = 5, 1, 4, 1
VNET = struct.Struct("=BBHHHH")
"""flags, gso_type, hdr_len, gso_size, csum_start, csum_offset"""
ALONE = bytes(VNET.size)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    hosts: list[Host] = []
    try:
        hosts += [Host(1), Host(2)]
        hosts[0].knows(hosts[1])
        hosts[1].knows(hosts[0])
        yield hosts
    finally:
        for host in hosts:
            host.close()


@pytest.fixture(params=[True, False], ids=["joined", "alone"])
def ports(request: pytest.FixtureRequest) -> Iterator[Ports]:
    ports = Ports(io_library(), None, join=request.param)
    yield ports
    ports.close()


@pytest.fixture
def joining() -> Iterator[Ports]:
    ports = Ports(io_library(), None)
    yield ports
    ports.close()


def start(ports: Ports, hosts: list[Host], pcap: Path | None = None, program: Patch | None = None) -> None:
    for number, host in enumerate(hosts):
        ports.add(number, host.port, pcap)
    ports.start()
    ports.attach(program or Patch(cross))  # type: ignore[arg-type]


def sent_supers(ports: Ports, port: int, packets: int) -> int:
    """How many super-packets were among the packets that a port sent, once all are counted."""
    until(lambda: ports.stats()[port].tx_packets == packets, f"{packets} packets to be counted")
    return ports.stats()[port].tx_supers


def records(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), 24, []
    while at < len(data):
        kept, whole = struct.unpack_from("<II", data, at + 8)
        assert kept == whole
        found.append(data[at + 16 : at + 16 + kept])
        at += 16 + kept
    return found


def apart(message: bytes) -> list[bytes]:
    """The payloads of a UDP frame that came with a virtio_net_hdr."""
    payload, size = message[VNET.size + 42 :], VNET.unpack_from(message)[3]
    return [payload] if not size else [payload[at : at + size] for at in range(0, len(payload), size)]


def datagrams(seed: int) -> Iterator[tuple[int, list[bytes]]]:
    """Segment sizes and the datagrams of one send call each; the last may be shorter."""
    rng = random.Random(seed)
    for size, count in [(1034, 63), (1034, 61), (266, 64), (1, 64), (8000, 8), (1034, 1), (1472, 30)] * 3:
        parts = [rng.randbytes(size) for _ in range(count)]
        parts[-1] = parts[-1][: rng.randint(1, size)]
        yield size, parts


def test_udp_arrives_as_it_was_sent(ports: Ports, hosts: list[Host], tmp_path: Path) -> None:
    start(ports, hosts, tmp_path)
    sender, receiver = hosts[0].bound(socket.SOCK_DGRAM), hosts[1].bound(socket.SOCK_DGRAM, 5000)
    receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
    with sender, receiver:
        sender.connect((hosts[1].address, 5000))
        wanted: list[bytes] = []
        for size, parts in datagrams(1):
            sender.setsockopt(SOL_UDP, UDP_SEGMENT, size)
            sender.send(b"".join(parts))
            wanted += parts
        assert receive_datagrams(receiver, len(wanted)) == wanted
    supers = sent_supers(ports, 1, len(wanted))
    stats = ports.stats()[0]
    assert (stats.rx_packets, stats.rx_supers) == (len(wanted), 18)
    assert stats.rx_bytes == sum(42 + len(one) for one in wanted)
    assert supers == 0 or supers >= 18 // 2
    ports.close()
    for path in (f"{hosts[0].port}_in.pcap", f"{hosts[1].port}_out.pcap"):
        frames = records(tmp_path / path)
        assert [frame[42:] for frame in frames] == wanted
        for frame in frames:
            length = len(frame) - 14
            assert struct.unpack("!H", frame[16:18]) == (length,)
            assert total(frame[14:34]) == 0xFFFF
            pseudo = frame[26:34] + struct.pack("!HH", 17, length - 20)
            assert total(pseudo + frame[34:]) == 0xFFFF


def test_udp_super_packets_leave_as_such(joining: Ports, hosts: list[Host]) -> None:
    start(joining, hosts)
    flow, part = Flow(fragment=0, ident=65500), bytes(range(250)) * 4
    with hosts[0].raw(headers=True) as sender, hosts[1].raw(headers=True) as receiver:
        frame = flow.frame(60 * part + b"odd", partial=True)
        header = VNET.pack(NEEDS_CSUM, UDP_L4, 42, len(part), 34, 6)
        sender.send(header + frame)
        assert receiver.recv(1 << 17) == header + frame
    assert joining.stats()[1].tx_supers == 1


def test_any_number_of_segments(ports: Ports, hosts: list[Host]) -> None:
    # Linux bounds those of TCP by the payload's bytes alone: more than a port's queue has room for.
    program = Patch(cross)
    start(ports, hosts, program=program)
    with hosts[0].raw(headers=True) as sender:
        header = VNET.pack(NEEDS_CSUM, TCPV4, 54, 1, 34, 16)
        sender.send(header + Flow(protocol=TCP, flags=ACK | CWR).frame(bytes(6000), partial=True))
        until(lambda: sum(program.batches) == 6000, "the segments to pass")
    sent_supers(ports, 1, 6000)
    assert ports.stats()[1].tx_dropped == 0
    assert max(program.batches) <= 64


def test_a_receiver_without_offloads_gets_packet_by_packet(ports: Ports, hosts: list[Host]) -> None:
    # With the switch's own end unable to send super-packets, the kernel cuts them up before the cable.
    subprocess.run(["ethtool", "-K", hosts[1].port, "tx", "off"], check=True, capture_output=True)
    start(ports, hosts)
    rng = random.Random(2)
    with hosts[0].raw(headers=True) as sender, hosts[1].raw() as receiver:
        wanted = []
        for size, count in [(1034, 60), (700, 3), (266, 64), (8900, 7)]:
            flow = Flow(fragment=0, ident=rng.randrange(2**16), ports=(rng.randrange(2**16), 7))
            payload = rng.randbytes(size * count - 5)
            header = VNET.pack(NEEDS_CSUM, UDP_L4, 42, size, 34, 6)
            sender.send(header + flow.frame(payload, partial=True))
            wanted += [
                flow.at(index, 0, True).frame(payload[index * size : (index + 1) * size])
                for index in range(count)
            ]
        assert [receiver.recv(1 << 16) for _ in wanted] == wanted


class Gate(Patch):
    """Crosses like the others, but holds the first packet until told: what comes meanwhile is one batch."""

    def __init__(self) -> None:
        self.held, self.open = threading.Event(), threading.Event()

        def decide(port: int, frame: bytes) -> list[tuple[int, bytes]]:
            if not self.held.is_set():
                self.held.set()
                assert self.open.wait(LIMIT)
                return []
            return cross(port, frame)

        super().__init__(decide)


def through_a_batch(ports: Ports, hosts: list[Host], frames: list[bytes]) -> list[bytes]:
    """Let frames into port 0, so that the switch has them all at once; what leaves, with virtio_net_hdrs."""
    gate = Gate()
    start(ports, hosts, program=gate)
    with hosts[0].raw() as sender, hosts[1].raw(headers=True) as receiver:
        sender.send(bytes(60))
        assert gate.held.wait(LIMIT)
        for frame in frames:
            sender.send(frame)
        gate.open.set()
        sender.send(bytes(61))
        found = []
        while len(message := receiver.recv(1 << 17)) != VNET.size + 61:
            found.append(message)
    return found


def test_frames_of_one_flow_and_size_are_joined(joining: Ports, hosts: list[Host]) -> None:
    flow = Flow(fragment=0)
    frames = [flow.at(index, 0, True).frame(bytes([index]) * 500) for index in range(40)]
    (message,) = through_a_batch(joining, hosts, frames)
    assert VNET.unpack_from(message) == (NEEDS_CSUM, UDP_L4, 42, 500, 34, 6)
    assert message[VNET.size :] == flow.frame(
        b"".join(bytes([index]) * 500 for index in range(40)), partial=True
    )
    assert (joining.stats()[1].tx_packets, joining.stats()[1].tx_supers) == (41, 1)


def test_other_flows_and_sizes_part_them(joining: Ports, hosts: list[Host]) -> None:
    one, other = Flow(), Flow(source=7)
    frames = [flow.frame(bytes(size)) for flow, size in [(one, 50), (one, 50), (other, 50), (one, 50)]]
    frames += [one.frame(bytes(40)), one.frame(bytes(40)), one.frame(bytes(41))]
    found = through_a_batch(joining, hosts, frames)
    assert [len(apart(message)) for message in found] == [2, 1, 2, 1, 1]
    assert [part for message in found for part in apart(message)] == [frame[42:] for frame in frames]


def test_wrong_checksums_stay_wrong_and_alone(ports: Ports, hosts: list[Host]) -> None:
    flow = Flow(fragment=0)
    frames = [flow.at(index, 0, True).frame(bytes([index]) * 100) for index in range(30)]
    for spoilt, at in ((0, 50), (7, 41), (8, 100), (20, 24), (29, 141)):
        frames[spoilt] = frames[spoilt][:at] + bytes([frames[spoilt][at] ^ 0x10]) + frames[spoilt][at + 1 :]
    found = through_a_batch(ports, hosts, frames)
    assert [part for message in found for part in apart(message)] == [frame[42:] for frame in frames]
    for spoilt in (0, 7, 8, 20, 29):
        assert ALONE + frames[spoilt] in found
    if ports.stats()[1].tx_supers:
        assert [len(apart(message)) for message in found] == [1, 6, 1, 1, 11, 1, 8, 1]
    else:
        assert found == [ALONE + frame for frame in frames]


def test_no_segment_is_longer_than_the_link_takes(joining: Ports) -> None:
    hosts: list[Host] = []
    try:
        hosts += [Host(1), Host(2, mtu=2000)]
        start(joining, hosts)
        with hosts[0].raw(headers=True) as sender, hosts[1].raw() as receiver:
            header = VNET.pack(NEEDS_CSUM, UDP_L4, 42, 2500, 34, 6)
            sender.send(header + Flow().frame(bytes(10 * 2500), partial=True))
            sender.send(header + Flow(ident=9).frame(bytes(2501), partial=True))
            until(lambda: joining.stats()[1].tx_errors == 11, "the long frames to be counted")
            assert receiver.recv(1 << 16)[42:] == bytes(1)
    finally:
        joining.close()
        for host in hosts:
            host.close()


def transfer(hosts: list[Host], data: bytes) -> str:
    """Send over TCP from host 1 to host 2; the digest of what arrives."""
    digest = hashlib.sha256()
    listener = hosts[1].bound(socket.SOCK_STREAM, 5001)
    with listener, hosts[0].bound(socket.SOCK_STREAM) as sender:
        listener.listen()
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        receiver.settimeout(LIMIT)
        with receiver:
            thread = threading.Thread(target=sender.sendall, args=(data,))
            thread.start()
            left = len(data)
            while left:
                part = receiver.recv(1 << 20)
                assert part
                digest.update(part)
                left -= len(part)
            thread.join(LIMIT)
    return digest.hexdigest()


@pytest.mark.parametrize("mtu", ["1500", "9000"])
def test_tcp_through_the_forward_program(ports: Ports, hosts: list[Host], mtu: str) -> None:
    device = SwitchDevice.load(FIXTURES / "forward.json")
    for number, host in enumerate(hosts):
        host.ip("link", "set", "eth0", "mtu", mtu)
        ports.add(number, host.port)
        device.table_insert(
            "ingress.routes", [Lpm(0x0A000000 + host.number, 32)], "ingress.forward", [number]
        )
    ports.start()
    ports.attach(device)
    data = random.Random(3).randbytes(20 << 20)
    assert transfer(hosts, data) == hashlib.sha256(data).hexdigest()
    there, back = ports.stats()[0], ports.stats()[1]
    assert there.rx_supers > 100
    assert back.tx_supers == 0 or back.tx_supers > 100
    assert [one.rx_errors + one.tx_errors for one in (there, back)] == [0, 0]


@pytest.fixture
def program() -> Iterator[SwitchDevice]:
    """Everything to port 1: looks at no header."""
    builder = Builder()
    builder.state("start", [])
    builder.counter("seen", 1)
    builder.run("body", [to_port(1), call("count", value("counter_array", "seen"), const(0))])
    with SwitchDevice.load(builder.json) as device:
        yield device


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("flags", [ACK, ACK | PSH, ACK | FIN | PSH])
def test_tcp_passes_whole(
    joining: Ports, hosts: list[Host], program: SwitchDevice, tmp_path: Path, v6: bool, flags: int
) -> None:
    start(joining, hosts, tmp_path, program)  # type: ignore[arg-type]
    flow = Flow(protocol=TCP, v6=v6, flags=flags, ident=65530, seq=2**32 - 5000, tcp_options=b"\1" * 12)
    size, part = 1448, random.Random(8).randbytes(1448)
    payload, l4 = 40 * part + part[:99], 54 if v6 else 34
    frames = [
        flow.at(index, index * size, index == 40).frame(payload[index * size : (index + 1) * size])
        for index in range(41)
    ]
    with hosts[0].raw(headers=True) as sender, hosts[1].raw(headers=True) as receiver:
        header = VNET.pack(NEEDS_CSUM, TCPV6 if v6 else TCPV4, flow.headers, size, l4, 16)
        sender.send(header + flow.frame(payload, partial=True))
        message = receiver.recv(1 << 17)
        if not v6 and not flags & FIN:  # the last segment is joined to the others again
            assert message == header + flow.frame(payload, partial=True)
        else:
            first = flow.at(0, 0, False).frame(payload[: 40 * size], partial=True)
            assert message == header + first
            assert receiver.recv(1 << 17)[VNET.size :] == frames[-1]
    until(lambda: joining.stats()[1].tx_packets == 41, "the packets to be counted")
    there, back = joining.stats()[0], joining.stats()[1]
    octets = sum(map(len, frames))
    assert (there.rx_packets, there.rx_bytes, there.rx_supers, there.rx_wholes) == (41, octets, 1, 1)
    assert (back.tx_packets, back.tx_bytes, back.tx_supers) == (41, octets, 1)
    assert program.counter_read("seen", 0) == (41, octets)
    joining.close()
    for path in (f"{hosts[0].port}_in.pcap", f"{hosts[1].port}_out.pcap"):
        assert records(tmp_path / path) == frames


def test_what_may_not_pass_whole_is_cut_up(joining: Ports, hosts: list[Host], program: SwitchDevice) -> None:
    hosts[1].ip("link", "set", "eth0", "mtu", "1400")
    subprocess.run(["ip", "link", "set", hosts[1].port, "mtu", "1400"], check=True)
    start(joining, hosts, program=program)  # type: ignore[arg-type]
    flow = Flow(protocol=TCP)
    with hosts[0].raw(headers=True) as sender, hosts[1].raw(headers=True) as receiver:
        header = VNET.pack(NEEDS_CSUM, TCPV4, 54, 1400, 34, 16)
        sender.send(header + flow.frame(bytes(10 * 1400 + 9), partial=True))  # too long for the link behind
        assert receiver.recv(1 << 17) == ALONE + flow.at(10, 14000, True).frame(bytes(9))
        header = VNET.pack(NEEDS_CSUM, TCPV4 | 0x80, 54, 1000, 34, 16)
        marked = replace(flow, flags=ACK | CWR)  # only the first segment has the flag
        sender.send(header + marked.frame(bytes(3000), partial=True))
        assert receiver.recv(1 << 17) == ALONE + marked.frame(bytes(1000))
        message = receiver.recv(1 << 17)
        assert VNET.unpack_from(message)[3:] == (1000, 34, 16)
        assert message[VNET.size :] == marked.at(1, 1000, True).frame(bytes(2000), partial=True)
    until(lambda: joining.stats()[1].tx_packets == 4, "the packets to be counted")
    there, back = joining.stats()[0], joining.stats()[1]
    assert (there.rx_packets, there.rx_supers, there.rx_wholes) == (14, 2, 0)
    assert back.tx_errors == 10


def test_a_stream_passes_whole(ports: Ports, hosts: list[Host]) -> None:
    builder = Builder()
    builder.header("eth", [("dst", 48), ("src", 48), ("type", 16)])
    builder.state("start", [extract("eth")])
    number = builder.action("forward", [assign(field(META, "egress_spec"), arg(0))], [("port", 9)])
    builder.table("l2", [key("exact", "eth", "dst")], [number, builder.action("nothing", [])], 1)
    device = SwitchDevice.load(builder.json)
    for index, host in enumerate(hosts):
        device.table_insert("l2", [Exact(int(host.mac.replace(":", ""), 16))], "forward", [index])
    start(ports, hosts, program=device)  # type: ignore[arg-type]
    data = random.Random(3).randbytes(20 << 20)
    assert transfer(hosts, data) == hashlib.sha256(data).hexdigest()
    there, back = ports.stats()[0], ports.stats()[1]
    assert there.rx_wholes == 0 if back.tx_supers == 0 else there.rx_wholes > 100
    assert [one.rx_errors + one.tx_errors for one in (there, back)] == [0, 0]


def test_a_kernel_without_udp_super_packets(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert super_packets.udp_missing() is None
    monkeypatch.setattr(super_packets, "udp_missing", lambda: "this kernel is old")
    ports = Ports(io_library(), None)
    assert "this kernel is old" in caplog.text
    assert "tx-udp-segmentation off" in caplog.text
    try:
        tcp = Flow(protocol=TCP, fragment=0)
        frames = [Flow().frame(bytes(9))] * 3 + [
            tcp.at(index, 9 * index, True).frame(bytes(9)) for index in range(3)
        ]
        found = through_a_batch(ports, hosts, frames)
        assert [VNET.unpack_from(message)[1] for message in found] == [0, 0, 0, TCPV4]
    finally:
        ports.close()
