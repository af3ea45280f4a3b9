# SPDX-License-Identifier: Apache-2.0
"""The built-in topologies. Names, addresses and ports follow from the sizes alone.

Switches are numbered from the hosts upwards (leaves first), so that rack r's hosts, 10.0.r.1 and on, hang on
switch s(r+1). A switch's ports go first to its hosts, then to the switches below it, then to those above.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from topologies.errors import SpecError
from topologies.files import SUFFIXES, load
from topologies.spec import (
    End,
    HostSpec,
    LinkSpec,
    NetworkSpec,
    SwitchSpec,
    Way,
    host_address,
    mac_of,
    star,
    switch_address,
)
from wire.constants import MAX_WORKERS

MOST_SWITCHES = 64
"""Of a built-in topology: each is a process."""
MOST_HOSTS = 256
"""Of a built-in topology: a job has no more ranks."""
BOTTLENECK_MBIT = 100.0
"""Of a dumbbell, unless the user says otherwise."""


class _Plan:
    """A network that is being drawn; ports are given in the order in which cables are laid."""

    def __init__(self, topology: str, rate_mbit: float | None, bottleneck_mbit: float | None) -> None:
        self._topology = topology
        self._host_way, self._core_way = Way(rate_mbit), Way(bottleneck_mbit)
        self._hosts: list[HostSpec] = []
        self._switches: list[SwitchSpec] = []
        self._links: list[LinkSpec] = []
        self._used: dict[str, int] = {}

    def switches(self, number: int) -> list[str]:
        """Add switches; return their names."""
        first = len(self._switches) + 1
        for device_id in range(first, first + number):
            ip = switch_address(device_id)
            self._switches.append(SwitchSpec(f"s{device_id}", device_id, ip, mac_of(1, ip)))
        return [switch.name for switch in self._switches[-number:]]

    def racks(self, leaves: list[str], hosts: int) -> None:
        """Hang hosts on each of the leaves, rack r on the r-th of them."""
        for rack, leaf in enumerate(leaves):
            for number in range(1, hosts + 1):
                ip = host_address(rack, number)
                name = f"h{len(self._hosts) + 1}"
                self._hosts.append(HostSpec(name, ip, mac_of(0, ip)))
                self._links.append(LinkSpec(End(name, 0), self._port(leaf), self._host_way, self._host_way))

    def cable(self, lower: str, upper: str) -> None:
        """Join two switches."""
        self._links.append(LinkSpec(self._port(lower), self._port(upper), self._core_way, self._core_way))

    def _port(self, switch: str) -> End:
        self._used[switch] = self._used.get(switch, 0) + 1
        return End(switch, self._used[switch])

    def done(self) -> NetworkSpec:
        """Return the network."""
        return NetworkSpec(self._topology, tuple(self._hosts), tuple(self._switches), tuple(self._links))


def _check(option: str, value: int, least: int, most: int, what: str) -> None:
    if not least <= value <= most:
        raise SpecError(f"--{option} {value}", f"{what}: {least} to {most}")


def _check_whole(topology: str, switches: int, hosts: int) -> None:
    for number, most, what in ((switches, MOST_SWITCHES, "switches"), (hosts, MOST_HOSTS, "hosts")):
        if number > most:
            raise SpecError(topology, f"these sizes make {number} {what}, and {most} is the most")


def racks(
    hosts: int = 4, rate_mbit: float | None = None, bottleneck_rate_mbit: float | None = None
) -> NetworkSpec:
    """Describe two racks s1 and s2 of `hosts` hosts each below the spine s3."""
    return _leaves_and_spines("racks", 2, 1, hosts, rate_mbit, bottleneck_rate_mbit)


def leaf_spine(
    leaves: int = 4,
    spines: int = 2,
    hosts: int = 2,
    rate_mbit: float | None = None,
    bottleneck_rate_mbit: float | None = None,
) -> NetworkSpec:
    """Describe leaves of `hosts` hosts each, every one joined to every spine."""
    return _leaves_and_spines("leaf-spine", leaves, spines, hosts, rate_mbit, bottleneck_rate_mbit)


def _leaves_and_spines(
    topology: str, leaves: int, spines: int, hosts: int, rate: float | None, bottleneck: float | None
) -> NetworkSpec:
    _check("leaves", leaves, 1, MOST_SWITCHES, "the number of leaves")
    _check("spines", spines, 1, MOST_SWITCHES, "the number of spines")
    _check("hosts", hosts, 1, MAX_WORKERS, "the number of hosts of a leaf")
    _check_whole(topology, leaves + spines, leaves * hosts)
    plan = _Plan(topology, rate, bottleneck)
    lower, upper = plan.switches(leaves), plan.switches(spines)
    plan.racks(lower, hosts)
    for leaf in lower:
        for spine in upper:
            plan.cable(leaf, spine)
    return plan.done()


def tree(
    fanout: int = 2,
    hosts: int = 2,
    rate_mbit: float | None = None,
    bottleneck_rate_mbit: float | None = None,
) -> NetworkSpec:
    """Describe three levels: a root with `fanout` switches below it, as many leaves below each of those."""
    _check("fanout", fanout, 1, MAX_WORKERS, "the number of switches below another")
    _check("hosts", hosts, 1, MAX_WORKERS, "the number of hosts of a leaf")
    _check_whole("tree", fanout * fanout + fanout + 1, fanout * fanout * hosts)
    plan = _Plan("tree", rate_mbit, bottleneck_rate_mbit)
    leaves, middle, (root,) = plan.switches(fanout * fanout), plan.switches(fanout), plan.switches(1)
    plan.racks(leaves, hosts)
    for number, leaf in enumerate(leaves):
        plan.cable(leaf, middle[number // fanout])
    for switch in middle:
        plan.cable(switch, root)
    return plan.done()


def fat_tree(rate_mbit: float | None = None, bottleneck_rate_mbit: float | None = None) -> NetworkSpec:
    """Describe the fat-tree of 4-port switches: 4 pods of 2 edge and 2 aggregation switches, 4 cores.

    Source: Al-Fares, Loukissas, Vahdat: A Scalable, Commodity Data Center Network Architecture, SIGCOMM 2008,
    section 3. Core c hangs on the aggregation switch c div 2 of each pod.
    """
    half, pods = 2, 4
    plan = _Plan("fat-tree", rate_mbit, bottleneck_rate_mbit)
    edges, middle, cores = (plan.switches(n) for n in (pods * half, pods * half, half * half))
    plan.racks(edges, half)
    for number, edge in enumerate(edges):
        for which in range(half):
            plan.cable(edge, middle[number // half * half + which])
    for number, switch in enumerate(middle):
        for which in range(half):
            plan.cable(switch, cores[number % half * half + which])
    return plan.done()


def dumbbell(
    hosts: int = 2,
    rate_mbit: float | None = None,
    bottleneck_rate_mbit: float | None = BOTTLENECK_MBIT,
) -> NetworkSpec:
    """Describe switches s1 and s2 with `hosts` hosts each, and a slow link between them."""
    _check("hosts", hosts, 1, MAX_WORKERS, "the number of hosts of a side")
    plan = _Plan("dumbbell", rate_mbit, bottleneck_rate_mbit)
    sides = plan.switches(2)
    plan.racks(sides, hosts)
    plan.cable(*sides)
    return plan.done()


TOPOLOGIES: dict[str, Callable[..., NetworkSpec]] = {
    "star": star,
    "racks": racks,
    "leaf-spine": leaf_spine,
    "tree": tree,
    "fat-tree": fat_tree,
    "dumbbell": dumbbell,
}
"""The built-in topologies by name; the parameters of each are the options that it takes."""


def describe(topology: str, **options: float | None) -> NetworkSpec:
    """Return the description of a built-in topology, or of a file; options that are None are left to it.

    SpecError names the topologies that exist, the options that this one takes, or what is wrong in the file.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if Path(topology).suffix.lower() in SUFFIXES:
        if given:
            raise SpecError(_option(next(iter(given))), f"{topology} tells this itself")
        return load(Path(topology))
    if topology not in TOPOLOGIES:
        raise SpecError(
            topology,
            f"no such topology; there is {', '.join(TOPOLOGIES)}, or a file: NAME.yaml, topology.json",
        )
    build = TOPOLOGIES[topology]
    taken = inspect.signature(build).parameters
    for name in given:
        if name not in taken:
            takes = ", ".join(_option(each) for each in taken)
            raise SpecError(_option(name), f"{topology} takes {takes}")
    return build(**given)


def _option(parameter: str) -> str:
    return "--" + parameter.removesuffix("_mbit").replace("_", "-")
