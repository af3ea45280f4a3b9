# SPDX-License-Identifier: Apache-2.0
"""The port loop in C, with a stand-in for the program: what arrives on port p leaves on port p ^ 1."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switch.p4runtime.errors import RpcError
from switch.ports import PortError, Ports, io_library
from tests.switch.veth import LIMIT, Link, exists, ip

pytestmark = pytest.mark.root

CPU = 510
EMIT = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
)


class Sum(ctypes.Structure):
    """sw_sum."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("from_", "to", "sum")]


class Sink(ctypes.Structure):
    """sw_sink."""

    _fields_ = [("place", ctypes.c_void_p), ("emit", EMIT), ("ctx", ctypes.c_void_p)]


class Packet(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_uint32), ("port", ctypes.c_uint32), ("sum", Sum)]


NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Packet))


class Source(ctypes.Structure):
    """sw_source."""

    _fields_ = [("next", NEXT), ("ctx", ctypes.c_void_p)]


PROCESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Source), ctypes.POINTER(Sink))


class Patch:
    """A SwitchDevice for Ports: a program in Python."""

    def __init__(self, decide: Callable[[int, bytes], list[tuple[int, bytes]]]) -> None:
        self.batches: list[int] = []
        self.closed = False

        def process(handle: int, source: Any, sink: Any) -> None:
            packet, out, to = Packet(), source.contents, sink.contents
            self.batches.append(0)
            while out.next(out.ctx, ctypes.byref(packet)):
                self.batches[-1] += 1
                for port, frame in decide(packet.port, ctypes.string_at(packet.data, packet.len)):
                    to.emit(to.ctx, port, frame, len(frame), ctypes.byref(Sum()))

        self._process = PROCESS(process)
        self.c_process = ctypes.cast(self._process, ctypes.c_void_p).value
        self.c_alike = None
        self.c_handle = 1

    def close(self) -> None:
        self.closed = True


def cross(port: int, frame: bytes) -> list[tuple[int, bytes]]:
    return [(port ^ 1, frame)]


def frame(number: int, size: int = 60) -> bytes:
    return (b"\x02" * 12 + b"\x88\xb5" + struct.pack("!I", number)).ljust(size, b"\0")


@pytest.fixture
def links() -> Iterator[list[Link]]:
    links = [Link(), Link()]
    yield links
    for link in links:
        link.close()


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports(io_library(), CPU)
    yield ports
    ports.close()


def connect(ports: Ports, links: list[Link], pcap: Path | None = None, decide: Any = cross) -> Patch:
    for number, link in enumerate(links):
        ports.add(number, link.port, pcap)
    ports.start()
    patch = Patch(decide)
    ports.attach(patch)  # type: ignore[arg-type]
    return patch


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT:g} s for {what}"
        time.sleep(0.01)


def test_frames_cross_in_order_and_are_counted(ports: Ports, links: list[Link]) -> None:
    connect(ports, links)
    sizes = [18, 60, 1514, 2014]
    sent = [frame(number, sizes[number % 4]) for number in range(300)] + [b"\x02" * 14]
    for one in sent:
        links[0].send(one)
    assert [links[1].receive() for _ in sent] == sent
    assert links[0].silent()
    until(lambda: ports.stats()[1].tx_packets == len(sent), "the frames to be counted")
    stats = ports.stats()
    octets = sum(map(len, sent))
    assert (stats[0].rx_packets, stats[0].rx_bytes) == (301, octets)
    assert (stats[1].tx_packets, stats[1].tx_bytes) == (301, octets)
    assert (stats[0].tx_packets, stats[1].rx_packets) == (0, 0)


def test_what_fits_no_link_is_counted(ports: Ports, links: list[Link]) -> None:
    connect(ports, links, decide=lambda port, data: [(1, bytes(5)), (1, bytes(2015)), (1, data), (77, data)])
    links[0].send(frame(1))
    assert links[1].receive() == frame(1)
    until(lambda: ports.stats()[1].tx_packets == 1, "the frame to be counted")
    assert ports.stats()[1].tx_errors == 2


