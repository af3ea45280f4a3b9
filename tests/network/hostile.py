# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.network.hostile INTERFACE`: a hostile host: sends frames and looks at all that arrives.

Told on stdin: a line of JSON with `frames` (hex), `per_s` and `seconds` (0: each once). Says on stdout, for
each: how many were `sent`, and the frames `received` since, in hex, without its own.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time

from tests.network.raw import ETH_P_ALL, PACKET_IGNORE_OUTGOING

BURST = 16
MOST_RECEIVED = 2000


def run(interface: str) -> None:
    draw = random.Random(4)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(263, PACKET_IGNORE_OUTGOING, 1)
        sock.bind((interface, ETH_P_ALL))
        sock.setblocking(False)
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            frames = [bytes.fromhex(frame) for frame in told["frames"]]
            received: list[str] = []
            sent, start = 0, time.monotonic()
            while sent < len(frames) or time.monotonic() - start < told["seconds"]:
                for _ in range(BURST if told["seconds"] else 1):
                    frame = draw.choice(frames) if told["seconds"] else frames[sent]
                    select.select([], [sock], [], 1.0)
                    sock.send(frame)
                    sent += 1
                listen(sock, received, start + sent / told["per_s"] - time.monotonic())
            listen(sock, received, 0.2)
            print(json.dumps({"sent": sent, "received": received}), flush=True)


def listen(sock: socket.socket, received: list[str], seconds: float) -> None:
    """Keep what arrives within that time."""
    deadline = time.monotonic() + seconds
    while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
        frame = sock.recv(65536)
        if len(received) < MOST_RECEIVED:
            received.append(frame.hex())
        if time.monotonic() > deadline:
            return


if __name__ == "__main__":
    run(sys.argv[1])
