# SPDX-License-Identifier: Apache-2.0
"""What each link carried of a job, from counters that take every packet once, super-packets apart.

What comes in at a switch's port the program counts there, by verdict and with whole frames. What leaves to a
host is counted by the switch process as it sends, or where it tells nothing, as bmv2, which sends packets one
by one, by the interface; answers to ARP and pings, as long as what they answer, are taken off.

What was sent again is told by who had it already: a switch that sums counts it by worker and by leaf.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switch.stats_socket import read_stats
from topologies.record import NetRecord, stats_socket
from wire.control import ControlClient, at
from wire.verdicts import Verdict

from .cases import DOWN, UP, Carried, Flow, Flows

INTERFACES = Path("/sys/class/net")
FIRST = (
    Verdict.ABSORBED,
    Verdict.COMPLETED,
    Verdict.PARTIAL_SENT,
    Verdict.RESULT_STORED,
    Verdict.ROUTED,
)
"""Of packets of a job that come in for the first time; nothing else is routed in these networks."""
AGAIN = (
    Verdict.REPLAYED,
    Verdict.DUPLICATE,
    Verdict.STALE,
    Verdict.OLD_EPOCH,
    Verdict.PARTIAL_RESENT,
    Verdict.RESULT_UNEXPECTED,
)
PAUSE_S = 0.1
"""Between readings that are to be alike."""
MOST_READINGS = 10
ANSWERED = (Verdict.ARP_ANSWERED, Verdict.PING_ANSWERED)


Links = Mapping[tuple[str, str], Carried]
"""By link (h1-s1, s1-s3) and way."""


@dataclass(frozen=True)
class Reading:
    """All counters at one time, or what came between two of them."""

    links: Links
    again: Mapping[Flow, Carried]
    """Of `links`, what had come before: sent again, or results sent again for it."""

    def since(self, before: Reading) -> Reading:
        """Return what came since."""
        return Reading(_minus(self.links, before.links), _minus(self.again, before.again))

    def first(self, flows: Flows) -> Links:
        """Return what links carried without what was sent again; right where nothing was lost.

        Of several links above a node one is used: it is that with the most packets.
        """
        found = dict(self.links)
        for (node, way), passing in flows.items():
            above = [key for key in found if key[1] == way and key[0].partition("-")[0] == node]
            used = max(above, key=lambda key: found[key])
            for flow in passing:
                packets, octets = self.again.get(flow, (0, 0))
                found[used] = found[used][0] - packets, found[used][1] - octets
        return found


def settled(record: NetRecord, control: ControlClient, job: str) -> Reading:
    """Read all counters once what is under way has come in: until they stay the same for a while.

    Raises ControlError, StatsSocketError, OSError.
    """
    found = read(record, control, job)
    for _ in range(MOST_READINGS):
        time.sleep(PAUSE_S)
        last, found = found, read(record, control, job)
        if last == found:
            break
    return found


def read(record: NetRecord, control: ControlClient, job: str) -> Reading:
    """Read the counters of all switches and of a job. Raises ControlError, StatsSocketError, OSError."""
    ports = {
        switch.name: control.call("GET", at("switches", switch.name, "counters"))["ports"]
        for switch in record.switches
    }
    sent = {switch.name: _sent(record, switch.name) for switch in record.switches}
    hosts = {host.name for host in record.hosts}
    links: dict[tuple[str, str], Carried] = {}
    for link in record.links:  # from below to above, as topologies.builders lays them
        above = ports[link.b.node][str(link.b.port)]["in"]
        links[link.name, UP] = _sum(above, (*FIRST, *AGAIN))
        if link.a.node in hosts:
            packets, octets = sent[link.b.node][link.b.port]
            less, fewer = _sum(above, ANSWERED)
            links[link.name, DOWN] = (packets - less, octets - fewer)
        else:
            links[link.name, DOWN] = _sum(ports[link.a.node][str(link.a.port)]["in"], (*FIRST, *AGAIN))
    told = control.call("GET", at("jobs", job, "counters"))
    inputs = {rank["host"]: rank["verdicts"] for rank in told["ranks"]} | told["leaves"]
    again: dict[Flow, Carried] = {}
    for name, verdicts in inputs.items():
        again[name, UP] = _sum(verdicts, AGAIN)
        again[name, DOWN] = _sum(verdicts, [Verdict.REPLAYED])
    return Reading(links, again)


def _minus(now: Links, before: Links) -> Links:
    return {
        key: (packets - before.get(key, (0, 0))[0], octets - before.get(key, (0, 0))[1])
        for key, (packets, octets) in now.items()
    }


def _sum(counts: Mapping[str, Any], verdicts: Iterable[Verdict]) -> Carried:
    found = [counts.get(verdict.name.lower(), (0, 0)) for verdict in verdicts]
    return sum(packets for packets, _ in found), sum(octets for _, octets in found)


def _sent(record: NetRecord, switch: str) -> dict[int, Carried]:
    """Return what a switch has sent, by port."""
    found = record.switch(switch)
    path = stats_socket(record.directory, found.device_id)
    if path.exists():
        told = read_stats(path)["ports"]
        return {port: (told[str(port)]["tx_packets"], told[str(port)]["tx_bytes"]) for port in found.ports}
    return {
        port: (_interface(name, "tx_packets"), _interface(name, "tx_bytes"))
        for port, name in found.ports.items()
    }


def _interface(name: str, counter: str) -> int:
    return int((INTERFACES / name / "statistics" / counter).read_text())
