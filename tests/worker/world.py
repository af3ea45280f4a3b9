# SPDX-License-Identifier: Apache-2.0
"""Ranks, the compiled program in the in-process switch and the links between, one random event at a time.

Links lose, repeat and reorder without limit: a packet may be held back over any number of epochs, as in the
model of epochs (any packet under way may be the next to arrive).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.jobs import JobController, SwitchSite, WorkerSeat
from controller.p4info import P4Info
from p4src.forms import form
from switch.device import SwitchDevice
from tests.controller.direct import DirectSwitch
from tests.dataplane.device_switch import DeviceSwitch
from tests.worker.jobs import WatchedTransport, begin
from wire.constants import FEW_SLOTS, is_job_port
from wire.membership import Membership
from worker.engine import Engine
from worker.kernels import Kernels
from worker.operation import Operation

SITE = SwitchSite("10.0.255.1", "02:01:0a:00:ff:01", 64, FEW_SLOTS)
ELEMENTS = SITE.elements
DTYPES: tuple[Any, ...] = (np.int32, np.float32, np.float16)
STEPS = 60_000
"""More than any run needs; beyond it a run is stuck."""
P4INFO = P4Info.from_file(form(ELEMENTS, FEW_SLOTS).p4info_path)


class Epochs:
    """An EpochStore in memory; no port is used twice in these tests."""

    last = 100

    def begin(self, sources: object) -> int:
        self.last += 1
        return self.last

    def end(self, sources: object) -> None:
        pass


class Ports:
    """UDP ports, each once."""

    def __init__(self) -> None:
        self._next = 20000

    def take(self) -> int:
        self._next += 1
        while is_job_port(self._next):
            self._next += 1
        return self._next


def new_switch(device: SwitchDevice) -> tuple[DeviceSwitch, JobController]:
    """The device with its address and host ports, and a controller of its jobs."""
    process = DeviceSwitch(device, SITE.ip)
    return process, JobController(DirectSwitch(device, P4INFO), SITE, Epochs())  # type: ignore[arg-type]


def seats(ports: list[int]) -> list[WorkerSeat]:
    """Rank r sits at switch port r + 1."""
    return [
        WorkerSeat(f"h{r + 1}", f"10.0.0.{r + 1}", f"02:00:00:00:00:{r + 1:02x}", r + 1, port)
        for r, port in enumerate(ports)
    ]


def forget_sums(device: SwitchDevice, slots: int) -> None:
    """The switch loses its registers."""
    for index in range(2 * slots):
        device.register_write("SwitchIngress.handle.aggregation.slots.state", index, 0)


class Tensors:
    """What each rank contributes to each all-reduce, and what comes out of them."""

    def __init__(self, seed: int, n: int, longest: int) -> None:
        self._seed, self._n, self._longest = seed, n, longest
        self.results: dict[int, list[NDArray[Any]]] = {}

    def arrays(self, number: int, rank: int) -> list[NDArray[Any]]:
        """One array, or up to three of a list."""
        rng = np.random.default_rng([self._seed, number])
        total = int(rng.integers(0, self._longest * ELEMENTS))
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        borders = np.sort(rng.integers(0, total + 1, int(rng.integers(3))))
        rng = np.random.default_rng([self._seed, number, rank])
        if dtype == np.int32:
            values = rng.integers(-(2**31), 2**31, total, dtype=np.int64).astype(dtype)
        else:
            values = rng.uniform(-1, 1, total).astype(dtype)
        return [part.copy() for part in np.split(values, borders)]

    def check(self, number: int, results: list[NDArray[Any]]) -> None:
        """numpy's sum; a float's within half a quantum a rank; the same at all ranks."""
        ranks = [self.arrays(number, rank) for rank in range(self._n)]
        for arrays, result in zip(zip(*ranks, strict=True), results, strict=True):
            assert (result.dtype, result.shape) == (arrays[0].dtype, arrays[0].shape)
            if result.dtype == np.int32:
                expected = np.sum(arrays, axis=0, dtype=np.int64).astype(np.int32)
                np.testing.assert_array_equal(result, expected)
            else:
                rounding = np.spacing(np.abs(result)).astype(np.float64)
                quantum = self._n * 2.0 / (2**31 - 1)
                exact = np.sum(arrays, axis=0, dtype=np.float64)
                assert (np.abs(result - exact) <= self._n * quantum + rounding).all()
        first = self.results.setdefault(number, results)
        for one, other in zip(first, results, strict=True):
            np.testing.assert_array_equal(one, other)


@dataclass
class Running:
    """A call of a rank, and the arrays that it passed."""

    number: int
    arrays: list[NDArray[Any]]
    operation: Operation


class Rank:
    """An engine, and the application that calls it: its arrays are scribbled over once a call has ended."""

    def __init__(self, world: World, tensors: Tensors, membership: Membership) -> None:
        self.world, self.tensors = world, tensors
        self.number = membership.t0  # of the call that comes next
        self.completed: set[int] = set()
        self.failed: set[int] = set()
        self.inbox: list[bytes] = []
        self.calls: deque[Running] = deque()
        self.engine = Engine(membership, timeout=1e9, kernels=world.kernels)
        self.enter(membership)

    def enter(self, membership: Membership) -> None:
        """Use the links of an epoch, and watch the rules of it from the wire alone."""
        self.member = membership
        self.transport = WatchedTransport(membership, self, membership.rank + 1)  # type: ignore[arg-type]

    def resume(self, membership: Membership) -> None:
        self.engine.resume(membership, self.world.now)
        assert len(self.engine._kept._packets) <= 2 * self.world.widest, "the keep rule's memory"
        self.enter(membership)

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """The fabric's part of a MemoryTransport."""
        for frame in frames:
            self.world.put(self.world.up, frame)

    def receive(self, port: int, timeout: float) -> list[bytes]:
        frames, self.inbox = self.inbox, []
        return frames

    @property
    def can_begin(self) -> bool:
        engine = self.engine
        return len(self.calls) < self.world.most and not engine.stopped and engine.left is None

    @property
    def ended(self) -> int:
        """Calls that have ended."""
        return self.calls[0].number if self.calls else self.number

    def begin(self) -> None:
        arrays = self.tensors.arrays(self.number, self.member.rank)
        self.calls.append(Running(self.number, arrays, begin(self.engine, *arrays, now=self.world.now)))
        self.number += 1

    def poll(self) -> None:
        burst = self.engine.poll(self.world.now)
        if len(burst):
            self.transport.send(burst)

    def arrive(self, frame: bytes) -> None:
        self.inbox.append(frame)
        self.engine.on_results(self.transport.receive(0), self.world.now)

    def finish(self) -> None:
        """Take the results that are here."""
        while self.calls and self.calls[0].operation.done:
            call = self.calls.popleft()
            self.tensors.check(call.number, call.operation.result())
            for array in call.arrays:
                array[:] = 99
            self.completed.add(call.number)


