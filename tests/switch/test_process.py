# SPDX-License-Identifier: Apache-2.0
"""The switch as a process on veth pairs, driven over P4Runtime as a controller does it."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4

from tests.switch.p4rt import CPU_PORT, DEVICE_ID, FIXTURES, INSERT, Controller, ethernet, octets, table
from tests.switch.programs import call, const, expr, field, simple, to_port, value
from tests.switch.veth import LIMIT, Link, ip

pytestmark = pytest.mark.root


class Process:
    """A running switch and what it prints."""

    def __init__(self, links: list[Link], *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        interfaces = [word for number, link in enumerate(links) for word in ("-i", f"{number}@{link.port}")]
        target = ["--", "--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "switch", "--device-id", str(DEVICE_ID), *interfaces, *words, *target],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        if not self.ready:
            raise AssertionError(f"the switch did not start: {self.process.communicate(timeout=LIMIT)}")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what is on standard error."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=LIMIT)


@contextlib.contextmanager
def running(count: int, *words: str) -> Iterator[tuple[Process, list[Link]]]:
    links = [Link() for _ in range(count)]
    process = None
    try:
        process = Process(links, *words)
        yield process, links
    finally:
        if process is not None:
            process.kill()
        for link in links:
            link.close()


def test_a_trace_goes_to_the_log(tmp_path: Path) -> None:
    log, program = tmp_path / "log", FIXTURES / "forward.json"
    with running(2, "-L", "trace", "--log-file", str(log), str(program)) as (switch, links):
        links[0].send(ethernet(1))
        assert links[1].silent()
        assert switch.end()[0] == 0
    told = [line.partition("TRACE switch.trace: ")[2] for line in log.read_text().splitlines()]
    assert "packet 1: received on port 0, 21 bytes" in told
    assert "packet 1: dropped: at the end of ingress (forward.p4:92)" in told


def loud_program(path: Path) -> Path:
    """Says something of each packet, then asserts what never holds of those that do not begin with a 1."""
    builder = simple(
        [("a", 8)],
        [
            call("log_msg", value("string", "a is {}"), value("parameters_vector", [field("h", "a")])),
            call("assert", expr("==", field("h", "a"), const(1)), line=7),
            to_port(1),
        ],
    )
    path.write_text(builder.json)
    return path


def test_messages_and_faults_are_told(tmp_path: Path) -> None:
    log, program = tmp_path / "log", loud_program(tmp_path / "loud.json")
    with running(2, "--log-file", str(log), "--log-flush", str(program)) as (switch, links):
        links[0].send(b"\1" * 20)
        assert links[1].receive() == b"\1" * 20
        for _ in range(40):
            links[0].send(b"\2" * 20)
        assert links[1].silent()
        assert switch.end()[0] == 0
    told = [line.split(" ", 2)[2] for line in log.read_text().splitlines() if " switch.program: " in line]
    assert told[:2] == ["INFO switch.program: a is 1", "INFO switch.program: a is 2"]
    assert told.count("INFO switch.program: a is 2") == 40
    dropped = "WARNING switch.program: packet dropped: assertion failed at test.p4:7"
    more = [re.search(r"WARNING switch.program: (\d+) more packets dropped", line) for line in told]
    assert told.count(dropped) + sum(int(found[1]) for found in more if found) == 40
    assert 1 <= told.count(dropped) < 40


def test_faults_are_told_where_nobody_asked_for_a_log(tmp_path: Path) -> None:
    with running(2, str(loud_program(tmp_path / "loud.json"))) as (switch, links):
        links[0].send(b"\2" * 20)
        assert links[1].silent()
        code, err = switch.end()
    (line,) = err.splitlines()
    assert (code, line.partition("packet dropped: ")[2]) == (0, "assertion failed at test.p4:7")


def test_it_forwards_once_a_pipeline_is_pushed(tmp_path: Path) -> None:
    with running(3, "--no-p4", "--pcap", str(tmp_path)) as (switch, links):
        assert switch.ready.startswith(f"switch: device {DEVICE_ID} is ready: P4Runtime on {switch.address}")
        links[0].send(ethernet(1))
        assert links[1].silent()
        client = Controller(switch.address, election=1)
        assert client.arbitrate().status.code == 0
        client.set_pipeline()
        client.write(
            table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))),
            table(INSERT, client.entry("l2", {1: ("exact", 2)}, client.action("to_controller", 3))),
        )
        links[0].send(ethernet(1))
        assert links[1].receive() == ethernet(1)
        assert links[2].silent()
        links[2].send(ethernet(2))
        packet = client.receive().packet
        assert packet.payload == ethernet(2)
        assert packet.metadata[0].value == octets(2)
        packet = p4.PacketOut(payload=ethernet(5))
        packet.metadata.add(metadata_id=1, value=octets(2))
        client.send(packet=packet)
        assert links[2].receive() == ethernet(5)
        assert switch.end() == (0, "")
        client.close()
        size = len(ethernet(1))
        written = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert written == {
            f"{link.port}_{way}.pcap": 24 + packets * (16 + size)
            for link, ways in zip(links, ((2, 0), (0, 1), (1, 1)), strict=True)
            for way, packets in zip(("in", "out"), ways, strict=True)
        }


def test_a_program_on_the_command_line() -> None:
    with running(2, str(FIXTURES / "forward.json")) as (switch, links):
        # Nothing is in its tables: the program drops what it does not know.
        links[0].send(ethernet(1))
        assert links[1].silent()
        assert switch.end(signal.SIGINT) == (0, "")


def test_it_outlives_an_interface(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(3, "--no-p4", "--log-file", str(log)) as (switch, links):
        client = Controller(switch.address)
        client.set_pipeline()
        client.write(table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))))
        ip("link", "delete", links[2].port)
        end = time.monotonic() + LIMIT
        while "has vanished" not in log.read_text():
            assert time.monotonic() < end, f"the log does not tell: {log.read_text()}"
            time.sleep(0.05)
        links[0].send(ethernet(1))
        assert links[1].receive() == ethernet(1)
        client.close()
        assert switch.end()[0] == 0


def test_it_ends_under_load_and_with_streams_open() -> None:
    with running(2, "--no-p4") as (switch, links):
        clients = [Controller(switch.address, election=number) for number in range(1, 6)]
        for client in clients:
            client.arbitrate()
        clients[-1].set_pipeline()
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                links[0].send(ethernet(1))

        sender = threading.Thread(target=load)
        sender.start()
        try:
            assert switch.end() == (0, "")
        finally:
            stop.set()
            sender.join(LIMIT)
        for client in clients:
            client.close()


def test_a_compile_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    compiler = tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *program-*) echo $$ > {started}; exec sleep 60;; esac\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(compiler))
    with running(0, "--no-p4") as (switch, _):
        client = Controller(switch.address)
        codes: list[str] = []

        def push() -> None:
            with pytest.raises(grpc.RpcError) as caught:
                client.set_pipeline()
            codes.append(caught.value.code().name)

        pushing = threading.Thread(target=push)
        pushing.start()
        end = time.monotonic() + LIMIT
        while not started.exists() or not started.read_text():
            assert time.monotonic() < end, "the compiler was not called"
            time.sleep(0.02)
        assert switch.end() == (0, "")
        while Path("/proc", started.read_text().strip()).exists():
            assert time.monotonic() < end, "the compiler outlives the switch"
            time.sleep(0.02)
        pushing.join(LIMIT)
        client.close()
        assert codes == ["UNAVAILABLE"]
