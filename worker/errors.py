# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce can raise; each error carries its facts and says what to do."""

from __future__ import annotations

from wire.errors import P4ReduceError


class WorkerError(P4ReduceError):
    """Root of the worker's errors."""


class UnsupportedError(WorkerError, TypeError):
    """The array's dtype, the operation or the membership is none that the engine can run."""


class NotInJobError(WorkerError):
    """A call on a worker that has left its epoch (mismatch, time-out, interrupt or close)."""


class TransportError(WorkerError):
    """The operating system refused a socket, an option or a packet."""


class MismatchError(WorkerError):
    """Ranks called all_reduce with different arguments; raised at every rank.

    `ranks` are those that differ from the majority (all of them where there is none), `calls` is
    what each rank passed, in words, by rank.
    """

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

    def __init__(self, chunks: int, first_element: int, elements: int, own: bool) -> None:
        self.chunks, self.first_element, self.own = chunks, first_element, own
        whose = "this rank's array" if own else "another rank's array"
        super().__init__(
            f"{whose} holds NaN, infinity or |x| >= 2^127 in {chunks} chunk(s), the first of them elements "
            f"{first_element} to {first_element + elements - 1}. "
            "Skip this step or scale it down at every rank (all got this error); the next all_reduce works."
        )


class StalledError(WorkerError, TimeoutError):
    """No result arrived for `seconds`; this rank has left the job.

    `first` is the lowest chunk number without a result, `missing` how many sent chunks have none,
    `stopped` why the controller had stopped the job, None if it had not.
    """

    def __init__(
        self,
        seconds: float,
        first: int,
        missing: int,
        total: int,
        switch: str,
        retransmissions: int,
        stopped: str | None = None,
    ) -> None:
        self.seconds, self.first, self.missing, self.total = seconds, first, missing, total
        self.switch, self.retransmissions, self.stopped = switch, retransmissions, stopped
        paused = f", and the job is stopped ({stopped}): see its events" if stopped is not None else ""
        super().__init__(
            f"no result for {seconds:g} s from switch {switch}: {missing} chunk(s) sent and unanswered, "
            f"the first is chunk {first}, of {total} in this all-reduce; {retransmissions} retransmissions"
            f"{paused}. Check that every rank of the job calls all_reduce and reaches the switch, "
            "then rejoin the job."
        )


class ResumeError(WorkerError):
    """An epoch that this rank cannot carry on in: other members, or packets it no longer has."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} cannot carry on: {reason}. The job needs a change of members.")
