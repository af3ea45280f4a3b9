# SPDX-License-Identifier: Apache-2.0
"""Shaped links: what a switch sends itself goes before what it routes."""

from __future__ import annotations

import re
import subprocess
import uuid

import pytest

from topologies import manager, processes
from topologies.shaping import commands
from topologies.spec import MAX_RATE_MBIT, MIN_RATE_MBIT, SWITCHES, Way, star

PINGS = 5


def sent(interface: str) -> dict[str, int]:
    """Packets that have left by each class of an interface."""
    shown = subprocess.run(
        ["tc", "-s", "class", "show", "dev", interface], capture_output=True, text=True, check=True
    )
    found = re.findall(r"^class htb (\S+) .*\n Sent \d+ bytes (\d+) pkt", shown.stdout, re.MULTILINE)
    return {name: int(packets) for name, packets in found}


def test_a_twentieth_is_left_to_the_rest() -> None:
    text = "\n".join(commands("x", Way(200.0), switch_end=True, qdiscs=("htb", "tbf")))
    assert "classid 1:10 htb rate 190mbit ceil 200mbit" in text
    assert "classid 1:20 htb rate 10mbit ceil 200mbit" in text
    assert f"match ip src {SWITCHES} flowid 1:10" in text
    assert text.count(f"limit {200_000_000 // 8 // 20 + 131_072}") == 2


@pytest.mark.root
@pytest.mark.parametrize("rate", [MIN_RATE_MBIT, MAX_RATE_MBIT])
@pytest.mark.parametrize("switch_end", [True, False])
def test_tc_takes_every_rate_that_a_link_may_have(rate: float, switch_end: bool) -> None:
    lines = commands("probe0", Way(rate), switch_end=switch_end, qdiscs=("htb", "tbf"))
    script = " && ".join(["ip link add probe0 type veth peer name probe1", *lines])
    done = subprocess.run(
        ["mnexec", "-n", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.root
def test_what_the_switch_sends_itself_goes_first() -> None:
    with manager.network(star(2, 100.0), name=f"shape-{uuid.uuid4().hex[:6]}", target="embedded") as record:
        interface = record.switch("s1").ports[1]
        found = []
        for address in (record.switch("s1").ip, record.host("h1").ip):
            before = sent(interface)
            host = "h1" if address == record.switch("s1").ip else "h2"
            words = ["ping", "-n", "-c", str(PINGS), "-i", "0.05", "-W", "10", address]
            subprocess.run(
                processes.host_argv(record, host, words), check=True, capture_output=True, timeout=60
            )
            after = sent(interface)
            found.append({name: after[name] - before[name] for name in ("1:10", "1:20")})
    # The answers of the switch; then what it routes to h1, and perhaps an answer to ARP.
    assert found[0]["1:10"] == PINGS
    assert found[1]["1:10"] == 0
    assert found[1]["1:20"] >= PINGS
