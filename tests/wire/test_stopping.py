# SPDX-License-Identifier: Apache-2.0
"""A stop that signals tell."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from wire.stopping import Stop

LIMIT_S = 60

STORM = 20_000
"""Signals; with an Event in its place no run gets through them."""

WAITER = """
import signal
from wire.stopping import Stop

stop, over = Stop(), []
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, lambda number, frame: stop.set(number))
signal.signal(signal.SIGUSR1, lambda number, frame: over.append(number))
print("ready", flush=True)
while not over:
    stop.signal = 0  # so that it waits again
    stop.wait(1e-5)
"""


def test_signals_may_come_while_it_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE) as waiter:
        try:
            assert waiter.stdout is not None
            waiter.stdout.readline()
            for i in range(STORM):
                waiter.send_signal((signal.SIGTERM, signal.SIGHUP, signal.SIGINT)[i % 3])
            waiter.send_signal(signal.SIGUSR1)
            assert waiter.wait(LIMIT_S) == 0
        finally:
            waiter.kill()


def test_the_first_signal_is_kept() -> None:
    with Stop() as stop:
        assert not stop.wait(0)
        assert stop.set(signal.SIGHUP)
        assert not stop.set(signal.SIGTERM)
        assert stop.wait()
        assert stop.wait(0)
        assert stop.signal == signal.SIGHUP
    assert signal.set_wakeup_fd(-1) == -1


TURNS = 3000

IN_TURNS = f"""
import signal
from wire.stopping import Stop

stop = Stop()
signal.signal(signal.SIGTERM, lambda number, frame: stop.set(number))
for turn in range({TURNS}):
    stop.signal = 0
    print(turn, flush=True)
    stop.wait()
"""


def test_no_signal_is_lost_that_comes_just_before_it_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", IN_TURNS], stdout=subprocess.PIPE) as waiter:
        late = threading.Timer(LIMIT_S, waiter.kill)
        late.start()
        try:
            assert waiter.stdout is not None
            for turn in range(TURNS):
                assert waiter.stdout.readline() == b"%d\n" % turn
                waiter.send_signal(signal.SIGTERM)
            assert waiter.wait() == 0
        finally:
            late.cancel()
            waiter.kill()
