# SPDX-License-Identifier: Apache-2.0
"""Networks for real: what `net up` makes, and that `net down` leaves nothing of it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli import app
from topologies import manager, processes
from topologies import record as records
from topologies.errors import NetworkError, RecordError, SpecError
from topologies.identity import Process
from topologies.record import NetRecord
from topologies.spec import star
from topologies.targets import Target
from traces.errors import TraceFileError
from traces.files import merged, read
from traces.table import concat
from wire.constants import RUN_ROOT

pytestmark = pytest.mark.root


def left_of(record: NetRecord, held: Sequence[Process]) -> list[str]:
    """Return what is there of a network: its interfaces, its names below /run/p4reduce, its processes.

    `held` are those that its namespaces had: a namespace goes with its last process, and its number may be
    another's by now, as other tests of this machine may run beside this one.
    """
    interfaces = [name for name in os.listdir("/sys/class/net") if name.startswith(record.token)]
    run = [name for name in os.listdir(RUN_ROOT) if name.startswith(record.name)]
    return [*interfaces, *run, *(str(process) for process in held if process.alive())]


OFFLOADS = (
    "rx-checksumming",
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
)


@pytest.fixture
def name() -> Iterator[str]:
    """Return a name for a network, and take it down when a test has left it."""
    chosen = f"test-{uuid.uuid4().hex[:8]}"
    yield chosen
    if chosen in records.names():
        manager.down(records.load(chosen))
    shutil.rmtree(manager.kept_logs(chosen), ignore_errors=True)


def run_in(record: NetRecord, host: str, command: str) -> str:
    done = subprocess.run(
        processes.host_argv(record, host, ["sh", "-c", command]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.05)


@contextmanager
def guest_in(record: NetRecord, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run something in a host that would go on for ever; it is in the namespace when the body begins."""
    with processes.host_popen(record, host, ["sleep", "600"]) as guest:
        try:
            wait_until(
                lambda: guest.pid in {process.pid for process in processes.inside(record)}, "the guest"
            )
            yield guest
        finally:
            guest.kill()


def offloads(record: NetRecord, port: int) -> set[str]:
    """Return what the offloads are, on or off, at both ends of a port; asserts that GRO is off."""
    host, switch_end = record.hosts[port - 1], record.switches[0].ports[port]
    shown = subprocess.run(["ethtool", "-k", switch_end], capture_output=True, text=True, check=True).stdout
    found = set()
    for text in (shown, run_in(record, host.name, f"ethtool -k {host.interface}")):
        features = dict(line.strip().split(": ")[:2] for line in text.splitlines() if ": " in line)
        found |= {features[key].split()[0] for key in OFFLOADS}
        assert features["generic-receive-offload"].split()[0] == "off"
    return found


def test_a_star_comes_up_and_goes_down_without_a_trace(target: Target, name: str, tmp_path: Path) -> None:
    record = manager.up(star(3), name=name, target=target.name, elements=64, pcap=tmp_path / "caps")
    assert record.super_packets == target.super_packets
    assert records.load(name) == record
    assert record.dead() == []
    assert record.slots == target.default_slots
    assert len({host.netns for host in record.hosts}) == 3
    for port, host in enumerate(record.hosts, 1):
        interface = json.loads(run_in(record, host.name, f"ip -json address show {host.interface}"))[0]
        assert interface["address"] == host.mac
        assert interface["mtu"] == 9000
        # One address, so no IPv6.
        assert [(a["local"], a["prefixlen"]) for a in interface["addr_info"]] == [(host.ip, 16)]
        switch_end = record.switches[0].ports[port]
        assert Path("/proc/sys/net/ipv6/conf", switch_end, "disable_ipv6").read_text() == "1\n"
        assert offloads(record, port) == {"on" if target.super_packets else "off"}
    with guest_in(record, "h2") as guest:
        held = processes.inside(record)
        assert {*(host.process for host in record.hosts), Process.of(guest.pid)} <= set(held)
        manager.down(record)
        assert guest.wait(60) == -signal.SIGTERM
    assert left_of(record, held) == []
    assert record.switches[0].process is not None
    assert not record.switches[0].process.alive()


def test_captures_are_not_mixed_with_those_of_an_earlier_run(name: str, tmp_path: Path) -> None:
    for old in ("b_in.pcap", "a_out.pcap"):
        (tmp_path / old).touch()
    message = rf"--pcap {tmp_path}: it holds captures already \(a_out.pcap and 1 more\): remove them, or name"
    with pytest.raises(SpecError, match=message):
        manager.up(star(1), name=name, pcap=tmp_path)
    assert name not in records.names()


def test_super_packets_can_be_switched_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4src.compile.source_hash", lambda: "of other sources")
    said: list[str] = []
    record = manager.up(
        star(2), name=name, target="embedded", elements=64, super_packets=False, say=said.append
    )
    assert "recompile them with make p4" in said[-1]
    assert not record.super_packets
    assert offloads(record, 1) == offloads(record, 2) == {"off"}
    process = record.switches[0].process
    assert process is not None
    assert b"--no-super-packets" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")


def test_what_a_crashed_network_leaves_is_removed_by_its_record(target: Target, name: str) -> None:
    record = manager.up(star(2), name=name, target=target.name, elements=64)
    with guest_in(record, "h1") as guest:
        held = processes.inside(record)
        os.kill(record.owner.pid, signal.SIGKILL)
        wait_until(lambda: not record.owner.alive(), "the daemon's end")
        assert "its daemon" in records.load(name).dead()
        # The guest holds its namespace, so half a network is still there.
        assert Process.of(guest.pid).alive()
        said: list[str] = []
        again = manager.up(star(1), name=name, target=target.name, elements=64, say=said.append)
        assert f"removing what the crashed network {name} left" in said
        assert guest.wait(60) == -signal.SIGTERM
    held += processes.inside(again)
    manager.down(again)
    assert left_of(again, held) == []


