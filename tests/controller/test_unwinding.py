# SPDX-License-Identifier: Apache-2.0
"""A signal that ends a command leaves no lock half taken: who unwinds would hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from controller import cli

INTERRUPT = partial(signal.raise_signal, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    signal.signal(signal.SIGTERM, cli._unwinding())
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, action in before.items():
        signal.signal(number, action)


def test_between_a_lock_and_its_body_the_signal_waits_for_the_body() -> None:
    lock = threading.Lock()
    condition = threading.Condition(lock)
    lock.acquire()  # in place of __enter__, which is interrupted before it returns
    condition._lock = SimpleNamespace(__enter__=INTERRUPT, __exit__=lock.__exit__)  # type: ignore[attr-defined]
    entered = []
    with pytest.raises(SystemExit) as caught:  # noqa: PT012
        with condition:
            entered.append(True)
            time.sleep(10)
    assert entered
    assert caught.value.code == 128 + signal.SIGTERM
    assert not lock.locked()


def test_elsewhere_and_while_it_waits_the_signal_acts_at_once() -> None:
    with pytest.raises(SystemExit):
        INTERRUPT()
    signal.signal(signal.SIGTERM, cli._unwinding())
    killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    killer.start()
    condition = threading.Condition()
    with pytest.raises(SystemExit):
        with condition:
            condition.wait(30)
    assert condition.acquire(blocking=False)
    condition.release()
    killer.join()
