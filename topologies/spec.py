# SPDX-License-Identifier: Apache-2.0
"""What a network consists of: hosts, switches, links and their addresses, all fixed by the description alone.

Addresses: host h of rack r has 10.0.r.h/16, switch d has 10.0.255.d. One /16 holds them all, so a host
reaches every address on-link; the switch answers ARP for each and routes. MACs carry the IPv4 address:
02:00 for hosts, 02:01 for switches. The kernel's end of a switch port has a MAC of its own (02:02): with
the switch's, the root namespace would take the switch's packets for its own and answer or forward them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from topologies.errors import SpecError
from wire.constants import CPU_PORT, MAX_WORKERS

PREFIX_LEN = 16
MTU = 9000
"""Bytes of IP packet a link carries; a 256-element frame needs 1,062."""
MAX_DELAY_MS = 10_000.0
MIN_RATE_MBIT, MAX_RATE_MBIT = 0.01, 1e6
"""At less a packet of MTU would take seconds; more than this no kernel passes, and tc's numbers end."""
MAX_QUEUE_BYTES = 1 << 30
NODE_NAME = re.compile(r"[a-z][a-z0-9]{0,4}")
"""Short, as `pTTTT-NODE-PORT` must fit the kernel's 15 characters of an interface name."""


def host_address(rack: int, number: int) -> str:
    """Return the IPv4 address of host 1..254 of rack 0..254."""
    if not (0 <= rack <= 254 and 1 <= number <= 254):
        raise SpecError(f"host {number} of rack {rack}", "racks are 0..254 and their hosts 1..254")
    return f"10.0.{rack}.{number}"


SWITCHES = "10.0.255.0/24"
"""What holds the addresses of all switches, and no host's."""


def switch_address(device_id: int) -> str:
    """Return the IPv4 address of the switch with device id 1..254."""
    if not 1 <= device_id <= 254:
        raise SpecError(f"switch {device_id}", "device ids are 1..254")
    return f"10.0.255.{device_id}"


def mac_of(kind: int, ip: str) -> str:
    """Return 02:KIND followed by the four bytes of the IPv4 address."""
    return ":".join(f"{byte:02x}" for byte in (2, kind, *IPv4Address(ip).packed))


@dataclass(frozen=True)
class HostSpec:
    """A host with one interface, NAME-eth0, in a network namespace of its own."""

    name: str
    ip: str
    mac: str
    prefix_len: int = PREFIX_LEN


@dataclass(frozen=True)
class SwitchSpec:
    """A switch; `ip` is where aggregation is addressed, `mac` what it sends from and answers ARP with."""

    name: str
    device_id: int
    ip: str
    mac: str


@dataclass(frozen=True)
class End:
    """One end of a link: a node's name and its port (hosts: 0; switches: from 1)."""

    node: str
    port: int


@dataclass(frozen=True)
class Way:
    """What one direction of a link does to its packets; by default nothing at all.

    A shaped way out of a switch lets what switches send themselves (results, partials) go first.
    """

    rate_mbit: float | None = None
    """10^6 bit/s of Ethernet frames; None leaves it unshaped."""
    delay_ms: float = 0.0
    loss: float = 0.0
    """Share of the packets, 0..1, as are the next two."""
    duplicate: float = 0.0
    corrupt: float = 0.0
    """Aggregation packets alone, where the switch does it: others it leaves whole."""
    queue_bytes: int | None = None
    """What waits for a rate, at most; None is 50 ms of it and 128 KiB."""

    def problem(self) -> str | None:
        """Say what cannot be built, None when all can."""
        if self.rate_mbit is not None and not MIN_RATE_MBIT <= self.rate_mbit <= MAX_RATE_MBIT:
            return "a rate is 10kbit to 1tbit, or none"
        if not 0 <= self.delay_ms <= MAX_DELAY_MS:
            return f"a delay is 0 to {MAX_DELAY_MS / 1000:g} s"
        for what in ("loss", "duplicate", "corrupt"):
            if not 0 <= getattr(self, what) <= 1:
                return f"{what} is a share of the packets, 0 % to 100 %"
        if self.queue_bytes is not None and self.queue_bytes < MTU:
            return f"a queue holds {MTU} bytes at least, one packet of the greatest size"
        if self.queue_bytes is not None and self.queue_bytes > MAX_QUEUE_BYTES:
            return "a queue holds 1024mb at most"
        if self.queue_bytes is not None and self.rate_mbit is None:
            return "a queue without a rate never fills: give the rate too"
        return None


