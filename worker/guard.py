# SPDX-License-Identifier: Apache-2.0
"""Who may use the engine: the condition that guards it, also while a turn in C has it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from .turn import Turn

T = TypeVar("T")

GIVE_BACK = 1.0
"""Seconds after which a wait for a turn in C, or for who asked it to end, is begun again: none lasts."""


class Guard(threading.Condition):
    """A condition. Whoever holds it has the engine to himself.

    The driver lends the engine to a turn in C, which runs for up to a slice of time without Python's lock and
    without this one, so that others can enter meanwhile: entering, and coming back from `wait`, asks the turn
    to end and waits until it has. Before another begins the driver has to `let_in` who is at that, or he,
    always there first, would keep them out. What runs in the driver's own thread meanwhile, as a signal's
    handler does, finds the turn ended.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        super().__init__(lock)
        self._owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
        self._returned = threading.Condition(lock)
        self._turn: Turn | None = None
        self._lender = 0  # the thread that lent it
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

    def let_in(self) -> None:
        """Let those in who ask for the engine."""
        while self._asking:
            self._await_return()

    # An interrupt (KeyboardInterrupt) comes between any two calls, and as a function begins. Even so, what
    # follows leaves the lock as the caller believes it to be. `with` takes `__exit__` before it enters, and
    # that is the lock's own, no function of Python.
    __exit__ = property(attrgetter("_lock.__exit__"))  # type: ignore[assignment]

    def __enter__(self) -> bool:
        within = self._owned()
        try:
            self.acquire()
            self._take_back()
        except BaseException:
            if not within and self._owned():
                self.release()
            raise
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """See threading.Condition."""
        try:
            told = super().wait(timeout)
        finally:
            if not self._owned():
                self.acquire()
        self._take_back()
        return told

    def _take_back(self) -> None:
        while self._turn is not None and self._lender != threading.get_ident():
            self._turn.wanted = 1
            self._asked = True
            os.eventfd_write(self.wake, 1)
            self._asking += 1
            try:
                self._await_return()
            finally:
                self._asking -= 1
                self._returned.notify_all()

    def _await_return(self) -> None:
        try:
            self._returned.wait(GIVE_BACK)
        finally:
            if not self._owned():
                self.acquire()

    def aside(self, do: Callable[..., T], *args: Any) -> T:
        """Return do(*args), the guard not held meanwhile, and held again at the end."""
        try:
            self.release()
            return do(*args)
        finally:
            try:
                self.acquire()
            finally:
                while not self._owned():
                    self.acquire()
                self._take_back()

    def lend(self, turn: Turn, socket: ctypes.Structure, until: float) -> int:
        """Run `turn` (see Turn.run) aside: it has the engine meanwhile."""
        turn.wanted = 0
        self._turn, self._lender = turn, threading.get_ident()
        try:
            return self.aside(turn.run, socket, until)
        finally:
            self._turn = None
            if self._asked:
                self._asked = False
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.wake)
                self._returned.notify_all()
