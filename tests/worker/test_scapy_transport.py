# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""The Scapy transport: the same bytes on the wire as the others', and sums over a veth pair."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.reference.slot_switch import SlotSwitch
from tests.worker.jobs import SWITCH_IP, SWITCH_MAC, memberships
from wire.packet import build_frames, frame_dtype, frames_are_sound, payload_dtype
from worker import TransportError, Worker
from worker.bind import bind_port
from worker.udp import UdpTransport


def random_payloads(elements, count=3):
    dtype = payload_dtype(elements)
    raw = np.random.default_rng(12).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    payloads = raw.view(dtype)
    payloads["kind"] = 0x18 | {64: 1, 256: 3}[elements]
    return payloads


@pytest.mark.parametrize("elements", [64, 256])
def test_same_bytes_as_the_frames_of_wire(elements, monkeypatch):
    from scapy.config import conf

    from worker.scapy_transport import ScapyTransport

    sent = []

    class Recorder:
        def __init__(self, iface):
            assert iface == "h0-eth0"

        def send(self, packet):
            sent.append(bytes(packet))

        def close(self):
            pass

    monkeypatch.setattr(conf, "L2socket", Recorder)
    member = memberships(2, elements=elements)[1]
    sock = bind_port("127.0.0.1")
    transport = ScapyTransport(member, "h0-eth0", sock)
    payloads = random_payloads(elements)
    transport.send(payloads)
    transport.close()
    frames = build_frames(
        payloads,
        eth_src=member.own_mac,
        eth_dst=member.switch_mac,
        ip_src=member.own_ip,
        ip_dst=member.switch_ip,
        udp_src=member.own_port,
        udp_dst=member.port,
    )
    assert sent == [frame.tobytes() for frame in frames]


def test_a_super_packet_is_several_results(monkeypatch):
    from scapy.config import conf
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    from worker.scapy_transport import ScapyTransport

    member = memberships(1)[0]
    payloads = random_payloads(64)
    payloads["kind"] = 0x21
    flow = Ether(dst=member.own_mac) / IP(src=member.switch_ip, dst=member.own_ip, flags="DF")
    flow /= UDP(sport=member.port, dport=member.own_port)
    length = 8 + payloads.nbytes
    words = np.frombuffer(flow[IP].build()[12:20], ">u2")
    # The sum of the pseudo-header, not inverted, as the kernel leaves it (RFC 1071 for the sum).
    total = int(words.sum()) + 17 + length
    flow[UDP].chksum = total % 65535 or 65535
    frames = [Ether(bytes(flow / payloads.tobytes()))]
    flow[UDP].chksum = 1 + total % 65535
    frames.append(Ether(bytes(flow / payloads.tobytes())))

    class Player:
        def __init__(self, iface):
            pass

        def select(self, sockets, timeout):
            return sockets if frames else []

        def recv(self):
            return frames.pop(0)

        def close(self):
            pass

    monkeypatch.setattr(conf, "L2socket", Player)
    transport = ScapyTransport(member, "h0-eth0", bind_port("127.0.0.1"))
    np.testing.assert_array_equal(transport.receive(0.0), payloads)
    transport.close()


def test_an_unknown_interface_is_named():
    from worker.scapy_transport import ScapyTransport

    with bind_port("127.0.0.1") as sock, pytest.raises(TransportError, match=r"no-such-if0.*[Rr]oot"):
        ScapyTransport(memberships(1)[0], "no-such-if0", sock)


WORKER_IP = "198.51.100.1"
_numbers = itertools.count()


@pytest.fixture
def veth():
    """A veth pair; the worker's end has the addresses of rank 0, and knows those of the switch."""
    number = next(_numbers)  # Scapy knows interfaces by name, and does not notice another of the same
    a, b = (f"p4r{side}{os.getpid() % 1000000}{number}" for side in "ab")
    subprocess.run(["ip", "link", "add", a, "type", "veth", "peer", "name", b], check=True, timeout=10)
    offloads = [word for name in ("tx", "gso", "gro", "tx-udp-segmentation") for word in (name, "off")]
    try:
        for command in (
            ["ethtool", "-K", a, *offloads],  # on the wire are whole packets
            ["ip", "link", "set", a, "address", memberships(1)[0].own_mac],
            ["ip", "addr", "add", f"{WORKER_IP}/32", "dev", a],
            ["ip", "link", "set", a, "up"],
            ["ip", "link", "set", b, "up"],
            ["ip", "route", "add", SWITCH_IP, "dev", a],
            ["ip", "neigh", "add", SWITCH_IP, "lladdr", SWITCH_MAC, "dev", a],
        ):
            subprocess.run(command, check=True, timeout=10, capture_output=True)
        yield a, b
    finally:
        subprocess.run(["ip", "link", "del", a], check=True, timeout=10)


