# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.flood`: a tenant's host that sends as fast as its link takes it, until it is ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wire.constants import MSG_CONTRIBUTION
from wire.control import ControlClient, ControlError, find_socket
from wire.packet import kind, payload_dtype
from worker.bind import bind_port
from worker.child import main, say
from worker.udp import MOST_SEGMENTS, UDP_SEGMENT

from .errors import BenchError

JOIN_LIMIT_S = 30.0
SYNC_S = 1.0
BURST_BYTES = 60_000


@contextmanager
def admitted(net: str, job: str, ip: str, udp_port: int) -> Iterator[None]:
    """Hold rank 0 of a job of one while the body runs. BenchError if it cannot begin."""
    with ControlClient(find_socket(net)) as control, ControlClient(find_socket(net)) as keeper:
        sid = control.call("POST", f"/v1/jobs/{job}/ranks/0", {"ip": ip, "udp_port": udp_port})["session"]
        status: dict[str, Any] = {"udp_port": udp_port, "wait": JOIN_LIMIT_S}
        told = control.call("POST", f"/v1/sessions/{sid}/sync", status, wait=JOIN_LIMIT_S)
        if told["do"] != "go":
            raise BenchError(job, f"the flooding tenant's worker was to begin, and was told to: {told['do']}")
        status = {"epoch": told["membership"]["epoch"], "wait": SYNC_S}
        over = threading.Event()

        def keep() -> None:
            while not over.is_set():
                try:
                    keeper.call("POST", f"/v1/sessions/{sid}/sync", status, wait=SYNC_S)
                except ControlError:
                    return  # the job was removed: we are to end, too

        thread = threading.Thread(target=keep)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def flood(sock: socket.socket, data: bytes, size: int) -> None:
    """Send a burst of packets of `size` bytes again and again, while our parent lives."""
    say(flooding=True)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    parent = os.getppid()
    while os.getppid() == parent:
        with contextlib.suppress(ConnectionRefusedError):  # a host says that nobody listens there
            sock.send(data)


def run() -> None:
    """Flood."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", help="with --job")
    parser.add_argument("--ip", required=True, help="own address")
    parser.add_argument("--to", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--job", help="of its own, in which it is admitted")
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--bytes", type=int, help="UDP payload of a packet; default: a contribution's")
    given = parser.parse_args()
    kinds = payload_dtype(given.elements)
    size = given.bytes or kinds.itemsize
    count = min(MOST_SEGMENTS, BURST_BYTES // size)
    data = bytes(count * size)
    if not given.bytes:
        contributions = np.zeros(count, kinds)
        contributions["kind"] = kind(MSG_CONTRIBUTION, 0, given.elements)
        # Of one chunk: where it is admitted, the switch answers each with the result.
        data = contributions.tobytes()
    with bind_port(given.ip) as sock:
        sock.connect((given.to, given.port))
        if given.job:
            with admitted(given.net, given.job, given.ip, sock.getsockname()[1]):
                flood(sock, data, size)
        else:
            flood(sock, data, size)


if __name__ == "__main__":
    main(run)
