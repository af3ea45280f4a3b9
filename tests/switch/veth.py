# SPDX-License-Identifier: Apache-2.0
"""Veth pairs with names of their own: one end for the switch, the other for the test. Needs root."""

from __future__ import annotations

import itertools
import os
import select
import socket
import subprocess
import time
from pathlib import Path

LIMIT = 30.0
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33

_count = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=LIMIT, capture_output=True)


def exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def widen(made: socket.socket, size: int) -> None:
    """Give a socket a large receive buffer, as large as allowed where there is no real root."""
    try:
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def wait_up(name: str, *before: str) -> None:
    """Wait until a link takes frames: without a queueing discipline it drops them, and says nothing.

    `before` goes between `ip` and its command.
    """
    end = time.monotonic() + LIMIT
    while True:
        command = ["ip", *before, "link", "show", name]
        shown = subprocess.run(command, check=True, timeout=LIMIT, capture_output=True)
        if b"state UP" in shown.stdout and b"qdisc noop " not in shown.stdout:
            return
        assert time.monotonic() < end, f"{name} does not come up within {LIMIT:g} s: {shown.stdout.decode()}"
        time.sleep(0.01)


class Link:
    """A veth pair; `port` is the switch's end, `host` ours, with a raw socket on it."""

    def __init__(self, port: str | None = None) -> None:
        number = next(_count)
        self.port, self.host = (f"t{os.getpid() % 100000}{side}{number}" for side in "sh")
        self.port = port or self.port
        ip("link", "add", self.port, "type", "veth", "peer", "name", self.host)
        for name in (self.port, self.host):
            # The kernel's own IPv6 packets would get between ours.
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
            ip("link", "set", name, "mtu", "2000", "up")
        for name in (self.port, self.host):
            wait_up(name)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        widen(self.socket, 16 << 20)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self.socket.bind((self.host, ETH_P_ALL))

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def receive(self) -> bytes:
        """The next frame."""
        assert select.select([self.socket], [], [], LIMIT)[0], f"no frame on {self.host} within {LIMIT:g} s"
        return self.socket.recv(65536)

    def silent(self, seconds: float = 0.05) -> bool:
        """Whether no frame waits or comes within this time."""
        return not select.select([self.socket], [], [], seconds)[0]

    def close(self) -> None:
        self.socket.close()
        if exists(self.port):
            ip("link", "delete", self.port)
        end = time.monotonic() + LIMIT
        while exists(self.host):
            assert time.monotonic() < end, f"{self.host} does not go away"
            time.sleep(0.01)
