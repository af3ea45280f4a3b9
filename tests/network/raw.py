# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.network.raw INTERFACE`: sends the frames told on stdin, tells what arrives; in hex."""

from __future__ import annotations

import os
import select
import socket
import sys

PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 3


def run(interface: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(263, PACKET_IGNORE_OUTGOING, 1)
        sock.bind((interface, ETH_P_ALL))
        print("ready", flush=True)
        told = b""
        while True:  # until stdin ends, with the test
            ready, _, _ = select.select([0, sock.fileno()], [], [])
            if 0 in ready:
                part = os.read(0, 1 << 16)
                if not part:
                    return
                *lines, told = (told + part).split(b"\n")
                for line in lines:
                    sock.send(bytes.fromhex(line.decode()))
            if sock.fileno() in ready:
                print(sock.recv(65536).hex(), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
