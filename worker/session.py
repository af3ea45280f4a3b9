# SPDX-License-Identifier: Apache-2.0
"""A worker's session with its controller: it says what the worker is, and does what it is told.

The controller is level-triggered: what we are decides what it answers, so any message may be repeated and
either side restarted. One thread asks (a long poll, which also renews the lease) and carries out changes;
another, the pump, sends what a new epoch needs while no call runs, and tells the controller at once when
this rank needs a new epoch.

A controller that does not answer disturbs nothing: the data path goes on, and we ask again, for
CONTROLLER_LIMIT seconds. Then the session counts as over.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Protocol

from wire.control import ControlError, RefusedError, UnreachableControllerError
from wire.membership import Membership

from .control import BIND_AGAIN, Control, Status, ending
from .driver import SLICE
from .errors import Absent, StalledError, WorkerError
from .session_errors import (
    BarrierTimeoutError,
    JobDrainingError,
    Lost,
    RendezvousTimeoutError,
    SessionEndedError,
    WorkerLostError,
)
from .transport import Transport
from .worker import Worker

CONTROLLER_LIMIT = 120.0
"""Seconds without any answer of the controller after which the session is over."""
LONGEST_WAIT = 20.0
"""Seconds of one long poll at most; a third of the lease if that is less."""
BARRIER_WAIT = 1.0
RETRY_PAUSE = 0.2
"""Seconds between questions that get no answer, or the same one again."""
FETCH_PATIENCE = 2.0
"""Seconds to wait for results of the old epoch: what the switch has, it answers at once. What a rank knows
from an earlier epoch still may be in no slot any more."""
BIND_ATTEMPTS = 16
LOOK_CHUNKS = 8
LOOK_SECONDS = 2.0
"""What a call that timed out has the controller look at, and how long that may take."""
CLOSE_LIMIT = 5.0
"""Seconds that the threads may take to end."""


class Link(Protocol):
    """Where a worker's ports and transports come from."""

    def bind(self) -> int:
        """Bind a UDP port for the next epoch, in place of one that was not used, and return it."""

    def open(self, membership: Membership) -> Transport:
        """Return the transport of the epoch whose port is the one bound last."""

    def close(self) -> None:
        """Give back a port that was bound and not used. Idempotent."""


