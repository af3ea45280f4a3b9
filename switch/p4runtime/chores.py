# SPDX-License-Identifier: Apache-2.0
"""A thread for what a server does by itself: it works when woken, and again when the work says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("switch.p4runtime")

LEAST_S = 0.005
"""Between two runs of the work, however often it is woken."""
JOIN_S = 2.0


class Chores:
    """Runs `work` in a thread of its own, from the first wake() to stop().

    `work` returns the seconds until it wants to run again, None until the next wake().
    """

    def __init__(self, work: Callable[[], float | None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Let the work run soon."""
        self._woken.set()
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="p4runtime-chores", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread, after what it is working on. Idempotent."""
        with self._lock:
            self._stopped.set()
            self._woken.set()
            thread = self._thread
        if thread is not None:
            thread.join(JOIN_S)

    def _run(self) -> None:
        delay: float | None = None
        while True:
            # Without a delay only wake() and stop() end the wait.
            self._woken.wait(delay)
            self._woken.clear()
            if self._stopped.is_set():
                return
            try:
                delay = self._work()
            except Exception:
                log.exception("digests, idle timeouts and watch ports: what came up is lost")
                delay = None
            self._stopped.wait(LEAST_S)
