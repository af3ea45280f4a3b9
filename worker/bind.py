# SPDX-License-Identifier: Apache-2.0
"""A UDP port of the worker's own, one per epoch, known before the membership is."""

from __future__ import annotations

import socket

from wire.constants import JOB_PORT_BASE, JOBS, is_job_port

from .errors import TransportError

ATTEMPTS = 2 * JOBS
"""More than there are job ports, so that the kernel must offer another one."""


def bind_port(ip: str) -> socket.socket:
    """Return a UDP socket bound to an ephemeral port of `ip` outside the job ports.

    The caller reports `getsockname()[1]` to the controller and hands the socket to a transport, which
    closes it. Raises TransportError when the address is not this host's or no port is free.
    """
    refused: list[socket.socket] = []  # held, so that the kernel does not offer them again
    try:
        for _ in range(ATTEMPTS):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                sock.bind((ip, 0))
            except OSError as error:
                sock.close()
                raise TransportError(
                    f"cannot bind a UDP port at {ip}: {error.strerror}. Check that this host has the address."
                ) from error
            if not is_job_port(sock.getsockname()[1]):
                return sock
            refused.append(sock)
    finally:
        for sock in refused:
            sock.close()
    raise TransportError(
        f"no free UDP port at {ip} outside the job ports {JOB_PORT_BASE}..{JOB_PORT_BASE + JOBS - 1}. "
        "Widen net.ipv4.ip_local_port_range."
    )
