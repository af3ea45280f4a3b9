# SPDX-License-Identifier: Apache-2.0
"""Packets held back at ports: never too early, in order, within bounds; and how that is asked for."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from switch.cli import app
from switch.delay import Delay, DelayError, Direction, set_delay
from switch.options import parse
from switch.ports import Ports, io_library
from switch.process import RunningSwitch
from switch.stats_socket import MAX_REQUEST, StatsSocketError, read_stats
from tests.switch.flows import Flow
from tests.switch.hosts import Host
from tests.switch.supers import Header, Run
from tests.switch.test_process_ports import CPU, connect, frame, until
from tests.switch.test_process_super_packets import NEEDS_CSUM, UDP_L4, VNET, start
from tests.switch.veth import LIMIT, Link

LINE_BYTES = 16 << 20
SO_TIMESTAMPNS = 35


class Line(ctypes.Structure):
    """delay_line."""

    _fields_ = [
        *(("delay_ns", ctypes.c_int64), ("head", ctypes.c_void_p), ("tail", ctypes.c_void_p)),
        ("bytes", ctypes.c_size_t),
    ]


class Parcel(ctypes.Structure):
    """parcel, without the frame behind it."""

    _fields_ = [
        *(("next", ctypes.c_void_p), ("due_ns", ctypes.c_int64), ("len", ctypes.c_uint32)),
        *(("header", Header), ("run", Run)),
    ]


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(io_library()))
    line, time_ns = ctypes.POINTER(Line), ctypes.c_int64
    lib.line_init.argtypes = lib.line_free.argtypes = [line]
    lib.line_init.restype = lib.line_free.restype = None
    lib.line_put.argtypes = [
        line,
        time_ns,
        ctypes.c_char_p,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    lib.line_take.argtypes = [line, time_ns]
    lib.line_take.restype = ctypes.c_void_p
    return lib


def take(lib: ctypes.CDLL, line: Line, now: int) -> bytes | None:
    """What may go on at a time."""
    at = lib.line_take(ctypes.byref(line), now)
    if not at:
        return None
    parcel = Parcel.from_address(at)
    behind = Parcel.run.offset + ctypes.sizeof(Run)
    data = ctypes.string_at(at + behind, parcel.len)
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    free(at)
    return data


steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "take", "delay"]), st.integers(0, 50), st.integers(0, 100)),
    max_size=80,
)


@given(steps=steps)
def test_first_in_first_out_and_each_at_its_time(lib: ctypes.CDLL, steps: list[tuple[str, int, int]]) -> None:
    line, now, delay = Line(), 10**18, 0
    lib.line_init(ctypes.byref(line))
    held: deque[tuple[int, bytes]] = deque()
    for number, (what, later, value) in enumerate(steps):
        now += later
        if what == "delay":
            line.delay_ns = delay = value
        elif what == "put":
            data = struct.pack("!I", number) * (value + 1)
            assert lib.line_put(ctypes.byref(line), now, data, len(data), None, None) == 0
            held.append((now + delay, data))
        else:
            due = held[0][0] if held else math.inf
            assert take(lib, line, now) == (held.popleft()[1] if due <= now else None)
    lib.line_free(ctypes.byref(line))
    assert (line.head, line.bytes) == (None, 0)


def most_frames(size: int) -> int:
    """Frames of a size that a port holds in one direction."""
    return LINE_BYTES // (ctypes.sizeof(Parcel) + size)


def test_what_is_held_is_bounded(lib: ctypes.CDLL) -> None:
    line, data = Line(), bytes(9014)
    lib.line_init(ctypes.byref(line))
    most = most_frames(len(data))
    taken = [lib.line_put(ctypes.byref(line), 0, data, len(data), None, None) for _ in range(most + 10)]
    assert [code == 0 for code in taken] == [True] * most + [False] * 10
    assert line.bytes <= LINE_BYTES
    assert take(lib, line, 0) == data
    assert lib.line_put(ctypes.byref(line), 0, data, len(data), None, None) == 0
    lib.line_free(ctypes.byref(line))


# ---- on links


@pytest.fixture
def links() -> Iterator[list[Link]]:
    links = [Link(), Link()]
    for link in links:
        link.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    yield links
    for link in links:
        link.close()


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports(io_library(), CPU)
    yield ports
    ports.close()


def stamped(link: Link) -> tuple[bytes, int]:
    """The next frame, and when the kernel had it, in ns since 1970."""
    link.socket.settimeout(LIMIT)
    data, control, _, _ = link.socket.recvmsg(1 << 16, 64)
    ((_, _, stamp),) = control
    seconds, ns = struct.unpack("ll", stamp)
    return data, seconds * 10**9 + ns


@pytest.mark.root
@pytest.mark.parametrize("directions", [["out"], ["in"], ["in", "out"]])
def test_no_frame_is_early_and_none_overtakes(
    ports: Ports, links: list[Link], directions: list[Direction]
) -> None:
    connect(ports, links)
    for direction in directions:
        ports.set_delay(Delay(1 if direction == "out" else 0, direction, 0.02))
    sent: list[tuple[bytes, int]] = []
    for number in range(200):
        sent.append((frame(number, 60 + 5 * number), time.time_ns()))
        links[0].send(sent[-1][0])
    found = [stamped(links[1]) for _ in sent]
    assert [data for data, _ in found] == [data for data, _ in sent]
    least = 20_000_000 * len(directions)
    assert all(stamp - at >= least for (_, stamp), (_, at) in zip(found, sent, strict=True))
    # The other way nothing is held: it comes while what follows it this way is still under way.
    links[1].send(frame(999))
    assert links[0].receive() == frame(999)
    assert ports.delay(0, "out") == 0


@pytest.mark.root
def test_a_shorter_delay_lets_nothing_overtake(ports: Ports, links: list[Link]) -> None:
    connect(ports, links)
    sent = []
    for part, seconds in enumerate((0.3, 0.1, 0.0)):
        ports.set_delay(Delay(1, "out", seconds))
        for number in range(30):
            sent.append(frame(100 * part + number))
            links[0].send(sent[-1])
        until(lambda: ports.stats()[0].rx_packets == len(sent), "the frames to be taken")
    assert [links[1].receive() for _ in sent] == sent


@pytest.mark.root
@pytest.mark.parametrize("direction", ["in", "out"])
def test_what_does_not_fit_is_dropped_and_counted(
    ports: Ports, links: list[Link], direction: Direction
) -> None:
    patch = connect(ports, links)
    number = 0 if direction == "in" else 1
    ports.set_delay(Delay(number, direction, 10))
    data = frame(1, 2014)
    most = most_frames(len(data))
    for _ in range(most + 100):
        links[0].send(data)

    def dropped() -> int:
        stats = ports.stats()[number]
        return stats.rx_dropped if direction == "in" else stats.tx_dropped

    until(lambda: dropped() == 100, "the frames beyond to be counted")
    assert sum(patch.batches) == (0 if direction == "in" else most + 100)
    assert ports.stats()[1].tx_packets == 0


@pytest.mark.root
@pytest.mark.parametrize("direction", ["in", "out"])
def test_super_packets_stay_whole(direction: Direction) -> None:
    ports, hosts = Ports(io_library(), None), [Host(1), Host(2)]
    try:
        start(ports, hosts)
        ports.set_delay(Delay(0 if direction == "in" else 1, direction, 0.01))
        with hosts[0].raw(headers=True) as sender, hosts[1].raw(headers=True) as receiver:
            for number in range(20):
                flow = Flow(fragment=0, ident=100 * number)
                whole = flow.frame(bytes([number]) * 30_007, partial=True)
                sender.send(VNET.pack(NEEDS_CSUM, UDP_L4, 42, 1000, 34, 6) + whole)
                assert receiver.recv(1 << 17) == VNET.pack(NEEDS_CSUM, UDP_L4, 42, 1000, 34, 6) + whole
        assert (ports.stats()[0].rx_supers, ports.stats()[1].tx_supers) == (20, 20)
    finally:
        ports.close()
        for host in hosts:
            host.close()


# ---- asking for it


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Path]:
    """The socket of a switch without ports."""
    path = tmp_path / "s"
    words = f"--no-p4 --stats-socket {path} -L off -- --grpc-server-addr 127.0.0.1:0"
    with RunningSwitch(parse(words.split())):
        yield path


def said(path: Path, request: bytes) -> Any:
    """The answer to a request, None for none."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(LIMIT)
        asking.connect(str(path))
        asking.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := asking.recv(1 << 16):
                answer += part
    return json.loads(answer) if answer else None


