# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce can raise; each error carries its facts and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wire.errors import P4ReduceError

from .kept import runs


class WorkerError(P4ReduceError):
    """Root of the worker's errors."""


class UnsupportedError(WorkerError, TypeError):
    """The array's dtype, the operation or the membership is none that the engine can run."""

    exit_code = 2


class NotInJobError(WorkerError):
    """A call on a worker that has left its epoch (mismatch, time-out, interrupt or close)."""


class TransportError(WorkerError):
    """The operating system refused a socket, an option or a packet."""


class MismatchError(WorkerError):
    """Ranks called all_reduce with different arguments; raised at every rank.

    `ranks` are those that differ from the majority (all of them where there is none), `calls` is
    what each rank passed, in words, by rank.
    """

    exit_code = 3

    def __init__(self, ranks: list[int], calls: list[str], majority: str | None) -> None:
        self.ranks, self.calls, self.majority = ranks, calls, majority
        differing = "; ".join(f"rank {r} called {calls[r]}" for r in ranks)
        against = f", the others called {majority}" if majority is not None else ", no majority agrees"
        super().__init__(
            f"the ranks' all_reduce calls differ: {differing}{against}. "
            "Make all ranks pass the same dtype, op and shape in the same order; the job needs a new epoch."
        )


class NonFiniteError(WorkerError, ValueError):
    """A rank passed NaN, infinity or |x| >= 2^127; raised at every rank, which all stay in step.

    `chunks` counts the chunks concerned over all ranks, `first_element` is the flat index where
    the first of them begins, `own` says whether this rank's own array is to blame.
    """

    exit_code = 7

    def __init__(self, chunks: int, first_element: int, elements: int, own: bool) -> None:
        self.chunks, self.first_element, self.own = chunks, first_element, own
        whose = "this rank's array" if own else "another rank's array"
        super().__init__(
            f"{whose} holds NaN, infinity or |x| >= 2^127 in {chunks} chunk(s), the first of them elements "
            f"{first_element} to {first_element + elements - 1}. "
            "Skip this step or scale it down at every rank (all got this error); the next all_reduce works."
        )


class Absent(NamedTuple):
    """A rank that is awaited, and the host that it belongs to."""

    rank: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host})"


class StalledError(WorkerError, TimeoutError):
    """No result arrived for `seconds`; this rank has left the job.

    `first` is the lowest of the job's chunk numbers without a result, `missing` how many sent chunks have
    none. `first` is packet `position` (from 1) of the `total` of its all-reduce; below 1 it is of one before,
    which is done here. `stopped` is why the controller had stopped the job, None if it had not.

    At a joined worker the controller has asked the switch for some of these chunks: `lacking` has for each
    the ranks that have not contributed, none where the switch has the result and it did not come here.
    `unasked` says why that is not known, None where it is.
    """

    exit_code = 5

    def __init__(
        self,
        seconds: float,
        first: int,
        missing: int,
        position: int,
        total: int,
        switch: str,
        retransmissions: int,
        stopped: str | None = None,
    ) -> None:
        self.seconds, self.first, self.missing = seconds, first, missing
        self.position, self.total = position, total
        self.switch, self.retransmissions, self.stopped = switch, retransmissions, stopped
        self.lacking: dict[int, list[Absent]] = {}
        self.unasked: str | None = "this worker has no controller to ask"
        super().__init__(seconds)

    @property
    def absent(self) -> list[Absent]:
        """The ranks that have not contributed to a chunk of `lacking`."""
        return sorted({rank for ranks in self.lacking.values() for rank in ranks})

    @property
    def brief(self) -> str:
        """What the other ranks are told."""
        awaited = f", waiting for {_listed(self.absent)}" if self.absent else ""
        return f"timed out after {self.seconds:g} s without a result{awaited}"

    def __str__(self) -> str:
        place = "its all-reduce is done here"
        if self.position > 0:
            place = f"packet {self.position} of {self.total} of its all-reduce"
        paused = f", and the job is stopped ({self.stopped}): see its events" if self.stopped else ""
        return (
            f"no result for {self.seconds:g} s from switch {self.switch}: {self.missing} chunk(s) sent and "
            f"unanswered, the first is the job's chunk {self.first} ({place}); "
            f"{self.retransmissions} retransmissions{paused}. {self._found()}Check that every rank of the "
            "job calls all_reduce and reaches the switch, then call again."
        )

    def _found(self) -> str:
        if self.unasked is not None:
            return f"Which workers are missing is not known: {self.unasked}. "
        alike: dict[tuple[Absent, ...], list[int]] = {}
        for chunk, ranks in self.lacking.items():
            alike.setdefault(tuple(ranks), []).append(chunk)
        said = ""
        for missing, chunks in alike.items():
            which = f"chunk{'s' if len(chunks) > 1 else ''} {_runs(chunks)}"
            if missing:
                said += f"The switch has nothing of {_listed(missing)} for {which}. "
            else:
                said += f"The switch has the result of {which}, and it did not come here. "
        return said


def _listed(ranks: Sequence[Absent]) -> str:
    return ", ".join(map(str, ranks))


def _runs(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words, as 3 to 5, 7."""
    return ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in runs(numbers))


class ResumeError(WorkerError):
    """An epoch that this rank cannot carry on in: other members, or packets it no longer has."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} cannot carry on: {reason}. The job needs a change of members.")
