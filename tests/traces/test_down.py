# SPDX-License-Identifier: Apache-2.0
"""Interfaces that go down are recorded again when they are up; those that go are told. Recorders go, too."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from traces.capture import Tap, Workspace
from traces.errors import CaptureError
from traces.files import read
from traces.live import watch
from traces.names import LinkEnd
from traces.recorder import Recorder
from traces.table import concat

LIMIT_S = 60.0
NAME, OTHER = "tracedown0", "tracedown1"
pytestmark = pytest.mark.root


def ip(*words: str) -> None:
    subprocess.run(["ip", "link", *words], check=True, timeout=LIMIT_S, capture_output=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:g} s for {what}"
        time.sleep(0.01)


def send(number: int) -> None:
    """Send a frame from the other end, longer than what the kernel sends by itself: by its number."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((OTHER, 0))
        assert sender.send(bytes(12) + b"\x88\xb5" + bytes(700 + number)) == 714 + number


def ours(path: Path) -> list[int]:
    lengths = concat(list(read(path))).length.tolist()
    return [length - 714 for length in lengths if length >= 714]


def recorded(path: Path, number: int) -> bool:
    return number in ours(path)


@pytest.fixture
def pair() -> Iterator[None]:
    ip("add", NAME, "type", "veth", "peer", "name", OTHER)
    ip("set", OTHER, "up")
    yield
    subprocess.run(["ip", "link", "del", NAME], check=False, timeout=LIMIT_S, capture_output=True)


def up() -> None:
    ip("set", NAME, "up")
    wait_until(partial(state_is, "up"), "the pair to be up")
    ip("set", OTHER, "up")  # waits for the kernel to be done: until then it may drop what is sent


def down() -> None:
    ip("set", NAME, "down")
    wait_until(partial(state_is, "lowerlayerdown"), "the pair to be down")


def state_is(state: str) -> bool:
    return Path("/sys/class/net", OTHER, "operstate").read_text().strip() == state


def test_a_link_that_is_down_for_a_while_is_recorded_before_and_after(pair: None, tmp_path: Path) -> None:
    # It is down when the recording begins, too.
    with Recorder(tmp_path, [LinkEnd("s1-h1", "h1-s1", NAME)]) as recorder:
        thread = threading.Thread(target=recorder.run)
        thread.start()
        for number in (1, 2, 3):
            up()
            send(number)
            wait_until(partial(recorded, tmp_path / "s1-h1.pcapng", number), f"packet {number}")
            down()
        ip("del", NAME)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        (counts,) = recorder.close()
    assert ours(tmp_path / "s1-h1.pcapng") == [1, 2, 3]
    assert counts.error == f"{NAME}: it is gone: its network has ended, or somebody deleted it"


def test_what_is_followed_must_be_up_and_may_go_down_until_it_is_gone(pair: None) -> None:
    with pytest.raises(CaptureError, match=rf"{NAME}: it is down: bring it up \(.*ip link set {NAME} up\)"):
        watch(NAME, None, "p4reduce")
    up()
    with watch(NAME, None, "p4reduce") as watched:
        tables = watched.tables()
        down()
        up()
        send(7)
        found: list[int] = []
        while 721 not in found:
            found += next(tables).length.tolist()
        ip("del", NAME)
        with pytest.raises(CaptureError, match=f"{NAME}: it is gone"):
            list(tables)


def test_a_tap_tells_down_from_gone(pair: None) -> None:
    tap, space = Tap(NAME), Workspace()
    try:
        assert tap.was_down
        up()
        send(1)
        wait_until(lambda: bool(tap.take(space)), "a packet")
        down()
        while tap.take(space):
            pass
        ip("del", NAME)
        with pytest.raises(CaptureError, match="it is gone"):
            tap.take(space)
    finally:
        tap.close()


def test_a_recorder_ends_with_who_reads_what_it_tells(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "traces.recorder", "--out", str(tmp_path), "--end", "s1-h1=lo"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        assert recorder.stderr is not None
        assert recorder.stdout.readline()
        recorder.stdout.close()
        try:
            assert recorder.wait(LIMIT_S) == 0
        finally:
            recorder.kill()
        assert recorder.stderr.read() == b""
    list(read(tmp_path / "s1-h1.pcapng"))  # it is whole