class Session:
    """One rank of a job, held from `rendezvous` until `close`, or until the controller ends it."""

    def __init__(self, control: Control, link: Link, call_timeout: float) -> None:
        self.job = control.job
        self._call_timeout = call_timeout
        self._control, self._link = control, link
        self._worker: Worker | None = None
        self._stopped = 0
        self._why = ""  # of the change we stopped for
        self._failed = 0
        self._fetched = False
        self._udp_port = 0
        self._last: tuple[object, object] = (None, None)
        self._heard_at = time.monotonic()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, name=f"p4reduce {self.job}", daemon=True),
            threading.Thread(target=self._pump, name=f"p4reduce {self.job} pump", daemon=True),
        ]

    # ---- joining

    def rendezvous(self, timeout: float) -> Worker:
        """Take the rank, wait for the other ranks, and return the worker in its first epoch.

        Raises RendezvousTimeoutError, JobDrainingError, SessionEndedError, TransportError, ControlError.
        """
        limit = time.monotonic() + timeout
        self._take_rank()
        try:
            while self._worker is None:
                left = limit - time.monotonic()
                if left <= 0:
                    raise RendezvousTimeoutError(self.job, timeout, self._absent())
                self._round(min(left, self._wait))
        except BaseException:
            with suppress(ControlError):
                self._control.leave()
            self._link.close()
            raise
        for thread in self._threads:
            thread.start()
        return self._worker

    def _take_rank(self) -> None:
        for attempt in range(1, BIND_ATTEMPTS + 1):
            self._udp_port = self._link.bind()
            try:
                self._control.open(self._udp_port)
                break
            except RefusedError as error:
                if error.kind != BIND_AGAIN or attempt == BIND_ATTEMPTS:
                    self._link.close()
                    raise
            except BaseException:
                self._link.close()
                raise
        self._heard_at = time.monotonic()

    # ---- the conversation

    @property
    def _wait(self) -> float:
        return min(LONGEST_WAIT, self._control.lease / 3)

    def _status(self) -> Status:
        worker = self._worker
        if worker is None:
            return Status(
                stopped=self._stopped, udp_port=self._udp_port, fetched=self._fetched, failed=self._failed
            )
        with worker.changed:
            engine = worker.engine
            return Status(
                epoch=engine.membership.epoch,
                begun=engine.begun,
                next_chunk=engine.next_chunk,
                first_missing=engine.first_missing,
                stopped=self._stopped,
                udp_port=self._udp_port,
                have=engine.results_above() if engine.stopped else (),
                fetched=self._fetched,
                failed=self._failed,
                left=worker.quit[:500] if worker.quit is not None else None,
                missing=tuple(engine.missing()),
            )

    def _round(self, wait: float) -> None:
        """Say what we are and do what we are told; raises what ends the session."""
        status = self._status()
        try:
            told = self._control.sync(status, wait)
        except RefusedError as error:
            if error.kind == BIND_AGAIN:
                self._udp_port = self._link.bind()
            elif error.status < 500:
                raise ending(self.job, str(error), error.kind) from None
            self._unheard(error)
            return
        except UnreachableControllerError as error:
            self._unheard(error)
            return
        self._heard_at = time.monotonic()
        self._obey(told)
        now = (told, self._status())
        if now == self._last and told["do"] != "nothing":
            self._closing.wait(RETRY_PAUSE)
        self._last = now

    def _unheard(self, error: ControlError) -> None:
        silence = time.monotonic() - self._heard_at
        if silence > CONTROLLER_LIMIT:
            raise SessionEndedError(
                self.job, f"its controller has not answered for {silence:.0f} s ({error})"
            ) from error
        self._closing.wait(RETRY_PAUSE)

    def _obey(self, told: dict[str, Any]) -> None:
        do, worker = told["do"], self._worker
        if do == "stop":
            self._stop(int(told["change"]), str(told["why"]))
        elif do == "fetch":
            self._fetch([(int(first), int(last)) for first, last in told["chunks"]])
        elif do == "fail":
            if worker is not None and self._failed != int(told["change"]):
                lost = [Lost(int(r["rank"]), str(r["host"]), str(r["why"])) for r in told["lost"]]
                with worker.changed:
                    worker.fail(int(told["begun"]), lambda: WorkerLostError(self.job, lost, self._why))
            self._failed = int(told["change"])
        elif do == "go":
            self._go(Membership(**told["membership"]), bool(told["resume"]))
        elif do == "drain":
            if worker is None:
                raise JobDrainingError(self.job, int(told["begun"]))
            with worker.changed:
                worker.drained = int(told["begun"])
                worker.changed.notify_all()
        elif do == "end":
            raise ending(self.job, str(told["why"]), str(told["kind"]))

    def _stop(self, change: int, why: str) -> None:
        if self._stopped == change:
            return
        if self._worker is not None:
            with self._worker.changed:
                self._worker.stop(why)
        # Another port for each change: the one before may have been refused.
        self._udp_port = self._link.bind()
        self._why = why
        self._stopped, self._fetched = change, False

    def _fetch(self, chunks: list[tuple[int, int]]) -> None:
        worker = self._worker
        if worker is not None and not self._fetched:
            with worker.changed:
                worker.fetch(chunks)
                engine, received = worker.engine, worker.stats.packets_received
                begun = since = time.monotonic()
                while not (engine.fetched or worker.over or self._closing.is_set()):
                    worker.changed.wait(SLICE)
                    now = time.monotonic()
                    if worker.stats.packets_received != received:
                        received, since = worker.stats.packets_received, now
                    if now - since > min(FETCH_PATIENCE, self._wait) or now - begun > 2 * self._wait:
                        break  # the lease has to be renewed, too
                engine.stop(self._why)
        self._fetched = True

    def _go(self, membership: Membership, resume: bool) -> None:
        worker = self._worker
        if worker is not None and worker.membership.epoch == membership.epoch:
            return
        if membership.own_port != self._udp_port:
            return  # an answer to a status of before
        transport = self._link.open(membership)
        if worker is None:
            self._worker = Worker(membership, transport, timeout=self._call_timeout, session=self)
        else:
            with worker.changed:
                if resume:
                    worker.resume(membership, transport)
                else:
                    worker.replace(membership, transport)
        self._udp_port = self._stopped = self._failed = 0
        self._fetched = False

    # ---- the threads

    def _keep(self) -> None:
        """Renew the lease, and take the worker through changes, until the session is over."""
        worker = self._worker
        assert worker is not None
        try:
            while not self._closing.is_set():
                with worker.changed:
                    begun = worker.engine.begun
                    drained = worker.drained
                    finished = drained is not None and begun >= drained and worker.idle
                if finished and drained is not None:
                    self._say_goodbye()
                    raise JobDrainingError(self.job, drained)
                wait = self._wait if drained is None else RETRY_PAUSE
                self._round(wait)
        except WorkerError as error:
            self._end(error)
        except Exception as error:  # a controller that we do not understand must not leave a call waiting
            self._end(SessionEndedError(self.job, f"{type(error).__name__}: {error}"))

    def _end(self, error: WorkerError) -> None:
        worker = self._worker
        assert worker is not None
        with worker.changed:
            if not self._closing.is_set():
                worker.end(error)
            self._closing.set()
            worker.changed.notify_all()

    def _pump(self) -> None:
        worker = self._worker
        assert worker is not None
        while not self._closing.is_set():
            worker.pump(self._closing)
            with worker.changed:
                urgent, worker.urgent = worker.urgent, False
            if urgent:
                # Level-triggered: the answer comes again to the thread that obeys.
                with suppress(ControlError):
                    self._control.sync(self._status(), 0.0)

    # ---- what the worker asks for

    def no_epoch(self, seconds: float) -> WorkerError:
        """Return the error of a call that waited in vain."""
        return RendezvousTimeoutError(self.job, seconds, self._absent())

    def _absent(self) -> list[Absent]:
        try:
            return self._control.absent()
        except (ControlError, WorkerError):
            return []

    def look(self, error: StalledError) -> None:
        """Say in the error who is missing; see Membered."""
        worker = self._worker
        assert worker is not None
        with worker.changed:
            chunks = worker.engine.missing(LOOK_CHUNKS)
        if not chunks:  # as when this process itself stood still
            error.unasked = "each chunk that it has sent has its result"
            return
        try:
            error.lacking = self._control.lacking(chunks, LOOK_SECONDS)
        except ControlError as unasked:
            error.unasked = str(unasked)
        else:
            error.unasked = None

    def barrier(self, number: int, limit: float, seconds: float) -> bool:
        """Wait a moment at a barrier; see Membered."""
        wait = max(0.0, min(BARRIER_WAIT, limit - time.monotonic()))
        missing: list[int] = []
        try:
            missing = self._control.barrier(number, wait)
            if not missing:
                return True
        except UnreachableControllerError:
            self._closing.wait(min(wait, RETRY_PAUSE))
        except RefusedError as error:
            if error.status < 500:
                raise ending(self.job, str(error), error.kind) from None
            self._closing.wait(min(wait, RETRY_PAUSE))
        if time.monotonic() >= limit:
            raise BarrierTimeoutError(
                self.job, seconds, [Absent(rank, self._control.host(rank)) for rank in missing]
            )
        return False

    def close(self) -> None:
        """Leave the job, saying at last what we have, and end the threads. Idempotent."""
        already = self._closing.is_set()
        self._closing.set()
        worker = self._worker
        if worker is not None:
            with worker.changed:
                worker.changed.notify_all()
            if not already:
                self._say_goodbye()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_LIMIT)
        self._control.close()
        self._link.close()

    def _say_goodbye(self) -> None:
        # The others may have to fetch what we had: a controller that knows it can wait for them.
        with suppress(ControlError):
            self._control.sync(self._status(), 0.0)
            self._control.leave()
