# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.network.rank`: one rank, in its own host; its results go into a file."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import numpy as np

from tests.network.tensors import Call, tensor
from worker.child import join, main, say
from worker.transport import Transport
from worker.udp import UdpTransport
from worker.worker import Worker


def run() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--calls", type=json.loads, required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--scapy-on", metavar="INTERFACE")
    given = parser.parse_args()
    if given.scapy_on:
        from worker.scapy_transport import ScapyTransport  # two seconds, before the others wait for us

    membership, sock = join(given.ip)
    transport: Transport
    if given.scapy_on:
        transport = ScapyTransport(membership, given.scapy_on, sock)
    else:
        transport = UdpTransport(membership, sock)
    results = []
    with Worker(membership, transport) as worker:
        for number, call in enumerate(given.calls):
            results.append(worker.all_reduce(tensor(given.seed, number, membership.rank, Call(**call))))
            say(done=number)
        np.savez(given.results, *results)
        say(stats=asdict(worker.stats))


if __name__ == "__main__":
    main(run)
