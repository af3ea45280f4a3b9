# SPDX-License-Identifier: Apache-2.0
"""The run: a flat switch, then a leaf-spine network whose links between switches get slower and slower."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench import names
from bench.allreduce.group import LONGEST_CALL, Figures, SkippedError, SwitchGroup
from bench.errors import BenchError
from topologies import jobs, links, manager
from topologies import record as records
from topologies.ranks import RankError
from topologies.record import NetRecord
from topologies.spec import NetworkSpec
from topologies.targets import choose
from wire.constants import frame_bytes
from wire.control import ControlClient, at

from . import cases, counts
from .cases import BOTH, DOWN, FLAT, LEAVES, RACKS, SPINE, UP, WORDS, Carried, Flows, Shape, Work
from .counts import Links

ATTEMPTS = 5
"""All-reduces at most until one is counted of which nothing was lost."""
MARGIN_S = 5.0
"""Kept free at a run's end, to take the network down in."""
START_S = 20.0
"""About what a network and its ranks need to begin."""

Say = Callable[[str], None]


class RelationError(BenchError):
    """Links have not carried what they must have."""


@dataclass(frozen=True)
class Case:
    """Where it is summed, on links of which rate."""

    layout: str
    oversubscription: float | None
    """None on the flat switch."""
    uplink_mbit: float | None


@dataclass(frozen=True)
class Found:
    """What was measured of a case."""

    case: Case
    tree: tuple[dict[str, Any], ...]
    """As the controller tells it: switch, parent, hosts, leaves; the root first."""
    window: int
    links: Links
    """Of one all-reduce and the barrier before it, without what was sent again."""
    again: int
    """Packets that were sent again meanwhile."""
    figures: Figures

    @property
    def slots(self) -> int:
        """At all switches together."""
        return self.window * len(self.tree)

    def core(self, way: str) -> int:
        """Return the bytes on all links between switches."""
        return sum(octets for (_, to), (_, octets) in of_switches(self.links).items() if to == way)


@dataclass
class Outcome:
    """All that a run found."""

    found: list[Found] = field(default_factory=list)
    skipped: dict[Case, str] = field(default_factory=dict)
    """Why a case was not measured."""

    def at(self, layout: str, oversubscription: float | None) -> Found | None:
        """Return what was found of a case, None if it was not measured."""
        for one in self.found:
            if (one.case.layout, one.case.oversubscription) == (layout, oversubscription):
                return one
        return None


