# SPDX-License-Identifier: Apache-2.0
"""Packets of one interface while they come, as tables."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from wire.control import ControlClient, ControlError, find_socket

from . import blocks
from .capture import SNAPLEN, Tap, Workspace
from .errors import CaptureError
from .files import stream
from .follow import EpochFollower
from .members import Epoch
from .names import DESCRIPTION, link_ends
from .record_cli import Ends, chosen
from .table import Table

_POLL_MS = 200


class Watched:
    """An interface that is being watched, as a context manager; `epochs` are its network's so far, if any."""

    def __init__(self, interface: str, end: str, socket: Path | None, format_: str) -> None:
        self._end, self._format = end, format_
        self._stack = ExitStack()
        self.epochs: list[Epoch] = []
        self._tap = Tap(interface)
        self._stack.callback(self._tap.close)
        if self._tap.was_down:
            self._stack.close()
            raise CaptureError(
                interface,
                f"it is down: bring it up (p4reduce net link LINK --up, ip link set {interface} up)",
            )
        self._space = Workspace()
        if socket is not None:
            self._stack.enter_context(EpochFollower(socket, self._keep))

    def _keep(self, epochs: list[Epoch]) -> None:
        self.epochs = epochs

    def tables(self) -> Iterator[Table]:
        """Yield the packets as they come. Raises CaptureError when the interface goes."""
        return stream(self._parts(), Path(self._tap.interface), values=True, format=self._format)

    def _parts(self) -> Iterator[bytes]:
        description = f"{DESCRIPTION}{self._end}" if self._end else ""
        yield blocks.section("p4reduce") + blocks.interface(self._tap.interface, description, SNAPLEN)
        poll = select.poll()
        poll.register(self._tap.fileno(), select.POLLIN)
        while True:
            if (poll.poll(_POLL_MS) or self._tap.was_down) and (taken := bytes(self._tap.take(self._space))):
                yield taken

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def watch(name: str, net: str | None, format_: str) -> Watched:
    """Return a watched link of a running network, h1-s1, or any interface of this machine.

    Raises CaptureError for a name that is neither, and without root.
    """
    present = Path("/sys/class/net", name).exists() if "/" not in name else False
    try:
        socket = find_socket(net)
        with ControlClient(socket) as client:
            every = link_ends(client.call("GET", "/v1/network")["links"])
    except ControlError as error:
        if not present or net is not None:
            raise CaptureError(
                name, f"there is no such interface here, and no network's link: {error}"
            ) from None
        return Watched(name, "", None, format_)
    ends = {end.interface: end.name for end in every if end.namespace is None}
    if name in ends or present:
        return Watched(name, ends.get(name, ""), socket if name in ends else None, format_)
    # At a switch: there it is known what becomes of a packet. Between switches, at the end that was named.
    found = chosen(every, name.split(",")[0], Ends.SWITCHES)
    end = next((end for end in found if end.name == name), found[0])
    return Watched(end.interface, end.name, socket, format_)
