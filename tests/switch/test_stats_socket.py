# SPDX-License-Identifier: Apache-2.0
"""The socket that tells what a switch counted: `p4reduce switch stats`, and what stands in its way."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from switch import stats_socket
from switch.cli import app
from switch.errors import SwitchError
from switch.stats_socket import StatsSocket, StatsSocketError, read_stats

PORT = dict.fromkeys(("rx_packets", "rx_dropped", "rx_errors", "tx_packets", "tx_dropped", "tx_errors"), 0)
ANSWER: dict[str, Any] = {
    "device_id": 3,
    "ports": {
        "1": {"interface": "eth1", **PORT, "rx_packets": 1200, "tx_dropped": 7},
        "10": {"interface": "s1-eth10", **PORT},
    },
    "packet_in_lost": 5,
    "program": {"received": 9, "sent": 9, "too_long": 0, "over_budget": 2, "faults": 0, "digests_lost": 0},
}


def refuse(request: dict[str, Any]) -> None:
    raise SwitchError(f"not {sorted(request)}")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    served = StatsSocket(tmp_path / "stats", lambda: ANSWER, refuse)
    yield tmp_path / "stats"
    served.stop()
    served.stop()
    assert not (tmp_path / "stats").exists()


def test_everyone_who_asks_is_answered(path: Path) -> None:
    found: list[Any] = []
    asking = [threading.Thread(target=lambda: found.append(read_stats(path))) for _ in range(20)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(10)
    assert found == [ANSWER] * 20
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_clients_that_go_away_harm_nobody(path: Path) -> None:
    for _ in range(10):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(path))
    assert read_stats(path) == ANSWER


def test_a_socket_that_was_left_over_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "stats"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
    served = StatsSocket(left, lambda: ANSWER, refuse)
    try:
        assert read_stats(left) == ANSWER
    finally:
        served.stop()


def test_what_cannot_be_served(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StatsSocketError, match="another switch serves it"):
        StatsSocket(path, dict, refuse)
    assert read_stats(path) == ANSWER
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StatsSocketError, match="no socket: choose another path"):
        StatsSocket(tmp_path / "file", dict, refuse)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StatsSocketError, match="cannot put a socket there"):
        StatsSocket(tmp_path / "missing" / "stats", dict, refuse)
    for refused in (lambda path: StatsSocket(path, dict, refuse), read_stats):
        with pytest.raises(StatsSocketError, match="at most 107 bytes: choose a shorter one"):
            refused(tmp_path / ("x" * 120))


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(StatsSocketError, match="start one with --stats-socket"):
        read_stats(tmp_path / "none")
    wrong = [b'{"ports": 1}', b'{"ports": {"1": 2}}', b'{"ports": {}, "program": [1]}']
    for said in (b"", b"hello", b"[1]", b"{}", b"[" * 99_999, *wrong):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / f"other{len(said)}"))
            other.listen()

            def say(other: socket.socket = other, said: bytes = said) -> None:
                client, _ = other.accept()
                with client:
                    client.sendall(said)

            thread = threading.Thread(target=say)
            thread.start()
            with pytest.raises(StatsSocketError, match="is no switch"):
                read_stats(tmp_path / f"other{len(said)}")
            thread.join(10)


def test_an_answer_that_comes_drop_by_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_socket, "CLIENT_S", 0.3)
    given_up, drops = threading.Event(), 200
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        said: list[int] = []

        def say() -> None:
            client, _ = other.accept()
            with client:
                while len(said) < drops and not given_up.wait(0.05):
                    client.send(b" ", socket.MSG_NOSIGNAL)
                    said.append(1)

        thread = threading.Thread(target=say)
        thread.start()
        with pytest.raises(StatsSocketError, match="timed out"):
            read_stats(tmp_path / "other")
        given_up.set()
        thread.join(10)
    assert len(said) < drops


def test_the_command(path: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["stats", str(path)])
    assert shown.exit_code == 0
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert lines == [
        "port interface rx packets rx dropped rx errors tx packets tx dropped tx errors",
        "1 eth1 1200 0 0 0 7 0",
        "10 s1-eth10 0 0 0 0 0 0",
        "5 packets to the controller were lost",
        "2 copies or passes were cut off: one packet made too many",
    ]
    wrong = CliRunner().invoke(app, ["stats", str(tmp_path / "none")])
    assert wrong.exit_code == 1
    assert "no switch serves it" in wrong.output