def test_without_a_program_packets_are_dropped(ports: Ports, links: list[Link]) -> None:
    for number, link in enumerate(links):
        ports.add(number, link.port)
    ports.start()
    links[0].send(frame(1))
    until(lambda: ports.stats()[0].rx_errors == 1, "the frame to be counted")
    patch = Patch(cross)
    ports.attach(patch)  # type: ignore[arg-type]
    links[0].send(frame(2))
    assert links[1].receive() == frame(2)


def test_programs_are_swapped_under_traffic(ports: Ports, links: list[Link]) -> None:
    patches = [connect(ports, links)]
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            links[0].send(frame(0))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(50):
            patches.append(Patch(cross))
            ports.attach(patches[-1])  # type: ignore[arg-type]
            assert [patch.closed for patch in patches[-2:]] == [True, False]
            count = len(patches[-2].batches)
            until(lambda: len(patches[-1].batches) > 1, "traffic through the new program")
            assert len(patches[-2].batches) == count
    finally:
        stop.set()
        sender.join(LIMIT)


def test_the_cpu_port(ports: Ports, links: list[Link]) -> None:
    received: queue.Queue[bytes] = queue.Queue()
    ports.on_packet_in(received.put)
    connect(ports, links, decide=lambda port, data: [(CPU, data[::-1])] if port != CPU else [(0, data)])
    links[0].send(frame(3))
    assert received.get(timeout=LIMIT) == frame(3)[::-1]
    for number in range(200):
        ports.inject(frame(number))
    assert [links[0].receive() for _ in range(200)] == [frame(number) for number in range(200)]
    without = Ports(io_library(), None)
    with pytest.raises(RpcError, match="--cpu-port"):
        without.inject(frame(1))
    without.close()


def test_captures(ports: Ports, links: list[Link], tmp_path: Path) -> None:
    connect(ports, links, tmp_path)
    for number in range(5):
        links[0].send(frame(number, 100 + number))
        assert links[1].receive() == frame(number, 100 + number)
    files = {
        way: tmp_path / f"{link.port}_{way}.pcap" for link, way in zip(links, ("in", "out"), strict=True)
    }
    size = 24 + sum(16 + 100 + number for number in range(5))
    for way, path in files.items():
        until(lambda path=path: path.stat().st_size == size, f"the {way} capture to be flushed")  # type: ignore[misc]
        data = path.read_bytes()
        assert struct.unpack("<IHHiIII", data[:24])[:4] == (0xA1B2C3D4, 2, 4, 0)
        assert struct.unpack("<I", data[20:24]) == (1,)
        at, now = 24, time.time()
        for number in range(5):
            seconds, micros, kept, whole = struct.unpack("<IIII", data[at : at + 16])
            assert kept == whole == 100 + number
            assert abs(seconds + micros / 1e6 - now) < 60
            assert data[at + 16 : at + 16 + kept] == frame(number, 100 + number)
            at += 16 + kept
    assert (tmp_path / f"{links[0].port}_out.pcap").stat().st_size == 24


def test_the_program_sees_the_vlan_tag(ports: Ports, links: list[Link]) -> None:
    seen: queue.Queue[bytes] = queue.Queue()

    def decide(port: int, data: bytes) -> list[tuple[int, bytes]]:
        seen.put(data)
        return cross(port, data)

    connect(ports, links, decide=decide)
    tagged = b"\x02" * 12 + b"\x81\x00\x20\x05" + b"\x88\xb5" + bytes(60)
    links[0].send(tagged)
    assert seen.get(timeout=LIMIT) == tagged
    # On the way to our own socket the kernel takes the tag out, as it did for the switch.
    assert links[1].receive() == tagged[:12] + tagged[16:]
    until(lambda: ports.stats()[1].tx_bytes == len(tagged), "the frame to be counted")