def test_what_is_not_understood_is_refused(idle: Path) -> None:
    good: dict[str, object] = {"port": 1, "direction": "out", "seconds": 0.1}
    wrongs: dict[str, list[object]] = {
        "port": [True, -1, "1", 1 << 70, 1.0],
        "direction": ["up", 1, [], None],
        "seconds": [-1, 11, math.nan, math.inf, "1", None, True],
        "other": [1],
    }
    for request in (
        *(b"x\n", b"[1]\n", b"null\n", b"{}\n", b'{"delay": 1}\n', b"[" * 3000 + b"\n", b"\xff\n"),
        json.dumps({"delay": good, "more": 1}).encode() + b"\n",
        *(
            json.dumps({"delay": good | {name: value}}).encode() + b"\n"
            for name, values in wrongs.items()
            for value in values
        ),
        json.dumps({"delay": {"port": 1, "seconds": 1}}).encode() + b"\n",
    ):
        assert list(said(idle, request)) == ["error"], request
    assert said(idle, b" " * (2 * MAX_REQUEST)) is None
    assert read_stats(idle)["ports"] == {}
    with pytest.raises(StatsSocketError, match="there is no port 1, nor any other"):
        set_delay(idle, 1, 0.1)
    with pytest.raises(DelayError, match="a delay of 11 s cannot be: it is 0 to 10 s"):
        set_delay(idle, 1, 11)
    with pytest.raises(StatsSocketError, match="no switch serves it"):
        set_delay(idle.with_name("none"), 1, 1)


