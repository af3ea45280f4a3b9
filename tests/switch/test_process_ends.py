# SPDX-License-Identifier: Apache-2.0
"""A switch process that is told to end at odd moments, or that nobody listens to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from switch.errors import SwitchError
from switch.ports import Ports, io_library
from switch.stats_socket import StatsSocketError, read_stats
from tests.switch.p4rt import FIXTURES

LIMIT = 30.0


@contextmanager
def started(*words: str, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "switch", *words, "--", "--grpc-server-addr", "127.0.0.1:0"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def until_it_answers(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while True:
        try:
            read_stats(path)
            return
        except StatsSocketError:
            assert time.monotonic() < end, "the switch does not start"
            time.sleep(0.05)


@pytest.mark.parametrize("ignored", [False, True], ids=["plain", "nohup"])
def test_a_terminal_that_is_closed(tmp_path: Path, ignored: bool) -> None:
    path = tmp_path / "stats"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with started("--no-p4", "--stats-socket", str(path), stdout=subprocess.PIPE) as switch:
            assert switch.stdout is not None
            assert "is ready" in switch.stdout.readline()
            switch.send_signal(signal.SIGHUP)
            if ignored:
                until_it_answers(path)
                switch.terminate()
            assert (switch.wait(LIMIT), switch.stderr and switch.stderr.read()) == (0, "")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_while_its_program_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    compiling, compiler, path = tmp_path / "compiling", tmp_path / "cc", tmp_path / "stats"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *program-*) echo $$ > {compiling}; exec sleep 60;; esac\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(compiler))
    with started(str(FIXTURES / "forward.json"), "--stats-socket", str(path)) as switch:
        end = time.monotonic() + LIMIT
        while not compiling.exists() or not compiling.read_text():
            assert time.monotonic() < end, "the compiler was not called"
            time.sleep(0.02)
        switch.send_signal(number)
        assert (switch.wait(LIMIT), switch.stderr and switch.stderr.read()) == (0, "")
    left = Path("/proc", compiling.read_text().strip())
    end = time.monotonic() + LIMIT
    while left.exists():  # ended, it is there until its new parent has seen that
        assert time.monotonic() < end, "the compiler outlives the switch"
        time.sleep(0.02)
    assert not path.exists()
    assert not list((tmp_path / "cache").rglob("program-*.so*"))


def test_where_its_line_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    with (
        open("/dev/full", "w") as full,
        started("--no-p4", "--stats-socket", str(path), stdout=full.fileno()) as switch,
    ):
        until_it_answers(path)
        switch.terminate()
        assert (switch.wait(LIMIT), switch.stderr and switch.stderr.read()) == (0, "")


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ports = Ports(io_library(), None, join=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(SwitchError, match="can't start new thread: raise the limits"):
            ports.start()
    ports.close()


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *rest):
        if name == "switch.process":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("switch", run_name="__main__")
"""


def test_an_interrupt_while_modules_are_read() -> None:
    """It found the interpreter's own handler, which ends in a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
