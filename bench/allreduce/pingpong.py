# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.allreduce.pingpong`: datagrams as large as contributions, there and back."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from statistics import median
from time import perf_counter

from topologies.ranks import START_LIMIT_S, Ranks
from topologies.record import NetRecord
from wire.packet import payload_dtype
from worker.bind import bind_port
from worker.child import main, say

from .cells import Place

MODULE = "bench.allreduce.pingpong"
ROUNDS = 500
WARM_UP = 50
LOST_S = 0.2
"""What has not come back by then is lost, and counts for nothing."""


def measure(record: NetRecord, place: Place, limit_s: float) -> float:
    """Return the median seconds from the first host to the second and back, with ordinary blocking sockets.

    The datagrams have as many bytes as a contribution's. Both pass the switch as ordinary traffic, which it
    routes. Raises RankError and NetworkError.
    """
    first, second = record.hosts[:2]
    size = payload_dtype(record.elements).itemsize
    arguments = [[host.ip, other.ip, str(size)] for host, other in ((first, second), (second, first))]
    with Ranks(record, [first.name, second.name], MODULE, arguments) as ranks:
        ports = [answer["port"] for answer in ranks.answers(START_LIMIT_S)]
        ranks.tell(ports=ports, caller=first.ip)
        answers = ranks.answers(limit_s)
    return float(answers[0]["seconds"])


def _call(sock: socket.socket, size: int) -> float:
    """Return the median seconds of round trips; every datagram carries its number."""
    trips = []
    for number in range(WARM_UP + ROUNDS):
        data = number.to_bytes(4, "big").ljust(size, b"\0")
        start = perf_counter()
        sock.send(data)
        try:
            while sock.recv(size) != data:
                pass  # one that was given up
        except TimeoutError:
            continue
        if number >= WARM_UP:
            trips.append(perf_counter() - start)
    sock.send(b"")  # the end
    return median(trips) if trips else float("nan")


def _echo(sock: socket.socket, size: int) -> None:
    """Send everything back until an empty datagram comes."""
    sock.settimeout(START_LIMIT_S)
    while data := sock.recv(size):
        sock.send(data)


def run() -> None:
    """Bind, tell the port, learn the other's, and call or echo."""
    parser = argparse.ArgumentParser()
    parser.add_argument("own")
    parser.add_argument("other")
    parser.add_argument("size", type=int)
    given = parser.parse_args()
    with bind_port(given.own) as sock:
        say(port=sock.getsockname()[1])
        told = json.loads(sys.stdin.readline())
        calls = told["caller"] == given.own
        sock.connect((given.other, told["ports"][1 if calls else 0]))
        sock.settimeout(LOST_S)
        if calls:
            say(seconds=_call(sock, given.size))
        else:
            say(echo=True)
            _echo(sock, given.size)


if __name__ == "__main__":
    main(run)
