# SPDX-License-Identifier: Apache-2.0
"""Recording: super-packets are cut up, files are bounded and whole, memberships follow the controller."""

from __future__ import annotations

import io
import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.controller.office import Office
from tests.controller.served import Served
from tests.traces.made import payloads
from traces import members
from traces.capture import Tap, job_filter
from traces.errors import CaptureError
from traces.files import merged, read
from traces.follow import EpochFollower
from traces.names import LinkEnd, Namespace, end_of, end_words, link_ends, link_of
from traces.record_cli import Ends, _run, chosen, numbers, trace_record
from traces.recorder import Recorder, RingFile, prepare, record
from traces.table import Category, Table, UdpChecksum, concat
from wire.constants import job_port

JOB = 243
"""Whose port nobody else uses on the loopback interface."""
UDP_SEGMENT = 103
LIMIT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:g} s for {what}"
        time.sleep(0.01)


def send(count: int) -> np.ndarray:
    """Send so many contributions of JOB over lo as one super-packet; return their values."""
    made = payloads(count)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", job_port(JOB)))
        sender.bind(("127.0.0.1", 0))
        if count > 1:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, made.dtype.itemsize)
        sender.sendto(made.tobytes(), receiver.getsockname())
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        sender.sendto(b"of another job", ("127.0.0.1", job_port(JOB - 1)))
    return made["values"]


def taken(recorder_out: Path) -> Table:
    return concat(
        [table for path in sorted(recorder_out.glob("*.pcapng")) for table in read(path, values=True)]
    )


@pytest.mark.root
def test_packets_are_recorded_as_a_cable_would_carry_them(tmp_path: Path) -> None:
    before = time.time_ns()
    with Recorder(tmp_path, [LinkEnd("s1-h1", "h1-s1", "lo")], [JOB]) as recorder:
        thread = threading.Thread(target=recorder.run)
        thread.start()
        values = send(40)
        send(1)
        wait_until(lambda: sum(end.tap.packets for end in recorder._ends) == 82, "82 packets")
        recorder.stop()
        thread.join(LIMIT_S)
        (counts,) = recorder.close()
    found = taken(tmp_path)
    # lo carries each packet twice: out and in.
    assert (counts.end, counts.packets, counts.dropped, counts.uncut, counts.error) == (
        "s1-h1",
        82,
        0,
        0,
        None,
    )
    assert (found.category == Category.CONTRIBUTION).all()
    assert (found.udp_checksum == UdpChecksum.RIGHT).all()
    assert (found.job == JOB).all()
    assert (found.length == 308).all()
    assert sorted(found.chunk.tolist()) == sorted([*range(40), 0] * 2)
    for way in (1, 2):
        rows = np.flatnonzero(found.direction == way)
        assert found.chunk[rows].tolist() == [*range(40), 0]
        np.testing.assert_array_equal(found.values(rows[:40]), values)
    assert ((before < found.time) & (found.time < time.time_ns())).all()
    assert (found.sources[0].end, found.sources[0].link) == ("s1-h1", "h1-s1")


@pytest.mark.root
def test_files_are_a_ring_and_say_what_was_dropped(tmp_path: Path) -> None:
    out = io.StringIO()
    recorder = Recorder(tmp_path, [LinkEnd("s1-h1", "h1-s1", "lo")], [JOB], ring_size=5000, ring_files=2)
    thread = threading.Thread(target=lambda: record(recorder, tmp_path, None, out))
    thread.start()
    wait_until(lambda: "recording" in out.getvalue(), "the recorder")
    for _ in range(5):
        send(10)
        time.sleep(0.05)
    wait_until(lambda: sum(end.tap.packets for end in recorder._ends) == 100, "100 packets")
    recorder.stop()
    thread.join(LIMIT_S)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2
    assert all(name.startswith("s1-h1.00000") for name in files)
    assert len(concat(list(merged([tmp_path / name for name in files])))) < 100
    last = (tmp_path / files[-1]).read_bytes()
    size = struct.unpack("<I", last[-4:])[0]
    kind, _, interface = struct.unpack_from("<III", last, len(last) - size)
    options = last[len(last) - size + 20 : -4]
    told = {options[at : at + 4]: options[at + 4 : at + 12] for at in range(0, 48, 12)}
    assert (kind, interface) == (5, 0)
    assert told[struct.pack("<HH", 4, 8)] == struct.pack("<Q", 100)  # isb_ifrecv
    assert told[struct.pack("<HH", 5, 8)] == struct.pack("<Q", 0)  # isb_ifdrop


@pytest.mark.root
def test_what_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"no-such: .* there is no such interface"):
        Tap("no-such")
    (tmp_path / "s1-h1.pcapng").touch()
    with pytest.raises(CaptureError, match=r"holds captures already \(s1-h1\.pcapng\): remove them"):
        prepare(tmp_path)
    with pytest.raises(CaptureError, match="cannot be used"):
        prepare(tmp_path / "s1-h1.pcapng" / "x")


def test_a_command_that_is_none_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no-such-command: cannot be run: there is no such command"):
        trace_record(["no-such-command"], out=tmp_path / "caps")
    assert not (tmp_path / "caps").exists()