@dataclass
class Run:
    """How cases are measured; `outcome` fills while it goes, also for who interrupts it."""

    shape: Shape
    work: Work
    oversubscriptions: Sequence[float]
    budget_s: float
    """Seconds for a case's timed all-reduces."""
    case_s: float
    """What a case may take, its counted all-reduce and every comparison included."""
    limit_s: float
    """After which no case is begun any more."""
    say: Say
    progress: Callable[[float], None]
    outcome: Outcome = field(default_factory=Outcome)

    def all(self) -> Outcome:
        """Measure all cases.

        Raises RelationError, WrongSumError, and whatever is wrong with a network.
        """
        self._begun, self._done = time.monotonic(), 0
        shape, elements = self.shape, self.work.elements
        window = shape.window(choose(self.work.target).default_window)
        queue = cases.queue_bytes(shape, window, elements)
        ratios = self.oversubscriptions
        self._network(cases.flat_network(shape, queue), window, [FLAT], [None], queue)
        self._network(cases.racks_network(shape, ratios[0], queue), window, RACKS, ratios, queue)
        return self.outcome

    def _network(
        self,
        spec: NetworkSpec,
        window: int,
        layouts: Sequence[str],
        ratios: Sequence[float | None],
        queue: int,
    ) -> None:
        wanted = [(layout, [self._case(layout, ratio) for ratio in ratios]) for layout in layouts]
        if self._left() < START_S:
            for _, each in wanted:
                self._skip(each, self._over())
            return
        switches = len(spec.switches)
        plural = "switch" if switches == 1 else "switches"
        self.say(f"network of {switches} {plural} and {len(spec.hosts)} hosts, {self.work.target}")
        name = names.fresh("racks")
        with (
            manager.network(spec, name=name, target=self.work.target, elements=self.work.elements) as record,
            jobs.control_of(record) as control,
        ):
            hosts = [host.name for host in record.hosts]
            for layout, each in wanted:
                job: dict[str, Any] = {"slots": window}
                if allowed := self.shape.switches(layout):
                    job["switches"] = allowed
                group = SwitchGroup(record, hosts, **job)
                with group:
                    for case in each:
                        if case.uplink_mbit is not None:
                            record = set_uplinks(record, case.uplink_mbit, queue)
                        self._measure(record, control, group, case)

    def _case(self, layout: str, ratio: float | None) -> Case:
        return Case(layout, ratio, None if ratio is None else self.shape.uplink_mbit(ratio))

    def _measure(self, record: NetRecord, control: ControlClient, group: SwitchGroup, case: Case) -> None:
        self.say(f"  {words(case)}{self._left_words()}")
        try:
            if self._left() < self.case_s:
                raise SkippedError(self.work.target, self._over())
            group.start()
            until = time.monotonic() + self.case_s
            told = control.call("GET", at("jobs", group.job))
            root = check_tree(self.work.target, self.shape, case.layout, told["tree"])
            packets = self.work.packets(self.shape, told["lead"])
            flows = self.shape.flows(case.layout, root)
            least_s = cases.least_seconds(self.work, self.shape, told["lead"], flows, case.uplink_mbit)
            if least_s > LONGEST_CALL * self.case_s / 2:
                raise SkippedError(self.work.target, f"one all-reduce would take {least_s:.3g} s")
            carried, again = self._count(record, control, group, flows, packets, until)
            left = until - time.monotonic()
            figures = group.measure(self.work.cell(self.shape), self.budget_s, least_s, left)
            tree = tuple(told["tree"])
            self.outcome.found.append(Found(case, tree, told["slots"], carried, again, figures))
        except SkippedError as error:
            self._skip([case], error.why)
        self._done += 1
        self.progress(self._done / (1 + len(RACKS) * len(self.oversubscriptions)))

    def _count(
        self,
        record: NetRecord,
        control: ControlClient,
        group: SwitchGroup,
        flows: Flows,
        packets: int,
        until: float,
    ) -> tuple[Links, int]:
        """Return what links carried of an all-reduce, and how many packets were sent again meanwhile.

        A packet that was lost and sent again passed some links twice and others once, which nobody counts:
        then another all-reduce is taken. RelationError where links are wrong and nothing was sent again.
        """
        for _ in range(ATTEMPTS):
            begun = time.monotonic()
            before = counts.settled(record, control, group.job)
            try:
                asked = group.ask(self.work.dtype, self.work.nbytes, 1, until - begun)
            except RankError as error:
                group.close()
                raise SkippedError(self.work.target, str(error).splitlines()[0]) from error
            found = counts.settled(record, control, group.job).since(before)
            carried = found.first(flows)
            wrong = wrong_links(carried, flows, packets, frame_bytes(self.work.elements))
            again = sum(packets for (_, way), (packets, _) in found.again.items() if way == UP)
            if not wrong:
                return carried, again
            if not again and not asked.counts["retransmissions"]:
                raise RelationError(
                    self.work.target,
                    "nobody sent a packet again, yet links did not carry each packet of the job's tree once: "
                    + "; ".join(wrong),
                )
            if 3 * (time.monotonic() - begun) > until - time.monotonic():
                break
        raise SkippedError(
            self.work.target,
            "packets were lost in each all-reduce that was to be counted: try it with a lower --rate, or "
            "while the machine has less to do",
        )

    def _skip(self, skipped: Sequence[Case], why: str) -> None:
        self.outcome.skipped.update(dict.fromkeys(skipped, why))

    def _left(self) -> float:
        return self.limit_s - MARGIN_S - (time.monotonic() - self._begun)

    def _left_words(self) -> str:
        if not self._done:
            return ""
        elapsed = time.monotonic() - self._begun
        left = elapsed / self._done * (1 + len(RACKS) * len(self.oversubscriptions) - self._done)
        return f", about {min(left, self._left()):.0f} s left"

    def _over(self) -> str:
        return f"the run's {self.limit_s:g} s were over"


