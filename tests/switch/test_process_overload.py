# SPDX-License-Identifier: Apache-2.0
"""A switch that gets more than it can take: what is lost is counted, and the process does not grow."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switch.stats_socket import read_stats
from tests.switch.p4rt import INSERT, Controller, ethernet, table
from tests.switch.test_process import Process, running
from tests.switch.veth import LIMIT, Link

pytestmark = pytest.mark.root

GROWTH_KB = 40 << 10
"""What a port's send queue and the heap may take at most."""


def resident_kb(process: Process) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert found is not None
    return int(found[1])


Condition = Callable[[dict[str, Any]], bool]


def once(condition: Condition, path: Path) -> list[dict[str, Any]]:
    """The counters of the switch's ports, as soon as the condition holds."""
    end = time.monotonic() + LIMIT
    while not condition(stats := read_stats(path)):
        assert time.monotonic() < end, f"after {LIMIT:g} s: {stats}"
        time.sleep(0.05)
    return list(stats["ports"].values())


def accounted_for(frames: int) -> Condition:
    """Whether each frame that was sent to port 0, for port 1, is in one of the counters, and only one."""

    def condition(stats: dict[str, Any]) -> bool:
        there, back = stats["ports"]["0"], stats["ports"]["1"]
        left = there["rx_packets"] == back["tx_packets"] + back["tx_dropped"]
        return bool(left and there["rx_packets"] + there["rx_dropped"] == frames)

    return condition


def drain(link: Link) -> int:
    """How many frames come until none does for a while."""
    count = 0
    while select.select([link.socket], [], [], 0.5)[0]:
        link.socket.recv(65536)
        count += 1
    return count


def test_what_comes_too_fast_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    with running(2, "--no-p4", "--stats-socket", str(path)) as (switch, links):
        client = Controller(switch.address)
        client.set_pipeline()
        client.write(table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))))
        before, frame = resident_kb(switch), ethernet(1).ljust(1000, b"\0")
        switch.process.send_signal(signal.SIGSTOP)
        for _ in range(40_000):
            links[0].send(frame)
        switch.process.send_signal(signal.SIGCONT)
        there, _ = once(accounted_for(40_000), path)
        assert there["rx_dropped"] > 1000
        assert read_stats(path)["program"]["received"] == there["rx_packets"]
        assert resident_kb(switch) < before + GROWTH_KB
        client.close()
        assert switch.end()[0] == 0


def test_what_a_slow_link_does_not_take_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    with running(2, "--no-p4", "--stats-socket", str(path)) as (switch, links):
        shape = ["tc", "qdisc", "add", "dev", links[1].port, "root", "tbf", "rate", "20mbit"]
        subprocess.run([*shape, "burst", "5kb", "limit", "50kb"], check=True)
        client = Controller(switch.address)
        client.set_pipeline()
        client.write(table(INSERT, client.entry("l2", {1: ("exact", 1)}, client.action("forward", 1))))
        before, frame = resident_kb(switch), ethernet(1).ljust(1000, b"\0")
        for _ in range(10_000):
            links[0].send(frame)
        arrived = drain(links[1])
        _, back = once(accounted_for(10_000), path)
        assert back["tx_packets"] == arrived
        assert back["tx_dropped"] > 1000
        assert resident_kb(switch) < before + GROWTH_KB
        client.close()


def test_a_controller_that_does_not_read(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    with running(1, "--no-p4", "--stats-socket", str(path)) as (switch, links):
        client = Controller(switch.address)
        client.set_pipeline()
        client.write(table(INSERT, client.entry("l2", {1: ("exact", 2)}, client.action("to_controller", 3))))
        client.close()  # nobody is primary from now on
        before, frame = resident_kb(switch), ethernet(2).ljust(1400, b"\0")
        for _ in range(20_000):
            links[0].send(frame)

        def all_lost(s: dict[str, Any]) -> bool:
            return bool(s["packet_in_lost"] + s["ports"]["0"]["rx_dropped"] >= 20_000)

        (port,) = once(all_lost, path)
        assert read_stats(path)["packet_in_lost"] == port["rx_packets"]
        assert resident_kb(switch) < before + GROWTH_KB
