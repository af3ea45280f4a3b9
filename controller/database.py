# SPDX-License-Identifier: Apache-2.0
"""The state file of a network: SQLite, owner-only, one connection a transaction.

Write-ahead logging with synchronous=NORMAL: a process killed at any moment loses nothing that it has
committed. (If the machine dies the switches' state dies with it.)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection

from controller.errors import StateError

BUSY_SECONDS = 10.0
"""How long a transaction waits for another one's end."""


@contextmanager
def transaction(path: Path, schema: str | None = None) -> Iterator[Connection]:
    """Run the body as one transaction: all of it is on disk after it, or nothing.

    `schema` makes what is not there yet. Raises StateError when the file cannot be used; other errors of the
    body pass, and undo it.
    """
    try:
        if schema is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            if schema is not None:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(schema)
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.rollback()
                raise
            database.commit()
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> StateError:
    """Return the error for a state file that cannot be read or written."""
    return StateError(
        path,
        f"the state file cannot be used ({error}): make room or let it be written if that is why; a damaged "
        "one goes with its network (p4reduce net down), and net up makes a new one",
    )
