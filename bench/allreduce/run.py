# SPDX-License-Identifier: Apache-2.0
"""The run: network after network, each brought up once for all its cells; every way on the same links."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from bench import names
from bench.errors import WrongSumError
from topologies import jobs, manager
from topologies.ranks import RankError
from topologies.record import NetRecord
from topologies.spec import star
from wire.errors import P4ReduceError

from . import gloo, memory, pingpong
from .bounds import least_seconds
from .cells import GLOO, NUMPY, OURS, PINGPONG, Cell, Place
from .group import CELL_LIMIT_S, Figures, GlooGroup, Group, SkippedError, SwitchGroup

SEED = 1
"""Of the fault table: each run loses the same packets of one order."""
MARGIN_S = 5.0
"""Kept free at a run's end, to take the network down in."""

Say = Callable[[str], None]
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Result:
    """A cell and what was measured of it, by way (`p4reduce`, `gloo`); a text says why one was not."""

    cell: Cell
    elements: int
    """Values a packet."""
    window: int
    """W of the job, in packets; 0 where none was begun."""
    lead: int
    by: dict[str, Figures | str]

    def figures(self, way: str) -> Figures | None:
        """Return what was measured, None if nothing was."""
        found = self.by.get(way)
        return found if isinstance(found, Figures) else None

    def mbit_per_s(self, way: str = OURS) -> float | None:
        """Return array bits that each worker had summed a second, in the median all-reduce, in 10^6."""
        found = self.figures(way)
        return None if found is None else 8e-6 * self.cell.nbytes / found.median


