# SPDX-License-Identifier: Apache-2.0
"""Networks of several switches for real: everybody reaches everybody, TCP and UDP cross, links change."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.cli import app
from topologies import jobs, links, manager, processes
from topologies import record as records
from topologies.builders import TOPOLOGIES, describe
from topologies.errors import NetworkError
from topologies.record import NetRecord
from topologies.spec import NetworkSpec, Way
from topologies.targets import Target, targets

pytestmark = pytest.mark.root

LIMIT_S = 60.0
NO_IPERF3 = "iperf3 is missing: apt-get install iperf3"
H4 = "10.0.1.2"
"""The last host of two racks of two."""
EXAMPLE = Path(__file__).parents[2] / "docs/examples/two-sites.yaml"


def name() -> str:
    """Return a name that no other network has."""
    return f"test-{uuid.uuid4().hex[:8]}"


def output(record: NetRecord, host: str, *argv: str) -> str:
    """Return what a command in a host says, whatever comes of it."""
    done = subprocess.run(
        processes.host_argv(record, host, argv), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stdout


def unreached(record: NetRecord) -> set[tuple[str, str]]:
    """Return the pairs (from, to) of hosts and switches between which no ping of five was answered."""
    addresses = {host.ip: host.name for host in record.hosts} | {s.ip: s.name for s in record.switches}
    script = 'for ip in "$@"; do ping -n -q -c 1 -w 5 -i 0.2 $ip >/dev/null || echo $ip; done'
    running = {}
    for host in record.hosts:
        argv = ["sh", "-c", script, "sh", *(ip for ip in addresses if ip != host.ip)]
        running[host.name] = processes.host_popen(record, host.name, argv, stdout=subprocess.PIPE, text=True)
    found = set()
    for host_name, child in running.items():
        with child:
            found |= {(host_name, addresses[ip]) for ip in child.communicate(timeout=LIMIT_S)[0].split()}
    return found


def pings(record: NetRecord, source: str, target: str, count: int = 20) -> int:
    """Return how many of so many pings are answered."""
    argv = ("ping", "-n", "-q", "-c", str(count), "-i", "0.01", "-W", "1", record.host(target).ip)
    return int(output(record, source, *argv).split(" received")[0].rpartition(" ")[2])


def iperf3(record: NetRecord, source: str, target: str, *options: str) -> dict[str, Any]:
    """Return what iperf3 tells of a transfer from one host to another."""
    ip = record.host(target).ip
    argv = ["iperf3", "-s", "-1", "--forceflush", "-B", ip]
    with processes.host_popen(record, target, argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "listening" in line:
                    break
            told = json.loads(output(record, source, "iperf3", "-c", ip, "-J", *options))
            server.communicate(timeout=LIMIT_S)
        finally:
            server.kill()
    assert "error" not in told, told["error"]
    end: dict[str, Any] = told["end"]
    return end


def crosses(record: NetRecord) -> None:
    """Send by TCP and UDP from one end of a network to the other."""
    first, last = record.hosts[0].name, record.hosts[-1].name
    tcp = iperf3(record, first, last, "-n", "2M")
    assert tcp["sum_sent"]["bytes"] >= 2 << 20
    assert tcp["sum_received"]["bytes"] > 0  # what was under way when the client had sent all is not in it
    # Slow enough for bmv2, which drops what does not fit its queues.
    udp = iperf3(record, last, first, "-u", "-n", "200K", "-b", "4M", "-l", "1000")["sum"]
    assert udp["packets"] == 205  # ceil(200 * 1024 / 1000)
    assert udp["lost_packets"] == 0


@pytest.fixture(scope="module")
def racks(target: Target) -> Iterator[NetRecord]:
    """Two racks of two hosts and a spine."""
    spec = describe("racks", hosts=2)
    with manager.network(spec, name=name(), target=target.name, elements=64) as record:
        yield record


def test_two_racks_reach_each_other(racks: NetRecord) -> None:
    assert unreached(racks) == set()


@pytest.mark.skipif(shutil.which("iperf3") is None, reason=NO_IPERF3)
def test_tcp_and_udp_cross_the_spine(racks: NetRecord) -> None:
    crosses(racks)


def small(topology: str) -> NetworkSpec:
    """Return the smallest of a built-in topology that has all its parts."""
    sizes: dict[str, dict[str, float]] = {
        "leaf-spine": {"leaves": 2, "spines": 2, "hosts": 2},
        "tree": {"fanout": 2, "hosts": 1},
        "dumbbell": {"hosts": 1},
    }
    return describe(topology, **sizes.get(topology, {}))


@pytest.mark.parametrize(
    ("topology", "switch"),
    [
        ("leaf-spine", "embedded"),
        ("dumbbell", "embedded"),
        pytest.param("star", "embedded", marks=pytest.mark.slow),
        pytest.param("tree", "embedded", marks=pytest.mark.slow),
        pytest.param("fat-tree", "embedded", marks=pytest.mark.slow),
        *(pytest.param(name, "bmv2", marks=pytest.mark.slow) for name in TOPOLOGIES if name != "racks"),
    ],
)
def test_everybody_reaches_everybody(topology: str, switch: str) -> None:
    if (missing := targets()[switch].missing()) is not None:
        pytest.skip(missing)
    with manager.network(small(topology), name=name(), target=switch, elements=64) as record:
        assert unreached(record) == set()
        if shutil.which("iperf3") is not None:
            crosses(record)


# ---- links that change
def set_link(record: NetRecord, *options: str) -> None:
    done = CliRunner().invoke(app, ["net", "link", *options, "--net", record.name])
    assert done.exit_code == 0, (done.output, done.exception)


def classes(interface: str) -> str:
    shown = subprocess.run(
        ["tc", "class", "show", "dev", interface], capture_output=True, text=True, check=True
    )
    return shown.stdout


def test_a_link_loses_one_way_only_and_recovers(racks: NetRecord) -> None:
    set_link(racks, "s3-s1", "--loss", "100%", "--from", "s1")
    record = records.load(racks.name)
    core = links.find(record, "s1-s3")
    assert (core.forth, core.back) == (Way(loss=1.0), Way())
    with jobs.control_of(racks) as control:
        before = jobs.faulted(control, [core.b])["dropped"]
        assert pings(racks, "h1", "h3", 5) == 0
        # Dropped where they arrive, and nothing on the way back.
        assert jobs.faulted(control, [core.b])["dropped"] - before == 5
        assert jobs.faulted(control, [core.a])["dropped"] == 0
    assert pings(racks, "h1", "h2", 5) == 5
    set_link(racks, "s1-s3", "--loss", "0%")
    assert pings(racks, "h1", "h3", 5) == 5


def test_a_host_s_link_loses_at_its_switch(racks: NetRecord) -> None:
    set_link(racks, "h2-s1", "--loss", "100%", "--from", "s1")
    assert pings(racks, "h2", "h1", 3) == 0
    set_link(racks, "h2-s1", "--loss", "0%")
    assert pings(racks, "h2", "h1", 3) == 3


def test_a_rate_is_set_at_each_end(racks: NetRecord) -> None:
    core, interfaces = links.find(racks, "s1-s3"), racks.switch("s1").ports
    set_link(racks, "s1-s3", "--rate", "20mbit", "--from", "s1")
    assert "rate 1Mbit ceil 20Mbit" in classes(interfaces[3])  # a twentieth, for ordinary packets
    assert "htb" not in classes(core.b_interface)
    set_link(racks, "s1-s3", "--rate", "40mbit")
    assert "ceil 40Mbit" in classes(core.a_interface)
    assert "ceil 40Mbit" in classes(core.b_interface)
    assert pings(racks, "h1", "h3", 5) == 5
    set_link(racks, "s1-s3", "--rate", "none")
    assert classes(core.a_interface) == classes(core.b_interface) == ""
    set_link(racks, "h1-s1", "--rate", "30mbit", "--queue", "20kb")
    shown = output(racks, "h1", "tc", "qdisc", "show", "dev", "h1-eth0")
    assert "tbf" in shown
    assert "rate 30Mbit" in shown
    set_link(racks, "h1-s1", "--rate", "none")
    assert "tbf" not in output(racks, "h1", "tc", "qdisc", "show", "dev", "h1-eth0")


def test_a_link_goes_down_and_up(racks: NetRecord) -> None:
    link = links.find(racks, "h4-s2")
    set_link(racks, "s2-h4", "--down")
    assert links.find(records.load(racks.name), "h4-s2").down
    assert not links.is_up(racks, link)
    assert pings(racks, "h1", "h4", 3) == 0
    set_link(racks, "s2-h4", "--up")
    assert links.is_up(racks, link)
    # The controller has its routes back in a moment: until one is answered.
    assert " 1 received" in output(racks, "h1", "ping", "-n", "-c", "1", "-i", "0.2", "-w", "20", H4)
    assert pings(racks, "h1", "h4", 3) == 3
    assert records.load(racks.name).links == racks.links


def test_a_link_between_switches_goes_down_and_up(racks: NetRecord) -> None:
    link = links.find(racks, "s1-s3")
    set_link(racks, "s1-s3", "--down")
    assert not links.is_up(racks, link)
    assert pings(racks, "h1", "h3", 3) == 0
    assert pings(racks, "h1", "h2", 3) == 3  # the switches themselves go on
    set_link(racks, "s1-s3", "--up")
    assert links.is_up(racks, link)
    assert " 1 received" in output(racks, "h1", "ping", "-n", "-c", "1", "-i", "0.2", "-w", "20", H4)
    assert records.load(racks.name).links == racks.links


def test_a_delay_is_made_or_refused(racks: NetRecord) -> None:
    if links.delays_by(racks) is None:
        done = CliRunner().invoke(app, ["net", "link", "s1-s3", "--delay", "5ms", "--net", racks.name])
        assert isinstance(done.exception, NetworkError)
        assert "a delay needs a kernel with netem" in str(done.exception)
        return
    set_link(racks, "s1-s3", "--delay", "30ms")
    shown = output(racks, "h1", "ping", "-n", "-q", "-c", "3", "-i", "0.01", racks.host("h3").ip)
    least = float(shown.rpartition("= ")[2].split("/")[0])
    assert least >= 60.0  # there and back
    set_link(racks, "s1-s3", "--delay", "0ms")


# ---- Mininet's own command line, and pictures
def test_mininet_s_own_command_line(racks: NetRecord) -> None:
    iperf = "py net.iperf([h1, h3], seconds=1)\n" if shutil.which("iperf") else ""
    script = f"nodes\nnet\ndump\npingall\nh1 echo $((6*7)) at h1\nh1 ping -c 1 h4\n{iperf}exit\n"
    program = "from controller.cli import main; main()"
    before = {process.pid for process in processes.inside(racks)}
    done = subprocess.run(
        [sys.executable, "-c", program, "net", "cli", "--net", racks.name],
        input=script,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "h1 h2 h3 h4 s1 s2 s3" in said
    assert f"s1-3:{racks.token}-s3-1" in said
    assert "h4-eth0:10.0.1.2 pid=" in said
    assert "Results: 0% dropped (12/12 received)" in said
    assert "42 at 10.0.0.1" in said  # Mininet puts addresses for names
    assert "1 packets transmitted, 1 received" in said
    assert not iperf or re.search(r"Results: \['[\d.]+ \w+/sec', '[\d.]+ \w+/sec'\]", said), said
    # Its shells have gone, the network has not.
    assert {process.pid for process in processes.inside(racks)} == before
    assert records.load(racks.name).dead() == []


def test_it_is_drawn(racks: NetRecord, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "net.svg"
    done = CliRunner().invoke(
        app, ["net", "draw", "--out", str(out), "--seconds", "0.1", "--net", racks.name]
    )
    assert done.output == f"{out}: 3 switches, 4 hosts, 0 jobs\n"
    assert out.stat().st_size > 1000


# ---- side by side, and from a file
def test_two_networks_side_by_side() -> None:
    spec = describe("dumbbell", hosts=1)
    with manager.network(spec, name=name(), target="embedded", elements=64) as first:
        with manager.network(spec, name=name(), target="embedded", elements=64) as second:
            assert unreached(first) == unreached(second) == set()
            sent = [
                Path("/sys/class/net", each.switch("s1").ports[2], "statistics/tx_packets")
                for each in (first, second)
            ]
            before = [int(path.read_text()) for path in sent]
            assert pings(first, "h1", "h2", 5) == 5
            after = [int(path.read_text()) for path in sent]
            assert after[0] - before[0] >= 5
            assert after[1] == before[1]
        assert records.load(first.name).dead() == []
        assert pings(first, "h2", "h1", 3) == 3


def test_the_example_file_comes_up() -> None:
    said: list[str] = []
    spec = describe(str(EXAMPLE))
    loud = replace(spec.links[4], forth=replace(spec.links[4].forth, loss=1.0))
    spec = replace(spec, links=(*spec.links[:4], loud))
    with manager.network(spec, name=name(), target="embedded", elements=64, say=said.append) as record:
        assert "loss, duplicates, corruption: by the switch at the link's end" in said
        core = links.find(record, "s1-s2")
        assert "ceil 200Mbit" in classes(core.a_interface)
        assert "ceil 50Mbit" in classes(core.b_interface)
        assert pings(record, "h1", "h2", 3) == 3
        assert pings(record, "h1", "h3", 3) == 0  # as s1 to s2 loses all
