# SPDX-License-Identifier: Apache-2.0
"""The wish to stop, told by a signal."""

from __future__ import annotations

import os
import select
import signal
import time
from types import TracebackType


class Stop:
    """Waited for by the main thread, set by the handlers of signals. One at a time in a process.

    An Event will not do: its lock is not reentrant, so a handler that sets it while wait(), or another
    handler's set(), holds the lock waits for ever; and a signal that comes just before a lock is waited for
    does not interrupt that. A file that every signal writes to (signal.set_wakeup_fd) has neither fault.
    """

    def __init__(self) -> None:
        self.signal = 0
        """The first signal that came; 0: none yet."""
        self._told, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)

    def set(self, number: int) -> bool:
        """Note that signal `number` came; return whether it was the first."""
        first = not self.signal
        if first:
            self.signal = number
        return first

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, for ever without `seconds`; return whether one has come."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self.signal:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                break
            os.read(self._told, 4096)
        return bool(self.signal)

    def __enter__(self) -> Stop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._told)
        os.close(self._tell)
