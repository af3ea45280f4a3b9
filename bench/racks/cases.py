# SPDX-License-Identifier: Apache-2.0
"""What is compared, and what each link has to carry then: arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.allreduce.bounds import BURST_BYTES, packets
from bench.allreduce.cells import ITEM_BYTES, Cell, Place
from topologies.builders import leaf_spine
from topologies.spec import MTU, NetworkSpec, Way, star
from wire.constants import frame_bytes

FLAT, LEAVES, SPINE, BOTH = "flat", "leaves", "spine", "both"
RACKS = (SPINE, BOTH, LEAVES)
"""Where a leaf-spine network sums; first those whose core bytes are compared."""
WORDS = {FLAT: "flat switch", SPINE: "spine only", LEAVES: "leaves only", BOTH: "both"}
UP, DOWN = "up", "down"
"""Ways of a link: away from the hosts, and towards them."""
LEAST_WINDOW = 4

Carried = tuple[int, int]
"""(packets, bytes)."""
Flow = tuple[str, str]
"""A host or a leaf that sums, and UP for its contributions, DOWN for the results that it gets."""
Flows = Mapping[tuple[str, str], Sequence[Flow]]
"""By node and way: what passes the links above that node."""


@dataclass(frozen=True)
class Shape:
    """A leaf-spine network with a worker on every host; the flat switch has as many hosts."""

    leaves: int
    spines: int
    hosts: int
    """Of a leaf."""
    rate_mbit: float
    """Of a host's link."""

    @property
    def workers(self) -> int:
        """Of the job."""
        return self.leaves * self.hosts

    @property
    def leaf_names(self) -> list[str]:
        """As topologies.builders gives them."""
        return [f"s{number}" for number in range(1, self.leaves + 1)]

    @property
    def spine_names(self) -> list[str]:
        """As topologies.builders gives them."""
        return [f"s{number}" for number in range(self.leaves + 1, self.leaves + self.spines + 1)]

    def uplink_mbit(self, oversubscription: float) -> float:
        """Return the rate of each link between a leaf and a spine: all of a leaf's together are this part."""
        return self.hosts * self.rate_mbit / (self.spines * oversubscription)

    def window(self, usual: int) -> int:
        """Return the job's slots: `usual` is what a queue holds, and so many flows meet at a port."""
        return max(LEAST_WINDOW, usual // max(self.hosts, self.leaves - 1))

    def switches(self, layout: str) -> list[str]:
        """Return where a job may be summed; [] for wherever that is best."""
        return {LEAVES: self.leaf_names, SPINE: self.spine_names}.get(layout, [])

    def hosts_of(self, leaf: int) -> list[str]:
        """Return the hosts of a leaf, counted from 0, as topologies.builders names them."""
        return [f"h{number}" for number in range(leaf * self.hosts + 1, (leaf + 1) * self.hosts + 1)]

    def flows(self, layout: str, root: str) -> Flows:
        """Return what passes each host's link, and each leaf's uplinks, the root of the job's tree given.

        A leaf that sums sends one packet of each chunk up and gets one down, else one for each of its
        workers. Where no spine sums, the other leaves' partials go down to the root's leaf, and their results
        up from there.
        """
        found: dict[tuple[str, str], list[Flow]] = {}
        for number, leaf in enumerate(self.leaf_names):
            hosts = self.hosts_of(number)
            others = [other for other in self.leaf_names if other != leaf]
            for way, back in ((UP, DOWN), (DOWN, UP)):
                found |= {(host, way): [(host, way)] for host in hosts}
                if layout == SPINE:
                    found[leaf, way] = [(host, way) for host in hosts]
                elif layout == LEAVES and leaf == root:
                    found[leaf, way] = [(other, back) for other in others]
                elif layout != FLAT:
                    found[leaf, way] = [(leaf, way)]
        return found


@dataclass(frozen=True)
class Work:
    """The all-reduce."""

    target: str
    dtype: str
    nbytes: int
    """Of each worker's array."""
    elements: int

    def cell(self, shape: Shape) -> Cell:
        """Return it as bench allreduce knows it."""
        return Cell(Place(self.target, shape.workers, shape.rate_mbit), self.dtype, self.nbytes)

    def packets(self, shape: Shape, lead: int) -> int:
        """Return what each worker must send: the array's packets, and those of the barrier before it."""
        cell = self.cell(shape)
        barrier = replace(cell, dtype="int32", nbytes=ITEM_BYTES)
        return packets(cell, self.elements, lead) + packets(barrier, self.elements, lead)


def least_seconds(work: Work, shape: Shape, lead: int, flows: Flows, uplink_mbit: float | None) -> float:
    """Return the time that the slowest link needs, what passes at once taken off."""
    octets = work.packets(shape, lead) * frame_bytes(work.elements)
    times = [0.0, (octets - BURST_BYTES) / shape.rate_mbit]
    if uplink_mbit is not None:
        busiest = max(map(len, flows.values()))
        times.append((busiest * octets - BURST_BYTES) / uplink_mbit)
    return 8e-6 * max(times)


def flat_network(shape: Shape, queue_bytes: int) -> NetworkSpec:
    """Describe the one switch with all hosts; `queue_bytes` as in `racks_network`."""
    return _with_queues(star(shape.workers, shape.rate_mbit), queue_bytes)


def racks_network(shape: Shape, oversubscription: float, queue_bytes: int) -> NetworkSpec:
    """Describe the leaf-spine network, its links with queues of that size."""
    uplink = shape.uplink_mbit(oversubscription)
    found = leaf_spine(shape.leaves, shape.spines, shape.hosts, shape.rate_mbit, uplink)
    return _with_queues(found, queue_bytes)


def queue_bytes(shape: Shape, window: int, elements: int) -> int:
    """Return what a link's queue must hold so that nothing is lost: all windows, though all meet there."""
    return max(MTU, shape.workers * window * frame_bytes(elements))


def way(rate_mbit: float, queue: int) -> Way:
    """Return one way of a link."""
    return Way(rate_mbit, queue_bytes=queue)


def _with_queues(spec: NetworkSpec, queue: int) -> NetworkSpec:
    def queued(old: Way) -> Way:
        return replace(old, queue_bytes=queue)

    links = (replace(link, forth=queued(link.forth), back=queued(link.back)) for link in spec.links)
    return replace(spec, links=tuple(links))
