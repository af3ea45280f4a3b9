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
from worker.child import main, say
from worker.join import join
from worker.session_errors import WorkerLostError
from worker.transport import Transport
from worker.udp import UdpTransport
from worker.worker import Worker


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
    parser.add_argument("--after", type=json.loads, help="the calls once a worker was lost")
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
        worker = join(given.job, given.rank, net=given.net)
    results: list[NDArray[Any]] = []

    def reduce(calls: list[dict[str, Any]], seed: int) -> None:
        results.clear()
        for number, call in enumerate(calls):
            results.append(worker.all_reduce(tensor(seed, number, worker.membership.rank, Call(**call))))
            say(done=number)

    with worker:
        try:
            reduce(given.calls, given.seed)
        except WorkerLostError as error:
            if given.after is None:
                raise
            say(lost=str(error))
            reduce(given.after, given.seed + 1)
        np.savez(given.results, *results)
        say(stats=asdict(worker.stats))


if __name__ == "__main__":
    main(run)
