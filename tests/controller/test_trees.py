# SPDX-License-Identifier: Apache-2.0
"""Which switches sum for a job, and by which ports: against all trees that there are, and the routes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fabric import Cable, Dead, Fabric
from controller.trees import Node, Tree, plan
from controller.wiring import Wiring, wire
from tests.dataplane.wired import network
from topologies import builders
from topologies.record import NetRecord, new_record
from topologies.spec import NetworkSpec, star

BUILT_IN: dict[str, NetworkSpec] = {
    "star": star(4),
    "racks": builders.racks(3),
    "leaf-spine": builders.leaf_spine(3, 2, 2),
    "tree": builders.tree(2, 2),
    "dumbbell": builders.dumbbell(3),
}


def record_of(spec: NetworkSpec) -> NetRecord:
    return new_record("t", spec, target="any", elements=64, slots=1024, interfaces=Path("/nowhere"))


def hosts_of(record: NetRecord) -> list[str]:
    return [host.name for host in record.hosts]


def anywhere(switch: str, inputs: int) -> bool:
    return True


def cables(record: NetRecord) -> list[Cable]:
    """The links between switches."""
    names = {switch.name for switch in record.switches}
    ends = [(link.a, link.b) for link in record.links if {link.a.node, link.b.node} <= names]
    return [frozenset({(a.node, a.port), (b.node, b.port)}) for a, b in ends]


def links_apart(record: NetRecord, dead: Dead) -> dict[str, dict[str, int]]:
    """Links between any two switches, by Floyd's and Warshall's algorithm."""
    names = [switch.name for switch in record.switches if switch.name not in dead.switches]
    far = {a: {b: 0 if a == b else 1000 for b in names} for a in names}
    for (a, _), (b, _) in (sorted(cable) for cable in cables(record) if cable not in dead.cables):
        if a in far and b in far:
            far[a][b] = far[b][a] = 1
    for k, i, j in itertools.product(names, names, names):
        far[i][j] = min(far[i][j], far[i][k] + far[k][j])
    return far


def home(record: NetRecord, host: str) -> str:
    return record.peers(host)[0].node


def cheapest(record: NetRecord, dead: Dead, hosts: Sequence[str], summing: Sequence[str]) -> int | None:
    """Fewest packets between switches for a chunk, over all sets of switches that may sum."""
    far = links_apart(record, dead)
    found: list[int] = []
    for count in range(1, len(summing) + 1):
        for chosen in itertools.combinations(summing, count):
            total = sum(min(far[home(record, host)][s] for s in chosen) for host in hosts)
            joined = {chosen[0]}
            while len(joined) < count:
                rest = [s for s in chosen if s not in joined]
                step, new = min((far[a][b], b) for a in joined for b in rest)
                total, joined = total + step, joined | {new}
            found.append(total)
    return min((total for total in found if total < 1000), default=None)


def cost(record: NetRecord, dead: Dead, tree: Tree) -> int:
    far = links_apart(record, dead)
    ends = [(home(record, host), node.switch) for node in tree.nodes for host in node.hosts]
    ends += [(node.switch, node.parent) for node in tree.nodes if node.parent is not None]
    return sum(far[a][b] for a, b in ends)


def check_whole(tree: Tree, hosts: Sequence[str]) -> None:
    """All hosts contribute once, in order; who sums nothing is no node; parents come first."""
    assert sorted(host for node in tree.nodes for host in node.hosts) == sorted(hosts)
    assert tree.hosts == frozenset(hosts)
    nodes = {node.switch: node for node in tree.nodes}
    before: set[str] = set()
    for node in tree.nodes:
        assert [hosts.index(host) for host in node.hosts] == sorted(hosts.index(host) for host in node.hosts)
        inputs = len(node.hosts) + len(node.leaves)
        assert (2 if len(tree.nodes) > 1 else 1) <= inputs <= 64
        assert (node.parent is None) == (node is tree.root)
        assert node.parent is None or (node.parent in before and node.switch in nodes[node.parent].leaves)
        before.add(node.switch)
    assert len(before) == len(tree.nodes)
    assert sum(len(node.leaves) for node in tree.nodes) == len(tree.nodes) - 1


def check_wired(record: NetRecord, fabric: Fabric, wiring: Sequence[Wiring], tree: Tree) -> None:
    """Packets that follow the switches' routes hop by hop come in by the ports that are admitted."""
    ips = {host.name: host.ip for host in record.hosts} | {s.name: s.ip for s in record.switches}
    macs = {host.name: host.mac for host in record.hosts} | {s.name: s.mac for s in record.switches}
    by_switch = {one.switch: one for one in wiring}
    assert list(by_switch) == list(tree.switches)

    def arrives(node: str, target: str, out: int | None) -> tuple[int, str]:
        """The port by which a packet comes in at a switch, and the switch before; its first port if fixed."""
        while True:
            port = fabric.ways(node, target)[0].port if out is None else out
            end, before, out = record.peers(node)[port], node, None
            if end.node == target:
                return end.port, before
            node = end.node

    for node in tree.nodes:
        one = by_switch[node.switch]
        assert [each.name for each in one.inputs] == [*node.hosts, *node.leaves]
        assert [each.ip for each in one.inputs] == [ips[name] for name in (*node.hosts, *node.leaves)]
        for each in one.inputs:
            direct = record.peers(node.switch)[each.port].node
            if each.name in node.hosts:
                start, near = home(record, each.name), home(record, each.name) == node.switch
                port = record.peers(each.name)[0].port if near else arrives(start, node.switch, None)[0]
                assert direct == each.name if near else direct in fabric.hops
            else:
                up = by_switch[each.name].upward
                assert up is not None
                port, _ = arrives(each.name, node.switch, up.port)
                first = record.peers(each.name)[up.port].node
                assert (up.mac, up.parent_ip) == (record.switch(first).mac, ips[node.switch])
                # What the parent sends out of the port that the partials come in by is routed to the leaf.
                back, at = record.peers(node.switch)[each.port], each.name
                came = back.port if back.node == at else arrives(back.node, at, None)[0]
                assert came == up.parent_port
            assert port == each.port
            assert each.mac == macs[direct]


