# SPDX-License-Identifier: Apache-2.0
"""The wish to stop, told by a signal."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Stop:
    """Waited for by the main thread, set by the handler that interrupts it.

    An Event will not do: its lock is not reentrant, and a handler that sets it while wait(), or another
    handler's set(), holds the lock waits for ever. SimpleQueue.put is documented as reentrant.
    """

    def __init__(self) -> None:
        self.signal = 0
        """The first signal that came; 0: none yet."""
        self._told: SimpleQueue[int] = SimpleQueue()

    def set(self, number: int) -> bool:
        """Note that signal `number` came; return whether it was the first."""
        first = not self.signal
        if first:
            self.signal = number
        self._told.put(number)
        return first

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, for ever without `seconds`; return whether one has come."""
        if not self.signal:
            try:
                self._told.get(timeout=seconds)
            except Empty:
                return False
        return True
