# SPDX-License-Identifier: Apache-2.0
"""Packets of one interface while they come, as tables."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

from wire.control import ControlClient, ControlError, find_socket

from . import blocks
from .capture import SNAPLEN, Tap, Workspace
from .errors import CaptureError
from .files import stream
from .members import Epoch, epoch_of
from .names import DESCRIPTION
from .record_cli import chosen
from .table import Table

ASK_SECONDS = 1.0
"""How often the controller is asked for new epochs."""
_POLL_MS = 200


class Watched:
    """An interface that is being watched; `epochs` are its network's, as far as it has one. Close it."""

    def __init__(self, interface: str, end: str, client: ControlClient | None, format_: str) -> None:
        self._end, self._format = end, format_
        self._client = client
        self._asked = 0.0
        self.epochs: list[Epoch] = []
        self._learn()
        self._tap = Tap(interface)
        self._space = Workspace()

    def _learn(self) -> None:
        if self._client is None or time.monotonic() < self._asked + ASK_SECONDS:
            return
        self._asked = time.monotonic()
        try:
            told = self._client.call("GET", "/v1/epochs")
        except ControlError:
            return  # it may be starting again: what is known stays
        known = {(epoch.epoch, epoch.job): epoch for epoch in self.epochs}
        for each in told:
            epoch = epoch_of(each, Path(self._client.where))
            known[epoch.epoch, epoch.job] = epoch
        self.epochs = [known[key] for key in sorted(known)]

    def tables(self) -> Iterator[Table]:
        """Yield the packets as they come. Raises CaptureError when the interface goes."""
        return stream(self._parts(), Path(self._tap.interface), values=True, format=self._format)

    def _parts(self) -> Iterator[bytes]:
        description = f"{DESCRIPTION}{self._end}" if self._end else ""
        yield blocks.section("p4reduce") + blocks.interface(self._tap.interface, description, SNAPLEN)
        poll = select.poll()
        poll.register(self._tap.fileno(), select.POLLIN)
        while True:
            ready = poll.poll(_POLL_MS)
            self._learn()
            if ready and (taken := bytes(self._tap.take(self._space))):
                yield taken

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._tap.close()
        if self._client is not None:
            self._client.close()


def watch(name: str, net: str | None, format_: str) -> Watched:
    """Return a watched link of a running network, h1-s1, or any interface of this machine.

    Raises CaptureError for a name that is neither, and without root.
    """
    present = Path("/sys/class/net", name).exists() if "/" not in name else False
    try:
        client = ControlClient(find_socket(net))
        switches = client.call("GET", "/v1/network")["switches"]
    except ControlError as error:
        if not present or net is not None:
            raise CaptureError(
                name, f"there is no such interface here, and no network's link: {error}"
            ) from None
        return Watched(name, "", None, format_)
    ends = {interface: end for end, interface in chosen(switches, None).items()}
    if name in ends or present:
        return Watched(name, ends.get(name, ""), client if name in ends else None, format_)
    ((end, interface),) = chosen(switches, name.split(",")[0]).items()
    return Watched(interface, end, client, format_)
