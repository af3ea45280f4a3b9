# SPDX-License-Identifier: Apache-2.0
"""TCP addresses as people write them."""

from __future__ import annotations

from .errors import P4ReduceError


class AddressError(P4ReduceError):
    """Not HOST:PORT; `text` is what was given."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what} {text}: is not HOST:PORT, as 127.0.0.1:8470")
        self.text = text


def parse_address(what: str, text: str) -> tuple[str, int]:
    """Return host and port 1..65535; AddressError, which names `what` it was given for."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise AddressError(what, text)
    return host, int(port)