class World:
    """A switch and one job; `run` until every rank has completed `calls` all-reduces."""

    def __init__(
        self,
        device: SwitchDevice,
        seed: int,
        *,
        loss: float,
        duplicate: float,
        kernels: Kernels | None = None,
    ) -> None:
        self.device, self.kernels = device, kernels
        self.random = random.Random(seed)
        self.loss, self.duplicate = loss, duplicate
        self.now = 0.0
        self.ports = Ports()
        self.switch, self.jobs = new_switch(device)
        self.up: list[tuple[int, bytes]] = []
        self.down: list[tuple[int, bytes]] = []
        self.job = 0
        self.ranks: list[Rank] = []
        self.calls = 0
        self.steps = 0
        self.most = 1
        """Calls of a rank under way."""
        self.widest = 0
        """The largest window of the job so far."""

    def start(
        self,
        job: int,
        tensors: Tensors,
        n: int,
        calls: int,
        *,
        window: int,
        lead: int,
        g0: int,
        t0: int = 0,
        most: int = 1,
    ) -> None:
        self.job, self.calls, self.tensors, self.most = job, t0 + calls, tensors, most
        self.widest = window
        ports = [self.ports.take() for _ in range(n)]
        members = self.jobs.add_job(job, seats(ports), window, lead, g0=g0, t0=t0)
        self.ranks = [Rank(self, tensors, m) for m in members]

    def put(self, link: list[Any], frame: tuple[int, bytes]) -> None:
        if self.random.random() >= self.loss:
            link += [frame] * (2 if self.random.random() < self.duplicate else 1)

    @property
    def finished(self) -> bool:
        return all(rank.ended >= self.calls for rank in self.ranks)

    def take(self, link: list[Any]) -> Any:
        at = self.random.randrange(len(link))
        link[at], link[-1] = link[-1], link[at]
        return link.pop()

    def step(self) -> None:
        """One event: a frame arrives, or a rank does something."""
        self.steps += 1
        assert self.steps < STEPS, "stuck"
        self.now += 0.002
        draw = self.random.random()
        if draw < 0.4 and self.up:
            for out in self.switch.process([self.take(self.up)]):
                self.put(self.down, out)
        elif draw < 0.8 and self.down:
            port, frame = self.take(self.down)
            if port <= len(self.ranks):
                self.ranks[port - 1].arrive(frame)
        else:
            self.act(self.random.choice(self.ranks))

    def act(self, rank: Rank) -> None:
        engine = rank.engine
        rank.finish()
        if rank.can_begin and rank.number < self.calls and self.random.random() < 0.3:
            rank.begin()
        elif engine.outstanding:
            rank.poll()
            if not self.up and not self.down:
                self.now = max(self.now, min(engine.wake_at(self.now), self.now + 1.0))

    def run(self, until: Any = None) -> None:
        while not (until() if until is not None else self.finished):
            self.step()

    def same_members(self, window: int, *, wipe: bool) -> None:
        """A change of epoch in which ranks stop and carry on one by one, others still sending."""
        waiting = list(self.ranks)
        while waiting:
            self.step()
            if self.random.random() < 0.2:
                self.take(waiting).engine.stop("test")
        g0 = min(rank.engine.first_missing for rank in self.ranks)
        if wipe:
            forget_sums(self.device, 16)
        ports = [self.ports.take() for _ in self.ranks]
        t0 = max(rank.engine.begun for rank in self.ranks)
        members = self.jobs.new_epoch(self.job, seats(ports), g0=g0, t0=t0, window=window)
        self.widest = max(self.widest, window)
        waiting = list(self.ranks)
        # Sometimes the next change comes before all have heard of this one.
        leave_out = self.random.randrange(len(waiting)) if self.random.random() < 0.3 else 0
        while len(waiting) > leave_out:
            self.step()
            if self.random.random() < 0.2:
                rank = self.take(waiting)
                rank.resume(members[rank.member.rank])
        self.late = [(rank, members[rank.member.rank]) for rank in waiting]

    def catch_up(self) -> None:
        """Those who were left out hear of the last epoch."""
        for rank, m in self.late:
            rank.resume(m)
        self.late = []

    late: list[tuple[Rank, Membership]] = []  # noqa: RUF012  (replaced, never changed)

    def lose(self, lost: int, window: int) -> None:
        """A rank dies and comes back; what cannot complete fails at all survivors."""
        survivors = [rank for rank in self.ranks if rank.member.rank != lost]
        dead = self.ranks[lost]
        dead.finish()
        dead.number = dead.ended
        dead.calls.clear()
        dead.engine.leave("dead")
        behind = any(rank.engine._flow.first < rank.engine._kept.end for rank in survivors)
        waiting = list(survivors)
        while waiting:
            self.step()
            if self.random.random() < 0.2:
                self.take(waiting).engine.stop("test")
        self.fetch(survivors, behind)
        begun = max((r.engine.begun for r in survivors), default=dead.engine.begun)
        g0 = max((r.engine.next_chunk for r in survivors), default=dead.engine.next_chunk)
        failed: set[int] = set()
        for rank in self.ranks:
            if rank is not dead:
                rank.finish()
                failed |= set(range(rank.ended, begun))
            rank.failed |= set(range(rank.ended, begun))
        if not behind:
            for rank in survivors:
                assert not failed & rank.completed, "all survivors have a result or none has"
        ports = [self.ports.take() for _ in self.ranks]
        self.widest = window
        members = self.jobs.new_epoch(self.job, seats(ports), g0=g0, t0=begun, window=window)
        for m, rank in zip(members, list(self.ranks), strict=True):
            new = Rank(self, self.tensors, m)
            new.completed, new.failed = rank.completed, rank.failed
            self.ranks[m.rank] = new

    def fetch(self, survivors: list[Rank], behind: bool) -> None:
        """What any survivor has, the others get, from the old epoch's slots."""
        engines = [rank.engine for rank in survivors]
        begin = min((e.first_missing for e in engines), default=0)
        held = []
        for e in engines:
            own = set(range(begin, e.first_missing))
            for first, last in e.results_above():
                assert first > e.first_missing
                own |= set(range(first, last + 1))
            held.append(own)
        anywhere: set[int] = set().union(*held)
        for e, own in zip(engines, held, strict=True):
            wanted = sorted(anywhere - own)
            if wanted:
                sent = e.next_chunk
                e.fetch([(g, g) for g in wanted], self.now)
                assert e.next_chunk == sent
        start = self.steps
        while not all(e.fetched for e in engines):
            self.step()
            if behind and self.steps > start + 2000:
                return  # known from a former epoch, and in no slot any more
        for e, own in zip(engines, held, strict=True):
            missing = set() if behind else anywhere - own
            assert all(g < e.first_missing or g in _flat(e.results_above()) for g in missing)


def _flat(ranges: list[tuple[int, int]]) -> set[int]:
    return {g for first, last in ranges for g in range(first, last + 1)}