@pytest.mark.root
def test_links_that_go_are_no_recorder_that_died(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    link = ["ip", "link", "add", "recgone0", "type", "veth", "peer", "name", "recgone1"]
    subprocess.run(link, check=True, timeout=LIMIT_S)

    def take_down() -> None:
        wait_until((tmp_path / "s1-h1.pcapng").exists, "the recorder")
        subprocess.run(["ip", "link", "del", "recgone0"], check=True, timeout=LIMIT_S)

    thread = threading.Thread(target=take_down)
    thread.start()
    code = _run(["--out", str(tmp_path), "--end", "s1-h1=recgone0"], [], tmp_path)
    thread.join(LIMIT_S)
    told = capfd.readouterr().err
    assert code == 1
    assert f"error: no link is left: {tmp_path} has what they carried until then" in told
    assert "died" not in told
    assert [len(table.time) for table in read(tmp_path / "s1-h1.pcapng")] in ([], [0])


def test_a_ring_goes_on_beside_the_files_of_a_recorder_that_died(tmp_path: Path) -> None:
    for _ in range(3):
        RingFile(tmp_path, "s1-h1", b"head", None, None).close(b"tail")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("s1-h1.pcapng", "s1-h1.1.pcapng", "s1-h1.2.pcapng"), b"headtail"
    )


def run_filter(program: list[tuple[int, int, int, int]], frame: bytes) -> int:
    """Classic BPF, as far as the filter needs it."""
    a = x = at = 0
    while True:
        code, jt, jf, k = program[at]
        at += 1
        if code == 0x06:
            return k
        if code == 0x15:
            at += jt if a == k else jf
        elif code == 0xB1:
            x = 4 * (frame[k] & 15)
        else:
            start, size = (x + k if code == 0x48 else k), (1 if code == 0x30 else 2)
            if start + size > len(frame):
                return 0
            a = int.from_bytes(frame[start : start + size], "big")


@pytest.mark.parametrize("jobs", [[3], [0, 3, 255], list(range(60))])
def test_the_filter_passes_the_jobs_packets_alone(jobs: list[int]) -> None:
    from tests.traces.made import one

    program = job_filter(jobs)
    for job in (0, 1, 3, 59, 60, 255):
        for changed in ({"udp_dst": job_port(job), "udp_src": 9}, {"udp_src": job_port(job), "udp_dst": 9}):
            assert bool(run_filter(program, one(**changed))) == (job in jobs)
    assert not run_filter(program, one(ip_protocol=6))
    assert not run_filter(program, one(eth_type=0x0806))
    options = one(ip_version_ihl=0x46)
    assert bool(run_filter(program, options[:34] + bytes(4) + options[34:])) == (3 in jobs)


def test_links_and_jobs_are_chosen_by_name() -> None:
    def place(node: str, port: int, interface: str, pid: int | None = None) -> dict[str, object]:
        inode = None if pid is None else 100 * pid
        return {"node": node, "port": port, "interface": interface, "pid": pid, "netns": inode}

    every = link_ends(
        [
            (place("h1", 0, "eth", 7), place("s1", 1, "a")),
            (place("s1", 2, "b"), place("s2", 5, "e")),
            (place("s1", 3, "c"), place("s2", 4, "d")),
        ]
    )
    host = LinkEnd("h1-s1", "h1-s1", "eth", Namespace(7, 700))
    at_switches = [
        LinkEnd("s1-h1", "h1-s1", "a"),
        *(LinkEnd("s1-s2-2", "s1-s2-2", "b"), LinkEnd("s2-s1-2", "s1-s2-2", "e")),
        *(LinkEnd("s1-s2-3", "s1-s2-3", "c"), LinkEnd("s2-s1-3", "s1-s2-3", "d")),
    ]
    assert every == [host, *at_switches]
    assert [end_of(word) for word in end_words(every)[1::2]] == every
    assert chosen(every, None, Ends.BOTH) == every
    assert chosen(every, None, Ends.SWITCHES) == at_switches
    assert chosen(every, None, Ends.HOSTS) == [host]
    assert chosen(every, "s1-h1,s2-s1-3", Ends.BOTH) == [host, at_switches[0], *at_switches[3:]]
    with pytest.raises(CaptureError, match="--ends hosts: none of these links has such an end"):
        chosen(every, "s1-s2-2", Ends.HOSTS)
    with pytest.raises(
        CaptureError, match=r"^h3-s1: there is no such link; there are h1-s1, s1-s2-2, s1-s2-3"
    ):
        chosen(every, "h3-s1", Ends.BOTH)
    assert link_of("s2-s1-3") == "s1-s2-3"
    jobs = [{"name": "one", "number": 4}]
    assert numbers(jobs, None) is None
    assert numbers(jobs, "one,7") == [4, 7]
    with pytest.raises(CaptureError, match="there is no such job; there is one"):
        numbers(jobs, "two")


def test_memberships_follow_the_controller(tmp_path: Path) -> None:
    served = Served(1)
    try:
        with Office(tmp_path, served) as office:
            file = tmp_path / members.FILE
            with EpochFollower(office.socket, partial(members.write, file)):
                assert json.loads(file.read_text())["epochs"] == []
                joined = office.add("one", [7001, 7002], slots=8, lead=2)
                wait_until(lambda: len(members.read(file)) == 1, "the epoch")
                (epoch,) = members.read(file)
                first = joined[0].worker.membership
                assert (epoch.epoch, epoch.window, epoch.lead, epoch.ended) == (first.epoch, 8, 2, None)
                assert [member.udp_port for member in epoch.members] == [7001, 7002]
                office.run(office.controller.remove("one"))
                wait_until(lambda: members.read(file)[0].ended is not None, "its end")
            (epoch,) = members.read(file)
            assert epoch.ended is not None
            assert epoch.began < epoch.ended < time.time_ns()
    finally:
        served.close()