def test_the_words_of_a_command_line() -> None:
    words = "--no-p4 -i 3@a -i 4@b --delay 3:out:0.005 --delay 3:in:1"
    assert parse(words.split()).delays == (Delay(3, "out", 0.005), Delay(3, "in", 1.0))


@pytest.mark.root
def test_a_running_switch_is_told(links: list[Link], tmp_path: Path) -> None:
    path = tmp_path / "s"
    words = f"--no-p4 --stats-socket {path} -L off -i 1@{links[0].port} -i 2@{links[1].port}"
    words += " --delay 2:out:0.5 -- --grpc-server-addr 127.0.0.1:0"

    def delays() -> list[tuple[float, float]]:
        return [(port["delay_in"], port["delay_out"]) for port in read_stats(path)["ports"].values()]

    with RunningSwitch(parse(words.split())):
        assert delays() == [(0, 0), (0, 0.5)]
        set_delay(path, 1, 0.005)
        told = CliRunner().invoke(app, ["delay", str(path), "2", "0.25", "--in"])
        assert (told.exit_code, told.output) == (0, "")
        assert delays() == [(0, 0.005), (0.25, 0.5)]
        set_delay(path, 2, 0)
        assert delays() == [(0, 0.005), (0.25, 0)]
        wrong = CliRunner().invoke(app, ["delay", str(path), "3", "1"])
        assert (wrong.exit_code, "there is no port 3; there is 1, 2" in wrong.output) == (1, True)
