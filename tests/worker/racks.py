# SPDX-License-Identifier: Apache-2.0
"""A World of many switches: racks below one or two levels of others, joined by the links of a record.

Each switch runs the compiled program with all entries of a real network, so that those left out route. The
controller's own code plans, wires and begins the epochs; frames arrive between its writes to switches too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from controller import placement
from controller.epochs import EpochStore, Source
from controller.fabric import Cable, Dead, Fabric
from controller.jobs import JobController, SwitchSite, WorkerSeat, delete_epoch, insert_epoch
from controller.placement import Epoch
from controller.program import Program
from controller.readback import Item, Key, difference, item
from controller.setup import network_entities
from controller.trees import Tree, plan
from controller.wiring import wire
from switch.device import SwitchDevice
from tests.controller.direct import DirectSwitch
from tests.worker.world import P4INFO, Epochs, Ports, World
from topologies.record import NetRecord
from wire.membership import Membership

PROGRAM = Program(P4INFO)
STEPS = 60_000
"""More than any run needs."""


class TreeEpochs(Epochs):
    """An EpochStore in memory, with ports for leaves."""

    def __init__(self) -> None:
        self._ports = Ports()

    def begin_tree(
        self, sources: Sequence[Source], leaves: Sequence[tuple[str, str]]
    ) -> tuple[int, dict[str, int]]:
        return self.begin(sources), {name: self._ports.take() for name, _ in leaves}


class Switches:
    """The switches of a record: up, or dead; and one job's trees over them."""

    def __init__(
        self, record: NetRecord, devices: Sequence[SwitchDevice], between: Callable[[], None] = lambda: None
    ) -> None:
        """`between` is called between the writes of one epoch to two switches."""
        self.record, self.between = record, between
        self.devices = {switch.name: devices[at] for at, switch in enumerate(record.switches)}
        self.full: frozenset[str] = frozenset()
        """Switches that are left out."""
        self.dead = Dead()
        self.hosts: list[str] = []
        """By rank."""
        self.epoch: Epoch | None = None
        self._epochs = cast(EpochStore, TreeEpochs())
        self._switches: dict[str, DirectSwitch] = {}
        self._held: dict[str, dict[Key, Item]] = {}
        self._books: dict[str, JobController] = {}
        for switch in record.switches:
            site = SwitchSite(switch.ip, switch.mac, record.elements, record.slots)
            self._start(switch.name)
            self._books[switch.name] = JobController(self._switches[switch.name], site, self._epochs)

    def _start(self, name: str) -> None:
        self._changed = True
        self._held[name] = {}
        self.devices[name].reset()
        self._switches[name] = DirectSwitch(self.devices[name], P4INFO, name)

    def route(self) -> None:
        """Give all that live the entries that they should have besides the job's."""
        if not self._changed:
            return
        self._changed = False
        for name, switch in self._switches.items():
            if name not in self.dead.switches:
                wanted = network_entities(self.record, name, PROGRAM, self.dead)
                for batch in difference(P4INFO, wanted, self._held[name]).batches():
                    switch.write(batch)
                self._held[name] = {one.key: one for one in (item(P4INFO, entity) for entity in wanted)}
                self.between()

    def kill(self, name: str) -> None:
        """A switch dies: it holds nothing any more, and others route round it."""
        self._start(name)
        self.dead = Dead(self.dead.switches | {name}, self.dead.cables)

    def wipe(self, name: str) -> None:
        """A switch dies and is there again at once, with nothing of what it held."""
        self._start(name)

    def cut(self, cable: Cable) -> None:
        """A cable carries nothing any more."""
        self.dead = Dead(self.dead.switches, self.dead.cables | {cable})
        self._changed = True

    def mend(self) -> None:
        """All that was dead lives again, and remembers nothing."""
        self.dead = Dead()
        self._changed = True

    def can_go_on(self, dead: Dead) -> bool:
        """Whether the ranks can be summed somewhere without these."""
        return plan(Fabric(self.record, dead), self.hosts, lambda *_: True, {}) is not None

    def _plan(self) -> tuple[Tree, Any]:
        fabric = Fabric(self.record, self.dead)
        tree = plan(fabric, self.hosts, lambda switch, _: switch not in self.full, {})
        tree = tree or plan(fabric, self.hosts, lambda *_: True, {})
        assert tree is not None
        wiring = wire(tree, fabric, self.record)
        assert wiring is not None
        return tree, wiring

    # ---- what a World asks of a controller
    def add_job(
        self, job: int, seats: Sequence[WorkerSeat], window: int, lead: int, *, g0: int, t0: int
    ) -> list[Membership]:
        return self._begin(job, seats, window, lead, g0, t0)

    def new_epoch(
        self, job: int, seats: Sequence[WorkerSeat], *, g0: int, t0: int, window: int
    ) -> list[Membership]:
        assert self.epoch is not None
        return self._begin(job, seats, window, self.epoch.lead, g0, t0)

    def _begin(
        self, number: int, seats: Sequence[WorkerSeat], window: int, lead: int, g0: int, t0: int
    ) -> list[Membership]:
        """As controller.beginnings does it: deleted from the leaves up, written from the root down."""
        self.route()
        tree, wiring = self._plan()
        old = self.epoch
        placement.rent_all(self._books, number, tree, window, "test")
        placement.free_others(self._books, number, tree)
        ranks = [(host, seat.udp_port) for host, seat in zip(self.hosts, seats, strict=True)]
        new, members = placement.begin(
            self._books, self._epochs, self.record, number, tree, wiring, ranks, lead, g0, t0
        )
        if old is not None:
            placement.leave(self._books, old)
            for name, node in reversed([*old.nodes.items()]):
                delete_epoch(self._switches[name], node)
                self._books[name].give_back(node)
                self.between()
        placement.enter(self._books, new)
        for name, node in new.nodes.items():
            insert_epoch(self._switches[name], node)
            self.between()
        self.epoch = new
        return members

    def process(self, name: str, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self.devices[name].process([(port, frame)])


class RackWorld(World):
    """A World in which every frame crosses the links of a record, one event each."""

    def __init__(
        self,
        record: NetRecord,
        devices: Sequence[SwitchDevice],
        hosts: list[str],
        seed: int,
        *,
        late: float,
        **faults: Any,
    ) -> None:
        super().__init__(devices[0], seed, **faults)
        self.record = record
        names = [*(host.name for host in record.hosts), *(switch.name for switch in record.switches)]
        self.peers = {name: record.peers(name) for name in names}
        self.ranks = []
        self.switches = Switches(record, devices, self.between)
        self.switches.hosts = hosts
        self.jobs = self.switches  # type: ignore[assignment]
        self.up: list[Any] = []
        self.held: list[Any] = []
        """Frames that come long after those sent later."""
        self.late_share = late

    def between(self) -> None:
        """Something may arrive at any time."""
        for _ in range(self.random.randrange(4) if self.ranks else 0):
            self.step()

    def put(self, link: list[Any], frame: tuple[int, bytes]) -> None:
        """Take a frame from a rank's host, named by its rank + 1 as if it were a port."""
        host = self.switches.hosts[frame[0] - 1]
        self._carry(host, 0, frame[1])

    def _carry(self, node: str, port: int, frame: bytes) -> None:
        end = self.peers[node][port]
        cable = frozenset({(node, port), (end.node, end.port)})
        if cable not in self.switches.dead.cables and self.random.random() >= self.loss:
            for _ in range(2 if self.random.random() < self.duplicate else 1):
                late = self.random.random() < self.late_share
                (self.held if late else self.up).append((end.node, end.port, frame))

    def step(self) -> None:
        self.steps += 1
        assert self.steps < STEPS, "stuck"
        self.now += 0.0005
        if self.held and self.random.random() < 0.01:
            self.up.append(self.take(self.held))
        if self.up and self.random.random() < 0.85:
            node, port, frame = self.take(self.up)
            if node in self.switches.devices:
                for out, sent in self.switches.process(node, port, frame):
                    self._carry(node, out, sent)
            elif node in self.switches.hosts:
                rank = self.switches.hosts.index(node)
                if rank < len(self.ranks):
                    self.ranks[rank].arrive(frame)
        elif self.ranks:
            self.act(self.random.choice(self.ranks))

    def happen(self, kind: str) -> None:
        """Something befalls the network: another tree or another path is needed, or can be had."""
        switches, draw = self.switches, self.random
        homes = {self.peers[host.name][0].node for host in self.record.hosts}
        names = [switch.name for switch in self.record.switches]
        switches.full = frozenset(name for name in names if draw.random() < 0.2)
        cables = [
            frozenset({(link.a.node, link.a.port), (link.b.node, link.b.port)})
            for link in self.record.links
            if {link.a.node, link.b.node} <= {*names}
        ]
        dead = switches.dead
        if kind == "kill":
            spare = [name for name in names if name not in homes | dead.switches]
            spare = [s for s in spare if switches.can_go_on(Dead(dead.switches | {s}, dead.cables))]
            if spare:
                switches.kill(draw.choice(spare))
        elif kind == "cut":
            left = [c for c in cables if switches.can_go_on(Dead(dead.switches, dead.cables | {c}))]
            if left:
                switches.cut(draw.choice(left))
        elif kind == "wipe":
            switches.wipe(draw.choice(sorted({*names} - dead.switches)))
        elif kind == "mend":
            switches.mend()
