# SPDX-License-Identifier: Apache-2.0
"""The ranks of one way to all-reduce, in a network's hosts; they stay from cell to cell."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median
from types import TracebackType
from typing import Any

from bench.errors import BenchError, WrongSumError
from topologies import jobs
from topologies.ranks import START_LIMIT_S, RankError, Ranks
from topologies.record import NetRecord

from .cells import GLOO, ITEM_BYTES, MIB, OURS, Cell
from .gloo import RANK_MB

CELL_LIMIT_S = 20.0
"""What a cell may take, its first all-reduce and every comparison included."""
MOST_CALLS = 200
FEW_CALLS = 3
LONGEST_CALL = 0.6
"""By a cell's limit; nothing slower is begun: the arrays are also made and compared."""
TELLING_BYTES = 256 << 10
"""Smaller arrays do not tell how long larger ones take."""
ARRAYS = 3
"""Of a cell's size that each rank may need at once."""


class SkippedError(BenchError):
    """A cell that is not measured; carries why, without the target."""

    def __init__(self, target: str, why: str) -> None:
        super().__init__(target, why)
        self.why = why


@dataclass(frozen=True)
class Figures:
    """What was measured of a cell, one way."""

    seconds: tuple[float, ...]
    """Of each timed all-reduce: of the slowest rank, or in a series of small ones the ranks' mean."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Sums over all ranks and timed ones, by the names of worker.Stats; {} of Gloo."""
    trips: tuple[float, float] | None = None
    """Seconds of round trips: the ranks' median of medians, and the largest of 99th percentiles."""

    @property
    def resent(self) -> float:
        """Retransmissions by packets sent; 0 where nobody counts them."""
        return self.counts.get("retransmissions", 0) / max(1, self.counts.get("packets_sent", 0))

    @property
    def in_flight(self) -> float | None:
        """Packets of a rank under way, the mean over the time; None if unknown."""
        seconds = self.counts.get("seconds")
        return self.counts["packet_seconds"] / seconds if seconds else None

    @property
    def limited(self) -> float | None:
        """Share of the time in which the window kept packets back; None if unknown."""
        seconds = self.counts.get("seconds")
        return self.counts["limited_seconds"] / seconds if seconds else None

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)