@dataclass
class Outcome:
    """All that a run found."""

    results: list[Result] = field(default_factory=list)
    pings: dict[Place, float] = field(default_factory=dict)
    """Median seconds of a datagram's round trip between two hosts."""
    sums: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """(dtype, n, bytes) → seconds in which numpy sums n arrays in one process."""
    absent: dict[str, str] = field(default_factory=dict)
    """Targets and ways that were not measured, and why."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Run:
    """How cells are measured; `outcome` fills while it goes, also for who interrupts it."""

    peers: Sequence[str]
    budget_s: float
    """Seconds for a cell's repetitions, each way."""
    limit_s: float | None
    """After which no cell is begun any more; None for no end."""
    elements: int
    say: Say
    progress: Progress
    outcome: Outcome = field(default_factory=Outcome)

    def all(self, cells: Sequence[Cell], running: NetRecord | None = None) -> Outcome:
        """Measure cells, those of a place together; `running` is the network that is there for all of them.

        A network that does not come up, or breaks, is one whose cells are not measured. Raises WrongSumError,
        and with `running` whatever is wrong with that network.
        """
        self._begun = time.monotonic()
        self._done, self._total = 0.0, self._cost(cells)
        if GLOO in self.peers and (why := gloo.missing()) is not None:
            self.outcome.absent[GLOO] = why
            self.peers = [peer for peer in self.peers if peer != GLOO]
        places = list(dict.fromkeys(cell.place for cell in cells))
        for at, place in enumerate(places):
            here = [cell for cell in cells if cell.place == place]
            if not self._time_for(self._start_cost(place)):
                self._skip_all(here, self._over())
                continue
            self.say(f"network {at + 1} of {len(places)}{self._left()}: {words(place)}")
            before = len(self.outcome.results)
            try:
                with ExitStack() as stack:
                    record = running or stack.enter_context(
                        manager.network(
                            star(place.workers, place.link_mbit),
                            name=names.fresh("allreduce"),
                            target=place.target,
                            elements=self.elements,
                        )
                    )
                    self._place(record, place, here)
            except WrongSumError:
                raise
            except P4ReduceError as error:
                if running is not None:
                    raise
                self._skip_all(here[len(self.outcome.results) - before :], str(error).splitlines()[0])
        return self.outcome

    def _place(self, record: NetRecord, place: Place, cells: Sequence[Cell]) -> None:
        hosts = [host.name for host in record.hosts][: place.workers]
        ends = jobs.switch_ends(record, hosts)
        with ExitStack() as stack:
            control = stack.enter_context(jobs.control_of(record))
            before = jobs.faulted(control, ends)
            if PINGPONG in self.peers and len(record.hosts) > 1:
                try:
                    self.outcome.pings[place] = pingpong.measure(record, place, CELL_LIMIT_S)
                except RankError as error:
                    self.outcome.notes.append(f"{words(place)}: no ping-pong: {str(error).splitlines()[0]}")
            groups: list[Group] = [stack.enter_context(SwitchGroup(record, hosts))]
            if GLOO in self.peers:
                groups.append(stack.enter_context(GlooGroup(record, hosts)))
            for group in groups:
                with suppress(SkippedError):  # the cells say why
                    group.start()
            self._step(self._start_cost(place))
            loss = 0.0
            for cell in cells:
                if loss and not all(group.running for group in groups):
                    jobs.set_faults(control, ends, drop=0.0, seed=SEED)
                    loss = 0.0
                    for group in groups:
                        with suppress(SkippedError):
                            group.start()
                if cell.loss != loss:
                    jobs.set_faults(control, ends, drop=cell.loss, seed=SEED)
                    loss = cell.loss
                self._cell(record, groups, cell)
            if any(cell.loss for cell in cells):
                jobs.set_faults(control, ends, drop=0.0, seed=SEED)
            elif faulted := jobs.faulted(control, ends) - before:
                counts = ", ".join(f"{packets:,} {what}" for what, packets in faulted.items())
                self.outcome.notes.append(f"network {record.name} has faults set: {counts} packets meanwhile")

    def _cell(self, record: NetRecord, groups: Sequence[Group], cell: Cell) -> None:
        cost = self._cost([cell]) - self._start_cost(cell.place)
        by: dict[str, Figures | str] = {}
        least_s = least_seconds(cell)
        for group in groups:
            expected = group.expected(cell, least_s)
            if not self._time_for(2 * expected + self.budget_s):
                by[group.kind] = self._over()
                continue
            self.say(f"  {words_of_cell(cell)}: {group.kind}{self._left()}")
            try:
                by[group.kind] = group.measure(
                    cell, self.budget_s, least_s, min(CELL_LIMIT_S, self._time_left())
                )
            except SkippedError as error:
                by[group.kind] = error.why
        told = groups[0].told
        self.outcome.results.append(
            Result(cell, record.elements, told.get("window", 0), told.get("lead", 0), by)
        )
        key = (cell.dtype, cell.place.workers, cell.nbytes)
        if NUMPY in self.peers and key not in self.outcome.sums:
            seconds = memory.sum_seconds(*key)
            if seconds is not None:
                self.outcome.sums[key] = seconds
        self._step(cost)

    def _skip_all(self, cells: Sequence[Cell], why: str) -> None:
        for cell in cells:
            self.outcome.results.append(Result(cell, self.elements, 0, 0, {OURS: why}))

    # ---- time

    def _start_cost(self, place: Place) -> float:
        """Guess the seconds until a network's ranks are there, and until it is down again."""
        return 6.0 + place.workers * (2.2 if GLOO in self.peers else 0.7)

    def _cost(self, cells: Sequence[Cell]) -> float:
        ways = 2 if GLOO in self.peers else 1
        places = dict.fromkeys(cell.place for cell in cells)
        each = (ways * (self.budget_s + min(2 * least_seconds(c), CELL_LIMIT_S) + 0.5) for c in cells)
        return sum(each) + sum(map(self._start_cost, places))

    def _time_left(self) -> float:
        if self.limit_s is None:
            return math.inf
        return self.limit_s - MARGIN_S - (time.monotonic() - self._begun)

    def _time_for(self, seconds: float) -> bool:
        return seconds < self._time_left()

    def _over(self) -> str:
        return f"the set's {self.limit_s:g} s were over"

    def _step(self, cost: float) -> None:
        self._done += cost
        self.progress(min(1.0, self._done / self._total))

    def _left(self) -> str:
        elapsed = time.monotonic() - self._begun
        # At first the guess counts, then more and more how far it was off.
        guess = 0.2 * self._total
        left = (self._total - self._done) * (elapsed + guess) / (self._done + guess)
        if self.limit_s is not None:
            left = max(0.0, min(left, self.limit_s - elapsed))
        return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"


def words_of_link(link_mbit: float | None) -> str:
    """Return a link's rate for people."""
    return "unshaped" if link_mbit is None else f"{link_mbit:g} Mbit/s"


def words(place: Place) -> str:
    """Return a place for people."""
    return f"{place.target}, {place.workers} workers, links {words_of_link(place.link_mbit)}"


def words_of_size(nbytes: int) -> str:
    """Return bytes in the largest unit that leaves no rest."""
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
    unit = next(unit for unit in units if nbytes % units[unit] == 0)
    return f"{nbytes // units[unit]} {unit}"


def words_of_cell(cell: Cell) -> str:
    """Return a cell for people, without its place."""
    lost = f", {100 * cell.loss:g} % lost each way" if cell.loss else ""
    return f"{words_of_size(cell.nbytes)} {cell.dtype}{lost}"
