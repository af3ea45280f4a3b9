# SPDX-License-Identifier: Apache-2.0
"""Who carries on what is under way: sends, receives, and tells the engine.

Three threads may meet here: the application's, and the two of a Session: one is told of changes by the
controller, the other ("pump") carries on what is under way while no call waits for it: all-reduces that were
begun with all_reduce_async, and what a new epoch needs. Without a session only waiting does that.

1. `changed`, a condition, guards all state: the engine, the transport, and who uses it. It is held for
   computing only. Nobody holds it while sending or receiving, or during a turn in C, which does both and the
   engine's steps between; others can interrupt that (worker.guard).
2. The transport is used by one thread at a time, the driver: one that waits for an all-reduce, or else the
   pump. What it receives may be for others, who wait for `changed`. It gives way once its own has ended.
3. A change may replace the engine and the transport while the driver is in send or receive. It then comes
   back with results of a transport that is no more, which it drops; it closes the old transport, since
   only the driver knows that it is out of it.
4. A receive and a turn in C last at most SLICE, so that what changed is noticed.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from wire.packet import Packets

from .engine import Engine
from .errors import MismatchError, StalledError, WorkerError
from .guard import Guard
from .handle import Handle
from .ring import NEVER
from .transport import Transport
from .turn import Why

SLICE = 0.02
"""Longest receive, and turn in C, in seconds."""
LINGER = 2.0
"""Seconds that `close` waits for packets that other ranks need in a new epoch, and the pump for a cause."""


class Membered(Protocol):
    """What a worker needs of its session (worker.session); a worker without one has no controller."""

    job: str

    def no_epoch(self, seconds: float) -> WorkerError:
        """Return the error for a call that found no epoch to work in; asks the controller who is missing."""

    def barrier(self, number: int, limit: float, seconds: float) -> bool:
        """Wait a moment at a barrier, and say whether it is passed.

        Raises BarrierTimeoutError at `limit` (time.monotonic), which is `seconds` after it began.
        """

    def look(self, error: StalledError) -> None:
        """Say in a call's error whose contributions the switch lacks; asks the controller, for a moment."""

    def close(self) -> None:
        """Leave the job and end the session's threads."""