def test_a_namespace_that_has_the_number_of_a_gone_one_is_left_alone(name: str) -> None:
    with manager.network(star(1), name=name, target="embedded", elements=64) as record:
        crashed = records.new_record(f"{name}-old", star(1), target="embedded", elements=64, slots=1)
        with subprocess.Popen(["true"]) as ended:
            process = Process(ended.pid, 0)
        crashed = records.with_host(crashed, "h1", process=process, netns=record.hosts[0].netns)
        processes.sweep(crashed)
        assert record.dead() == []


def test_a_name_that_is_up_is_refused_and_left_alone(target: Target, name: str) -> None:
    with manager.network(star(1), name=name, target=target.name, elements=64) as record:
        with pytest.raises(RecordError, match="already up"):
            manager.up(star(1), name=name, target=target.name, elements=64)
        assert record.dead() == []
        run_in(record, "h1", "true")
        with pytest.raises(RecordError, match="no host h2"):
            run_in(record, "h2", "true")


def test_a_switch_that_does_not_start_leaves_only_its_logs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "simple_switch_grpc"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--help*) exit 0;; esac\necho "Add port operation failed"\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    token = records.new_record(name, star(2), target="bmv2", elements=64, slots=1).token
    said: list[str] = []
    with pytest.raises(NetworkError, match=r"(?s)switch s1 ended with 1.*Add port operation failed"):
        manager.up(star(2), name=name, target="bmv2", elements=64, say=said.append)
    kept = manager.kept_logs(name)
    assert said[-1].endswith(f"kept in {kept}")
    assert (kept / "s1.log").read_text() == "Add port operation failed\n"
    assert not [interface for interface in os.listdir("/sys/class/net") if interface.startswith(token)]
    assert name not in records.names()


@pytest.mark.slow
def test_a_controller_that_never_runs_is_given_up_and_said(name: str) -> None:
    # No controller takes such a lease.
    with pytest.raises(
        NetworkError, match=r"(?s)its controller is not ready: its controller died; .*--lease"
    ):
        manager.up(star(1), name=name, target="embedded", elements=64, lease=0.1)
    kept = manager.kept_logs(name)
    assert "its controller ended with 2, 6 times in 60 s" in (kept / "daemon.log").read_text()
    assert name not in records.names()


def test_links_are_captured_also_after_the_recorder_was_killed(
    target: Target, name: str, tmp_path: Path
) -> None:
    caps = tmp_path / "caps"
    with manager.network(star(2), name=name, target=target.name, elements=64, pcap=caps) as record:
        assert sorted(path.name for path in caps.iterdir()) == [
            *("h1-s1.pcapng", "h2-s1.pcapng", "memberships.json", "s1-h1.pcapng", "s1-h2.pcapng"),
        ]
        first = record.recorder
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: records.load(name).recorder not in (None, first), "a new recorder")
        wait_until(lambda: (caps / "s1-h2.1.pcapng").exists(), "its files")
        assert records.load(name).dead() == []
        ports = {"h1": 7001, "h2": 7002}
        for host in ports:
            other = record.hosts[0 if host == "h2" else 1].ip
            send = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
            send += f"; s.bind(('', {ports[host]})); s.sendto(b'{host}', ('{other}', 9))"
            run_in(record, host, f'{sys.executable} -c "{send}"')
        wait_until(lambda: "8 packets" in seen(caps, ports), "both packets at both ends of both links")
    # What a host sent came in at the switch's end of its link, and went out at that of the other.
    found = concat(list(merged([path for path in caps.iterdir() if ".1." in path.name])))
    told = sorted(
        (found.sources[found.file[row]].end, int(found.src_port[row]), int(found.direction[row]))
        for row in np.flatnonzero(np.isin(found.src_port, list(ports.values())))
    )
    assert told == [
        *(("h1-s1", 7001, 2), ("h1-s1", 7002, 1), ("h2-s1", 7001, 1), ("h2-s1", 7002, 2)),
        *(("s1-h1", 7001, 1), ("s1-h1", 7002, 2), ("s1-h2", 7001, 2), ("s1-h2", 7002, 1)),
    ]


def seen(caps: Path, ports: dict[str, int]) -> str:
    """How many packets from these ports are in the captures so far."""
    count = 0
    for path in caps.glob("*.1.pcapng"):
        with contextlib.suppress(TraceFileError):  # its last packet is being written
            for table in read(path):
                count += int(np.isin(table.src_port, list(ports.values())).sum())
    return f"{count} packets"


def test_the_command_line(target: Target, name: str) -> None:
    runner = CliRunner()
    up = runner.invoke(
        app,
        ["net", "up", "star", "--hosts", "2", "--switch", target.name, "--name", name, "--elements", "64"],
    )
    assert up.exit_code == 0, up.output
    assert f"network {name} is up: h1 to h2 (10.0.0.1 to 10.0.0.2) on s1 ({target.name}" in up.output
    for words in (["--net", name], []):
        status = runner.invoke(app, ["net", "status", "--json", *words])
        (shown,) = [net for net in json.loads(status.stdout) if words or net["name"] == name]
        assert shown["name"] == name
    assert (shown["state"], shown["dead"], len(shown["hosts"])) == ("up", [], 2)
    down = runner.invoke(app, ["net", "down", "--net", name])
    assert down.output == f"network {name} is down\n"
    assert name not in records.names()
