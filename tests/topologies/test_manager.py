# SPDX-License-Identifier: Apache-2.0
"""Bringing a network up that is stopped or cannot be written; nothing here makes one."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from topologies import manager, preflight, processes
from topologies import record as records
from topologies.errors import NetworkError
from topologies.record import NetRecord
from topologies.spec import star
from wire.addresses import ListenError


def test_a_second_ctrl_c_does_not_stop_the_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[tuple[str, bool]] = []
    said: list[str] = []

    def interrupted(_: NetRecord) -> None:
        raise KeyboardInterrupt

    def remove(record: NetRecord, keep_logs: bool) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        removed.append((record.name, keep_logs))
        return tmp_path

    monkeypatch.setattr(preflight, "check", lambda *_: None)
    monkeypatch.setattr(manager, "_start_daemon", interrupted)
    monkeypatch.setattr(manager, "_remove", remove)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        manager.up(star(1), name="n", target="embedded", root=tmp_path, say=said.append)
    assert removed == [("n", False)]
    assert said[-1] == "interrupted: what was started of network n is stopped again"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_port_that_is_taken_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = "127.0.0.1:{1}".format(*taken.getsockname())
        with pytest.raises(ListenError, match=f"^cannot listen at {listen}: Address already in use; give --"):
            manager.up(
                star(1), name="n", target="embedded", listen=listen, root=tmp_path / "run", say=said.append
            )
    assert (said, list(tmp_path.iterdir())) == ([], [])


def test_what_a_log_says_again_and_again_is_told_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("begins\n" + "error: no\n" * 40)
    assert processes.log_tail(log) == "its log ends:\n  begins\n  error: no"
    others = [f"line {number}" for number in range(20)]
    log.write_text("\n".join(["error: no", *others, "error: no"]))
    assert processes.log_tail(log).splitlines()[1:] == [f"  {line}" for line in (*others[-11:], "error: no")]


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    record = records.new_record("n", star(1), target="embedded", elements=64, slots=1, root=tmp_path)
    with pytest.raises(NetworkError, match=r"n: .*n/daemon\.log cannot be written: No such file"):
        manager._start_daemon(record)


def test_a_daemon_that_cannot_write_its_record_says_so(tmp_path: Path) -> None:
    record = records.new_record("n", star(1), target="embedded", elements=64, slots=1, root=tmp_path)
    record.claim()
    (tmp_path / "n/.net.json").mkdir()
    with pytest.raises(NetworkError, match=r"could not be built: .*/n cannot be written \(Is a directory\)"):
        manager._start_daemon(record)
