# SPDX-License-Identifier: Apache-2.0
"""An all-reduce under way, as the application holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .operation import Operation
from .stats import Stats

Progress = Callable[[int, int], None]
"""Told of an all-reduce's values that are summed, and of all; ten times a second at most, and at its end."""
PROGRESS_PAUSE = 0.1
"""Seconds between two reports."""


class Handle:
    """What `Worker.all_reduce_async` returns.

    `drive(handle, limit)` carries on what is under way until this is done or the time is up; `live` are the
    worker's counts as they go on, `before` those at the call's begin.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        alone: bool,
        drive: Callable[[Handle, float], None],
        live: Stats,
        before: Stats,
        progress: Progress | None,
    ) -> None:
        self._operations, self._alone = operations, alone
        self._drive, self._live, self._before = drive, live, before
        self._progress, self._told, self._told_at = progress, -1, 0.0

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not: `result` then returns or raises at once."""
        return all(operation.done for operation in self._operations)

    @property
    def stats(self) -> Stats:
        """Counts of the worker between this call's begin and its end, or now if it has not ended."""
        ends = [operation.stats for operation in self._operations]
        last = ends[-1] if ends else self._before
        return (last if last is not None else self._live).since(self._before)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, `timeout` seconds at most; return `done`.

        Raises none of the call's errors, but an interrupt or an error of `progress` ends all that is under
        way, and this rank leaves the job.
        """
        self._drive(self, float("inf") if timeout is None else time.monotonic() + timeout)
        return self.done

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and return what `all_reduce` would have returned, or raise what it would have raised.

        Raises TimeoutError if it has not ended in `timeout` seconds; it goes on then. The call's own
        time-out (StalledError) counts from the last result that came.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"the all-reduce has not ended in {timeout:g} s; wait again")
        results = [array for operation in self._operations for array in operation.result()]
        return results[0] if self._alone else results

    def has_news(self, now: float) -> bool:
        """Whether it is time to tell the application of progress."""
        if self._progress is None or (now < self._told_at + PROGRESS_PAUSE and not self.done):
            return False
        return self._summed != self._told

    def report(self, now: float) -> None:
        """Tell the application of progress, which it wants to hear of."""
        assert self._progress is not None
        self._told, self._told_at = self._summed, now
        self._progress(self._told, sum(operation.size for operation in self._operations))

    @property
    def _summed(self) -> int:
        return sum(operation.summed for operation in self._operations)
