# SPDX-License-Identifier: Apache-2.0
"""Sockets between workers and a fabric in memory, so that what needs a socket (the turn in C) is used."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from dataclasses import replace

import numpy as np

from tests.worker.test_udp import LOOPBACK
from wire.packet import payload_dtype
from worker.bind import bind_port
from worker.memory import MemoryTransport
from worker.udp import UdpTransport

SWITCH_IP = "127.0.4.1"
"""Of the loopback device, and nobody's: there every job port is free."""


class Loopback(threading.Thread):
    """Call it with a worker's MemoryTransport: what it returns in its place is a socket, joined to that."""

    def __init__(self) -> None:
        super().__init__()
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._by_source: dict[int, MemoryTransport] = {}
        self._last: dict[str, int] = {}  # the port that a rank uses now
        self._stopping = threading.Event()

    def __call__(self, transport: MemoryTransport) -> UdpTransport:
        member = transport._membership
        with self._lock:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                self._socket.bind((SWITCH_IP, member.port))
                self._dtype = payload_dtype(member.elements)
                self.start()
            sock = bind_port(LOOPBACK)
            port = sock.getsockname()[1]
            self._by_source[port], self._last[member.own_ip] = transport, port
        return UdpTransport(replace(member, switch_ip=SWITCH_IP, own_ip=LOOPBACK, own_port=port), sock)

    def run(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._stopping.is_set():
            ready = poll.poll(2)
            with self._lock:
                if ready:
                    datagram, (_, port) = self._socket.recvfrom(1 << 16)
                    self._by_source[port].send(np.frombuffer(datagram, self._dtype))
                for port in self._last.values():
                    for packet in self._by_source[port].receive(0):
                        with contextlib.suppress(ConnectionRefusedError):
                            self._socket.sendto(packet.tobytes(), (LOOPBACK, port))

    def stop(self) -> None:
        """End the thread, if it was used."""
        self._stopping.set()
        if self._socket is not None:
            self.join(5)
            assert not self.is_alive()
            self._socket.close()
