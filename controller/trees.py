# SPDX-License-Identifier: Apache-2.0
"""Where a job's packets are summed: its aggregation tree, chosen from the network (docs/hierarchy.md).

Of all trees that can be had, that with the fewest packets on the links between switches is taken: each link
carries one partial (and one result) for the workers below it if the switch under it sums, else one for each.
Of equal ones the one whose farthest worker is nearest to the root, then that on the least used switches.
A switch at which only one flow comes in has nothing to sum, and is left out: it routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controller.fabric import Fabric
from wire.constants import MAX_WORKERS


@dataclass(frozen=True)
class Node:
    """A switch that sums for a job."""

    switch: str
    hosts: tuple[str, ...]
    """Whose workers contribute here, in the order of their ranks."""
    leaves: tuple[str, ...]
    """Switches that send their partials here."""
    parent: str | None
    """The switch that this one sends its partials to; None at the root."""


@dataclass(frozen=True)
class Tree:
    """A job's switches, parents before their leaves; the first is the root."""

    nodes: tuple[Node, ...]

    @property
    def root(self) -> Node:
        """The switch that completes the sums."""
        return self.nodes[0]

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of its switches."""
        return tuple(node.switch for node in self.nodes)

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts whose workers contribute."""
        return frozenset(host for node in self.nodes for host in node.hosts)

    def node(self, switch: str) -> Node:
        """Return the node of a switch; KeyError if it sums nothing here."""
        for node in self.nodes:
            if node.switch == switch:
                return node
        raise KeyError(switch)

    def above(self, host: str) -> Node:
        """Return the node that a host's worker contributes to; KeyError for a host of another job."""
        for node in self.nodes:
            if host in node.hosts:
                return node
        raise KeyError(host)


def plan(
    fabric: Fabric,
    hosts: Sequence[str],
    usable: Callable[[str, int], bool],
    load: Mapping[str, int],
) -> Tree | None:
    """Return the best tree for workers on these hosts, in the order of their ranks; None where there is none.

    `usable` says whether a switch can sum for the job with so many inputs, `load` how much others use it.
    """
    best: tuple[tuple[int, int, int, str], Tree] | None = None
    for root in fabric.switches:
        tree = _rooted(fabric, hosts, root, usable, load) if fabric.reaches(hosts, root) else None
        if tree is None:
            continue
        key = (
            _traversals(fabric, tree),
            max(fabric.distance(fabric.home[host][0], tree.root.switch) or 0 for host in hosts),
            sum(load.get(switch, 0) for switch in tree.switches),
            tree.root.switch,
        )
        if best is None or key < best[0]:
            best = key, tree
    return None if best is None else best[1]


def _rooted(
    fabric: Fabric,
    hosts: Sequence[str],
    root: str,
    usable: Callable[[str, int], bool],
    load: Mapping[str, int],
) -> Tree | None:
    """Return the tree towards a root; None if the root cannot sum."""
    homes: dict[str, list[str]] = {}
    for host in hosts:
        homes.setdefault(fabric.home[host][0], []).append(host)
    towards = _next_switches(fabric, list(homes), root, load)
    # What comes in at each switch: hosts, and switches that sum. Farthest first: below comes before above.
    inputs: dict[str, tuple[list[str], list[str]]] = {switch: ([], []) for switch in towards}
    inputs[root] = ([], [])
    for switch, own in homes.items():
        inputs[switch][0].extend(own)
    summing: dict[str, tuple[list[str], list[str]]] = {}
    parents: dict[str, str | None] = {}
    for switch in sorted(inputs, key=lambda s: (-(fabric.distance(s, root) or 0), s)):
        own, leaves = inputs[switch]
        count = len(own) + len(leaves)
        if switch == root:
            if count > MAX_WORKERS or not usable(root, count):
                return None
            summing[root], parents[root] = (own, leaves), None
            break
        if count > 1 and count <= MAX_WORKERS and usable(switch, count):
            summing[switch] = own, leaves
            own, leaves = [], [switch]
        above = inputs[towards[switch]]
        above[0].extend(own)
        above[1].extend(leaves)
    for switch, (_, leaves) in summing.items():
        for leaf in leaves:
            parents[leaf] = switch
    own, leaves = summing[root]
    if not own and len(leaves) == 1:  # the one below completes the sums itself
        del summing[root]
        root = leaves[0]
        parents[root] = None
    order = {host: rank for rank, host in enumerate(hosts)}
    nodes: list[Node] = []
    waiting = [root]
    while waiting:
        switch = waiting.pop(0)
        own, leaves = summing[switch]
        ranked = tuple(sorted(own, key=lambda host: order[host]))
        nodes.append(Node(switch, ranked, tuple(sorted(leaves)), parents[switch]))
        waiting += sorted(leaves)
    return Tree(tuple(nodes))


def _next_switches(
    fabric: Fabric, homes: Sequence[str], root: str, load: Mapping[str, int]
) -> dict[str, str]:
    """Return for each switch on the way to the root the next one: shared where it can be, else the idlest."""
    found: dict[str, str] = {}
    waiting = sorted(homes, key=lambda s: (-(fabric.distance(s, root) or 0), s))
    while waiting:
        switch = waiting.pop(0)
        if switch == root or switch in found:
            continue
        ways = [hop.node for hop in fabric.ways(switch, root)]
        taken = set(found.values()) | set(found)
        found[switch] = min(ways, key=lambda s: (s not in taken, load.get(s, 0), ways.index(s)))
        waiting.append(found[switch])
        waiting.sort(key=lambda s: (-(fabric.distance(s, root) or 0), s))
    return found


def _traversals(fabric: Fabric, tree: Tree) -> int:
    """Return how many packets of one chunk cross links between switches on the way up."""
    total = 0
    for node in tree.nodes:
        ends = [fabric.home[host][0] for host in node.hosts] + list(node.leaves)
        total += sum(fabric.distance(end, node.switch) or 0 for end in ends)
    return total