class Driver:
    """The base of worker.worker.Worker: an engine, its transport, and the threads that use them."""

    def __init__(self, engine: Engine, transport: Transport, session: Membered | None) -> None:
        self.transport, self.engine = transport, engine
        self.changed = Guard()
        """Guards what follows, and says when it changed."""
        self.quit: str | None = None
        """Why this rank ended its last all-reduce by itself; None once it has a new epoch."""
        self.urgent = False
        """Whether the controller should hear at once of `quit`."""
        self._session = session
        self._driving = False  # a thread uses the transport
        self._waiting = 0  # threads that would
        self._retired: list[Transport] = []
        self._over: WorkerError | None = None  # fails every call from now on

    def _drive(self, handle: Handle, limit: float, once: bool = False) -> None:
        """Carry on all that is under way until this is done, or the limit (time.monotonic) has passed.

        `once`: only send what can be sent now, and take what is here, unless somebody else drives.
        """
        driving = False
        with self.changed:
            self._waiting += 1
            try:
                while True:
                    turn = None
                    if done := handle.done:
                        pass
                    elif driving or not self._driving:
                        driving = self._driving = True
                        if once or not self._turn(limit):
                            turn = self._poll(limit)
                    elif not once:
                        self.changed.wait(min(SLICE, max(0.0, limit - time.monotonic())))
                    if turn is not None:
                        self.changed.aside(self._exchange, *turn, 0.0 if once else limit)
                    if once:
                        break
                    now = time.monotonic()
                    if handle.has_news(now):
                        if driving:  # the application may take its time, or wait for another handle
                            self._give_way()
                            driving = False
                        self.changed.aside(handle.report, now)
                    if done or now >= limit:
                        break
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                self._waiting -= 1
                if driving:
                    self._driving = False
                    self._close_retired()
                if self._waiting or self._pumpable:
                    self.changed.notify_all()

    def _give_way(self) -> None:
        with self.changed:
            self._driving = False
            self._close_retired()
            self.changed.notify_all()

    def _turn(self, limit: float) -> bool:
        """Carry on in C for up to SLICE, if nothing is out of the ordinary; say whether that was all."""
        self.changed.let_in()
        self._close_retired()
        engine, native, now = self.engine, self.transport.native, time.monotonic()
        if native is None:
            return False
        turn = engine.usual()
        if turn is None:
            return False
        native.wake = self.changed.wake
        why = self.changed.lend(turn, native, min(limit, now + SLICE))
        engine.go_on(why)
        if why & Why.COMPLETE and self._waiting > 1:
            self.changed.notify_all()
        return why == Why.TIME or (why == Why.COMPLETE and engine.failure is None)

    def _poll(self, limit: float) -> tuple[Engine, Transport, Packets, float] | None:
        """Return what to send and until when to receive; None once there was nothing to do for a moment."""
        self._close_retired()
        engine, now = self.engine, time.monotonic()
        burst = engine.poll(now)
        wake = engine.wake_at(now)
        if engine.outstanding:
            return engine, self.transport, burst, wake
        if engine.left is None:  # stopped
            self.changed.wait(min(1.0, max(0.0, min(wake, limit) - now)))
        elif engine.failure is not None and self.quit is None and engine is self.engine:
            return engine, self.transport, burst, now
        return None

    def _exchange(
        self, engine: Engine, transport: Transport, burst: Packets, wake: float, limit: float
    ) -> None:
        # `burst` lies in the engine's ring; a change that comes now leaves that ring as it is.
        if len(burst):
            transport.send(burst)
        lull = min(engine.lull, SLICE, min(wake, limit) - time.monotonic())
        if lull > 0:
            time.sleep(lull)
        if engine.failure is None:
            results = transport.receive(min(SLICE, max(0.0, min(wake, limit) - time.monotonic())))
            if len(results):
                with self.changed:
                    if transport is self.transport:
                        ended = engine.stats.all_reduces
                        engine.on_results(results, time.monotonic())
                        if engine.stats.all_reduces > ended and self._waiting > 1:
                            self.changed.notify_all()
        if engine.failure is not None:
            self._quit(engine, engine.failure)

    def _quit(self, engine: Engine, error: BaseException) -> None:
        """Let the controller hear that this rank needs a new epoch."""
        if isinstance(error, StalledError) and self._session is not None:
            self._session.look(error)  # the epoch is over once this rank has given up
        with self.changed:
            if engine is self.engine and self.quit is None:
                self.quit, self.urgent = _in_words(error), True
            self.changed.notify_all()

    def _give_up(self, error: BaseException) -> None:
        """Something came in between: what is under way cannot go on."""
        with self.changed:
            engine = self.engine
            if engine.left is not None or not engine.running:
                return
            why = f"an all_reduce ended with {type(error).__name__}"
            engine.leave(why, error if isinstance(error, WorkerError) else None)
        self._quit(engine, error)

    def _close_retired(self) -> None:
        while self._retired:
            self._retired.pop().close()

    @property
    def _pumpable(self) -> bool:
        return self._over is None and not self._driving and not self._waiting and self.engine.outstanding

    def pump(self, stop: threading.Event) -> None:
        """While nobody waits, carry on what is under way for up to SLICE; or wait until there is cause."""
        engine = None
        try:
            with self.changed:
                self.changed.wait_for(lambda: stop.is_set() or self.urgent or self._pumpable, LINGER)
                if stop.is_set() or not self._pumpable:
                    return
                self._driving, engine = True, self.engine
                turn = None if self._turn(NEVER) else self._poll(0.0)
            if turn is not None:
                self._exchange(*turn, NEVER)
        except WorkerError as error:
            assert engine is not None
            with self.changed:
                engine.leave(str(error), error)
            self._quit(engine, error)
        finally:
            if engine is not None:
                self._give_way()

    def _retire(self, transport: Transport) -> None:
        """Close a transport, or leave that to the thread that uses it."""
        if self._driving:
            self._retired.append(transport)
        else:
            transport.close()


def _in_words(error: BaseException) -> str:
    if isinstance(error, MismatchError):
        return "mismatch"
    if isinstance(error, StalledError):
        return error.brief
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"
