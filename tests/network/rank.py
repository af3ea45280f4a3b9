# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.network.rank`: one rank, in its own host; its results go into a file.

It joins a job of the network's controller; or, where a test does without, is told its membership.
"""

from __future__ import annotations

import argparse
import json
import socket
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.network.tensors import Call, tensor
from wire.membership import Membership
from wire.packet import Packets
from worker.child import main, say
from worker.errors import MismatchError, StalledError
from worker.join import join
from worker.session_errors import WorkerLostError
from worker.transport import Transport
from worker.udp import UdpTransport
from worker.worker import Worker


class Shuffling:
    """A transport that sends each burst in any order, and a part of it only with the next one."""

    native = None

    def __init__(self, membership: Membership, sock: socket.socket) -> None:
        self._under = UdpTransport(membership, sock)
        self._draw = np.random.default_rng([3, membership.rank])
        self._held: list[Packets] = []

    def send(self, packets: Packets) -> None:
        """Send some of these and of those held back."""
        mixed = np.concatenate([*self._held, packets], dtype=packets.dtype)
        self._draw.shuffle(mixed)
        now = len(mixed) - int(self._draw.integers(0, 1 + len(mixed) // 4))
        self._held = [mixed[now:]]
        self._under.send(mixed[:now])

    def receive(self, timeout: float) -> Packets:
        """Return what came, in any order, once what was held back is out; see Transport."""
        found = self._under.receive(timeout)
        if not len(found) and self._held and len(self._held[0]):
            self._under.send(self._held[0])
            self._held = []
        mixed: Packets = found.copy()
        self._draw.shuffle(mixed)
        return mixed

    def close(self) -> None:
        """See Transport."""
        self._under.close()


def direct(text: str) -> Worker:
    """Return the worker of a membership, its UDP port bound here."""
    membership = Membership.from_json(text)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((membership.own_ip, membership.own_port))
    return Worker(membership, UdpTransport(membership, sock))


def run() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--net")
    parser.add_argument("--job")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--membership")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--calls", type=json.loads, required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--after", type=json.loads, help="the calls once one has failed")
    parser.add_argument("--call-timeout", type=float, default=30.0)
    parser.add_argument("--shuffle", action="store_true", help="send and take packets in any order")
    parser.add_argument("--scapy-on", metavar="INTERFACE")
    given = parser.parse_args()
    if given.membership:
        worker = direct(given.membership)
    elif given.scapy_on:
        from worker.scapy_transport import ScapyTransport  # two seconds, before the others wait for us

        def over_scapy(membership: Membership, sock: socket.socket) -> Transport:
            return ScapyTransport(membership, given.scapy_on, sock)

        worker = join(given.job, given.rank, net=given.net, transport=over_scapy)
    else:
        transport = Shuffling if given.shuffle else UdpTransport
        worker = join(
            given.job, given.rank, net=given.net, call_timeout=given.call_timeout, transport=transport
        )
    results: list[NDArray[Any]] = []

    def reduce(calls: list[dict[str, Any]], seed: int) -> None:
        results.clear()
        for number, call in enumerate(calls):
            results.append(worker.all_reduce(tensor(seed, number, worker.membership.rank, Call(**call))))
            say(done=number)

    with worker:
        try:
            reduce(given.calls, given.seed)
        except (WorkerLostError, StalledError, MismatchError) as error:
            if given.after is None:
                raise
            say(lost=str(error), kind=type(error).__name__)
            reduce(given.after, given.seed + 1)
        np.savez(given.results, *results)
        stats = asdict(worker.stats)
        del stats["round_trips"]  # no JSON
        say(stats=stats)


if __name__ == "__main__":
    main(run)
