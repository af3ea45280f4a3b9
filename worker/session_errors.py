# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a worker and its job: joining, losing others, the end of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wire.control import WITHDRAWN
from wire.hints import command

from .errors import Absent, WorkerError


class Lost(NamedTuple):
    """A rank whose worker is gone: its host, and why."""

    rank: int
    host: str
    why: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} ({self.why})"


def _names(ranks: Sequence[object]) -> str:
    return ", ".join(map(str, ranks)) or "nobody, as far as the controller says"


class JobCallError(WorkerError):
    """Root of the errors of a worker of a controller's job; `job` is its name."""

    def __init__(self, job: str, message: str) -> None:
        self.job = job
        super().__init__(message)


class NoSuchJobError(JobCallError):
    """The controller has no job of that name."""

    exit_code = 8


class BeyondRankError(JobCallError):
    """A rank that the job does not have; its ranks are 0..n-1."""

    exit_code = 8

    def __init__(self, job: str, rank: int, n: int) -> None:
        self.rank, self.n = rank, n
        super().__init__(
            job, f"job {job} has no rank {rank}: its ranks are 0 to {n - 1}. Join with one of these."
        )


class WrongHostError(JobCallError):
    """The rank belongs to another host than the one we run on."""

    exit_code = 8

    def __init__(self, job: str, rank: int, host: str, ip: str, why: str) -> None:
        self.rank, self.host, self.ip = rank, host, ip
        super().__init__(
            job,
            f"rank {rank} of job {job} belongs to host {host} ({ip}), which this is not ({why}). "
            f"Join there ({command(f'net exec {host} ...')}), or with this host's rank.",
        )


class RankTakenError(JobCallError):
    """Another live worker holds the rank."""

    exit_code = 8

    def __init__(self, job: str, rank: int, message: str) -> None:
        self.rank = rank
        super().__init__(job, message)


class RendezvousTimeoutError(JobCallError, TimeoutError):
    """The job did not begin, or not begin anew, in time: `missing` ranks have no worker."""

    exit_code = 5

    def __init__(self, job: str, seconds: float, missing: Sequence[Absent]) -> None:
        self.seconds, self.missing = seconds, list(missing)
        super().__init__(
            job,
            f"job {job} has no epoch to work in after {seconds:g} s; missing: {_names(self.missing)}. "
            "Start these workers, or wait longer.",
        )


class BarrierTimeoutError(JobCallError, TimeoutError):
    """Not all ranks reached a barrier in time: `missing` did not."""

    exit_code = 5

    def __init__(self, job: str, seconds: float, missing: Sequence[Absent]) -> None:
        self.seconds, self.missing = seconds, list(missing)
        super().__init__(
            job,
            f"a barrier of job {job} was not reached by all ranks in {seconds:g} s; missing: "
            f"{_names(self.missing)}. Check that every rank calls barrier as often as the others.",
        )


class WorkerLostError(JobCallError):
    """The job's members changed and this call cannot complete; the next waits for the new members.

    `lost` names the ranks that are gone, also those that were taken out of the job; none where a call was
    ended.
    """

    exit_code = 4

    def __init__(self, job: str, lost: Sequence[Lost], why: str) -> None:
        self.lost, self.why = list(lost), why
        awaited = [who for who in self.lost if who.why != WITHDRAWN]
        if awaited:
            said, rest = f"lost {_names(awaited)}", "Start these workers again; the next call waits for them"
        else:
            said, rest = f"its members change ({why})", "The next call waits for the new members"
        super().__init__(
            job, f"job {job}: {said}; this call cannot complete at any rank. {rest} and then works."
        )


class JobDrainingError(JobCallError):
    """The job is being drained: what was begun is completed, nothing more begins.

    `begun` counts the all-reduces that it completes, None at a worker that came too late to join.
    """

    exit_code = 6

    def __init__(self, job: str, begun: int | None) -> None:
        self.begun = begun
        rest = "it takes no new workers" if begun is None else f"it ends after {begun} all-reduces"
        super().__init__(job, f"job {job} is being drained: {rest}. Stop here, or add the job again.")


class SessionEndedError(JobCallError):
    """The controller ended this worker's session, or answers no more; `why` says which."""

    exit_code = 6

    text = "this worker's session with job {job} is over: {why}. Join the job again."

    def __init__(self, job: str, why: str) -> None:
        self.why = why
        super().__init__(job, self.text.format(job=job, why=why))


class JobRemovedError(SessionEndedError):
    """The job is gone."""

    text = "job {job} was removed: {why}. Add it again, then join."
