# SPDX-License-Identifier: Apache-2.0
"""Networks of in-process switches: each with its program and entries, joined by wires in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from controller.entities import insert
from controller.fabric import Dead
from controller.p4info import P4Info
from controller.program import Program
from controller.setup import network_entities
from p4src.forms import form
from switch.build import build
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.controller.direct import DirectSwitch
from topologies.record import NetRecord, new_record
from topologies.spec import (
    End,
    HostSpec,
    LinkSpec,
    NetworkSpec,
    SwitchSpec,
    host_address,
    mac_of,
    switch_address,
)
from wire.constants import CPU_PORT, FEW_SLOTS
from wire.verdicts import Verdict

MOST_HOPS = 64
Crossed = tuple[str, int]
"""A switch and the port that a packet came in by."""


@cache
def p4info() -> P4Info:
    return P4Info.from_file(form(64, FEW_SLOTS).p4info_path)


def network(racks: Sequence[int], cables: Iterable[tuple[int, int]], switches: int) -> NetRecord:
    """Hosts on the switches s1, s2 ... (`racks`: how many each), cables between switches by their numbers."""
    ports = dict.fromkeys(range(1, switches + 1), 0)

    def end(switch: int) -> End:
        ports[switch] += 1
        return End(f"s{switch}", ports[switch])

    hosts: list[HostSpec] = []
    links: list[LinkSpec] = []
    for rack, count in enumerate(racks):
        for number in range(1, count + 1):
            ip = host_address(rack, number)
            hosts.append(HostSpec(f"h{len(hosts) + 1}", ip, mac_of(0, ip)))
            links.append(LinkSpec(End(hosts[-1].name, 0), end(rack + 1)))
    links += [LinkSpec(end(a), end(b)) for a, b in cables]
    made = [
        SwitchSpec(f"s{d}", d, switch_address(d), mac_of(1, switch_address(d)))
        for d in range(1, switches + 1)
    ]
    spec = NetworkSpec("wired", tuple(hosts), tuple(made), tuple(links))
    return new_record("wired", spec, target="any", elements=64, slots=FEW_SLOTS)


def leaf_spine(leaves: int, spines: int, hosts: int) -> NetRecord:
    """Leaves s1.. with `hosts` each, spines behind them."""
    last = leaves + spines
    cables = [(leaf, spine) for leaf in range(1, leaves + 1) for spine in range(leaves + 1, last + 1)]
    return network([hosts] * leaves, cables, last)


def fat_tree() -> NetRecord:
    """k = 4 (Al-Fares et al., SIGCOMM 2008): edges s1..s8 of two hosts, aggregations s9..s16, cores."""
    cables = []
    for pod in range(4):
        for above in range(2):
            aggregation = 9 + 2 * pod + above
            cables += [(1 + 2 * pod + edge, aggregation) for edge in range(2)]
            cables += [(aggregation, 17 + 2 * above + core) for core in range(2)]
    return network([2] * 8, cables, 20)


@dataclass
class Trip:
    """What became of a frame: the switches that it crossed, and where copies came out."""

    crossed: list[Crossed]
    arrived: list[tuple[str, bytes]]

    @property
    def switches(self) -> list[str]:
        return [switch for switch, _ in self.crossed]


class Wired:
    """The switches of a record, up."""

    def __init__(self, record: NetRecord, devices: dict[str, SwitchDevice], dead: Dead = Dead()) -> None:  # noqa: B008
        self.record = record
        self.devices = devices
        self.program = Program(p4info())
        self.switches: dict[str, DirectSwitch] = {}
        names = [*(host.name for host in record.hosts), *(switch.name for switch in record.switches)]
        self.peers = {name: record.peers(name) for name in names}
        for name, device in devices.items():
            device.reset()
            self.switches[name] = DirectSwitch(device, p4info(), name)
            insert(self.switches[name], network_entities(record, name, self.program, dead))

    def send(self, host: str, frame: bytes) -> Trip:
        """Put a frame on a host's cable; AssertionError if it goes on for ever."""
        trip = Trip([], [])
        waiting = [(self.peers[host][0], frame)]
        while waiting:
            end, data = waiting.pop(0)
            if end.node not in self.devices:
                trip.arrived.append((end.node, data))
                continue
            trip.crossed.append((end.node, end.port))
            assert len(trip.crossed) <= MOST_HOPS, trip.crossed
            out = self.devices[end.node].process([(end.port, data)])
            waiting += [(self.peers[end.node][port], sent) for port, sent in out]
        return trip

    def verdicts(self, switch: str, port: int) -> dict[Verdict, int]:
        read = self.devices[switch].counter_read
        counts = {v: read("SwitchIngress.port_verdicts", port * 64 + v)[0] for v in Verdict}
        return {v: n for v, n in counts.items() if n}


@contextmanager
def wired(record: NetRecord, dead: Dead = Dead()) -> Iterator[Wired]:  # noqa: B008
    """Load and set up all switches of a record; what is the same for all is done once."""
    program = load_program(form(64, FEW_SLOTS).json_path.read_text())
    library = build(emit_program(program))
    with ExitStack() as stack:
        devices = {
            s.name: stack.enter_context(SwitchDevice(program, library, cpu_port=CPU_PORT))
            for s in record.switches
        }
        yield Wired(record, devices, dead)
