# SPDX-License-Identifier: Apache-2.0
"""A network as a graph: its switches, their links, the hosts that hang on them, without what is dead.

Paths are shortest paths; hosts forward nothing. To a host there may be several equal ones, between which
ordinary traffic is spread. To a switch there is one, that by the lowest ports: aggregation is admitted by the
port that it comes in at, so that port must be known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # topologies imports us
    from topologies.record import NetRecord

Cable = frozenset[tuple[str, int]]
"""A link by its two ends, (node, port) each."""


@dataclass(frozen=True)
class Hop:
    """The way out of a switch: its port, and the node and port at the other end."""

    port: int
    node: str
    peer_port: int


@dataclass(frozen=True)
class Dead:
    """What carries nothing now."""

    switches: frozenset[str] = frozenset()
    cables: frozenset[Cable] = frozenset()

    def told(self, before: Dead) -> list[str]:
        """Return in words what is dead here and was not before."""
        cables = (sorted(cable) for cable in self.cables - before.cables)
        return [
            *(f"switch {name}" for name in sorted(self.switches - before.switches)),
            *sorted(f"the link from {a[0]} port {a[1]} to {b[0]} port {b[1]}" for a, b in cables),
        ]


class Fabric:
    """The graph of a network's record, without the dead."""

    def __init__(self, record: NetRecord, dead: Dead = Dead()) -> None:
        self.switches = tuple(s.name for s in record.switches if s.name not in dead.switches)
        self.hops: dict[str, tuple[Hop, ...]] = {}
        """By switch: its ports to nodes that live, ascending."""
        self.home: dict[str, tuple[str, int]] = {}
        """By host: the switch and the port that it hangs on."""
        hosts = {host.name for host in record.hosts}
        living = {*hosts, *self.switches}
        found: dict[str, list[Hop]] = {name: [] for name in self.switches}
        for link in record.links:
            a, b = link.a, link.b
            if frozenset({(a.node, a.port), (b.node, b.port)}) in dead.cables:
                continue
            for here, there in ((a, b), (b, a)):
                if here.node in found and there.node in living:
                    found[here.node].append(Hop(here.port, there.node, there.port))
                    if there.node in hosts:
                        self.home[there.node] = (here.node, here.port)
        for name, hops in found.items():
            self.hops[name] = tuple(sorted(hops, key=lambda hop: hop.port))
        self.distances = cache(self._search)
        """By node: the number of links to it from every switch that reaches it."""

    def _search(self, target: str) -> dict[str, int]:
        """Return the number of links from every switch that reaches `target` to it."""
        found: dict[str, int] = {}
        if target in self.home:
            found[self.home[target][0]] = 1
        elif target in self.hops:
            found[target] = 0
        waiting = deque(found)
        while waiting:
            node = waiting.popleft()
            for hop in self.hops[node]:
                if hop.node in self.hops and hop.node not in found:
                    found[hop.node] = found[node] + 1
                    waiting.append(hop.node)
        return found

    def distance(self, switch: str, target: str) -> int | None:
        """Return the links from a switch to a node on a shortest path, None where there is none."""
        return self.distances(target).get(switch)

    def ways(self, switch: str, target: str) -> tuple[Hop, ...]:
        """Return the first hops of all shortest paths from a switch to another node, by port; () for none."""
        distances = self.distances(target)
        here = distances.get(switch)
        if here is None or switch == target:
            return ()
        if here == 1:
            return tuple(hop for hop in self.hops[switch] if hop.node == target)
        return tuple(hop for hop in self.hops[switch] if distances.get(hop.node) == here - 1)

    def path(self, switch: str, target: str) -> tuple[Hop, ...]:
        """Return the path of a packet from a switch to another node by the lowest ports; () for none."""
        found: list[Hop] = []
        while switch != target:
            ways = self.ways(switch, target)
            if not ways:
                return ()
            found.append(ways[0])
            switch = ways[0].node
        return tuple(found)

    def reaches(self, hosts: Iterable[str], switch: str) -> bool:
        """Say whether all these hosts have a path to a switch."""
        return all(
            host in self.home and self.distance(self.home[host][0], switch) is not None for host in hosts
        )
