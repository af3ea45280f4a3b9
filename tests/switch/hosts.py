# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces, each on a veth pair to a switch's port: real sockets with all offloads on."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.switch.veth import (
    ETH_P_ALL,
    LIMIT,
    PACKET_IGNORE_OUTGOING,
    SOL_PACKET,
    ip,
    wait_up,
    widen,
)

CLONE_NEWNET = 0x40000000
UDP_SEGMENT, UDP_GRO, SOL_UDP = 103, 104, 17
PACKET_VNET_HDR = 15
BUFFER = 16 << 20

_count = itertools.count()


class Host:
    """Host `number` has 10.0.0.NUMBER on eth0; `port` is the switch's end, in our own namespace."""

    def __init__(self, number: int, mtu: int = 9000) -> None:
        self.number = number
        self.address = f"10.0.0.{number}"
        self.mac = f"02:00:00:00:00:{number:02x}"
        self.name = f"t{os.getpid() % 100000}n{next(_count)}"
        self.port = f"{self.name}p"
        ip("netns", "add", self.name)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        Path(f"/proc/sys/net/ipv6/conf/{self.port}/disable_ipv6").write_text("1")
        with self.inside():
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        ip("link", "set", self.port, "mtu", str(mtu), "up")
        self.ip("link", "set", "eth0", "address", self.mac, "mtu", str(mtu), "up")
        wait_up(self.port)
        wait_up("eth0", "-netns", self.name)
        self.ip("address", "add", f"{self.address}/24", "dev", "eth0")

    def knows(self, other: Host) -> None:
        self.ip("neigh", "replace", other.address, "lladdr", other.mac, "dev", "eth0")

    def ip(self, *words: str) -> None:
        ip("-netns", self.name, *words)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Run the body with this thread in the namespace; sockets stay in that of their making."""
        libc = ctypes.CDLL(None, use_errno=True)
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
            assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            os.close(there)
            try:
                yield
            finally:
                assert libc.setns(own, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        finally:
            os.close(own)

    def bound(self, kind: socket.SocketKind, port: int = 0) -> socket.socket:
        """A UDP or TCP socket of this host, bound."""
        with self.inside():
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(LIMIT)
        widen(made, BUFFER)
        made.bind((self.address, port))
        return made

    def raw(self, *, headers: bool = False) -> socket.socket:
        """A packet socket on eth0; `headers`: a virtio_net_hdr goes before each frame."""
        with self.inside():
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            made.settimeout(LIMIT)
            widen(made, BUFFER)
            made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, int(headers))
            made.bind(("eth0", ETH_P_ALL))
        return made

    def close(self) -> None:
        subprocess.run(["ip", "link", "delete", self.port], timeout=LIMIT, capture_output=True, check=False)
        ip("netns", "delete", self.name)


def receive_datagrams(receiver: socket.socket, count: int) -> list[bytes]:
    """The next datagrams at a socket with UDP_GRO, taken apart where several come at once."""
    found: list[bytes] = []
    while len(found) < count:
        data, control, _, _ = receiver.recvmsg(1 << 16, 64)
        sizes = [struct.unpack("i", value[:4])[0] for _, kind, value in control if kind == UDP_GRO]
        size = sizes[0] if sizes else max(len(data), 1)
        found += [data[at : at + size] for at in range(0, max(len(data), 1), size)]
    return found
