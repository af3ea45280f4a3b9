# SPDX-License-Identifier: Apache-2.0
"""The worker as applications see it: one call sums an array over all ranks of its job.

Three threads may meet here: the application's in a call, and the two of a Session: one is told of changes by
the controller, the other ("pump") sends again what a new epoch needs while no call runs.

1. `changed`, a condition, guards all state: the engine, the transport, who uses it, and how calls end.
   It is held for computing only. Nobody holds it while sending or receiving.
2. The transport is used by one thread at a time: by the call that `_call` notes, from its begin to its
   end, or by the pump while `_pumping`. A call waits for the pump to come back, SLICE at most.
3. A change may replace the engine and the transport while their user is in send or receive. It then comes
   back with results of a transport that is no more, which it drops; it closes the old transport, since
   only the user knows that it is out of it.
4. A receive lasts at most SLICE, so that what changed is noticed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

from numpy.typing import ArrayLike, NDArray

from wire.membership import Membership

from .engine import Engine
from .errors import (
    MismatchError,
    NonFiniteError,
    NotInJobError,
    ResumeError,
    StalledError,
    WorkerError,
)
from .handle import Handle, Progress
from .kept import Ranges
from .kernels import Kernels
from .native import best_kernels
from .session_errors import JobDrainingError
from .stats import Stats
from .transport import Transport

SLICE = 0.02
"""Longest receive in seconds."""
LINGER = 2.0
"""Seconds that `close` waits for packets that other ranks need in a new epoch."""


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


class Worker:
    """One rank of a job. Use as a context manager, or `close` it.

    `timeout`: seconds without any result after which a call raises StalledError, and that a call waits
    for a new epoch. `kernels` default to those in C, or numpy's where there is no compiler.
    """

    def __init__(
        self,
        membership: Membership,
        transport: Transport,
        *,
        timeout: float = 30.0,
        session: Membered | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.transport = transport
        self.engine = Engine(membership, timeout, kernels=kernels or best_kernels())
        self.changed = threading.Condition()
        """Guards what follows, and says when it changed."""
        self.quit: str | None = None
        """Why this rank ended its last all-reduce by itself; None once it has a new epoch."""
        self.urgent = False
        """Whether the controller should hear at once of `quit`."""
        self.drained: int | None = None
        """All-reduces that the job still completes, once it is drained."""
        self._session = session
        self._call: Engine | None = None
        self._caller = 0  # the thread of that call
        self._pumping = False
        self._retired: list[Transport] = []
        self._failure: WorkerError | None = None  # ends the running call
        self._owed: deque[WorkerError] = deque()  # each fails one call that has not begun
        self._lost: Callable[[], WorkerError] | None = None  # why these members ended
        self._over: WorkerError | None = None  # fails every call from now on
        self._generation = membership.epoch  # the epoch in which these members began
        self._barriers = 0

    @property
    def membership(self) -> Membership:
        """The rank's place in the job, in this epoch."""
        return self.engine.membership

    @property
    def stats(self) -> Stats:
        """Totals since the worker was made, over all its epochs."""
        return self.engine.stats

    @overload
    def all_reduce(
        self,
        array: list[Any] | tuple[Any, ...],
        op: str = ...,
        *,
        out: Sequence[NDArray[Any] | None] | None = ...,
        cast: bool = ...,
        timeout: float | None = ...,
        progress: Progress | None = ...,
    ) -> list[NDArray[Any]]: ...

    @overload
    def all_reduce(
        self,
        array: ArrayLike,
        op: str = ...,
        *,
        out: NDArray[Any] | None = ...,
        cast: bool = ...,
        timeout: float | None = ...,
        progress: Progress | None = ...,
    ) -> NDArray[Any]: ...

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        cast: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Return the sum of all ranks' arrays, or with op="mean" (floats) that divided by their number.

        array: int32, float32, float16 or ml_dtypes' bfloat16 of any shape, both the same at all ranks;
        float64 with `cast`, which then is float32 on the way. It is read where it lies, and not copied if it
        is contiguous. The result is a new array of its shape and dtype, or `out`, which may be the array
        itself; an `out` that is not contiguous costs one of the same size. After an error it holds nothing of
        use. Waits for the other ranks.

        int32 sums are exact modulo 2^32, as numpy's. A float32 sum differs from the exact one by at most
        (n/2 quanta + rounding), a quantum being n * 2^E / (2^31-1), 2^E the power of two above the largest
        value of the chunk (docs/protocol.md, Numbers). Other floats are rounded from and to that.

        Raises UnsupportedError, NonFiniteError (at all ranks; go on), MismatchError (at all ranks),
        StalledError, TransportError; after these two errors the rank needs a new epoch: `rejoin`, and until
        then NotInJobError; of a joined worker the next call waits for it. A joined worker also raises
        WorkerLostError (call again), RendezvousTimeoutError (call again), JobDrainingError,
        JobRemovedError and SessionEndedError.
        """
        try:
            if isinstance(array, list | tuple):
                outs = [None] * len(array) if out is None else list(out)
                return [
                    self.all_reduce(a, op, out=o, cast=cast, timeout=timeout, progress=progress)
                    for a, o in zip(array, outs, strict=True)
                ]
            engine = self._enter(array, op, out, cast)
            result = None
            while result is None:
                result = self._turn(engine)
            return result
        except BaseException as error:
            if self._session is not None and isinstance(error, StalledError):
                self._session.look(error)  # the epoch is over once this rank has given up
            self._give_up(error)
            raise
        finally:
            self._leave_call()

    def all_reduce_async(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        cast: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Handle:
        """Begin what `all_reduce` does and return its handle; all ranks begin theirs in the same order."""
        before = self.stats.copy()
        try:
            result = self.all_reduce(array, op, out=out, cast=cast, timeout=timeout, progress=progress)
        except WorkerError as error:
            return Handle(None, error, self.stats.since(before))
        return Handle(result, None, self.stats.since(before))

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks of the job have called barrier as often; `timeout` seconds at most.

        Needs a controller: only joined workers have barriers. Raises BarrierTimeoutError (it does not
        count: call it again), WorkerLostError, and what `all_reduce` raises when the session is over.
        """
        session = self._session
        if session is None:
            raise NotInJobError("a worker without a controller has no barriers; reduce an array instead")
        seconds = self.engine.timeout if timeout is None else timeout
        limit = time.monotonic() + seconds
        with self.changed:
            engine = self._await_epoch(limit)
            # Unique over all members that the job ever had, and ascending.
            number = (self._generation << 20) + self._barriers + 1
        if engine is None:
            raise session.no_epoch(seconds)
        while not session.barrier(number, limit, seconds):
            with self.changed:
                self._refuse_if_over()
                if self._lost is not None and (self.engine is not engine or engine.left is not None):
                    raise self._lost()
        with self.changed:
            self._barriers += 1

    def rejoin(self, membership: Membership, transport: Transport) -> None:
        """Go on in a new epoch, between all-reduces; closes the old transport and keeps the totals."""
        with self.changed:
            self.replace(membership, transport)

    def close(self) -> None:
        """Leave the job and close the transport. Idempotent."""
        if self._session is not None:
            with self.changed:
                # The others may need what we sent before the last change of epoch.
                self.changed.wait_for(lambda: self._over is not None or not self._pumpable, LINGER)
            self._session.close()
        with self.changed:
            if self._over is None:
                m = self.membership
                self._over = NotInJobError(
                    f"rank {m.rank} of job {m.job}: this worker was closed. Make another one."
                )
            self.engine.leave("it was closed")
            self._retire(self.transport)
            self.changed.notify_all()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # A call's way: _enter, _turn until done, _give_up on an error, _leave_call.

    def _enter(self, array: ArrayLike, op: str, out: NDArray[Any] | None, cast: bool) -> Engine:
        """Begin an all-reduce in the present epoch, or wait for the next."""
        session = self._session
        with self.changed:
            if self._call is not None:
                raise RuntimeError("another thread is in all_reduce; a worker runs one at a time")
            engine = self._await_epoch(time.monotonic() + self.engine.timeout)
            if engine is not None:
                if session is not None and self.drained is not None and engine.begun >= self.drained:
                    raise JobDrainingError(session.job, self.drained)
                engine.begin(array, op, time.monotonic(), out=out, cast=cast)
                self._failure = None
                self._call, self._caller = engine, threading.get_ident()
                return engine
        assert session is not None
        raise session.no_epoch(self.engine.timeout)

    def _await_epoch(self, limit: float) -> Engine | None:
        """Return the engine once it can begin something and nobody uses the transport; None at the limit."""
        while True:
            self._refuse_if_over()
            if self._owed:
                raise self._owed.popleft()
            ready = self._session is None or (self.engine.left is None and not self.engine.stopped)
            if ready and not self._pumping:
                return self.engine
            left = limit - time.monotonic()
            if left <= 0:
                return None
            self.changed.wait(left)

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise self._over.with_traceback(None)

    def _turn(self, engine: Engine) -> NDArray[Any] | None:
        """Send and receive once; returns the sum when all results are here. Raises what ends the call."""
        with self.changed:
            self._close_retired()
            if engine.done:
                return engine.finish(time.monotonic())
            if self._failure is not None:
                raise self._failure
            self._refuse_if_over()
            now = time.monotonic()
            burst = engine.poll(now)
            wake = engine.wake_at(now)
            if not engine.outstanding:  # stopped
                self.changed.wait(min(1.0, max(0.0, wake - now)))
                return None
            transport = self.transport
        self._exchange(engine, transport, burst, wake)
        return None

    def _exchange(self, engine: Engine, transport: Transport, burst: Any, wake: float) -> None:
        # `burst` lies in the engine's ring; a change that comes now leaves that ring as it is.
        if len(burst):
            transport.send(burst)
        results = transport.receive(min(SLICE, max(0.0, wake - time.monotonic())))
        if len(results):
            with self.changed:
                if transport is self.transport:
                    engine.on_results(results, time.monotonic())

    def _give_up(self, error: BaseException) -> None:
        """Note how a call ended: by itself, and then this rank needs a new epoch, or as it was told."""
        with self.changed:
            if self._caller != threading.get_ident():
                return
            engine = self._call
            told = error is self._failure or error is self._over or isinstance(error, NonFiniteError)
            if engine is None or told:
                return
            if engine.left is None:
                engine.leave(f"its last all_reduce ended with {type(error).__name__}")
            if engine is self.engine:
                self.quit, self.urgent = _in_words(error), True

    def _leave_call(self) -> None:
        with self.changed:
            if self._caller == threading.get_ident():
                self._call, self._caller = None, 0
                self._close_retired()
                self.changed.notify_all()

    def _close_retired(self) -> None:
        while self._retired:
            self._retired.pop().close()

    # What a session does to its worker; it holds `changed` in all of these but `pump`.

    def stop(self, why: str) -> None:
        """Send nothing more: the epoch ends."""
        self.engine.stop(why)
        self.changed.notify_all()

    def fetch(self, chunks: Ranges) -> None:
        """While stopped, get the results of these chunks from the old epoch's slots."""
        self.engine.fetch(chunks, time.monotonic())
        self.changed.notify_all()

    def fail(self, below: int, error: Callable[[], WorkerError]) -> None:
        """End the running all-reduce if its number is below and it is incomplete; so for those to come."""
        engine = self.engine
        self._lost = error
        self._owed.extend(error() for _ in range(engine.begun, below))
        engine.skip_to(below)
        if not engine.done:  # what is done will be finished
            if engine.running:
                self._failure = error()
            engine.leave("its members changed")
        self.changed.notify_all()

    def replace(self, membership: Membership, transport: Transport) -> None:
        """Begin afresh with other members."""
        if self.engine.running and not self.engine.done:
            self._failure = NotInJobError("the worker was given a new epoch during a call")
            self.engine.leave("it has a new epoch")
        self._retire(self.transport)
        self.transport = transport
        self.engine = Engine(membership, self.engine.timeout, self.engine.stats, self.engine.kernels)
        self.quit, self._generation, self._barriers = None, membership.epoch, 0
        self.changed.notify_all()

    def resume(self, membership: Membership, transport: Transport) -> None:
        """Carry on with the same members; where that cannot be, this rank asks for new ones."""
        self._retire(self.transport)
        self.transport = transport
        try:
            self.engine.resume(membership, time.monotonic())
        except ResumeError as error:
            self._failure, self.quit, self.urgent = error, str(error), True
            self.engine.leave(str(error))
        self.changed.notify_all()

    def end(self, error: WorkerError) -> None:
        """Let the running call and all further ones raise this; the first reason stays."""
        self._over = self._over or error
        self.changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether no call runs and no other rank needs this one's packets."""
        return self._call is None and not self._pumping and not self.engine.outstanding

    @property
    def over(self) -> bool:
        """Whether every call fails from now on."""
        return self._over is not None

    @property
    def _pumpable(self) -> bool:
        engine = self.engine
        return self._over is None and self._call is None and engine.outstanding and not engine.running

    def pump(self, stop: threading.Event) -> None:
        """While no call runs, send again and receive for up to SLICE; or wait until there is cause."""
        with self.changed:
            self.changed.wait_for(lambda: stop.is_set() or self.urgent or self._pumpable, LINGER)
            if stop.is_set() or not self._pumpable:
                return
            self._pumping = True
            engine, transport, now = self.engine, self.transport, time.monotonic()
            burst = engine.poll(now)
            wake = engine.wake_at(now)
        try:
            self._exchange(engine, transport, burst, wake)
        except WorkerError as error:
            with self.changed:
                if engine is self.engine:
                    engine.leave(str(error))
                    self.quit, self.urgent = _in_words(error), True
        finally:
            with self.changed:
                self._pumping = False
                self._close_retired()
                self.changed.notify_all()

    def _retire(self, transport: Transport) -> None:
        """Close a transport, or leave that to the thread that uses it."""
        if self._call is not None or self._pumping:
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
