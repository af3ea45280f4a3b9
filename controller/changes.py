# SPDX-License-Identifier: Apache-2.0
"""Changes of epoch, as decided: what each worker has said, and what it should do next (protocol.md, Epochs).

No I/O and no clock. Everything is level-triggered: a worker states what it is, and `instruction` answers from
the job's state alone, so that either side may restart, and any message may be repeated.

    stop     all stop sending; each tells its first chunk without a result and a new UDP port
    fetch    (members) what any survivor has, the others get from the old epoch's slots
    fail     (members) all-reduces that are still incomplete fail
    wait     (members) until every rank is there
    begin    old entries go, new ones come, and each worker is told its new membership
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from wire.membership import Membership

Range = tuple[int, int]
"""Chunks first..last, both included."""

RENDEZVOUS = "the job waits for its workers"
"""Why an epoch is to begin where no worker is left of the one before."""
MISMATCH = "mismatch"
"""Why a worker left when the ranks' calls differed."""
STOP_SECONDS = 10.0
"""How long a worker that renews its lease may take to stop."""
FETCH_SECONDS = 10.0
"""How long survivors may take to get what another has."""


@dataclass(frozen=True)
class Status:
    """What a worker says of itself in each sync."""

    epoch: int = 0
    """Of its membership, 0 before a first one."""
    begun: int = 0
    """All-reduces begun."""
    next_chunk: int = 0
    first_missing: int = 0
    stopped: int = 0
    """Id of the change that it has stopped for."""
    udp_port: int = 0
    """Bound for the next epoch."""
    have: tuple[Range, ...] = ()
    """Chunks with results above first_missing."""
    fetched: bool = False
    failed: int = 0
    """Id of the change whose failure it has taken in."""
    left: str | None = None
    """Why it ended its all-reduce and asks for a new epoch."""
    missing: tuple[int, ...] = ()
    """A few chunks that it waits for."""


@dataclass(frozen=True)
class Lost:
    """A rank whose worker went away."""

    rank: int
    host: str
    why: str


@dataclass
class Session:
    """A worker that holds a rank of a job."""

    sid: str
    rank: int
    host: str
    ip: str
    deadline: float
    """When its lease ends."""
    status: Status
    moved: float = 0.0
    """When its first missing chunk last changed."""
    refused_port: int = 0
    """A UDP port that it bound and cannot have."""
    drain_told: bool = False


@dataclass
class Change:
    """A change under way."""

    id: int
    members: bool
    why: str
    since: float
    lost: list[Lost] = field(default_factory=list)
    phase: str = "stop"
    fetch: dict[str, list[Range]] = field(default_factory=dict)
    """By session: what it has to get."""
    g0: int = 0
    """Same members: where the new epoch begins."""