class Group:
    """One rank in each of the hosts, started when first needed, and anew after a failure. Close it."""

    kind: str
    module: str
    exact_alike = False
    """Whether all ranks' results, and those of all calls, are the same bit for bit."""
    rank_mb = 100

    def __init__(self, record: NetRecord, hosts: Sequence[str]) -> None:
        self._record, self._hosts = record, list(hosts)
        self._stack = ExitStack()
        self._ranks: Ranks | None = None
        self._broken: str | None = None
        self._took: dict[tuple[str, float], tuple[int, float]] = {}
        self.told: dict[str, Any] = {}
        """What rank 0 said when it began."""

    def _arguments(self, stack: ExitStack) -> list[list[str]]:
        """Return each rank's arguments, with what they need held on the stack."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether the ranks are there."""
        return self._ranks is not None

    def start(self) -> None:
        """Start the ranks if they are not there, and wait until all are.

        Raises SkippedError, again and at once where they could not be started before, and ControlError.
        """
        if self._ranks is not None:
            return
        if self._broken is not None:
            raise SkippedError(self._record.target, self._broken)
        _refuse_if_too_large(self._record.target, len(self._hosts) * self.rank_mb * MIB)
        with ExitStack() as stack:
            arguments = self._arguments(stack)
            try:
                ranks = stack.enter_context(Ranks(self._record, self._hosts, self.module, arguments))
                self.told = ranks.answers(START_LIMIT_S)[0]
            except RankError as error:
                self._broken = f"its ranks did not start: {_brief(error)}"
                raise SkippedError(self._record.target, self._broken) from error
            self._ranks, self._stack = ranks, stack.pop_all()

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._ranks = None
        self._stack.close()

    def expected(self, cell: Cell, least_s: float) -> float:
        """Return how long one all-reduce of a cell takes, by a smaller one and what is possible."""
        guesses = [least_s]
        for loss in (0.0, cell.loss):
            nbytes, seconds = self._took.get((cell.dtype, loss), (cell.nbytes, 0.0))
            guesses.append(seconds * max(1.0, cell.nbytes / nbytes))
        return max(guesses)

    def measure(self, cell: Cell, budget_s: float, least_s: float, limit_s: float = CELL_LIMIT_S) -> Figures:
        """All-reduce a cell's array again and again for about `budget_s` seconds.

        The first one, which warms up, decides how often; it counts only where there is time for no other.
        `least_s` is the least time that the link allows. Raises SkippedError for what would not end in
        `limit_s`, or did not; WrongSumError, NetworkError, ControlError.
        """
        expected = self.expected(cell, least_s)
        if expected > LONGEST_CALL * limit_s:
            raise SkippedError(self._record.target, f"one would take {expected:.3g} s")
        _refuse_if_too_large(self._record.target, ARRAYS * len(self._hosts) * cell.nbytes)
        try:
            self.start()
            begun = time.monotonic()
            figures = self.ask(cell.dtype, cell.nbytes, 1, limit_s)
            once = time.monotonic() - begun
            left = limit_s - once
            fit = int(0.8 * left / once)
            calls = min(MOST_CALLS, fit, max(FEW_CALLS, int(budget_s / figures.median)))
            if calls > 0:  # else the first one has to do
                figures = self.ask(cell.dtype, cell.nbytes, calls, left)
        except RankError as error:
            self.close()
            raise SkippedError(self._record.target, _brief(error)) from error
        if cell.nbytes >= TELLING_BYTES:
            self._took[cell.dtype, cell.loss] = (cell.nbytes, figures.median)
        return figures

    def ask(self, dtype: str, nbytes: int, calls: int, limit_s: float) -> Figures:
        """All-reduce arrays of `nbytes` that many times, once started; every result is verified.

        Raises RankError (also when it takes longer than `limit_s`), WrongSumError, NetworkError.
        """
        assert self._ranks is not None
        self._ranks.tell(dtype=dtype, size=nbytes // ITEM_BYTES, calls=calls)
        answers = self._ranks.answers(limit_s)
        wrong = {rank: answer["wrong"] for rank, answer in enumerate(answers) if answer["wrong"]}
        if wrong:
            raise WrongSumError(
                self._record.target,
                f"of {calls} all-reduces of {dtype} by {self.kind}, some are not numpy's sum "
                f"(by rank: {wrong})",
            )
        if self.exact_alike and len({crc for answer in answers for crc in answer["crc"]}) > 1:
            raise WrongSumError(
                self._record.target,
                f"{calls} all-reduces of the same {dtype} have not the same bits on every rank",
            )
        of_ranks = zip(*(answer["seconds"] for answer in answers), strict=True)
        # In a series a rank begins as soon as it is done with the one before, and waits for the others: the
        # slowest rank's share of that would count twice.
        combine: Callable[[tuple[float, ...]], float] = mean if answers[0]["series"] else max
        seconds = tuple(combine(times) for times in of_ranks)
        counts: Counter[str] = Counter()
        for answer in answers:
            counts.update(answer["counts"])
        trips = [answer["trips"] for answer in answers if answer["trips"].get("p50") is not None]
        return Figures(
            seconds,
            dict(counts),
            (median(t["p50"] for t in trips), max(t["p99"] for t in trips)) if trips else None,
        )

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SwitchGroup(Group):
    """Ranks of a job of their own, which reduce through the switch; `wanted` as in topologies.jobs.job."""

    kind = OURS
    module = "bench.allreduce.rank"
    exact_alike = True

    def __init__(self, record: NetRecord, hosts: Sequence[str], **wanted: Any) -> None:
        super().__init__(record, hosts)
        self.job = f"bench-{os.getpid()}"
        """Its name."""
        self._wanted = wanted

    def _arguments(self, stack: ExitStack) -> list[list[str]]:
        control = stack.enter_context(jobs.control_of(self._record))
        stack.enter_context(jobs.job(control, self.job, self._hosts, **self._wanted))
        common = ["--net", self._record.name, "--job", self.job]
        return [[*common, "--rank", str(rank)] for rank in range(len(self._hosts))]


class GlooGroup(Group):
    """Ranks of PyTorch's Gloo."""

    kind = GLOO
    module = "bench.allreduce.gloo"
    rank_mb = RANK_MB

    def _arguments(self, stack: ExitStack) -> list[list[str]]:
        hosts = [self._record.host(name) for name in self._hosts]
        common = ["--store", hosts[0].ip, "--ranks", str(len(hosts))]
        return [
            [*common, "--rank", str(rank), "--interface", host.interface] for rank, host in enumerate(hosts)
        ]


def _brief(error: RankError) -> str:
    """Return what happened in a line: what was said last is mostly an exception."""
    first, *said = str(error).splitlines()
    return f"{first} ({said[-1].strip()})" if said else first


def _refuse_if_too_large(target: str, needed: int) -> None:
    available = available_bytes()
    if needed > 0.8 * available:
        raise SkippedError(
            target, f"the ranks need {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} are available"
        )


def available_bytes() -> int:
    """Return the memory that new processes can have without swapping (proc(5), MemAvailable)."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024
