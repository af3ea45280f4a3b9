# SPDX-License-Identifier: Apache-2.0
"""Who never ends a request, or opens connections without end, keeps nobody else out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import connections
from tests.controller.office import TOKEN, Office
from tests.controller.served import Served
from wire.control import ControlClient

LIMIT_S = 60.0
HEAD = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    served = Served(1)
    try:
        with Office(tmp_path, served) as made:
            yield made
    finally:
        served.close()


def opened(office: Office) -> socket.socket:
    host, _, port = office.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S)


def is_closed(sock: socket.socket) -> bool:
    """Say that the other end closes it, after all that it says."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        HEAD,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nAuthorization: Bearer "
        + TOKEN.encode()
        + b"\r\n\r\n{",
        HEAD + b"\r\n" + HEAD,
    ],
    ids=["nothing", "a head", "a body", "a second head"],
)
def test_a_request_that_never_ends(office: Office, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with opened(office) as sock:
        sock.sendall(begun)
        assert is_closed(sock)


def test_a_long_poll_may_take_its_time(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with ControlClient(office.url, TOKEN) as client:
        last = client.call("GET", "/v1/events")[-1]["id"]
        assert client.call("GET", "/v1/events", after=last, wait=0.8) == []


def test_connections_by_tcp_leave_room_for_others(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_remote", lambda: 3)
    held = [opened(office) for _ in range(3)]
    with office.client() as client:
        assert client.call("GET", "/v1/jobs") == []  # so all three are counted
    with opened(office) as more:
        assert is_closed(more)
    for sock in held:
        sock.close()
