# SPDX-License-Identifier: Apache-2.0
"""Sockets in the hosts of a network, used by one process: more of them would take the switch's cores."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from topologies.errors import NetworkError
from topologies.record import NetRecord
from worker.bind import bind_port

_CLONE_NEWNET = 0x40000000


def socket_in(record: NetRecord, host: str) -> socket.socket:
    """Return a UDP socket bound to a port of a host's address, in that host's namespace.

    Raises NetworkError when the host has died, TransportError when no port is free.
    """
    with _inside(record, host):
        return bind_port(record.host(host).ip)


@contextmanager
def _inside(record: NetRecord, host: str) -> Iterator[None]:
    """Run the body with this thread in a host's network namespace; sockets stay in that of their making."""
    process = record.host(host).process
    if process is None or not process.alive():
        raise NetworkError(host, "the host has ended")
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY)
        try:
            _enter(there, host)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(own, host)
    finally:
        os.close(own)


def _enter(namespace: int, host: str) -> None:
    # os.setns came with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise NetworkError(host, f"its namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