@contextlib.contextmanager
def switched(member, interface):
    """A switch of one worker at that interface; yields the frames that it gets."""
    switch = SlotSwitch(member.elements, SWITCH_IP, SWITCH_MAC)
    switch.add_job([member], [1])
    stopping, frames = threading.Event(), []

    def run():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as raw:
            raw.bind((interface, 0))
            poll = select.poll()
            poll.register(raw, select.POLLIN)
            while not stopping.is_set():
                if poll.poll(20):
                    frame, address = raw.recvfrom(2048)
                    if address[2] != socket.PACKET_OUTGOING:
                        if (
                            frame[23] == socket.IPPROTO_UDP
                        ):  # else the kernel's own, such as "port unreachable"
                            frames.append(frame)
                        for _, out in switch.process([(1, frame)]):
                            with contextlib.suppress(OSError):
                                raw.send(out)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield frames
    finally:
        stopping.set()
        thread.join(5)
        assert not thread.is_alive()


def worker_at(port, elements=64):
    """The one rank of a job, at the veth pair, and its socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((WORKER_IP, port))
    [member] = memberships(1, window=8, lead=4, elements=elements)
    return replace(member, own_ip=WORKER_IP, own_port=port), sock


@pytest.mark.root
def test_sums_over_a_veth_pair(veth):
    from worker.scapy_transport import ScapyTransport

    worker_end, switch_end = veth
    member, sock = worker_at(41000)
    with switched(member, switch_end):
        with Worker(member, ScapyTransport(member, worker_end, sock), timeout=60.0) as worker:
            array = np.arange(1000, dtype=np.int32)
            np.testing.assert_array_equal(worker.all_reduce(array), array)
            floats = np.linspace(-1, 1, 200, dtype=np.float32)
            np.testing.assert_allclose(worker.all_reduce(floats), floats, atol=1e-9)


@pytest.mark.root
@pytest.mark.parametrize("elements", [64, 256])
def test_the_same_bytes_on_the_wire_as_over_udp(veth, elements):
    """But what the kernel chooses and nobody reads: IPv4's id, don't fragment, and so IPv4's checksum."""
    from worker.scapy_transport import ScapyTransport

    worker_end, switch_end = veth

    def over_scapy(member, sock):
        return ScapyTransport(member, worker_end, sock)

    draw = np.random.default_rng(5)
    integers = draw.integers(-(2**31), 2**31, 5 * elements + 3, dtype=np.int32)
    floats = (draw.standard_normal(7 * elements) * 10.0 ** draw.integers(-30, 30)).astype(np.float32)
    by_chunk: list[dict[int, set[bytes]]] = []
    for make in (over_scapy, UdpTransport):
        member, sock = worker_at(41001, elements)
        with switched(member, switch_end) as frames:
            with Worker(member, make(member, sock), timeout=60.0) as worker:
                for array in (integers, floats, integers[:0]):
                    bound = 0.0 if array.dtype == np.int32 else 1e-6 * np.abs(array).max()
                    np.testing.assert_allclose(worker.all_reduce(array), array, rtol=0, atol=bound)
        raw = np.frombuffer(b"".join(frames), frame_dtype(elements)).copy()
        assert frames_are_sound(raw).all()
        raw["ip_id"] = raw["ip_fragment"] = raw["ip_checksum"] = 0
        # A packet that is sent again is the same.
        by_chunk.append({chunk: set() for chunk in raw["payload"]["chunk"].tolist()})
        for frame in raw:
            by_chunk[-1][int(frame["payload"]["chunk"])].add(frame.tobytes())
    scapy, udp = by_chunk
    # Header, values; header, exponents as many as the lead ahead of the values; header.
    assert sorted(scapy) == list(range(1 + 6 + 1 + 4 + 7 + 1))
    assert {len(found) for found in scapy.values()} == {1}
    assert scapy == udp
