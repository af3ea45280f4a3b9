# SPDX-License-Identifier: Apache-2.0
"""The UDP transport over loopback, against the reference switch behind a UDP socket in a thread."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.dataplane.frames import checksum
from tests.reference.slot_switch import SlotSwitch
from tests.worker.jobs import SWITCH_MAC, memberships
from wire.constants import is_job_port, job_port
from wire.packet import build_frames, payload_dtype
from worker import StalledError, TransportError, Worker
from worker.bind import bind_port
from worker.udp import UdpTransport

LOOPBACK = "127.0.0.1"
IP_MTU = 14


class UdpSwitch(threading.Thread):
    """The reference switch at a job port of the loopback address; worker ports serve as switch ports."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements
        self.switch = SlotSwitch(elements, LOOPBACK, SWITCH_MAC)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.job = self._bind()
        self.stopping = threading.Event()
        self.drop_next = 0

    def _bind(self):
        for job in range(256):
            try:
                self.socket.bind((LOOPBACK, job_port(job)))
            except OSError:
                continue
            return job
        raise AssertionError("all job ports are taken")

    def run(self):
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while not self.stopping.is_set():
            if not poll.poll(50):
                continue
            datagram, (_, port) = self.socket.recvfrom(65536)
            if self.drop_next:
                self.drop_next -= 1
                continue
            frame = build_frames(
                np.frombuffer(datagram, payload_dtype(self.elements)),
                eth_src=SWITCH_MAC,
                eth_dst=SWITCH_MAC,
                ip_src=LOOPBACK,
                ip_dst=LOOPBACK,
                udp_src=port,
                udp_dst=job_port(self.job),
            )
            for to, out in self.switch.process([(port, frame.tobytes())]):
                with contextlib.suppress(ConnectionRefusedError):
                    self.socket.sendto(out[42:], (LOOPBACK, to))

    def stop(self):
        self.stopping.set()
        self.join(5)
        assert not self.is_alive()
        self.socket.close()


@pytest.fixture(params=[64, 256])
def switch(request):
    thread = UdpSwitch(request.param)
    thread.start()
    yield thread
    thread.stop()


def join(switch, n, **kwargs):
    """n workers of a new job at the switch."""
    sockets = [bind_port(LOOPBACK) for _ in range(n)]
    members = [
        replace(m, switch_ip=LOOPBACK, own_ip=LOOPBACK, own_port=s.getsockname()[1])
        for m, s in zip(
            memberships(n, job=switch.job, elements=switch.elements, **kwargs), sockets, strict=True
        )
    ]
    switch.switch.add_job(members, [m.own_port for m in members])
    return [Worker(m, UdpTransport(m, s), timeout=60.0) for m, s in zip(members, sockets, strict=True)]


def all_reduce(workers, arrays):
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [
            pool.submit(worker.all_reduce, array) for worker, array in zip(workers, arrays, strict=True)
        ]
        return [future.result(timeout=120) for future in futures]


@pytest.mark.parametrize("cut_up", [True, False], ids=["UDP_SEGMENT", "one packet a message"])
def test_sums_over_loopback(switch, cut_up):
    rng = np.random.default_rng(11)
    workers = join(switch, 3, window=64, lead=16)
    try:
        for worker in workers:
            assert worker.transport.native.segments == min(64, 65507 // (10 + 4 * switch.elements))
            if not cut_up:
                worker.transport._without_segmentation()
        switch.drop_next = 7
        ints = [rng.integers(-(2**31), 2**31, 20001, dtype=np.int64).astype(np.int32) for _ in range(3)]
        for result in all_reduce(workers, ints):
            np.testing.assert_array_equal(result, np.sum(ints, axis=0, dtype=np.int64).astype(np.int32))
        floats = [rng.standard_normal((100, 70)).astype(np.float32) for _ in range(3)]
        results = all_reduce(workers, floats)
        np.testing.assert_allclose(results[0], np.sum(floats, axis=0), atol=1e-6)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])
        assert sum(w.stats.retransmissions for w in workers) >= 7
    finally:
        for worker in workers:
            worker.close()


