# SPDX-License-Identifier: Apache-2.0
"""The built-in topologies: what is in each, counted another way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.builders import TOPOLOGIES, describe
from topologies.errors import SpecError
from topologies.spec import NetworkSpec


def cables(spec: NetworkSpec) -> set[frozenset[str]]:
    """Return the links between switches, by their names."""
    hosts = {host.name for host in spec.hosts}
    return {frozenset({k.a.node, k.b.node}) for k in spec.links if k.a.node not in hosts}


def homes(spec: NetworkSpec) -> dict[str, str]:
    """Return the switch of each host."""
    hosts = {host.name for host in spec.hosts}
    return {k.a.node: k.b.node for k in spec.links if k.a.node in hosts}


def distances(spec: NetworkSpec, start: str) -> dict[str, int]:
    """Return the links from a switch to all others."""
    found, ring, pairs = {start: 0}, {start}, cables(spec)
    while ring:
        ring = {node for pair in pairs if pair & ring for node in pair} - {*found}
        found |= dict.fromkeys(ring, max(found.values()) + 1)
    return found


@given(leaves=st.integers(1, 8), spines=st.integers(1, 4), hosts=st.integers(1, 8))
def test_every_leaf_has_every_spine(leaves: int, spines: int, hosts: int) -> None:
    spec = describe("leaf-spine", leaves=leaves, spines=spines, hosts=hosts)
    assert cables(spec) == {
        frozenset({f"s{leaf}", f"s{leaves + spine}"})
        for leaf in range(1, leaves + 1)
        for spine in range(1, spines + 1)
    }
    assert homes(spec) == {f"h{n + 1}": f"s{n // hosts + 1}" for n in range(leaves * hosts)}
    assert [host.ip for host in spec.hosts] == [
        f"10.0.{rack}.{n}" for rack in range(leaves) for n in range(1, hosts + 1)
    ]
    for name in (f"s{n}" for n in range(1, leaves + spines + 1)):
        ports = [end.port for k in spec.links for end in (k.a, k.b) if end.node == name]
        assert sorted(ports) == list(range(1, len(ports) + 1))
    up = {k.a.port for k in spec.links if k.a.node == "s1"}
    assert up == set(range(hosts + 1, hosts + spines + 1))


def test_two_racks_and_a_spine() -> None:
    spec = describe("racks", hosts=3)
    assert cables(spec) == {frozenset({"s1", "s3"}), frozenset({"s2", "s3"})}
    assert homes(spec) == {"h1": "s1", "h2": "s1", "h3": "s1", "h4": "s2", "h5": "s2", "h6": "s2"}


@given(fanout=st.integers(1, 4), hosts=st.integers(1, 4))
def test_a_tree_has_three_levels(fanout: int, hosts: int) -> None:
    spec = describe("tree", fanout=fanout, hosts=hosts)
    root = spec.switches[-1].name
    levels = distances(spec, root)
    assert sorted(levels.values()) == [0, *[1] * fanout, *[2] * fanout**2]
    assert len(cables(spec)) == len(spec.switches) - 1
    assert {levels[switch] for switch in homes(spec).values()} == {2}


def test_a_fat_tree_is_that_of_four_ports() -> None:
    spec = describe("fat-tree")
    assert (len(spec.switches), len(spec.hosts), len(cables(spec))) == (20, 16, 32)
    degree = {s.name: sum(s.name in {k.a.node, k.b.node} for k in spec.links) for s in spec.switches}
    assert set(degree.values()) == {4}
    # Within a pod two hops between edges, between pods four.
    assert sorted(distances(spec, "s1")[f"s{n}"] for n in range(1, 9)) == [0, 2, *[4] * 6]
    # Each core reaches every pod, by one aggregation switch of it.
    for core in range(17, 21):
        below = {node for pair in cables(spec) if f"s{core}" in pair for node in pair - {f"s{core}"}}
        assert {(int(name[1:]) - 9) // 2 for name in below} == {0, 1, 2, 3}


def test_a_dumbbell_has_a_bottleneck() -> None:
    spec = describe("dumbbell", hosts=2, rate_mbit=1000.0)
    assert {frozenset({k.a.node, k.b.node}): k.rate_mbit for k in spec.links} == {
        **{frozenset({f"h{n}", f"s{(n + 1) // 2}"}): 1000.0 for n in range(1, 5)},
        frozenset({"s1", "s2"}): 100.0,
    }
    (bottleneck,) = [k for k in describe("dumbbell", bottleneck_rate_mbit=5.0).links if k.a.node == "s1"]
    assert (bottleneck.forth.rate_mbit, bottleneck.back.rate_mbit) == (5.0, 5.0)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_defaults_are_small_enough_for_a_laptop(name: str) -> None:
    spec = describe(name)
    assert spec.topology == name
    assert len(spec.switches) <= 20
    assert len(spec.hosts) <= 16


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ring", {}, "ring: no such topology; there is star, racks, leaf-spine, tree, fat-tree, dumbbell"),
        ("star", {"hosts": 65}, "--hosts 65: a star has 1 to 64 hosts"),
        ("star", {"spines": 2}, "--spines: star takes --hosts, --rate"),
        ("star", {"bottleneck_rate_mbit": 2.0}, "--bottleneck-rate: star takes --hosts, --rate"),
        ("fat-tree", {"hosts": 2}, "--hosts: fat-tree takes --rate, --bottleneck-rate"),
        ("racks", {"hosts": 0}, "--hosts 0: the number of hosts of a leaf: 1 to 64"),
        ("leaf-spine", {"leaves": 0}, "--leaves 0: the number of leaves: 1 to 64"),
        ("leaf-spine", {"spines": 65}, "--spines 65: the number of spines: 1 to 64"),
        ("leaf-spine", {"leaves": 60, "spines": 5, "hosts": 1}, "these sizes make 65 switches, and 64"),
        ("leaf-spine", {"leaves": 8, "hosts": 33}, "these sizes make 264 hosts, and 256 is the most"),
        ("tree", {"fanout": 8}, "these sizes make 73 switches"),
        ("tree", {"fanout": 0}, "--fanout 0: "),
        ("dumbbell", {"hosts": 65}, "--hosts 65: the number of hosts of a side: 1 to 64"),
        ("dumbbell", {"rate_mbit": -1.0}, "a rate is 10kbit to 1tbit"),
    ],
)
def test_bad_sizes_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        describe(name, **options)