@st.composite
def jobs(draw: st.DrawFn, record: NetRecord) -> list[str]:
    names = hosts_of(record)
    return draw(st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True))


@pytest.mark.parametrize("name", BUILT_IN)
@given(data=st.data())
def test_in_each_built_in_network_no_tree_costs_less(name: str, data: st.DataObject) -> None:
    record = record_of(BUILT_IN[name])
    hosts = data.draw(jobs(record))
    names = [switch.name for switch in record.switches]
    full = data.draw(st.sets(st.sampled_from(names), max_size=len(names) // 2))
    usable = [switch for switch in names if switch not in full]
    fabric = Fabric(record)
    tree = plan(fabric, hosts, lambda switch, inputs: switch in usable, {})
    least = cheapest(record, Dead(), hosts, usable)
    if tree is None:
        assert least is None
        return
    check_whole(tree, hosts)
    assert {*tree.switches} <= {*usable}
    assert cost(record, Dead(), tree) == least
    wiring = wire(tree, fabric, record)
    assert wiring is not None
    check_wired(record, fabric, wiring, tree)


@given(seed=st.integers(0, 2**32))
def test_in_random_networks_with_dead_switches_and_cut_cables(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 6)
    racks = [draw.choice([0, 1, 2, 3]) for _ in range(count)]
    pairs = [(i + 1, draw.randint(1, i)) for i in range(1, count)]
    pairs += [(a, b) for a, b in (draw.sample(range(1, count + 1), 2) for _ in range(draw.randint(0, 4)))]
    record = network(racks, pairs, count)
    without = [f"s{n + 1}" for n, hosts in enumerate(racks) if not hosts]
    dead = Dead(
        frozenset(name for name in without if draw.random() < 0.2),
        frozenset(cable for cable in cables(record) if draw.random() < 0.1),
    )
    fabric = Fabric(record, dead)
    names = hosts_of(record)
    if not names:
        return
    hosts = draw.sample(names, draw.randint(1, len(names)))
    usable = [name for name in fabric.switches if draw.random() < 0.8]
    tree = plan(fabric, hosts, lambda switch, inputs: switch in usable, {})
    least = cheapest(record, dead, hosts, usable)
    assert (tree is None) == (least is None)
    if tree is None or least is None:
        return
    check_whole(tree, hosts)
    assert {*tree.switches} <= {*usable}
    # The search is not exhaustive; one in a thousand of these is not the best, by one packet.
    assert cost(record, dead, tree) <= least + (len(usable) < len(fabric.switches))
    wiring = wire(tree, fabric, record)
    assert wiring is not None
    check_wired(record, fabric, wiring, tree)


def test_racks_and_three_levels_sum_at_every_level() -> None:
    fat = record_of(builders.fat_tree())
    tree = plan(Fabric(fat), hosts_of(fat), anywhere, {})
    assert tree is not None
    # 8 edges, an aggregation switch of each pod, a core.
    assert [len(node.leaves) for node in tree.nodes] == [4] + [2] * 4 + [0] * 8
    assert [len(node.hosts) for node in tree.nodes] == [0] * 5 + [2] * 8
    assert cost(fat, Dead(), tree) == 4 + 8
    three = record_of(builders.tree(2, 2))
    assert plan(Fabric(three), ["h1", "h4"], anywhere, {}) == Tree((Node("s5", ("h1", "h4"), (), None),))
    found = plan(Fabric(three), ["h1", "h5", "h2", "h6"], anywhere, {})
    assert found is not None
    # What is between the two racks and their root has one input: it routes.
    assert found == Tree(
        (
            Node("s7", (), ("s1", "s3"), None),
            Node("s1", ("h1", "h2"), (), "s7"),
            Node("s3", ("h5", "h6"), (), "s7"),
        )
    )


def test_one_rack_is_its_own_leaf_and_more_are_spread_over_the_spines() -> None:
    record = record_of(builders.leaf_spine(3, 2, 2))
    fabric = Fabric(record)
    assert plan(fabric, ["h3", "h4"], anywhere, {"s2": 9}) == Tree((Node("s2", ("h3", "h4"), (), None),))
    load: Counter[str] = Counter()
    roots = []
    for _ in range(4):
        tree = plan(fabric, ["h1", "h2", "h3", "h4"], anywhere, load)
        assert tree is not None
        assert tree.switches[1:] == ("s1", "s2")
        roots.append(tree.root.switch)
        load.update(tree.switches)
    assert Counter(roots) == {"s4": 2, "s5": 2}


def test_a_leaf_that_is_left_out_has_its_hosts_summed_above() -> None:
    record = record_of(builders.leaf_spine(2, 2, 2))
    tree = plan(Fabric(record), ["h1", "h2", "h3", "h4"], lambda switch, inputs: switch != "s1", {"s3": 1})
    assert tree == Tree((Node("s4", ("h1", "h2"), ("s2",), None), Node("s2", ("h3", "h4"), (), "s4")))


def test_a_switch_takes_64_inputs_at_most() -> None:
    record = record_of(builders.leaf_spine(2, 2, 40))
    fabric, hosts = Fabric(record), hosts_of(record)
    tree = plan(fabric, hosts, anywhere, {})
    assert tree is not None
    check_whole(tree, hosts)
    assert [len(node.hosts) for node in tree.nodes] == [0, 40, 40]
    # 80 hosts and no leaf: one spine takes what the other has no bits for.
    tree = plan(fabric, hosts, lambda switch, inputs: switch in ("s3", "s4"), {})
    assert tree is not None
    check_whole(tree, hosts)
    assert sorted(len(node.hosts) + len(node.leaves) for node in tree.nodes) == [17, 64]
    assert plan(fabric, hosts, lambda switch, inputs: switch == "s3", {}) is None
    # Copies of results that a switch can hold count likewise.
    assert plan(fabric, hosts[:40], lambda switch, inputs: inputs < 40, {}) is None


def test_no_way_no_tree() -> None:
    record = record_of(builders.racks(2))
    hosts = hosts_of(record)
    assert plan(Fabric(record, Dead(frozenset({"s3"}))), hosts, anywhere, {}) is None
    (first, *_) = [cable for cable in cables(record) if ("s1", 3) in cable]
    cut = Fabric(record, Dead(cables=frozenset({first})))
    assert plan(cut, hosts, anywhere, {}) is None
    assert plan(cut, ["h1", "h2"], anywhere, {}) is not None
    at_h1 = frozenset({("h1", 0), ("s1", 1)})
    assert plan(Fabric(record, Dead(cables=frozenset({at_h1}))), ["h1", "h2"], anywhere, {}) is None


def test_a_tree_whose_path_is_cut_has_no_wiring() -> None:
    record = record_of(builders.leaf_spine(2, 2, 2))
    tree = plan(Fabric(record), hosts_of(record), anywhere, {})
    assert tree is not None
    assert tree.root.switch == "s3"
    assert wire(tree, Fabric(record, Dead(frozenset({"s3"}))), record) is None
    # Another way to the same root is another wiring.
    cable = next(cable for cable in cables(record) if ("s1", 3) in cable)
    before, after = (
        wire(tree, Fabric(record, dead), record) for dead in (Dead(), Dead(cables=frozenset({cable})))
    )
    assert before is not None
    assert after is not None
    assert before != after
    check_wired(record, Fabric(record, Dead(cables=frozenset({cable}))), after, tree)
