# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce train` as people run it: what it says, what it leaves, and how it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from topologies import jobs, manager
from topologies import record as records
from topologies.spec import star
from topologies.targets import Target
from wire.constants import RUN_ROOT, frame_bytes, job_port

COMMAND = Path(sys.executable).with_name("p4reduce")
LIMIT_S = 240.0
ELEMENTS = 256
NAME = "run"
"""Of the network that the command brings up."""


def train(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), "train", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=LIMIT_S,
        check=False,
    )


def left(token: str) -> list[str]:
    """Name the interfaces, processes and records that a run has left."""
    found = [name for name in os.listdir("/sys/class/net") if name.startswith(f"{token}-")]
    home = str(RUN_ROOT / NAME)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            if f"@{token}-" in words or os.readlink(entry / "cwd").startswith(home):
                found.append(f"{entry.name}: {words}")
        except OSError:
            continue  # it has ended since, or is a kernel thread
    return found + [name for name in records.names() if name == NAME]


@pytest.mark.root
def test_it_trains_checks_itself_and_leaves_captures_alone(target: Target, tmp_path: Path) -> None:
    from scapy.utils import RawPcapReader

    if NAME in records.names() and not records.load(NAME).dead():
        pytest.skip(f"a network {NAME} is up on this machine: p4reduce net down --net {NAME}")
    token = records.new_record(NAME, star(2), target=target.name, elements=ELEMENTS, slots=1024).token
    captures = tmp_path / "captures"
    done = train(
        *("--workers", "2", "--elements", str(ELEMENTS), "--loss", "2", "--seed", "7"),
        *("--switch", target.name, "--pcap", str(captures)),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert left(token) == []
    lines = done.stdout.splitlines()
    checks = [line for line in lines if line.startswith(("ok ", "FAILED "))]
    assert len(checks) == 2
    assert all(line.startswith("ok ") for line in checks)
    assert "bit for bit: 630 all-reduces at 2 ranks" in checks[0]
    assert [line for line in lines if line.startswith("epoch ")][-1].startswith("epoch 30/30  loss 0.")
    assert any("switch target" in line and target.name in line for line in lines)

    assert sorted(file.name for file in captures.iterdir()) == [
        *("h1-s1.pcapng", "h2-s1.pcapng", "memberships.json", "s1-h1.pcapng", "s1-h2.pcapng"),
    ]
    for host in (1, 2):
        with RawPcapReader(str(captures / f"s1-h{host}.pcapng")) as reader:
            frames = [frame for frame, _ in reader]
        for ports, share in ((slice(36, 38), 1), (slice(34, 36), 0.95)):
            sums = [
                f for f in frames if f[12:14] == b"\x08\x00" and f[ports] == job_port(0).to_bytes(2, "big")
            ]
            # 630 all-reduces of 9,610 values, and at least one header packet each, whatever was lost.
            assert len(sums) > 630 * (9610 // ELEMENTS + 1) * share
            assert {len(f) for f in sums} == {frame_bytes(ELEMENTS)}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A training that is under way, and the prefix of its network's interfaces."""
    if NAME in records.names() and not records.load(NAME).dead():
        pytest.skip(f"a network {NAME} is up on this machine: p4reduce net down --net {NAME}")
    with subprocess.Popen(
        [str(COMMAND), "train", "--workers", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    ) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("epoch "):
                    break
            yield child, records.load(NAME).token
        finally:
            if child.poll() is None:
                child.terminate()
            child.communicate(timeout=LIMIT_S)


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_everything_that_was_started(
    running: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    child, token = running
    os.killpg(child.pid, number)  # as a terminal does
    _, said = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 128 + number
    assert "Traceback" not in said
    assert left(token) == []
    assert [p for p in processes_of(child.pid) if p != child.pid] == []


@pytest.mark.root
def test_a_switch_that_dies_is_started_again_and_every_sum_is_exact(
    running: tuple[subprocess.Popen[str], str],
) -> None:
    child, token = running
    switch = records.load(NAME).switches[0].process
    assert switch is not None
    os.kill(switch.pid, signal.SIGKILL)
    out, said = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, said) == (0, ""), out
    checks = [line for line in out.splitlines() if line.startswith(("ok ", "FAILED "))]
    assert len(checks) == 2
    assert all(line.startswith("ok ") for line in checks)
    assert left(token) == []


@pytest.mark.root
@pytest.mark.slow
def test_two_trainings_side_by_side_on_a_network_that_is_up(target: Target, tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    with manager.network(star(2), name=name, target=target.name, elements=ELEMENTS) as record:
        with ThreadPoolExecutor(2) as pool:
            options = [
                ("--net", name, "--job", job, "--seed", seed) for job, seed in (("a", "1"), ("b", "2"))
            ]
            for done in pool.map(lambda given: train(*given, folder=tmp_path), options):
                assert done.returncode == 0, done.stdout + done.stderr
                assert "bit for bit: 630 all-reduces at 2 ranks" in done.stdout
        assert record.dead() == []
        with jobs.control_of(record) as control:
            assert control.call("GET", "/v1/jobs") == []


def processes_of(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--workers", "0"], "--workers 0"),
        (["--workers", "65"], "--workers 65"),
        (["--loss", "200"], "--loss 200"),
        (["--loss", "-1"], "--loss -1"),
        (["--elements", "100"], "--elements 100"),
        (["--switch", "tofino"], "tofino"),
        (["--seed", "-1"], "--seed -1"),
        (["--pcap", "/dev/null/x"], "--pcap /dev/null/x"),
        (["--net", "nonesuch"], "nonesuch"),
        (["--net", "nonesuch", "--keep"], "--keep"),
        (["--net", "nonesuch", "--name", "x"], "--name"),
    ],
)
def test_bad_input_is_refused_in_one_line(options: list[str], names: str, tmp_path: Path) -> None:
    done = train(*options, folder=tmp_path)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert names in line
    assert done.stdout == ""
