# SPDX-License-Identifier: Apache-2.0
"""Who may use the engine: the condition that guards it, also while a turn in C has it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from .turn import Turn

GIVE_BACK = 1.0
"""Seconds after which a turn in C is asked for the engine again; it comes back at once."""


class Guard(threading.Condition):
    """A condition. Whoever holds it has the engine to himself.

    The driver lends the engine to a turn in C, which runs for up to a slice of time without Python's lock and
    without this one, so that others can enter meanwhile: entering, and coming back from `wait`, asks the turn
    to end and waits until it has. While anybody is at that, no other turn is `free` to begin, or the driver,
    always there first, would keep him out.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        super().__init__(lock)
        self._returned = threading.Condition(lock)
        self._turn: Turn | None = None
        self._asking = 0
        self._asked = False
        self._wake: int | None = None

    @property
    def wake(self) -> int:
        """An eventfd that a turn in C polls beside its socket: readable when it is asked to end."""
        if self._wake is None:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            weakref.finalize(self, os.close, self._wake)
        return self._wake

    @property
    def free(self) -> bool:
        """Whether a turn may begin."""
        return not self._asking

    def __enter__(self) -> bool:
        super().__enter__()
        try:
            self._take_back()
        except BaseException:
            self.release()
            raise
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """See threading.Condition."""
        told = super().wait(timeout)
        self._take_back()
        return told

    def _take_back(self) -> None:
        while self._turn is not None:
            self._turn.wanted = 1
            os.eventfd_write(self.wake, 1)
            self._asked = True
            self._asking += 1
            try:
                self._returned.wait(GIVE_BACK)
            finally:
                self._asking -= 1

    @contextmanager
    def left(self) -> Iterator[None]:
        """Hold the guard no longer, and it again at the end."""
        self.release()
        try:
            yield
        finally:
            self.__enter__()

    @contextmanager
    def lent(self, turn: Turn) -> Iterator[None]:
        """Hold the guard no longer, and it again at the end; `turn` has the engine between."""
        turn.wanted = 0
        self._turn = turn
        self.release()
        try:
            yield
        finally:
            self.acquire()
            self._turn = None
            if self._asked:
                self._asked = False
                os.eventfd_read(self.wake)
                self._returned.notify_all()
