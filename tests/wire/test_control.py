# SPDX-License-Identifier: Apache-2.0
"""Reaching a controller: which one, how long, and what its answers become."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from wire.addresses import AddressError, parse_address
from wire.columns import uncut
from wire.constants import NET_VARIABLE
from wire.control import ControlClient, RefusedError, UnreachableControllerError, find_socket
from worker import join


class Answers(BaseHTTPRequestHandler):
    """GET /STATUS answers with that status."""

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        status = int(self.path.strip("/").split("?")[0])
        body = json.dumps({"error": "not so", "kind": "NotSoError"} if status >= 400 else {"got": self.path})
        if status == 502:
            body = "<html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def serving(path: Path) -> Iterator[None]:
    with ThreadingUnixStreamServer(str(path), Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_answers_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path), ControlClient(path) as client:
        assert client.call("GET", "/200", job="a", none=None) == {"got": "/200?job=a"}
        with pytest.raises(RefusedError, match="not so") as raised:
            client.call("GET", "/409")
        assert (raised.value.status, raised.value.kind) == (409, "NotSoError")
        with pytest.raises(RefusedError, match="GET /502 failed: 502"):
            client.call("GET", "/502")


def test_nobody_listens(tmp_path: Path) -> None:
    with ControlClient(tmp_path / "s") as client:
        with pytest.raises(UnreachableControllerError, match=r"\(No such file or directory\).*net status"):
            client.call("GET", "/200")


def test_patience_outlasts_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s"
    done: list[object] = []

    def call() -> None:
        with ControlClient(path, patience=30.0) as client:
            done.append(client.call("GET", "/200"))

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.2)
    assert not done
    with serving(path):
        thread.join(30.0)
    assert done == [{"got": "/200"}]


def test_which_network(tmp_path: Path) -> None:
    with pytest.raises(UnreachableControllerError, match="no network's controller runs"):
        find_socket(root=tmp_path)
    for name in ("one", ".two.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "controller.sock").touch()
    assert find_socket(root=tmp_path) == tmp_path / "one" / "controller.sock"
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "controller.sock").touch()
    with pytest.raises(UnreachableControllerError, match=r"several networks run \(one, three\)"):
        find_socket(root=tmp_path)
    assert find_socket("three", tmp_path) == tmp_path / "three" / "controller.sock"
    (tmp_path / "three" / "controller.sock").unlink()  # its controller is being started again
    assert find_socket("three", tmp_path) == tmp_path / "three" / "controller.sock"


def test_a_network_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreachableControllerError, match=r"there is no network new; start it with: .*net up"):
        find_socket("new", tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "controller.sock").touch()
    with pytest.raises(UnreachableControllerError) as raised:
        find_socket("new", tmp_path)
    assert "there is no network new; these run: one; or start it with: " in str(raised.value)
    with pytest.raises(UnreachableControllerError, match="no network new") as raised:
        join("demo", 0, net="new")
    assert "Errno" not in str(raised.value)


def test_a_host_s_processes_know_their_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(NET_VARIABLE, "two")
    assert find_socket(root=tmp_path) == tmp_path / "two" / "controller.sock"
    assert find_socket("one", tmp_path) == tmp_path / "one" / "controller.sock"


@pytest.mark.parametrize("text", ["", "nowhere", "host:", ":80", "h:0", "h:65536", "h:-1", "h:²", "h:8x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match=r"--listen .*: is not HOST:PORT"):
        parse_address("--listen", text)


def test_addresses() -> None:
    assert parse_address("--listen", "127.0.0.1:8470") == ("127.0.0.1", 8470)
    assert parse_address("--listen", "::1:65535") == ("::1", 65535)


def test_a_narrow_table_folds_and_cuts_nothing() -> None:
    from rich.console import Console
    from rich.table import Table

    table = uncut(Table("slots", "P4Runtime"))
    table.add_row("16384", "127.0.0.1:39129")
    console = Console(width=16, record=True, file=io.StringIO())
    console.print(table)
    columns = [line.split("│")[1:3] for line in console.export_text().splitlines() if line.startswith("│")]
    assert ["".join(parts).replace(" ", "") for parts in zip(*columns, strict=True)] == [
        "16384",
        "127.0.0.1:39129",
    ]
