# SPDX-License-Identifier: Apache-2.0
"""TCP addresses as people write them, and sockets that listen there."""

from __future__ import annotations

import socket

from .errors import P4ReduceError


class AddressError(P4ReduceError):
    """Not HOST:PORT; `text` is what was given."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what} {text}: is not HOST:PORT, as 127.0.0.1:8470")
        self.text = text


class ListenError(P4ReduceError):
    """Nothing can listen at HOST:PORT, which is `address`."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"cannot listen at {address}: {why}; give --listen an address of this machine and a free port"
        )
        self.address = address


def parse_address(what: str, text: str) -> tuple[str, int]:
    """Return host and port 1..65535; AddressError, which names `what` it was given for."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise AddressError(what, text)
    return host, int(port)


def listening(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Return a TCP socket that listens there; ListenError when none can."""
    try:
        return socket.create_server((host, port), backlog=backlog, reuse_port=False)
    except OSError as error:
        # The address would come there again.
        why = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise ListenError(f"{host}:{port}", why) from error
