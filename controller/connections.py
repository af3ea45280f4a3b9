# SPDX-License-Identifier: Apache-2.0
"""Connections to the API: who opens many, or never ends a request, must not keep others out.

uvicorn limits neither; without it, a TCP client needs no token to use up the daemon's open files.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""How long a request may take to come, head and body, from its connection or the answer before it on."""


def take_all_files() -> None:
    """Let this process open as many files as it may: a worker's long poll is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_remote() -> int:
    """Return how many TCP connections there may be: half of all files, so that the Unix socket has room."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


class Connection(H11Protocol):
    """An HTTP connection that is closed when its request does not come, or when there are too many by TCP."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        remote = self.client is not None  # one by the Unix socket has no address
        if remote and sum(other.client is not None for other in self.connections) > most_remote():  # type: ignore[union-attr]
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._end_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._end_watch()
        elif self._limit is None and not self.transport.is_closing():
            self._limit = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_watch(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