def test_left_out_checksums_are_completed(ports: Ports, links: list[Link]) -> None:
    seen: queue.Queue[bytes] = queue.Queue()

    def decide(port: int, data: bytes) -> list[tuple[int, bytes]]:
        if data[12:14] == b"\x08\x00":
            seen.put(data)
        return []

    connect(ports, links, decide=decide)
    host = links[0].host
    ip("address", "add", "198.51.100.1/24", "dev", host)
    ip("neigh", "add", "198.51.100.2", "lladdr", "02:00:00:00:00:02", "dev", host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"odd", ("198.51.100.2", 9))
    data = seen.get(timeout=LIMIT)
    datagram = data[34:]
    pseudo = data[26:34] + struct.pack("!BBH", 0, 17, len(datagram))
    words = pseudo + datagram + b"\0" * (len(datagram) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    assert total % 0xFFFF == 0
    assert datagram[6:8] != b"\0\0"


def test_a_port_that_goes_down_and_up(
    ports: Ports, links: list[Link], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connect(ports, links)
    ip("link", "set", links[0].port, "down")
    until(lambda: "is down" in caplog.text, "the port to be down")
    links[1].send(frame(1))
    until(lambda: ports.stats()[0].tx_dropped == 1, "the drop to be counted")
    ip("link", "set", links[0].port, "up")
    until(lambda: "is up again" in caplog.text, "the port to be up")
    links[1].send(frame(2))
    assert links[0].receive() == frame(2)


def test_an_interface_that_vanishes(
    ports: Ports, links: list[Link], caplog: pytest.LogCaptureFixture
) -> None:
    third = Link()
    connect(ports, [*links, third])
    ip("link", "delete", third.port)
    until(lambda: "has vanished" in caplog.text, "the port to vanish")
    assert not exists(third.port)
    third.close()
    links[0].send(frame(9))
    assert links[1].receive() == frame(9)


def test_an_interface_that_comes_back(
    ports: Ports, links: list[Link], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connect(ports, links)
    links[0].send(frame(1))
    assert links[1].receive() == frame(1)
    for number in range(2, 4):
        name, before = links[0].port, caplog.text.count("is up again")
        links[0].close()
        until(lambda n=number: caplog.text.count("has vanished") == n - 1, "the port to vanish")  # type: ignore[misc]
        links[0] = Link(name)
        until(lambda b=before: caplog.text.count("is up again") > b, "the port to be there again")  # type: ignore[misc]
        links[0].send(frame(number))
        assert links[1].receive() == frame(number)
        links[1].send(frame(number))
        assert links[0].receive() == frame(number)
    assert ports.stats()[0].rx_packets == 3


def test_ports_that_flap_under_traffic(ports: Ports, links: list[Link]) -> None:
    """Down and up, deleted and made again, while frames come on all ports for all ports."""
    third = Link()
    patch = connect(
        ports, [*links, third], decide=lambda port, data: [(out, data) for out in range(3) if out != port]
    )
    stop = threading.Event()

    def send(link: Link) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(OSError):  # the link is down
                link.send(frame(number))

    senders = [threading.Thread(target=send, args=(link,)) for link in links]
    for sender in senders:
        sender.start()
    try:
        for _ in range(15):
            ip("link", "set", links[1].port, "down")
            name = third.port
            third.close()
            ip("link", "set", links[1].port, "up")
            third = Link(name)
        until(lambda: not third.silent(), "traffic on the port that was made anew")
        count = len(patch.batches)
        until(lambda: len(patch.batches) > count, "the switch to go on")
    finally:
        stop.set()
        for sender in senders:
            sender.join(LIMIT)
        third.close()


def test_captures_on_a_full_disk(
    ports: Ports, links: list[Link], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=True)
    try:
        connect(ports, links, tmp_path)
        for number in range(400):
            links[0].send(frame(number, 1500))
            assert links[1].receive() == frame(number, 1500)
        until(lambda: "the capture ends here" in caplog.text, "the full disk to be told")
        links[0].send(frame(1))
        assert links[1].receive() == frame(1)
    finally:
        ports.close()
        subprocess.run(["umount", tmp_path], check=True)


def test_what_cannot_be_opened(ports: Ports, links: list[Link], tmp_path: Path) -> None:
    with pytest.raises(PortError, match="no interface of this name"):
        ports.add(0, "nosuchif0")
    with pytest.raises(PortError, match="capture"):
        ports.add(0, links[0].port, tmp_path / "missing")
    ports.add(0, links[0].port)
    with pytest.raises(PortError):
        ports.add(0, links[1].port)
