# SPDX-License-Identifier: Apache-2.0
"""What must outlive the controller: the last epoch, and the UDP ports of former lives (protocol.md, Epochs).

Both are on disk before a switch or a worker hears of them. Packets of a worker's former life may still be
on their way: a UDP port is refused for ten minutes after it was in use at that address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from controller.database import transaction
from controller.errors import BindAgainError, ExhaustedError, StateError
from wire.constants import is_job_port

QUARANTINE_SECONDS = 600.0
MAX_EPOCH = (1 << 32) - 1
LEAF_PORTS = (1024, 65535)
"""First and last UDP port that leaf switches send partials from."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs (last INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ports (
    ip TEXT NOT NULL, port INTEGER NOT NULL,
    since REAL,  -- when it was given up, Unix seconds; NULL: in use
    PRIMARY KEY (ip, port)
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Source:
    """A worker's socket in one epoch."""

    host: str
    ip: str
    udp_port: int


class EpochStore:
    """The epochs of one network, in its state file. `clock` gives Unix time in seconds.

    One process uses it at a time; it holds no connection between calls.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Make the tables if they are not there; StateError if the file cannot be used.

        Ports that were in use when the last controller ended count as used until now.
        """
        self._path = path
        self._clock = clock
        with transaction(path, SCHEMA) as database:
            database.execute("UPDATE ports SET since = ? WHERE since IS NULL", (clock(),))

    @property
    def last(self) -> int:
        """The last epoch given out, 0 before the first."""
        with transaction(self._path) as database:
            return _last(database)

    def begin(self, sources: Sequence[Source]) -> int:
        """Return a new epoch, max(last + 1, Unix time), whose workers send from `sources`; persisted first.

        Raises BindAgainError (nothing is taken then), StateError when it cannot be persisted.
        """
        return self.begin_tree(sources, ())[0]

    def begin_tree(
        self, sources: Sequence[Source], leaves: Sequence[tuple[str, str]]
    ) -> tuple[int, dict[str, int]]:
        """As `begin`, for an epoch with leaf switches (name, address): also return a UDP port for each.

        Their ports are cycled: one of a former life comes again after ten minutes at the earliest.
        """
        now = self._clock()
        with transaction(self._path) as database:
            database.execute("DELETE FROM ports WHERE since <= ?", (now - QUARANTINE_SECONDS,))
            _check(database, sources, now)
            epoch = max(_last(database) + 1, int(now))
            if epoch > MAX_EPOCH:
                raise StateError(self._path, f"epoch {epoch} has more than 32 bits: is the clock right?")
            database.execute("DELETE FROM epochs")
            database.execute("INSERT INTO epochs VALUES (?)", (epoch,))
            ports = {name: _free_port(database, ip, epoch) for name, ip in leaves}
            _put(database, [*sources, *(Source(name, ip, ports[name]) for name, ip in leaves)], None)
        return epoch, ports

    def end(self, sources: Sequence[Source]) -> None:
        """Note that nobody sends from these any more: their ten minutes begin now."""
        with transaction(self._path) as database:
            _put(database, sources, self._clock())

    def hold(self, sources: Sequence[Source]) -> None:
        """Note that these are in use, by a job that outlived its controller."""
        with transaction(self._path) as database:
            _put(database, sources, None)

    def check(self, sources: Sequence[Source]) -> None:
        """Raise BindAgainError if `begin` would refuse one of these now."""
        with transaction(self._path) as database:
            _check(database, sources, self._clock())


def _free_port(database: Connection, ip: str, epoch: int) -> int:
    """Return a UDP port that nothing was sent from at an address lately; each epoch looks from its own on."""
    taken = {row[0] for row in database.execute("SELECT port FROM ports WHERE ip = ?", (ip,))}
    first, last = LEAF_PORTS
    count = last - first + 1
    for offset in range(count):
        port = first + (epoch + offset) % count
        if port not in taken and not is_job_port(port):
            return port
    raise ExhaustedError(f"UDP ports of leaf {ip}", count)


def _last(database: Connection) -> int:
    row = database.execute("SELECT max(last) FROM epochs").fetchone()
    return int(row[0] or 0)


def _put(database: Connection, sources: Sequence[Source], since: float | None) -> None:
    database.executemany(
        "INSERT OR REPLACE INTO ports VALUES (?, ?, ?)", [(s.ip, s.udp_port, since) for s in sources]
    )


def _check(database: Connection, sources: Sequence[Source], now: float) -> None:
    taken: set[tuple[str, int]] = set()
    for source in sources:
        key = (source.ip, source.udp_port)
        row = database.execute("SELECT since FROM ports WHERE ip = ? AND port = ?", key).fetchone()
        if not 0 < source.udp_port < 65536:
            reason = "is no UDP port (1..65535)"
        elif is_job_port(source.udp_port):
            reason = "lies among the job ports"
        elif key in taken:
            reason = "is that of two workers"
        elif row is not None and row[0] is None:
            reason = "is in use by a job"
        elif row is not None and now - row[0] < QUARANTINE_SECONDS:
            reason = f"was in use {max(0.0, now - row[0]):.0f} s ago (ten minutes must pass)"
        else:
            taken.add(key)
            continue
        raise BindAgainError(source.host, source.ip, source.udp_port, reason)
