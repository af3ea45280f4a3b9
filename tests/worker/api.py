# SPDX-License-Identifier: Apache-2.0
"""A controller that answers as the API says, over HTTP on a Unix socket, for one rank at the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

from tests.worker.jobs import memberships
from tests.worker.test_udp import LOOPBACK, UdpSwitch

Answer = tuple[int, Any]


class Api(ThreadingUnixStreamServer):
    """The calls that a worker makes; one job of one rank at the loopback address."""

    daemon_threads = True

    def __init__(self, path: Path, udp: UdpSwitch) -> None:
        super().__init__(str(path), Handler)
        self.udp = udp
        self.calls: list[tuple[str, str, Any]] = []
        self.refusals: list[Answer] = []
        self.job: Answer = (200, self.described())
        self.member: Any = None
        self.told: list[dict[str, Any]] = []
        self.chunks: Answer = (200, [])
        self.slow = threading.Event()
        """Set once the chunks may be told."""
        self.slow.set()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @staticmethod
    def described(ip: str = LOOPBACK, **changes: Any) -> dict[str, Any]:
        ranks = [{"rank": 0, "host": "h1", "ip": ip, "joined": False}]
        return {"name": "demo", "status": "waiting", "ranks": ranks, **changes}

    def answer(self, method: str, path: str, body: Any) -> Answer:
        self.calls.append((method, path, body))
        if path == "/v1/jobs/demo":
            return self.job
        if path == "/v1/jobs/demo/ranks/0":
            if self.refusals:
                return self.refusals.pop(0)
            member = replace(
                memberships(1, job=self.udp.job, elements=self.udp.elements)[0],
                switch_ip=LOOPBACK,
                own_ip=LOOPBACK,
                own_port=body["udp_port"],
            )
            self.udp.switch.add_job([member], [member.own_port])
            self.member = asdict(member)
            return 201, {"session": "s1", "lease": 0.3, "n": 1}
        if path.startswith("/v1/jobs/demo/chunks?"):
            assert self.slow.wait(60)
            return self.chunks
        if path == "/v1/sessions/s1/barrier":
            return 200, {"passed": True, "missing": []}
        if path == "/v1/sessions/s1/sync":
            if self.told:
                return 200, self.told.pop(0)
            if body["epoch"] == 0 and self.member:
                return 200, {"do": "go", "resume": False, "membership": self.member}
            threading.Event().wait(body["wait"])
            return 200, {"do": "nothing"}
        return 200, {}

    def stop(self) -> None:
        self.shutdown()
        self.thread.join(5)
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        server: Any = self.server
        status, told = server.answer(self.command, self.path, body)
        raw = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def address_string(self) -> str:
        return "worker"

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(path: Path) -> Iterator[Api]:
    """Serve at that socket, with a switch on the loopback."""
    udp = UdpSwitch(64)
    udp.start()
    server = Api(path, udp)
    try:
        yield server
    finally:
        server.stop()
        udp.stop()


def refused(status: int, kind: str, message: str) -> Answer:
    return status, {"error": message, "kind": kind}
