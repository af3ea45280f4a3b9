# SPDX-License-Identifier: Apache-2.0
"""An all-reduce under way, as the application holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from .stats import Stats

Progress = Callable[[int, int], None]
"""Told of an all-reduce's summed values and all of them; at most ten times a second, and at its end."""


class Handle:
    """What `Worker.all_reduce_async` returns."""

    def __init__(self, outcome: Any, error: BaseException | None, stats: Stats) -> None:
        self._outcome, self._error = outcome, error
        self.stats = stats
        """Counts of the worker between this call's begin and end (until now, if it runs)."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not: `result` then returns or raises at once."""
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, `timeout` seconds at most; return `done`. Raises nothing of the call's."""
        return self.done

    def result(self, timeout: float | None = None) -> NDArray[Any] | list[NDArray[Any]]:
        """Wait, and return what `all_reduce` would have returned, or raise what it would have raised.

        Raises TimeoutError if it has not ended in `timeout` seconds; it goes on then.
        """
        if self._error is not None:
            raise self._error
        result: NDArray[Any] | list[NDArray[Any]] = self._outcome
        return result
