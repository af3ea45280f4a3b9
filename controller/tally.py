# SPDX-License-Identifier: Apache-2.0
"""Counts that begin at 0 with their job and never go back.

A switch counts for job numbers, which later jobs use again, and a switch that loses its state counts from 0.
So a job keeps what is to be taken off: what its number's counters had come to before it, or, once the switch
has lost its state, the negative of what the job's counts had come to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from controller.program.verdicts import Counts, JobVerdicts
from wire.constants import MAX_WORKERS
from wire.verdicts import Verdict

OTHERS = -1
"""In place of a worker bit: packets that name the job's port and come from no worker."""

Cell = tuple[int, Verdict]
"""(worker bit or OTHERS, verdict)."""
Count = tuple[int, int]
"""(packets, bytes)."""


K = TypeVar("K", bound=Hashable)


class Tally(Generic[K]):
    """What is taken off what a switch has counted, by cell."""

    def __init__(self) -> None:
        self._before: dict[K, Count] = {}
        self._last: dict[K, Count] = {}

    def own(self, read: Mapping[K, Count]) -> dict[K, Count]:
        """Return the counts of the cells read, and those that a lost switch had come to; no zeros."""
        found: dict[K, Count] = {}
        for cell in {**read, **self._before}:
            (packets, octets), (less, fewer) = read.get(cell, (0, 0)), self._before.get(cell, (0, 0))
            if packets > less:
                found[cell] = packets - less, octets - fewer
        self._last.update(found)
        return found

    def lost(self) -> None:
        """Go on from the counts returned last: the switch counts from 0 again."""
        self._before = {cell: (-packets, -octets) for cell, (packets, octets) in self._last.items()}


class JobTally(Tally[Cell]):
    """What one job's counters began at."""

    def __init__(self, known: int = -1, rows: Iterable[Iterable[int]] = ()) -> None:
        """`known` and `rows` as another tally had them; none for a new job."""
        super().__init__()
        self.known = known
        """-1: nothing; else the others and so many worker bits: what lies beyond does not count yet."""
        for bit, verdict, packets, octets in rows:
            self._before[bit, Verdict(verdict)] = (packets, octets)
        # What was counted at switches that were lost is not lost with the next one.
        self._last = {cell: (-p, -o) for cell, (p, o) in self._before.items() if p < 0}

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

    def take(self, found: JobVerdicts) -> JobVerdicts:
        """Return the job's own counts, of what was read of all its workers and the others."""
        return _verdicts(
            self.own({cell: count for cell, count in _cells(found).items() if cell[0] < self.known})
        )

    def lost(self) -> None:
        """Go on from the counts returned last: the switch counts from 0 again."""
        super().lost()
        self.known = MAX_WORKERS

    @property
    def latest(self) -> JobVerdicts:
        """The counts returned last."""
        return _verdicts(self._last)


class JobTallies:
    """One job's counts at all switches that it has been at, by what the worker bits stood for.

    A bit stands for another worker once the job's tree has changed: what was counted until then is kept by
    rank, and the switches' counters count from there on.
    """

    def __init__(self, kept: JobCounts | None = None) -> None:
        self.at: dict[str, JobTally] = {}
        """By switch."""
        self.kept = kept or JobCounts({}, {}, {})
        """Of former trees."""

    def of(self, switch: str) -> JobTally:
        """Return the tally at a switch, a new one if the job has not been there."""
        return self.at.setdefault(switch, JobTally())

    def total(self, found: Mapping[str, JobVerdicts], inputs: Mapping[str, Sequence[int | str]]) -> JobCounts:
        """Return all counts: what `take` gave by switch, whose bits stand for `inputs` (ranks, leaves)."""
        total = JobCounts(*({key: dict(counts) for key, counts in part.items()} for part in self.kept.parts))
        for switch, verdicts in found.items():
            of = inputs.get(switch, ())
            for bit, counts in verdicts.workers.items():
                name = of[bit] if bit < len(of) else None
                if isinstance(name, int):
                    _add(total.workers.setdefault(name, {}), counts)
                elif name is not None:
                    _add(total.leaves.setdefault(name, {}), counts)
            _add(total.others.setdefault(switch, {}), verdicts.others)
        return total

    def turn(self, inputs: Mapping[str, Sequence[int | str]]) -> None:
        """Keep what was returned last, by rank: the bits will stand for others."""
        self.kept = self.total({switch: tally.latest for switch, tally in self.at.items()}, inputs)
        self.at = {}

    def lost(self, switch: str) -> None:
        """A switch counts from 0 again."""
        if switch in self.at:
            self.at[switch].lost()


@dataclass(frozen=True)
class JobCounts:
    """One job's counts over all of its switches."""

    workers: dict[int, Counts]
    """By rank."""
    leaves: dict[str, Counts]
    """Of partials, by the leaf that sent them."""
    others: dict[str, Counts]
    """Of packets that name the job and come from no input, and of a parent's results, by the switch."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """Workers, leaves, others."""
        return self.workers, self.leaves, self.others

    @property
    def rows(self) -> list[list[list[Any]]]:
        """What is to be kept of it: for each part [key, verdict, packets, bytes] each."""
        return [
            [[key, int(verdict), *count] for key, counts in part.items() for verdict, count in counts.items()]
            for part in self.parts
        ]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Sequence[Any]]]) -> JobCounts:
        """Return what `rows` came from."""
        parts: list[dict[Any, Counts]] = [{}, {}, {}]
        for part, of in zip(parts, rows, strict=False):
            for key, verdict, packets, octets in of:
                part.setdefault(key, {})[Verdict(verdict)] = packets, octets
        return cls(*parts)


def _add(counts: Counts, more: Mapping[Verdict, Count]) -> None:
    for verdict, (packets, octets) in more.items():
        had = counts.get(verdict, (0, 0))
        counts[verdict] = had[0] + packets, had[1] + octets


def _cells(found: JobVerdicts) -> dict[Cell, Count]:
    rows: dict[int, Mapping[Verdict, Count]] = {OTHERS: found.others, **found.workers}
    return {(bit, verdict): count for bit, counts in rows.items() for verdict, count in counts.items()}


def _verdicts(cells: Mapping[Cell, Count]) -> JobVerdicts:
    workers: dict[int, Counts] = {}
    others: Counts = {}
    for (bit, verdict), count in sorted(cells.items()):
        (others if bit == OTHERS else workers.setdefault(bit, {}))[verdict] = count
    return JobVerdicts(workers, others)
