# SPDX-License-Identifier: Apache-2.0
"""A tree laid into a network: by which ports each switch's inputs come in, and its partials go out.

What passes a switch that is left out is routed there, by Fabric.path: the ports follow from that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.fabric import Fabric, Hop
from controller.trees import Node, Tree

if TYPE_CHECKING:  # topologies imports us
    from topologies.record import NetRecord


@dataclass(frozen=True)
class Input:
    """A worker's host or a leaf switch as a switch sees it."""

    name: str
    ip: str
    mac: str
    """Of the next hop towards it: its own where it hangs on that port."""
    port: int
    """The switch's port that its packets come in at, and its copies of results go out of."""


@dataclass(frozen=True)
class Upward:
    """The way from a leaf to its parent."""

    port: int
    """The leaf's port that partials go out of."""
    mac: str
    """Of the next hop."""
    parent_ip: str
    parent_port: int
    """The leaf's port that results come in at."""


@dataclass(frozen=True)
class Wiring:
    """One switch of a tree: its inputs (workers by rank, then leaves), and its way up if it has a parent."""

    switch: str
    inputs: tuple[Input, ...]
    upward: Upward | None


def wire(tree: Tree, fabric: Fabric, record: NetRecord) -> tuple[Wiring, ...] | None:
    """Return the wiring of each switch of a tree, in its order; None where a path of it is cut."""
    if not {*tree.switches} <= {*fabric.switches} or not tree.hosts <= fabric.home.keys():
        return None
    found: list[Wiring] = []
    for node in tree.nodes:
        inputs = [_host_input(fabric, record, host, node.switch) for host in node.hosts]
        inputs += [_leaf_input(fabric, record, leaf, node.switch) for leaf in node.leaves]
        known = tuple(one for one in inputs if one is not None)
        upward = _upward(fabric, record, node)
        if len(known) < len(inputs) or (node.parent is not None and upward is None):
            return None
        found.append(Wiring(node.switch, known, upward))
    return tuple(found)


def _host_input(fabric: Fabric, record: NetRecord, host: str, switch: str) -> Input | None:
    home, port = fabric.home[host]
    known = record.host(host)
    if home == switch:
        return Input(host, known.ip, known.mac, port)
    arrival = _arrival(fabric, record, home, switch)
    return None if arrival is None else Input(host, known.ip, *arrival)


def _leaf_input(fabric: Fabric, record: NetRecord, leaf: str, switch: str) -> Input | None:
    arrival = _arrival(fabric, record, leaf, switch)
    return None if arrival is None else Input(leaf, record.switch(leaf).ip, *arrival)


def _arrival(fabric: Fabric, record: NetRecord, start: str, switch: str) -> tuple[str, int] | None:
    """Return the last hop's MAC, and the port of `switch` at which packets from `start` come in."""
    path = fabric.path(start, switch)
    return (record.switch(_before(path, start)).mac, path[-1].peer_port) if path else None


def _before(path: tuple[Hop, ...], start: str) -> str:
    """Return the last switch of a path before its end."""
    return path[-2].node if len(path) > 1 else start


def _upward(fabric: Fabric, record: NetRecord, node: Node) -> Upward | None:
    if node.parent is None:
        return None
    up = fabric.path(node.switch, node.parent)
    if not up:
        return None
    # The parent sends back to the neighbor that our packets come from; that one routes.
    neighbor = _before(up, node.switch)
    down = up if neighbor == node.switch else fabric.path(neighbor, node.switch)
    if not down:
        return None
    arrival = up[-1].port if neighbor == node.switch else down[-1].peer_port
    first = record.switch(up[0].node)
    return Upward(up[0].port, first.mac, record.switch(node.parent).ip, arrival)
