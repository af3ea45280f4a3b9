# SPDX-License-Identifier: Apache-2.0
"""A switch's routes: to hosts by all equal-cost ways, a flow by one of them; to switches by one path.

What aggregates goes to a switch's address and is admitted by the port that it comes in at, so `Fabric.path`
alone says how it travels. All ways are shortest paths of one graph: each hop is nearer, and nothing goes
round, but while switches are being told of a change (then the TTL ends it).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from controller.fabric import Fabric, Hop
from controller.p4info import Entity
from controller.program import Program

if TYPE_CHECKING:  # topologies imports us
    from topologies.record import NetRecord

RACK_BITS = 24
"""A rack's hosts share a prefix of this length (topologies/spec.py)."""
GROUPS = 1 << 16

Ways = tuple[Hop, ...]


def routes(fabric: Fabric, record: NetRecord, switch: str, program: Program) -> list[Entity]:
    """Return the next hops and routes of a switch, in an order in which they can be inserted.

    A node that it has no path to has no route. Where all hosts of a /24 that it reaches, two at least, have
    the same ways, one route stands for them; a packet to another address of it is refused further on.
    """
    here = record.switch(switch)
    macs = {host.name: host.mac for host in record.hosts} | {s.name: s.mac for s in record.switches}
    targets = _targets(fabric, record, switch)
    groups = _groups({ways for _, _, ways in targets if len(ways) > 1})
    found = [
        program.routing.next_hop(group, index, port=hop.port, src_mac=here.mac, dst_mac=macs[hop.node])
        for ways, group in groups.items()
        for index, hop in enumerate(ways)
    ]
    for ip, length, ways in targets:
        if ways in groups:
            found.append(
                program.routing.spread(ip, length, group=groups[ways], ways=len(ways), seed=here.device_id)
            )
        else:
            (hop,) = ways
            found.append(
                program.routing.route(ip, length, port=hop.port, src_mac=here.mac, dst_mac=macs[hop.node])
            )
    return found


def _targets(fabric: Fabric, record: NetRecord, switch: str) -> list[tuple[str, int, Ways]]:
    """Return (address, prefix length, ways) of all that a switch reaches."""
    racks: dict[str, list[tuple[str, Ways]]] = {}
    for host in record.hosts:
        ways = fabric.ways(switch, host.name)
        if ways:
            rack = str(IPv4Network(f"{host.ip}/{RACK_BITS}", strict=False).network_address)
            racks.setdefault(rack, []).append((host.ip, ways))
    found: list[tuple[str, int, Ways]] = []
    for rack, hosts in racks.items():
        alike = {ways for _, ways in hosts}
        if len(hosts) > 1 and len(alike) == 1:
            found.append((rack, RACK_BITS, alike.pop()))
        else:
            found += [(ip, 32, ways) for ip, ways in hosts]
    for other in record.switches:
        path = fabric.path(switch, other.name)
        if path:
            found.append((other.ip, 32, path[:1]))
    return found


def _groups(sets: Iterable[Ways]) -> dict[Ways, int]:
    """Number the sets of ways by their ports alone, so that one keeps its number when others come and go.

    A group that changed under its number would mislead the flows of routes that are still to be changed.
    """
    found: dict[Ways, int] = {}
    for ways in sorted(sets, key=lambda ways: [hop.port for hop in ways]):
        number = zlib.crc32(repr([hop.port for hop in ways]).encode()) % GROUPS
        while number in found.values():
            number = (number + 1) % GROUPS
        found[ways] = number
    return found
