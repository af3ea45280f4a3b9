# SPDX-License-Identifier: Apache-2.0
"""Counts that begin at 0 with their job and never go back.

A switch counts for job numbers, which later jobs use again, and a switch that loses its state counts from 0.
So a job keeps what is to be taken off: what its number's counters had come to before it, or, once the switch
has lost its state, the negative of what the job's counts had come to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.program.verdicts import Counts, JobVerdicts
from wire.constants import MAX_WORKERS
from wire.verdicts import Verdict

OTHERS = -1
"""In place of a worker bit: packets that name the job's port and come from no worker."""

Cell = tuple[int, Verdict]
"""(worker bit or OTHERS, verdict)."""
Count = tuple[int, int]
"""(packets, bytes)."""


class Tally:
    """What one job's counters began at."""

    def __init__(self, known: int = -1, rows: Iterable[Iterable[int]] = ()) -> None:
        """`known` and `rows` as another tally had them; none for a new job."""
        self.known = known
        """-1: nothing; else the others and so many worker bits: what lies beyond does not count yet."""
        self._before: dict[Cell, Count] = {}
        self._last: dict[Cell, Count] = {}
        for bit, verdict, packets, octets in rows:
            self._before[bit, Verdict(verdict)] = (packets, octets)

    @property
    def rows(self) -> list[list[int]]:
        """What is to be kept of it: [bit or OTHERS, verdict, packets, bytes] each."""
        return [[bit, int(verdict), *count] for (bit, verdict), count in self._before.items()]

    def begin(self, found: JobVerdicts, workers: int) -> None:
        """Count from here on what is not known yet, of the others and so many worker bits."""
        for (bit, verdict), count in _cells(found).items():
            if self.known <= bit < workers:
                self._before[bit, verdict] = count
        self.known = max(self.known, workers)

    def take(self, found: JobVerdicts, workers: int) -> JobVerdicts:
        """Return the job's own counts, of what was read of the others and of so many worker bits."""
        read = {cell: count for cell, count in _cells(found).items() if cell[0] < self.known}
        own: dict[Cell, Count] = {}
        for cell in {*read, *self._before}:
            if cell[0] < workers:
                (packets, octets), (less, fewer) = read.get(cell, (0, 0)), self._before.get(cell, (0, 0))
                if packets > less:
                    own[cell] = packets - less, octets - fewer
        self._last.update(own)
        return _verdicts(own)

    def lost(self) -> None:
        """Go on from the counts taken last: the switch counts from 0 again."""
        self._before = {cell: (-packets, -octets) for cell, (packets, octets) in self._last.items()}
        self.known = MAX_WORKERS


def _cells(found: JobVerdicts) -> dict[Cell, Count]:
    rows: dict[int, Mapping[Verdict, Count]] = {OTHERS: found.others, **found.workers}
    return {(bit, verdict): count for bit, counts in rows.items() for verdict, count in counts.items()}


def _verdicts(cells: Mapping[Cell, Count]) -> JobVerdicts:
    workers: dict[int, Counts] = {}
    others: Counts = {}
    for (bit, verdict), count in sorted(cells.items()):
        (others if bit == OTHERS else workers.setdefault(bit, {}))[verdict] = count
    return JobVerdicts(workers, others)
