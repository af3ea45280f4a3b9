# SPDX-License-Identifier: Apache-2.0
"""Captures of two networks that ran at a time, or two recordings of one: together they tell nothing true."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .errors import TraceFileError
from .names import Direction
from .table import Table


class Turns:
    """Watches whether folders take turns: at one end of a link a job's packets are all of one recording.

    A folder may follow another one, as a later recording does. Networks name their links alike, so that
    nothing else tells those of two apart.
    """

    def __init__(self) -> None:
        self._folders: dict[tuple[str, Direction], set[Path]] = {}
        self._now: dict[tuple[str, Direction, int], Path] = {}
        """By end and job: whose packet was the last."""
        self._before: dict[tuple[str, Direction, int], set[Path]] = {}

    def check(self, table: Table) -> None:
        """Take in the next packets, in the order of time. Raises TraceFileError."""
        known = [source for source in table.sources if source.node]
        for source in known:
            self._folders.setdefault((source.end, source.direction), set()).add(source.path.parent)
        several = [
            bool(source.node) and len(self._folders[source.end, source.direction]) > 1
            for source in table.sources
        ]
        if not any(several):
            return
        rows = np.flatnonzero((table.job >= 0) & np.asarray(several)[table.file])
        rows = rows[np.argsort(table.job[rows], kind="stable")]
        rows = rows[np.argsort(self._end_numbers(table)[table.file[rows]], kind="stable")]
        file, job = table.file[rows], table.job[rows]
        begins = np.ones(len(rows), bool)
        begins[1:] = (file[1:] != file[:-1]) | (job[1:] != job[:-1])
        for row in rows[begins].tolist():
            self._next(table, row)

    def _end_numbers(self, table: Table) -> np.ndarray:  # type: ignore[type-arg]
        numbers: dict[tuple[str, Direction], int] = {}
        return np.asarray([numbers.setdefault((s.end, s.direction), len(numbers)) for s in table.sources])

    def _next(self, table: Table, row: int) -> None:
        source = table.sources[table.file[row]]
        key, folder = (source.end, source.direction, int(table.job[row])), source.path.parent
        last = self._now.setdefault(key, folder)
        if folder == last:
            return
        if folder in self._before.setdefault(key, set()):
            raise TraceFileError(
                source.path,
                int(table.number[row]),
                f"it comes between packets of {last} at the same end of a link",
                "these are two networks, or two recordings of one: read each by itself",
            )
        self._before[key].add(last)
        self._now[key] = folder
