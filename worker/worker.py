# SPDX-License-Identifier: Apache-2.0
"""The worker as applications see it: one call sums an array over all ranks of its job."""

from __future__ import annotations

import time
from typing import Any

from numpy.typing import ArrayLike, NDArray

from wire.membership import Membership

from .engine import Engine
from .stats import Stats
from .transport import Transport


class Worker:
    """One rank of a job. Use as a context manager, or `close` it.

    `timeout`: seconds without any result after which a call raises StalledError.
    """

    def __init__(self, membership: Membership, transport: Transport, *, timeout: float = 30.0) -> None:
        self.transport = transport
        self.engine = Engine(membership, timeout)

    @property
    def membership(self) -> Membership:
        """The rank's place in the job, in this epoch."""
        return self.engine.membership

    @property
    def stats(self) -> Stats:
        """Totals since the worker was made, over all its epochs."""
        return self.engine.stats

    def all_reduce(self, array: ArrayLike, op: str = "sum") -> NDArray[Any]:
        """Return the sum of all ranks' arrays: float32 or int32 of any shape, the same at all ranks.

        int32 sums are exact modulo 2^32, as numpy's. A float32 sum differs from the exact one by at most
        (n/2 quanta + rounding), a quantum being n * 2^E / (2^31-1), 2^E the power of two above the largest
        value of the chunk (DESIGN.md, Numbers). Waits for the other ranks.

        Raises UnsupportedError, NonFiniteError (at all ranks; go on), MismatchError (at all ranks; rejoin),
        StalledError (rejoin), NotInJobError, TransportError.
        """
        engine, transport = self.engine, self.transport
        engine.begin(array, op, time.monotonic())
        try:
            while not engine.done:
                burst = engine.poll(time.monotonic())
                if len(burst):
                    transport.send(burst)
                now = time.monotonic()
                results = transport.receive(max(0.0, engine.wake_at(now) - now))
                if len(results):
                    engine.on_results(results, time.monotonic())
        except BaseException as error:
            engine.leave(f"its last all_reduce ended with {type(error).__name__}")
            raise
        return engine.finish(time.monotonic())

    def rejoin(self, membership: Membership, transport: Transport) -> None:
        """Go on in a new epoch, between all-reduces; closes the old transport and keeps the totals."""
        self.transport.close()
        self.transport = transport
        self.engine = Engine(membership, self.engine.timeout, self.stats)

    def close(self) -> None:
        """Leave the job and close the transport."""
        self.engine.leave("it was closed")
        self.transport.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
