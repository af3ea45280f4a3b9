# SPDX-License-Identifier: Apache-2.0
"""Memberships while packets come: the controller's epochs, followed by its API."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from wire.control import ControlClient, ControlError

from .members import Epoch, epoch_of

WAIT_SECONDS = 0.5
"""How long the controller is asked to wait for an event."""
RETRY_SECONDS = 0.2
STOP_SECONDS = 5.0
LAST_SECONDS = 1.0
"""How long the last call may take."""


class EpochFollower:
    """Gives `keep` the epochs that a controller tells of, all so far, whenever they change.

    A context manager. `keep` is called in a thread of its own; `known` are epochs of before. A controller
    that does not answer is asked again: it may be starting, or being started again.
    """

    def __init__(
        self, socket: Path, keep: Callable[[list[Epoch]], None], known: Sequence[Epoch] = ()
    ) -> None:
        self._socket = socket
        self._keep = keep
        self._known = {(epoch.epoch, epoch.job): epoch for epoch in known}
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochs", daemon=True)

    def __enter__(self) -> EpochFollower:
        self._tell()
        self._thread.start()
        self._asked.wait(STOP_SECONDS)  # so that what runs already is known before the first packet
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(STOP_SECONDS)
        self._look_once()

    def _tell(self) -> None:
        self._keep([self._known[key] for key in sorted(self._known)])

    def _run(self) -> None:
        after: int | None = None
        while not self._ended.is_set():
            try:
                with ControlClient(self._socket) as client:
                    while not self._ended.is_set():
                        # Events first: what comes after them is told by the next call at once.
                        wait = 0.0 if after is None else WAIT_SECONDS
                        events = client.call("GET", "/v1/events", wait=wait, after=after or 0)
                        after = max([after or 0, *(event["id"] for event in events)])
                        self._look(client)
                        self._asked.set()
            except ControlError:
                self._asked.set()
                self._ended.wait(RETRY_SECONDS)

    def _look_once(self) -> None:
        try:
            with ControlClient(self._socket, seconds=LAST_SECONDS) as client:
                self._look(client)
        except ControlError:
            return  # it has ended before us: what is known stays

    def _look(self, client: ControlClient) -> None:
        found = [epoch_of(told, self._socket) for told in client.call("GET", "/v1/epochs")]
        now, present = time.time_ns(), {(epoch.epoch, epoch.job) for epoch in found}
        before = dict(self._known)
        for key, epoch in before.items():
            if epoch.ended is None and key not in present:
                self._known[key] = replace(epoch, ended=now)
        for epoch in found:
            key = (epoch.epoch, epoch.job)
            known = self._known.get(key)
            if known is None or known.ended is not None:
                self._known[key] = epoch
            else:  # it stays as it began, but for what links and fault tables do meanwhile
                self._known[key] = replace(epoch, duplicates=epoch.duplicates or known.duplicates)
        if self._known != before:
            self._tell()
