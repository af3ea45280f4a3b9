# SPDX-License-Identifier: Apache-2.0
"""A controller in memory for one job: the controller's own decisions (controller.changes), the compiled
program in the in-process switch, and links that can lose; workers in threads talk to it as over HTTP."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from controller.changes import Group
from controller.changes import Session as Held
from controller.changes import Status as Said
from controller.program.peek import Peek
from switch.device import SwitchDevice
from tests.controller.direct import DirectSwitch
from tests.worker.world import P4INFO, Ports, forget_sums, new_switch, seats
from wire.control import RefusedError, UnreachableControllerError
from wire.membership import Membership
from worker import Absent, Worker
from worker.control import Status
from worker.memory import Frames, MemoryFabric, MemoryTransport
from worker.session import Session

JOB, NUMBER = "demo", 5


class Office:
    """The controller of one job of n ranks, which waits for them; `events` lists what it was told to do."""

    def __init__(
        self, device: SwitchDevice, n: int, *, window: int = 8, lease: float = 30.0, **faults: Any
    ) -> None:
        self.window, self.lead, self.lease = window, 2, lease
        self.changed = threading.Condition()
        self.away = False
        self.ports = Ports()
        self.refuse: set[int] = set()
        self.device = device
        self._switch, self._jobs = new_switch(device)
        self._direct, self._peek = DirectSwitch(device, P4INFO), Peek(P4INFO)
        self._switch_lock = threading.Lock()
        self.fabric = MemoryFabric(self._process, **faults)
        self.group = Group([f"h{r + 1}" for r in range(n)])
        self.group.start_change("the job waits for its workers", True, time.monotonic())
        self._sids = itertools.count(1)
        self.sessions: dict[str, Held] = {}
        self.over: dict[str, tuple[str, str]] = {}
        self._barriers: dict[int, int] = {}
        self._there = False

    def _process(self, frames: Frames) -> Frames:
        with self._switch_lock:
            return self._switch.process(frames)

    def _answer(self) -> None:
        if self.away:
            raise UnreachableControllerError("office", "no controller answers at office")

    def open(self, rank: int, udp_port: int) -> str:
        with self.changed:
            self._answer()
            if udp_port in self.refuse:
                raise RefusedError("office", 409, "BindAgainError", f"UDP port {udp_port}: bind again")
            if rank in self.group.sessions:
                raise RefusedError("office", 409, "RankTakenError", f"rank {rank} is held by a worker")
            sid, now = str(next(self._sids)), time.monotonic()
            said = Said(udp_port=udp_port)
            held = Held(sid, rank, self.group.hosts[rank], "", now + self.lease, said, now)
            self.sessions[sid] = self.group.sessions[rank] = held
            self._barriers.pop(rank, None)
            self.changed.notify_all()
            return sid

    def sync(self, sid: str, status: Status, wait: float) -> dict[str, Any]:
        until = time.monotonic() + wait
        with self.changed:
            self._answer()
            if sid in self.sessions:
                held = self.sessions[sid]
                held.status = Said(**asdict(status))
                self.group.heed(held, time.monotonic())
            while True:
                self._answer()
                if sid in self.over:
                    why, kind = self.over[sid]
                    return {"do": "end", "why": why, "kind": kind}
                if sid not in self.sessions:
                    raise RefusedError("office", 404, "NoSuchSessionError", "no such session")
                held.deadline = time.monotonic() + self.lease
                self._go_on()
                told = self.group.instruction(held)
                left = until - time.monotonic()
                if told is not None or left <= 0:
                    return told or {"do": "nothing"}
                self.changed.wait(min(left, 0.05))

    def _go_on(self) -> None:
        now = time.monotonic()
        for sid, held in list(self.sessions.items()):
            if now > held.deadline:
                self.end(sid, f"it said nothing for {self.lease:g} s", "SessionEndedError")
        if not self.group.step(now):
            return
        change, group = self.group.change, self.group
        assert change is not None
        ports = [group.sessions[rank].status.udp_port for rank in range(len(group.hosts))]
        for rank, port in enumerate(ports):
            if port in self.refuse:
                group.sessions[rank].refused_port = port
                group.ask_again(now)
                return
        g0 = group.next_chunk if change.members else change.g0
        t0 = group.begun if change.members else group.memberships[0].t0
        with self._switch_lock:
            if self._there:
                members = self._jobs.new_epoch(NUMBER, seats(ports), g0=g0, t0=t0, window=self.window)
            else:
                members = self._jobs.add_job(NUMBER, seats(ports), self.window, self.lead, g0=g0, t0=t0)
        self._there = True
        group.enter(members[0].epoch, members)
        group.installed = True
        self.changed.notify_all()

    def end(self, sid: str, why: str, kind: str) -> None:
        """A session is over; the others learn that its rank is lost."""
        with self.changed:
            held = self.sessions.pop(sid)
            self.over[sid] = (why, kind)
            self.group.lose(held, why, time.monotonic())
            self.changed.notify_all()

    def resize(self, window: int, *, wipe: bool = False) -> None:
        """The same members go on with another window; the switch may lose its registers."""
        with self.changed:
            self.window = window
            if wipe:
                with self._switch_lock:
                    forget_sums(self.device, 16)
            self.group.start_change("resized", False, time.monotonic())
            self.changed.notify_all()

    def drain(self) -> None:
        with self.changed:
            sessions = self.group.sessions.values()
            self.group.draining = max(held.status.begun for held in sessions)
            self.changed.notify_all()

    def remove(self) -> None:
        with self.changed:
            for sid in list(self.sessions):
                self.sessions.pop(sid)
                self.over[sid] = ("it was removed", "JobRemovedError")
            with self._switch_lock:
                self._jobs.remove_job(NUMBER)
            self.changed.notify_all()

    def go_away(self, away: bool) -> None:
        """The controller is killed, or starts again with all that it knew; leases begin anew."""
        with self.changed:
            self.away = away
            for held in self.sessions.values():
                held.deadline = time.monotonic() + self.lease
            self.changed.notify_all()

    def lacking(self, chunks: Sequence[int]) -> dict[int, list[Absent]]:
        """What the switch says by peeks."""
        with self.changed, self._switch_lock:
            self._answer()
            found = {}
            base = self._jobs.job(NUMBER).base
            for chunk in chunks:
                slot = base + chunk % self.window
                state = self._peek.slot(self._direct, slot, chunk // self.window % 2)
                seen = state.seen if (state.epoch, state.tag) == (self.group.epoch, chunk) else 0
                ranks = [rank for rank in range(len(self.group.hosts)) if not seen >> rank & 1]
                found[chunk] = [Absent(rank, self.group.hosts[rank]) for rank in ranks]
            return found

    def barrier(self, sid: str, number: int, wait: float) -> list[int]:
        until = time.monotonic() + wait
        with self.changed:
            self._answer()
            rank = self.sessions[sid].rank
            self._barriers[rank] = max(number, self._barriers.get(rank, 0))
            self.changed.notify_all()
            while True:
                missing = [r for r in range(len(self.group.hosts)) if self._barriers.get(r, 0) < number]
                left = until - time.monotonic()
                if not missing or left <= 0:
                    return missing
                self.changed.wait(left)


class Line:
    """A worker.control.Control to an Office."""

    job = JOB

    def __init__(self, office: Office, rank: int) -> None:
        self._office, self._rank = office, rank
        self.lease = office.lease
        self.sid = ""
        self.closed = False

    def open(self, udp_port: int) -> None:
        self.sid = self._office.open(self._rank, udp_port)

    def sync(self, status: Status, wait: float) -> dict[str, Any]:
        return self._office.sync(self.sid, status, wait)

    def barrier(self, number: int, wait: float) -> list[int]:
        return self._office.barrier(self.sid, number, wait)

    def absent(self) -> list[Absent]:
        return [Absent(rank, self.host(rank)) for rank in self._office.group.absent]

    def host(self, rank: int) -> str:
        return self._office.group.hosts[rank]

    def lacking(self, chunks: Sequence[int], seconds: float) -> dict[int, list[Absent]]:
        return self._office.lacking(chunks)

    def leave(self) -> None:
        if self.sid in self._office.sessions:
            self._office.end(self.sid, "it left the job", "SessionEndedError")

    def close(self) -> None:
        self.closed = True


class FabricLink:
    """A worker.session.Link to an Office's fabric."""

    def __init__(self, office: Office, rank: int, wrap: Callable[[Any], Any]) -> None:
        self._office, self._rank, self._wrap = office, rank, wrap
        self.bound: list[int] = []

    def bind(self) -> int:
        self.bound.append(self._office.ports.take())
        return self.bound[-1]

    def open(self, membership: Membership) -> Any:
        assert membership.own_port == self.bound[-1]
        return self._wrap(MemoryTransport(membership, self._office.fabric, self._rank + 1))

    def close(self) -> None:
        pass


def same(transport: Any) -> Any:
    return transport


def enlist(
    office: Office,
    rank: int,
    *,
    timeout: float = 30.0,
    call: float = 30.0,
    wrap: Callable[[Any], Any] = same,
) -> Worker:
    """What worker.join does, with an Office instead of HTTP; `wrap` goes around each transport."""
    session = Session(Line(office, rank), FabricLink(office, rank, wrap), call)
    return session.rendezvous(timeout)