PLAIN = Way()


@dataclass(frozen=True)
class LinkSpec:
    """A cable between two ends: `forth` is the way from a to b, `back` that from b to a."""

    a: End
    b: End
    forth: Way = PLAIN
    back: Way = PLAIN

    @property
    def rate_mbit(self) -> float | None:
        """The lower of both ways' rates."""
        return lower_rate(self.forth, self.back)


def lower_rate(forth: Way, back: Way) -> float | None:
    """Return the lower rate of two ways in Mbit/s, None when neither has one."""
    return min((way.rate_mbit for way in (forth, back) if way.rate_mbit is not None), default=None)


@dataclass(frozen=True)
class NetworkSpec:
    """A whole network, checked when made: SpecError for what cannot be built."""

    topology: str
    hosts: tuple[HostSpec, ...]
    switches: tuple[SwitchSpec, ...]
    links: tuple[LinkSpec, ...]

    def __post_init__(self) -> None:
        nodes: list[HostSpec | SwitchSpec] = [*self.hosts, *self.switches]
        names = [node.name for node in nodes]
        unique: dict[str, list[object]] = {
            "name": [node.name for node in nodes],
            "address": [node.ip for node in nodes],
            "MAC address": [node.mac for node in nodes],
            "device id": [switch.device_id for switch in self.switches],
            "end of a link": [end for link in self.links for end in (link.a, link.b)],
        }
        for kind, values in unique.items():
            for value, count in Counter(values).items():
                if count > 1:
                    raise SpecError(str(value), f"the {kind} is used twice")
        for name in names:
            if not NODE_NAME.fullmatch(name):
                raise SpecError(name, "a node's name is a letter and at most four letters or digits")
        hosts = {host.name for host in self.hosts}
        for link in self.links:
            for end in (link.a, link.b):
                if end.node not in names:
                    raise SpecError(end.node, "a link ends there, but no such node is described")
                if end.node in hosts and end.port != 0:
                    raise SpecError(end.node, "a host has port 0 only")
                if end.node not in hosts and not 1 <= end.port < CPU_PORT:
                    raise SpecError(end.node, f"a switch's ports are 1..{CPU_PORT - 1}, not {end.port}")
            for way in (link.forth, link.back):
                if (problem := way.problem()) is not None:
                    raise SpecError(f"{link.a.node}-{link.b.node}", problem)
        linked = {end.node for link in self.links for end in (link.a, link.b)}
        for host in sorted(hosts - linked):
            raise SpecError(host, "the host has no link")
        switches = [switch.name for switch in self.switches]
        if (apart := unreachable([*switches, *sorted(hosts)], self.links)) is not None:
            raise SpecError(apart, f"no links lead from {switches[0]} to it")


def unreachable(nodes: Sequence[str], links: Iterable[LinkSpec]) -> str | None:
    """Return the first node to which no links lead from the first one of all; None where they lead to all."""
    neighbours: dict[str, list[str]] = {node: [] for node in nodes}
    for link in links:
        neighbours[link.a.node].append(link.b.node)
        neighbours[link.b.node].append(link.a.node)
    found, ring = set(nodes[:1]), list(nodes[:1])
    while ring:
        ring = [node for name in ring for node in neighbours[name] if node not in found]
        found |= {*ring}
    return next((node for node in nodes if node not in found), None)


def star(hosts: int = 4, rate_mbit: float | None = None) -> NetworkSpec:
    """Describe one switch s1 with hosts h1..hN on its ports 1..N.

    Raises SpecError when N is not in 1..64: a slot has one bit per worker and 64 of them.
    """
    if not 1 <= hosts <= MAX_WORKERS:
        raise SpecError(
            f"--hosts {hosts}", f"a star has 1 to {MAX_WORKERS} hosts, the bits that one switch's slot has"
        )
    switch_ip, way = switch_address(1), Way(rate_mbit)
    return NetworkSpec(
        topology="star",
        hosts=tuple(
            HostSpec(f"h{n}", host_address(0, n), mac_of(0, host_address(0, n))) for n in range(1, hosts + 1)
        ),
        switches=(SwitchSpec("s1", 1, switch_ip, mac_of(1, switch_ip)),),
        links=tuple(LinkSpec(End(f"h{n}", 0), End("s1", n), way, way) for n in range(1, hosts + 1)),
    )