def test_datagrams_of_others_are_not_received():
    """Sent before connect() by anybody, behind many that are no packets, or later from another port."""
    sock, forger = bind_port(LOOPBACK), bind_port(LOOPBACK)
    member = replace(memberships(1)[0], switch_ip=LOOPBACK, own_ip=LOOPBACK, own_port=sock.getsockname()[1])
    forged = np.zeros(1, payload_dtype(64)).tobytes()
    for _ in range(200):
        forger.sendto(b"", sock.getsockname())
    forger.sendto(forged, sock.getsockname())
    transport = UdpTransport(member, sock)
    forger.sendto(forged, sock.getsockname())
    assert len(transport.receive(0.01)) == 0
    transport.close()
    forger.close()


def test_nobody_at_the_switch_is_a_stall_not_an_os_error():
    sock = bind_port(LOOPBACK)
    member = replace(
        memberships(1, job=255)[0], switch_ip=LOOPBACK, own_ip=LOOPBACK, own_port=sock.getsockname()[1]
    )
    with Worker(member, UdpTransport(member, sock), timeout=0.2) as worker:
        with pytest.raises(StalledError, match=r"0\.2 s from switch 127\.0\.0\.1:48895"):
            worker.all_reduce(np.zeros(1, np.int32))


def test_bound_ports_are_no_job_ports(monkeypatch):
    class Socket:
        """Offers three job ports first."""

        offered = iter([0xBE00, 0xBEFF, 0xBE80, 0xBF00])
        closed = 0

        def __init__(self, *args):
            self.port = next(self.offered)

        def bind(self, address):
            assert address == (LOOPBACK, 0)

        def getsockname(self):
            return (LOOPBACK, self.port)

        def close(self):
            Socket.closed += 1

    monkeypatch.setattr(socket, "socket", Socket)
    assert bind_port(LOOPBACK).getsockname()[1] == 0xBF00
    assert Socket.closed == 3
    assert not is_job_port(0xBF00)


def test_an_address_of_another_host_is_refused():
    with pytest.raises(TransportError, match=r"192\.0\.2\.1.*Check that this host"):
        bind_port("192.0.2.1")


def icmp(kind, code, word, quoted):
    """An ICMP error that quotes a packet (RFC 792)."""
    rest = struct.pack("!I", word) + quoted
    return struct.pack("!BBH", kind, code, checksum(struct.pack("!BBH", kind, code, 0) + rest)) + rest


@pytest.mark.root
def test_forged_icmp_errors_neither_end_it_nor_shorten_its_packets():
    """Any host may send any error about a packet that it never got; the kernel tells the socket of it."""
    member = replace(memberships(1)[0], switch_ip=LOOPBACK, own_ip=LOOPBACK)
    sock = bind_port(LOOPBACK)
    member = replace(member, own_port=sock.getsockname()[1])
    transport = UdpTransport(member, sock)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 294, 1, 0, 64, 17, 0) + socket.inet_aton(LOOPBACK) * 2
    udp = struct.pack("!HHHH", member.own_port, member.port, 274, 0)
    packets = np.zeros(3, payload_dtype(64))
    errors = [(3, code, 0) for code in range(16)] + [(3, 4, 552), (4, 0, 0), (11, 0, 0), (12, 0, 0)]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        for kind, code, word in errors:
            for use in (lambda: transport.send(packets), lambda: transport.receive(0)):
                raw.sendto(icmp(kind, code, word, head + udp), (LOOPBACK, 0))
                use()
    assert transport.native.segments > 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((LOOPBACK, member.port))
        assert probe.getsockopt(socket.IPPROTO_IP, IP_MTU) > 60_000
    transport.close()