@dataclass
class Group:
    """The workers of one job: who is there, in which epoch, and the change that is under way."""

    hosts: list[str]
    next_chunk: int = 0
    begun: int = 0
    epoch: int = 0
    """The present epoch, 0 when there is none."""
    resume_from: int = 0
    """Workers of this epoch or a later one carry on in the present one; others begin afresh."""
    memberships: list[Membership] = field(default_factory=list)
    installed: bool = False
    """Whether the switch holds the present epoch's entries."""
    change: Change | None = None
    changes: int = 0
    draining: int | None = None
    """All-reduces that are still completed, once the job is being drained."""
    gone: list[Status] = field(default_factory=list)
    """The last words of workers lost in the present epoch: what they had, the slots still have."""
    sessions: dict[int, Session] = field(default_factory=dict)
    """By rank."""

    @property
    def running(self) -> bool:
        """Whether an epoch is installed and nothing changes."""
        return self.change is None and self.installed

    @property
    def absent(self) -> list[int]:
        """Ranks without a worker."""
        return [rank for rank in range(len(self.hosts)) if rank not in self.sessions]

    def fresh(self, session: Session) -> bool:
        """Whether a worker has never been told a membership, and its port can be had."""
        status = session.status
        # By address: a change may have numbered the workers anew since the epoch began.
        used = [each.own_port for each in self.memberships if each.own_ip == session.ip]
        return status.epoch == 0 and status.udp_port not in (0, session.refused_port, *used)

    def seated(self) -> list[Session]:
        """Return the workers that a change waits for: all but the fresh."""
        return [session for session in self.sessions.values() if not self.fresh(session)]

    def in_epoch(self, session: Session) -> bool:
        """Whether a worker works in the present epoch."""
        return bool(self.epoch) and session.status.epoch == self.epoch

    def start_change(self, why: str, members: bool, now: float, lost: Sequence[Lost] = ()) -> Change:
        """Begin a change, or take a new reason into one that is under way.

        What ends a change of the same members begins a new one: everyone is asked again.
        """
        old = self.change
        if old is not None and old.members and members:
            old.lost += [who for who in lost if who.rank not in {known.rank for known in old.lost}]
            return old
        if old is not None:
            members = members or old.members
        self.changes += 1
        self.change = Change(self.changes, members, why, now, list(lost))
        return self.change

    def ask_again(self, now: float) -> None:
        """Ask everyone for another UDP port: one that was told cannot be used."""
        assert self.change is not None
        self.changes += 1
        self.change.id = self.changes
        self.change.phase = "stop"
        self.change.since = now

    def lose(self, session: Session, why: str, now: float) -> None:
        """Take a worker out; if the job runs, the others' epoch ends."""
        if self.sessions.get(session.rank) is session:
            del self.sessions[session.rank]
        if self.in_epoch(session):
            self.gone.append(session.status)
        if not self.fresh(session) and self.epoch:
            lost = Lost(session.rank, session.host, why)
            change = self.start_change(f"rank {lost.rank} on {lost.host}: {why}", True, now, [lost])
            if not self.sessions:  # who comes next begins afresh, whatever ended the life before
                change.why = RENDEZVOUS

    def heed(self, session: Session, now: float) -> None:
        """Take note that a worker asks for a new epoch: its last all-reduce ended by itself."""
        why = session.status.left
        if why is None or not self.in_epoch(session):
            return
        # Of a mismatch every rank learns by its own header packets: nobody is lost.
        lost = [] if why == MISMATCH else [Lost(session.rank, session.host, why)]
        if self.change is None or not self.change.members:
            self.start_change(f"rank {session.rank} on {session.host}: {why}", True, now, lost)
        elif self.change.phase == "stop":
            self.start_change(self.change.why, True, now, lost)

    def step(self, now: float) -> bool:
        """Let the change go on as far as it can; True when the next epoch can begin."""
        change = self.change
        if change is None:
            return False
        if change.phase == "stop":
            late = [s for s in self.seated() if s.status.stopped != change.id]
            self._late(late, STOP_SECONDS, "stop", now)
            if self.change is not change or any(s.status.stopped != change.id for s in self.seated()):
                return False
            self._collect(change)
            change.since = now
        if change.phase == "fetch":
            late = [s for s in self.seated() if s.sid in change.fetch and not s.status.fetched]
            self._late(late, FETCH_SECONDS, "fetch the results that others have", now)
            if any(s.sid in change.fetch and not s.status.fetched for s in self.seated()):
                return False
            change.phase = "wait"
        if change.members and any(s.status.epoch and s.status.failed != change.id for s in self.seated()):
            return False
        return not self.absent and all(self._is_ready(s, change) for s in self.sessions.values())

    def _is_ready(self, session: Session, change: Change) -> bool:
        stopped = session.status.stopped == change.id
        return self.fresh(session) or (stopped and session.status.udp_port not in (0, session.refused_port))

    def _late(self, waited_for: Iterable[Session], limit: float, what: str, now: float) -> None:
        assert self.change is not None
        if now - self.change.since >= limit:
            for session in waited_for:
                self.lose(session, f"it did not {what} in {limit:g} s", now)

    def _collect(self, change: Change) -> None:
        present = [s for s in self.seated() if self.in_epoch(s)]
        members = [s for s in self.seated() if self.resume_from <= s.status.epoch]
        self.next_chunk = max([self.next_chunk, *(s.status.next_chunk for s in members)])
        self.begun = max([self.begun, *(s.status.begun for s in members)])
        if self.draining is not None:
            self.draining = max(self.draining, self.begun)
        if not change.members:
            # Who has not entered the present epoch has no result of it; then nobody has.
            begin = self.memberships[0].g0 if self.memberships else self.next_chunk
            change.g0 = min(
                (s.status.first_missing if self.in_epoch(s) else begin for s in self.seated()), default=begin
            )
            change.phase = "wait"
            return
        told = [*(s.status for s in present), *self.gone]
        most = max((status.first_missing for status in told), default=0)
        beyond = [r for status in told for r in status.have]
        for session in present:
            own = session.status
            if own.left is None:
                ranges = without([(own.first_missing, most - 1), *beyond], own.first_missing, own.have)
                if ranges:
                    change.fetch[session.sid] = ranges
        change.phase = "fetch"

    def enter(self, epoch: int, memberships: list[Membership]) -> None:
        """Take the epoch that was planned for the change as the present one; it is not installed yet."""
        assert self.change is not None
        if self.change.members:
            self.resume_from = epoch
        self.epoch, self.memberships, self.installed, self.change = epoch, memberships, False, None
        self.gone = []

    def instruction(self, session: Session) -> dict[str, Any] | None:
        """Return what a worker should do next, None while it has nothing to do."""
        status, change = session.status, self.change
        settled = change is None or change.phase == "wait"
        if self.draining is not None and settled and not session.drain_told:
            # Before it may go on: a stopped worker begins nothing, so nobody begins what another refuses.
            session.drain_told = True
            return {"do": "drain", "begun": self.draining}
        if change is None:
            if self.installed and status.epoch != self.epoch:
                resume = self.resume_from <= status.epoch
                return {"do": "go", "resume": resume, "membership": asdict(self.memberships[session.rank])}
            return None
        if self.fresh(session):
            return None
        if status.stopped != change.id:
            return {"do": "stop", "change": change.id, "members": change.members, "why": change.why}
        if change.phase == "fetch" and session.sid in change.fetch and not status.fetched:
            return {"do": "fetch", "change": change.id, "chunks": change.fetch[session.sid]}
        if change.members and change.phase == "wait" and status.epoch and status.failed != change.id:
            lost = [asdict(who) for who in change.lost]
            return {"do": "fail", "change": change.id, "begun": self.begun, "lost": lost}
        return None


def without(wanted: Iterable[Range], first: int, have: Iterable[Range]) -> list[Range]:
    """Return the chunks of `wanted` that are not below `first` and not in `have`, as ascending ranges."""
    held = sorted(have)
    found: list[Range] = []
    for low, high in sorted(wanted):
        low = max(low, first, found[-1][1] + 1 if found else low)
        for begin, end in held:
            if end < low:
                continue
            if begin > high:
                break
            if begin > low:
                found.append((low, begin - 1))
            low = end + 1
        if low <= high:
            found.append((low, high))
    return found
