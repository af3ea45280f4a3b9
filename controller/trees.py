# SPDX-License-Identifier: Apache-2.0
"""Where a job's packets are summed: its aggregation tree, chosen from the network (docs/hierarchy.md).

Of all trees that can be had, that with the fewest packets on the links between switches is taken: each link
carries one partial (and one result) for the workers below it if the switch under it sums, else one for each.
Of equal ones the one whose farthest worker is nearest to the root, then that on the least used switches.
A switch at which only one flow comes in has nothing to sum, and is left out: it routes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def above(self, host: str) -> Node:
        """Return the node that a host's worker contributes to; KeyError for a host of another job."""
        for node in self.nodes:
            if host in node.hosts:
                return node
        raise KeyError(host)


Usable = Callable[[str, int], bool]
"""Says whether a switch can sum for the job with so many inputs."""
Key = tuple[int, int, int, int, int, tuple[int, ...]]
"""What makes one tree better than another (less is better): inputs that find no place, packets on links
between switches, switches with one input, links from the farthest worker to the root, load, places in the
network's record."""


def plan(fabric: Fabric, hosts: Sequence[str], usable: Usable, load: Mapping[str, int]) -> Tree | None:
    """Return the best tree for workers on these hosts, in the order of their ranks; None where there is none.

    `load` says how much others use a switch. The tree follows from the set of switches that sum, which begins
    with the racks of several workers. One switch comes, goes or takes another's place as long as that makes
    the tree better: the iterated 1-Steiner search (Kahng, Robins, IEEE Trans. CAD 11(7), 1992).
    """
    if any(host not in fabric.home for host in hosts):
        return None
    candidates = [switch for switch in fabric.switches if fabric.reaches(hosts, switch) and usable(switch, 1)]
    racks = Counter(fabric.home[host][0] for host in hosts)
    chosen = frozenset(switch for switch in candidates if racks[switch] > 1)
    best = _lay(fabric, hosts, chosen, usable, load) if chosen else None
    while True:
        steps = {frozenset(step) for step in _steps(chosen, candidates, racks) if step}
        laid = [_lay(fabric, hosts, step, usable, load) for step in steps]
        found = min(laid, key=lambda one: one[0], default=None)
        if found is None or (best is not None and found[0] >= best[0]):
            break
        best, chosen = found, frozenset(found[1].switches)
    return best[1] if best is not None and best[0][0] == 0 else None


def _steps(chosen: frozenset[str], candidates: Sequence[str], racks: Mapping[str, int]) -> Iterator[set[str]]:
    """Yield the sets that differ by one switch, which comes, goes, or replaces one that is no rack."""
    new = [switch for switch in candidates if switch not in chosen]
    for switch in chosen:
        yield {*chosen} - {switch}
    for switch in new:
        yield {*chosen, switch}
        for other in chosen:
            if racks.get(other, 0) < 2:
                yield {*chosen, switch} - {other}


def _lay(
    fabric: Fabric, hosts: Sequence[str], summing: frozenset[str], usable: Usable, load: Mapping[str, int]
) -> tuple[Key, Tree]:
    """Return the best tree whose switches are these, with its key: partials and packets go to the nearest.

    Its root is the one that the farthest worker is nearest to; from there it grows as in Prim's algorithm.
    """
    far = {switch: fabric.distances(switch) for switch in summing}
    place = {switch: at for at, switch in enumerate(fabric.switches)}
    homes = {host: fabric.home[host][0] for host in hosts}
    racks = set(homes.values())
    root = min(summing, key=lambda s: (max(far[s][home] for home in racks), load.get(s, 0), place[s]))
    depth, parents = {root: 0}, {}
    nearest = {s: (far[root][s], 0, root) for s in summing if s != root}
    """By switch that is not in the tree: how far its parent is, how deep that is, and its name."""
    while nearest:
        switch = min(nearest, key=lambda s: (nearest[s], place[s]))
        step, above, parent = nearest.pop(switch)
        parents[switch], depth[switch] = parent, above + step
        for other in nearest:
            nearest[other] = min(nearest[other], (far[switch][other], depth[switch], switch))
    inputs = Counter(parents.values())
    own: dict[str, list[str]] = {switch: [] for switch in depth}
    misfits = sum(not usable(switch, inputs[switch]) for switch in depth)

    def nearest_first(home: str) -> list[str]:
        return sorted(depth, key=lambda s: (far[s][home], depth[s], load.get(s, 0), place[s]))

    # A rack that sums takes its own workers.
    near = {home: [home] if home in depth else nearest_first(home) for home in racks}
    for host, home in homes.items():
        fitting = (s for s in near[home] if inputs[s] < MAX_WORKERS and usable(s, inputs[s] + 1))
        switch = next(fitting, "")
        if not switch:
            misfits, switch = misfits + 1, near[home][0]
        inputs[switch] += 1
        own[switch].append(host)
    idle = sum(inputs[switch] < 2 for switch in depth) if len(depth) > 1 else 0
    leaves: dict[str, list[str]] = {switch: [] for switch in depth}
    for switch in sorted(parents, key=place.__getitem__):
        leaves[parents[switch]].append(switch)
    order = sorted(depth, key=lambda s: (depth[s], place[s]))
    tree = Tree(tuple(Node(s, tuple(own[s]), tuple(leaves[s]), parents.get(s)) for s in order))
    traversals, deepest = cost(fabric, tree)
    weight = sum(load.get(switch, 0) for switch in depth)
    return (misfits, traversals, idle, deepest, weight, tuple(place[s] for s in order)), tree


def cost(fabric: Fabric, tree: Tree) -> tuple[int, int]:
    """Return how often packets of a chunk cross links between switches on their way up, and the longest way.

    All hosts and switches of the tree have a path to their parents.
    """
    depth: dict[str | None, int] = {None: 0}
    traversals = deepest = 0
    for node in tree.nodes:
        up = 0 if node.parent is None else fabric.distance(node.switch, node.parent) or 0
        depth[node.switch] = depth[node.parent] + up
        steps = [fabric.distance(fabric.home[host][0], node.switch) or 0 for host in node.hosts]
        traversals += up + sum(steps)
        deepest = max([deepest, *(depth[node.switch] + step for step in steps)])
    return traversals, deepest
