# SPDX-License-Identifier: Apache-2.0
"""What the controller remembers over its death: jobs, sessions, tenants, events.

A job's row holds the plan of its epoch before the switch hears of it, so that a controller that is killed at
any moment finds what it meant to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from sqlite3 import Connection, Error, Row, connect
from typing import Any

from controller.database import transaction, unusable
from controller.errors import StateError
from controller.program.faults import Shares

FORMAT = 2
EVENTS = 10_000
"""Events kept; the oldest go."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS format (version INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, quota INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sessions (sid TEXT PRIMARY KEY, job TEXT NOT NULL, row TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS faults (
    switch TEXT NOT NULL, port INTEGER NOT NULL, direction TEXT NOT NULL, row TEXT NOT NULL,
    PRIMARY KEY (switch, port, direction)
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, job TEXT, kind TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
"""


@dataclass(frozen=True)
class ChangeRow:
    """A change of epoch that is under way; `lost` has (rank, host, why) each."""

    id: int
    members: bool
    why: str
    lost: list[list[Any]]


@dataclass(frozen=True)
class NodeRow:
    """An epoch at one switch; `seats` and `leaf` are the fields of WorkerSeat and LeafSeat."""

    switch: str
    base: int
    group: int
    rids: list[int]
    seats: list[list[Any]]
    leaf: list[Any] | None


@dataclass(frozen=True)
class EpochRow:
    """An epoch as it was planned; ranks are (host, udp_port) each."""

    epoch: int
    window: int
    lead: int
    ranks: list[list[Any]]
    nodes: list[NodeRow]
    """The root first."""
    g0: int
    t0: int
    resume_from: int


@dataclass(frozen=True)
class JobRow:
    """A job: what was asked for, where it is, and where it goes on."""

    name: str
    number: int
    tenant: str
    hosts: list[str]
    tree: list[list[Any]]
    """The fields of each Node in their order."""
    allowed: list[str]
    slots: int
    rents: dict[str, list[int]]
    """By switch: its first slot there, and how many it has."""
    lead: int
    rate_bps: int | None
    created: float
    next_chunk: int
    """Where an epoch of other members will begin, at least."""
    begun: int
    """All-reduces begun, at least."""
    changes: int
    """Id of the last change."""
    draining: int | None
    change: ChangeRow | None
    epoch: EpochRow | None
    counted: dict[str, list[Any]] = field(default_factory=dict)
    """By switch: what its tally knows, and its rows."""
    counts_kept: list[Any] = field(default_factory=list)
    """The rows of what was counted in former trees."""


@dataclass(frozen=True)
class SessionRow:
    """A worker that holds a rank."""

    sid: str
    job: str
    rank: int
    ip: str
    udp_port: int
    epoch: int = 0
    """The last epoch that it was given a membership of, 0 before the first."""


@dataclass(frozen=True)
class Event:
    """Something that a person may want to know; `job` is empty for what concerns the network."""

    id: int
    time: float
    job: str
    kind: str
    text: str


class Store:
    """The controller's tables in the network's state file; `close` it.

    The connection that it keeps is for reading, and keeps the write-ahead log alive between transactions.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Make the tables if they are not there; StateError if the file cannot be used or is newer."""
        self._path = path
        self._clock = clock
        with transaction(path, SCHEMA) as database:
            row = database.execute("SELECT version FROM format").fetchone()
            if row is None:
                database.execute("INSERT INTO format VALUES (?)", (FORMAT,))
            elif row[0] != FORMAT:
                raise StateError(
                    path,
                    f"its format is {row[0]}, ours is {FORMAT}: run the version that wrote it, or take the "
                    "network down (p4reduce net down) and up again",
                )
        self._reader = connect(path, check_same_thread=False)
        self._reader.row_factory = Row

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._reader.close()

    def _read(self, query: str, *values: object) -> list[Row]:
        try:
            return self._reader.execute(query, values).fetchall()
        except Error as error:
            raise unusable(self._path, error) from error

    # ---- jobs and sessions
    def jobs(self) -> list[JobRow]:
        """Return all jobs, oldest first."""
        try:
            found = [_job(json.loads(row["row"])) for row in self._read("SELECT row FROM jobs")]
        except (ValueError, TypeError, KeyError) as error:
            raise unusable(self._path, error) from error
        return sorted(found, key=lambda job: job.created)

    def put_job(self, job: JobRow, sessions: Iterable[SessionRow] = ()) -> None:
        """Insert a job, or replace the row of that name; and some of its sessions with it."""
        with transaction(self._path) as database:
            database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job.name, json.dumps(asdict(job))))
            _put_sessions(database, sessions)

    def drop_job(self, name: str) -> None:
        """Forget a job and its sessions."""
        with transaction(self._path) as database:
            database.execute("DELETE FROM sessions WHERE job = ?", (name,))
            database.execute("DELETE FROM jobs WHERE name = ?", (name,))

    def sessions(self) -> list[SessionRow]:
        """Return all sessions."""
        try:
            return [SessionRow(**json.loads(row["row"])) for row in self._read("SELECT row FROM sessions")]
        except (ValueError, TypeError) as error:
            raise unusable(self._path, error) from error

    def put_sessions(self, sessions: Iterable[SessionRow], ended: Iterable[str] = ()) -> None:
        """Insert sessions, or replace the rows of their ids; and forget those that have `ended`."""
        with transaction(self._path) as database:
            _drop_sessions(database, ended)
            _put_sessions(database, sessions)

    def drop_sessions(self, sids: Iterable[str]) -> None:
        """Forget sessions."""
        with transaction(self._path) as database:
            _drop_sessions(database, sids)

    # ---- tenants
    def tenants(self) -> dict[str, int | None]:
        """Return the quota of each tenant in slots, None for one without."""
        return {r["name"]: r["quota"] for r in self._read("SELECT * FROM tenants ORDER BY name")}

    def put_tenant(self, name: str, quota: int | None) -> None:
        """Set a tenant's quota."""
        with transaction(self._path) as database:
            database.execute("INSERT OR REPLACE INTO tenants VALUES (?, ?)", (name, quota))

    # ---- faults
    def faults(self, switch: str) -> dict[tuple[int, str], Shares]:
        """Return a switch's faults by port and direction (in, out)."""
        rows = self._read("SELECT port, direction, row FROM faults WHERE switch = ?", switch)
        return {(row["port"], row["direction"]): Shares(**json.loads(row["row"])) for row in rows}

    def put_faults(self, switch: str, port: int, direction: str, shares: Shares) -> None:
        """Set a port's faults in one direction; all 0 forgets them."""
        key = (switch, port, direction)
        with transaction(self._path) as database:
            database.execute("DELETE FROM faults WHERE (switch, port, direction) = (?, ?, ?)", key)
            if shares.any:
                row = json.dumps(asdict(shares))
                database.execute("INSERT INTO faults VALUES (?, ?, ?, ?)", (*key, row))

    # ---- events
    def log(self, job: str, kind: str, text: str) -> int:
        """Keep an event; return its id."""
        with transaction(self._path) as database:
            return _log(database, self._clock(), job, kind, text)

    def events(self, after: int = 0, job: str | None = None, most: int = 1000) -> list[Event]:
        """Return events with an id above `after`, oldest first, at most `most`, the newest of them."""
        rows = self._read(
            "SELECT * FROM events WHERE id > ? AND (? IS NULL OR job = ?) ORDER BY id DESC LIMIT ?",
            *(after, job, job, most),
        )
        return [Event(**dict(row)) for row in reversed(rows)]


def _put_sessions(database: Connection, sessions: Iterable[SessionRow]) -> None:
    database.executemany(
        "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)",
        [(session.sid, session.job, json.dumps(asdict(session))) for session in sessions],
    )


def _drop_sessions(database: Connection, sids: Iterable[str]) -> None:
    database.executemany("DELETE FROM sessions WHERE sid = ?", [(sid,) for sid in sids])


def _log(database: Connection, now: float, job: str, kind: str, text: str) -> int:
    made = database.execute(
        "INSERT INTO events (time, job, kind, text) VALUES (?, ?, ?, ?)", (now, job, kind, text)
    ).lastrowid
    assert made is not None
    if made % 100 == 0:
        database.execute("DELETE FROM events WHERE id <= ?", (made - EVENTS,))
    return made


def _job(tree: dict[str, Any]) -> JobRow:
    change, epoch = tree.pop("change"), tree.pop("epoch")
    if epoch is not None:
        epoch["nodes"] = [NodeRow(**node) for node in epoch["nodes"]]
    return JobRow(
        **tree,
        change=None if change is None else ChangeRow(**change),
        epoch=None if epoch is None else EpochRow(**epoch),
    )
