# SPDX-License-Identifier: Apache-2.0
"""The worker as applications see it: one call sums an array over all ranks of its job."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, overload

from numpy.typing import ArrayLike, NDArray

from wire.membership import Membership

from .calls import Call, of_one_dtype, outputs, refuse_overlaps
from .driver import LINGER, Driver, Membered
from .engine import Engine
from .errors import NotInJobError, ResumeError, WorkerError
from .handle import Handle, Progress
from .kept import Ranges
from .kernels import Kernels
from .native import best_kernels
from .session_errors import JobDrainingError
from .stats import Stats
from .transport import Transport

_ALL = slice(None)


class Worker(Driver):
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
        engine = Engine(membership, timeout, kernels=kernels or best_kernels())
        super().__init__(engine, transport, session)
        self.drained: int | None = None
        """All-reduces that the job still completes, once it is drained."""
        self._caller: object = None  # who is in all_reduce
        self._owed: deque[WorkerError] = deque()  # each fails one all-reduce that has not begun
        self._lost: Callable[[], WorkerError] | None = None  # why these members ended
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

        A list or tuple is several arrays, and the result a list, `out` a sequence of as many; small arrays
        are faster so than one by one. `timeout`: seconds without any result, the worker's if None.
        `progress(summed, total)` is told of values.

        int32 sums are exact modulo 2^32, as numpy's. A float32 sum differs from the exact one by at most
        (n/2 quanta + rounding), a quantum being n * 2^E / (2^31-1), 2^E the power of two above the largest
        value of the chunk (docs/protocol.md, Numbers). Other floats are rounded from and to that.

        Raises UnsupportedError, NonFiniteError (at all ranks; go on), MismatchError (at all ranks),
        StalledError, TransportError; after these two errors the rank needs a new epoch: `rejoin`, and until
        then NotInJobError; of a joined worker the next call waits for it. A joined worker also raises
        WorkerLostError (call again), RendezvousTimeoutError (call again), JobDrainingError,
        JobRemovedError and SessionEndedError.
        """
        caller = object()
        try:  # no calls between these two: an interrupt leaves nobody inside
            if self._caller is not None:
                raise RuntimeError("another thread is in all_reduce; the order must be the same at all ranks")
            self._caller = caller
            return self._begin(array, op, out, cast, timeout, progress).result()
        finally:
            if self._caller is caller:
                self._caller = None

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
        """Begin what `all_reduce` does and return its handle; all ranks begin theirs in the same order.

        The array must stay as it is, and `out` be left alone, until the handle is `done`. Any number may be
        under way: they end in the order of their beginning, and one that fails for all ranks but for NaN and
        infinity fails those after it. A joined worker carries them on in the background; any other while
        somebody waits for one of them. `progress` is called by who waits for this one.

        Raises what shows before anything is sent: UnsupportedError, NotInJobError, WorkerLostError and so on.
        The handle's `result` raises the rest.
        """
        handle = self._begin(array, op, out, cast, timeout, progress)
        self._drive(handle, 0.0, once=True)
        return handle

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
        """Leave the job once nothing is under way, after LINGER at most; close the transport. Idempotent."""
        if self._session is not None:
            with self.changed:
                # The others may need what we sent before the last change of epoch.
                self.changed.wait_for(
                    lambda: self._over is not None or self._waiting or not self.engine.outstanding, LINGER
                )
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

    def _begin(
        self, array: Any, op: str, out: Any, cast: bool, timeout: float | None, progress: Progress | None
    ) -> Handle:
        """Begin an all-reduce in the present epoch, or wait for the next."""
        alone = not isinstance(array, list | tuple)
        arrays = [array] if alone else array
        outs = [out] if alone else outputs(out, len(arrays))
        runs = of_one_dtype(arrays) if not alone else [_ALL]
        session, seconds = self._session, self.engine.timeout if timeout is None else timeout
        with self.changed:
            engine = self._await_epoch(time.monotonic() + seconds, len(runs))
            if engine is not None:
                if session is not None and self.drained is not None and engine.begun >= self.drained:
                    raise JobDrainingError(session.job, self.drained)
                before, now = engine.stats.copy(), time.monotonic()
                calls = [Call(arrays[run], op, outs[run], cast) for run in runs]
                if len(calls) > 1:
                    sources, targets = zip(*((call.sources, call.targets) for call in calls), strict=True)
                    refuse_overlaps([*chain(*sources)], [*chain(*targets)])
                try:
                    operations = [engine.begin(call, now, timeout=timeout) for call in calls]
                    return Handle(operations, alone, self._drive, engine.stats, before, progress)
                except BaseException as error:  # begun by half
                    self._give_up(error)
                    raise
        assert session is not None
        raise session.no_epoch(seconds)

    def _await_epoch(self, limit: float, begins: int = 0) -> Engine | None:
        """Return the engine once it can begin so many all-reduces; None at the limit."""
        while True:
            self._refuse_if_over()
            if begins and self._owed:
                owed = [self._owed.popleft() for _ in range(min(begins, len(self._owed)))]
                raise owed[0]
            if self._session is None or (self.engine.left is None and not self.engine.stopped):
                return self.engine
            left = limit - time.monotonic()
            if left <= 0:
                return None
            self.changed.wait(left)

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise self._over.with_traceback(None)

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
        """End the all-reduces under way; they have numbers below this, and so have some that are to come."""
        engine = self.engine
        self._lost = error
        self._owed.extend(error() for _ in range(engine.begun, below))
        engine.skip_to(below)
        engine.leave("its members changed", error())
        self.changed.notify_all()

    def replace(self, membership: Membership, transport: Transport) -> None:
        """Begin afresh with other members."""
        if self.engine.running:
            self.engine.leave(
                "it has a new epoch", NotInJobError("the worker was given a new epoch meanwhile")
            )
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
            self.quit, self.urgent = str(error), True
            self.engine.leave(str(error), error)
        self.changed.notify_all()

    def end(self, error: WorkerError) -> None:
        """Let all that is under way and all further calls raise this; the first reason stays."""
        self._over = self._over or error
        if self.engine.running:
            self.engine.leave("its session is over", self._over)
        self.changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and no other rank needs this one's packets."""
        return not (self._driving or self.engine.running or self.engine.outstanding)

    @property
    def over(self) -> bool:
        """Whether every call fails from now on."""
        return self._over is not None
