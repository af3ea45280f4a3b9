# SPDX-License-Identifier: Apache-2.0
"""A rank's line to the controller of its job: what it says, and what it is told (the sessions of the API)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from wire.control import CALL_SECONDS, RESTART_SECONDS, ControlClient, RefusedError, at

from .errors import Absent, WorkerError
from .kept import Ranges
from .session_errors import (
    BeyondRankError,
    JobDrainingError,
    JobRemovedError,
    NoSuchJobError,
    RankTakenError,
    SessionEndedError,
)

BIND_AGAIN = "BindAgainError"
"""Kind of refusal: packets of a former life may still come from that UDP port."""


@dataclass(frozen=True)
class Status:
    """What a worker says of itself; chunks are unwrapped numbers."""

    epoch: int = 0
    """0 before the first membership."""
    begun: int = 0
    next_chunk: int = 0
    first_missing: int = 0
    stopped: int = 0
    """Id of the change that it has stopped for, 0 if for none."""
    udp_port: int = 0
    """Bound for the next epoch, 0 if none is."""
    have: Ranges | tuple[()] = ()
    """Results above first_missing, while stopped."""
    fetched: bool = False
    failed: int = 0
    """Id of the change whose failure it has taken in."""
    left: str | None = None
    """Why this rank ended its last all-reduce by itself, and needs a new epoch."""
    missing: tuple[int, ...] = ()
    """A few chunks that it waits for."""


class Control(Protocol):
    """A rank's line to its controller; several threads use it at once.

    Every call may raise wire.control's UnreachableControllerError and RefusedError.
    """

    job: str
    """Name of the job."""
    lease: float
    """Seconds after which a worker that says nothing is lost; known once open."""

    def open(self, udp_port: int) -> None:
        """Take the rank, with a UDP port for its first epoch."""

    def sync(self, status: Status, wait: float) -> dict[str, Any]:
        """Say what we are, and return what to do next; `nothing` after `wait` seconds. Renews the lease."""

    def barrier(self, number: int, wait: float) -> list[int]:
        """Return the ranks that have not reached a barrier after `wait` seconds: none, and it is passed."""

    def absent(self) -> list[Absent]:
        """Return the ranks that have no worker."""

    def host(self, rank: int) -> str:
        """Return the name of a rank's host."""

    def lacking(self, chunks: Sequence[int], seconds: float) -> dict[int, list[Absent]]:
        """Return for each of these chunks the ranks without a contribution at the switch.

        None of them where the switch has the result; a chunk that it tells nothing of is left out.
        """

    def leave(self) -> None:
        """End the session."""

    def close(self) -> None:
        """Close all connections. Idempotent."""


class Connect(Protocol):
    """Makes a client that waits `patience` seconds for somebody to listen, and `seconds` for an answer."""

    def __call__(self, patience: float, seconds: float = CALL_SECONDS) -> ControlClient:
        """Return the client."""


class HttpControl:
    """A Control over the controller's API.

    Joining outlasts a controller's restart. Later calls are not patient: who makes them tries again.

    Raises NoSuchJobError, BeyondRankError, JobDrainingError; see Control.
    """

    def __init__(self, connect: Connect, job: str, rank: int) -> None:
        self.job, self.rank = job, rank
        self.lease = 0.0
        self._connect = connect
        self._idle: list[ControlClient] = []  # each in one call at a time
        self._lock = threading.Lock()
        self._closed = False
        self._session = ""
        try:
            described = self._job()
            ranks = described["ranks"]
            if described["status"] == "draining":
                raise JobDrainingError(job, None)
            if not 0 <= rank < len(ranks):
                raise BeyondRankError(job, rank, len(ranks))
        except BaseException:
            self.close()
            raise
        self._hosts = [str(r["host"]) for r in ranks]
        self.ip = str(ranks[rank]["ip"])
        """Of this rank's host."""

    def _call(self, method: str, path: str, body: Any = None, wait: float = 0.0) -> Any:
        with self._lock:
            client = self._idle.pop() if self._idle else None
        client = client or self._connect(0.0)
        try:
            return client.call(method, path, body, wait=wait)
        finally:
            with self._lock:
                self._idle.append(client)
                if self._closed:
                    self._close_idle()

    def _job(self) -> dict[str, Any]:
        try:
            with self._connect(RESTART_SECONDS) as patient:
                described: dict[str, Any] = patient.call("GET", at("jobs", self.job))
        except RefusedError as error:
            raise refusal(error, self.job, self.rank) from None
        return described

    def open(self, udp_port: int) -> None:
        """Take the rank; see Control."""
        body = {"ip": self.ip, "udp_port": udp_port}
        with self._connect(RESTART_SECONDS) as patient:
            told = patient.call("POST", at("jobs", self.job, "ranks", self.rank), body)
        self._session, self.lease = str(told["session"]), float(told["lease"])

    def sync(self, status: Status, wait: float) -> dict[str, Any]:
        """Return the next instruction; see Control."""
        body = {**asdict(status), "wait": wait}
        told: dict[str, Any] = self._call("POST", at("sessions", self._session, "sync"), body, wait)
        return told

    def barrier(self, number: int, wait: float) -> list[int]:
        """Return who has not reached a barrier; see Control."""
        body = {"number": number, "wait": wait}
        told = self._call("POST", at("sessions", self._session, "barrier"), body, wait)
        return [] if told["passed"] else [int(rank) for rank in told["missing"]]

    def absent(self) -> list[Absent]:
        """Return the ranks that have no worker; see Control."""
        return [Absent(int(r["rank"]), str(r["host"])) for r in self._job()["ranks"] if not r["joined"]]

    def host(self, rank: int) -> str:
        """Return the name of a rank's host; see Control."""
        return self._hosts[rank] if rank < len(self._hosts) else "unknown"

    def lacking(self, chunks: Sequence[int], seconds: float) -> dict[int, list[Absent]]:
        """Return who is missing of some chunks; see Control."""
        with self._connect(0.0, seconds) as client:
            found = client.call("GET", at("jobs", self.job, "chunks"), chunk=list(chunks))
        return {
            int(told["chunk"]): [Absent(int(r["rank"]), str(r["host"])) for r in told["missing"]]
            for told in found
        }

    def leave(self) -> None:
        """End the session; see Control."""
        self._call("DELETE", at("sessions", self._session))

    def close(self) -> None:
        """Close all connections, one in use when its call ends; see Control."""
        with self._lock:
            self._closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


def refusal(error: RefusedError, job: str, rank: int) -> WorkerError | RefusedError:
    """Return the worker's error for a refused look-up or join; the refusal itself where there is none."""
    kinds: dict[str, WorkerError] = {
        "NoSuchJobError": NoSuchJobError(job, str(error)),
        "RankTakenError": RankTakenError(job, rank, str(error)),
    }
    return kinds.get(error.kind, error)


def ending(job: str, why: str, kind: str) -> SessionEndedError:
    """Return the error for a session that is over, by the kind that the controller gives."""
    return JobRemovedError(job, why) if kind == "JobRemovedError" else SessionEndedError(job, why)
