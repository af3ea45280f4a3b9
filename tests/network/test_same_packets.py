# SPDX-License-Identifier: Apache-2.0
"""Every target gives the same packets for the same input, byte for byte, and counts them alike.

Each is compared with the in-process switch on one seeded stream, and so with the other. Its packets also say
what to wait for after each frame, which comes in only when the one before is done with: on which port the
next one comes in would else be anybody's order.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.entities import Switch, read_counters
from controller.p4info import P4Info
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.faults import Shares
from controller.program.peek import SlotState
from controller.program.verdicts import JobVerdicts, PortVerdicts, Verdicts
from p4src.forms import form
from switch.device import SwitchDevice
from tests.controller.direct import DirectSwitch
from tests.dataplane.rig import load
from tests.network.site import (
    JOB,
    LEAF_BASE,
    LEAF_JOB,
    PORTS,
    SECOND,
    UPLINK,
    WINDOW,
    WORKERS,
    describe,
    install,
    running,
    set_faults,
)
from tests.network.traffic import Input, Traffic
from tests.switch.veth import Link
from topologies.targets import Target
from wire.constants import CPU_PORT, FEW_SLOTS
from wire.verdicts import Verdict, port_counter

pytestmark = pytest.mark.root

LIMIT_S = 15.0
QUIET_S = 0.2
Packets = dict[int, list[bytes]]


class Wires:
    """Our ends of the links: one frame in, and the frames that have come out."""

    def __init__(self, links: dict[int, Link]) -> None:
        self._links = links
        self._ports = {link.socket.fileno(): port for port, link in links.items()}
        for link in links.values():
            link.socket.setblocking(False)

    def send(self, port: int, frame: bytes) -> None:
        self._links[port].send(frame)

    def received(self, wanted: int, limit_s: float) -> Packets:
        """Return what comes out until `wanted` frames have, and all that has come by then."""
        found: Packets = {}
        deadline = time.monotonic() + limit_s
        while True:
            ready, _, _ = select.select(list(self._ports), [], [], 0)
            if not ready:
                left = deadline - time.monotonic()
                if sum(map(len, found.values())) >= wanted or left <= 0:
                    return found
                ready, _, _ = select.select(list(self._ports), [], [], left)
            for fd in ready:
                port = self._ports[fd]
                found.setdefault(port, []).append(self._links[port].socket.recv(65536))


class Twin:
    """The switch process and the in-process one, side by side."""

    def __init__(
        self, client: SwitchClient, wires: Wires, device: SwitchDevice, direct: DirectSwitch
    ) -> None:
        self.client = client
        self.direct = direct
        self._wires = wires
        self._device = device
        self.left: Counter[int] = Counter()
        """Packets that left by each port."""

    def put(self, frame: Input) -> None:
        """Let one frame into both; AssertionError unless the same packets leave."""
        before = self._verdicts(frame.port)
        expected: Packets = {}
        for port, data in self._device.process([(frame.port, frame.data)]):
            expected.setdefault(port, []).append(data)
            self.left[port] += 1
        after = self._verdicts(frame.port)
        changed = {verdict: after[verdict] for verdict in after if after[verdict] != before[verdict]}
        self._wires.send(frame.port, frame.data)
        got = self._wires.received(sum(map(len, expected.values())), LIMIT_S)
        told = f"{frame.what}, in by port {frame.port}: {frame.data.hex()}"
        assert _hex(got) == _hex(expected), told
        self._await_counters(frame.port, changed, told)

    def _verdicts(self, port: int) -> dict[Verdict, int]:
        name = Verdicts.PORTS_IN
        return {v: self._device.counter_read(name, port_counter(port, v))[0] for v in Verdict}

    def _await_counters(self, port: int, wanted: dict[Verdict, int], told: str) -> None:
        """A frame is done with when it, and its copy if it was duplicated, have been given their verdicts."""
        cells = {port_counter(port, verdict): count for verdict, count in wanted.items()}
        deadline = time.monotonic() + LIMIT_S
        while True:
            read = read_counters(self.client, Verdicts.PORTS_IN, list(cells))
            counts = {index: packets for index, (packets, _) in read.items()}
            if counts == cells:
                return
            assert time.monotonic() < deadline, (told, counts, wanted)

    def silence(self) -> None:
        assert self._wires.received(1, QUIET_S) == {}


def _hex(packets: Packets) -> dict[int, list[str]]:
    # Sorted: whether the copy that egress makes of a frame leaves before the one that ingress had made of it
    # depends on bmv2's threads.
    return {port: sorted(data.hex() for data in frames) for port, frames in sorted(packets.items())}


@contextmanager
def twin(target: Target, elements: int, folder: Path) -> Iterator[Twin]:
    record = describe(elements)
    with running(target, elements, folder) as (client, links), load(elements, FEW_SLOTS) as device:
        direct = DirectSwitch(device, P4Info.from_file(form(elements, FEW_SLOTS).p4info_path))
        install(client, record, folder / "process")
        install(direct, record, folder / "direct")
        yield Twin(client, Wires(links), device, direct)


def everything_counted(switch: Switch) -> tuple[PortVerdicts, dict[int, JobVerdicts]]:
    verdicts = Program(switch.p4info).verdicts
    ports = verdicts.of_ports(switch, [*PORTS, CPU_PORT])
    return ports, verdicts.of_jobs(switch, {JOB: WORKERS, LEAF_JOB: 2})


def slots(switch: Switch) -> list[SlotState]:
    peek = Program(switch.p4info).peek
    return [
        peek.slot(switch, base + slot, version)
        for base in (0, LEAF_BASE)
        for slot in range(WINDOW)
        for version in (0, 1)
    ]


def met(ports: PortVerdicts) -> set[Verdict]:
    """Return all verdicts that were given at all."""
    arrays = (ports.ingress, ports.egress, ports.ingress_faults, ports.egress_faults)
    return {verdict for by_port in arrays for counts in by_port.values() for verdict in counts}


@pytest.mark.parametrize("elements", [64, 256])
def test_the_same_input_gives_the_same_packets(target: Target, elements: int, tmp_path: Path) -> None:
    with twin(target, elements, tmp_path) as both:
        for frame in Traffic(describe(elements), seed=1).flows(60):
            both.put(frame)
        assert min(both.left[UPLINK], both.left[SECOND]) > 10
        traffic = Traffic(describe(elements), seed=elements)
        # Chunk numbers wrap on the way.
        for frame in traffic.stream(20, 2**32 - 8):
            both.put(frame)
        shares = Shares(drop=0.1, duplicate=0.15, corrupt=0.1, seed=77)
        set_faults(both.client, shares)
        set_faults(both.direct, shares)
        for frame in traffic.stream(20, 2**32 + 12):
            both.put(frame)
        both.silence()
        assert slots(both.client) == slots(both.direct)
        ports, jobs = everything_counted(both.direct)
        assert everything_counted(both.client) == (ports, jobs)
        # All has happened but what needs a meter, or a PacketOut that no controller sends.
        assert met(ports) == set(Verdict) - {Verdict.OVER_RATE, Verdict.BAD_PACKET_OUT}
