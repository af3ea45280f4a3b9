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


ROWS = (
    ("", "flat", "", "0", "95.1 (94.2, 97.0)"),
    ("1:1", "spine only", "s5", "18,274,304", "105.1 (104.2, 107.0)"),
    ("8:1", "both", "s5(s1 s2 s3 s4)", "4,568,576", "99.1 (98.2, 107.0)"),
)


@pytest.mark.parametrize("width", [12, 20, 30, 42, 43, 44, 53, 60, 70, 90, 140])
@pytest.mark.parametrize("lines", [True, False])
def test_a_narrow_table_goes_on_between_words_and_cuts_nothing(width: int, lines: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    heads = ("", "summed at", "tree", "bytes up", "ms (least, most)")
    # the header's lines are of another kind
    table = uncut(Table(*heads, box=box.SQUARE) if lines else Table(*heads, box=None, padding=(0, 1, 0, 0)))
    for row in ROWS:
        table.add_row(*row)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    wanted = sorted("".join(c for row in (heads, *ROWS) for cell in row for c in cell if c != " "))
    assert sorted(c for c in text if not c.isspace() and c not in "─│┌┐└┘├┤┬┴┼") == wanted, "nothing is cut"
    columns = zip(heads, *ROWS, strict=True)
    words = sum(max(len(word) for cell in column for word in cell.split()) for column in columns)
    least = words + (len(heads) + 1 if lines else len(heads))
    found = set(text.translate(str.maketrans("│", " ")).split())
    if width >= least:
        assert {word for row in ROWS for cell in row for word in cell.split()} <= found
    if width == 140:
        assert all(any(all(cell in line for cell in row) for line in text.splitlines()) for row in ROWS)