def words(case: Case) -> str:
    """Return a case for people."""
    if case.oversubscription is None:
        return WORDS[case.layout]
    return f"{WORDS[case.layout]}, {case.oversubscription:g}:1, uplinks of {case.uplink_mbit:g} Mbit/s"


def tree_words(tree: Sequence[Mapping[str, Any]]) -> str:
    """Return a tree in short: s5(s1 s2)."""
    leaves: dict[str | None, list[str]] = {}
    for node in tree:
        leaves.setdefault(node["parent"], []).append(node["switch"])

    def below(switch: str) -> str:
        inner = " ".join(below(leaf) for leaf in leaves.get(switch, []))
        return f"{switch}({inner})" if inner else switch

    return below(tree[0]["switch"])


def set_uplinks(record: NetRecord, rate_mbit: float, queue: int) -> NetRecord:
    """Give all links between switches this rate; return the record. Raises NetworkError."""
    hosts = {host.name for host in record.hosts}
    for link in record.links:
        way = cases.way(rate_mbit, queue)
        new = replace(link, forth=way, back=way)
        if link.a.node not in hosts and new != link:
            links.apply(record, link, new)
            record = records.update(record.name, lambda found, new=new: records.with_link(found, new))  # type: ignore[misc]
    return record


def check_tree(target: str, shape: Shape, layout: str, tree: Sequence[Mapping[str, Any]]) -> str:
    """Return the root of a job's tree; BenchError if it is not summed where this layout has it summed."""
    switches = {node["switch"] for node in tree}
    root: str = tree[0]["switch"]
    leaves = set(shape.leaf_names)
    right = {
        FLAT: switches == {"s1"},
        SPINE: len(switches) == 1 and root in shape.spine_names,
        LEAVES: switches == leaves,
        BOTH: root in shape.spine_names and switches - {root} == leaves,
    }[layout]
    if not right:
        raise BenchError(target, f"the job's tree is {tree_words(tree)}: that is not {WORDS[layout]}")
    return root


def of_switches(carried: Links) -> Links:
    """Return what a leaf's links upwards carried together, by the leaf's name instead of a link's."""
    return {key: value for key, value in _of_nodes(carried).items() if key[0].startswith("s")}


def _of_nodes(carried: Links) -> dict[tuple[str, str], Carried]:
    """Return what a node's links upwards carried together, by the node's name instead of a link's."""
    found: dict[tuple[str, str], Carried] = {}
    for (name, way), (packets, octets) in carried.items():
        key = name.partition("-")[0], way
        had = found.get(key, (0, 0))
        found[key] = had[0] + packets, had[1] + octets
    return found


def wrong_links(carried: Links, flows: Flows, packets: int, size: int) -> list[str]:
    """Return what is wrong where links did not carry each packet of each flow once; [] where all is right.

    `packets` of `size` bytes are those of a flow.
    """
    wrong = []
    found = _of_nodes(carried)
    for (node, way), passing in flows.items():
        wanted = len(passing) * packets
        count, octets = found[node, way]
        if (count, octets) != (wanted, wanted * size):
            where = f"up from {node}" if way == UP else f"down to {node}"
            wrong.append(
                f"{where} {count:,} packets of {octets:,} bytes, not {wanted:,} of {wanted * size:,}"
            )
    return wrong


def check_racks(target: str, shape: Shape, outcome: Outcome) -> list[float]:
    """Return the oversubscriptions at which core bytes fell by the workers per rack, exactly, both ways.

    RelationError where they did not.
    """
    held = []
    for one in outcome.found:
        ratio = one.case.oversubscription
        both = outcome.at(BOTH, ratio)
        if one.case.layout != SPINE or ratio is None or both is None:
            continue
        for way in (UP, DOWN):
            if one.core(way) != shape.hosts * both.core(way):
                raise RelationError(
                    target,
                    f"at {ratio:g}:1 the core carried {one.core(way):,} bytes {way} with {WORDS[SPINE]}, and "
                    f"{both.core(way):,} with {WORDS[BOTH]}: not {shape.hosts} times as many",
                )
        held.append(ratio)
    return held
