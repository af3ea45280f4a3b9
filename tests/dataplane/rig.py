# SPDX-License-Identifier: Apache-2.0
"""The compiled program in the in-process switch, entries put in by hand: packets in, packets out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p4src.forms import form
from switch.device import Exact, Lpm, SwitchDevice
from tests.dataplane.frames import Frame, ip, mac
from wire.verdicts import Verdict

RECEIVE = "SwitchIngress.receive"
HANDLE = "SwitchIngress.handle"
AGGREGATION = f"{HANDLE}.aggregation"
SWITCH_IP = "10.0.255.1"
SWITCH_MAC = "02:00:00:00:ff:01"
JOB = 7
JOB_PORT = 0xBE07
GROUP = 1
ALL_PORTS = range(1, 65)


def number(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


def host_mac(port: int) -> str:
    return f"02:00:00:00:00:{port:02x}"


def host_ip(port: int) -> str:
    return f"10.0.0.{port}"


def udp_port(port: int) -> int:
    return 4000 + port


@dataclass
class Rig:
    """Hosts on ports 1..64, the first `workers` of them in job 7; its pool is `window` slots from `base`."""

    device: SwitchDevice
    elements: int
    slots: int
    workers: int = 2
    window: int = 4
    base: int = 8
    epoch: int = 100

    def __post_init__(self) -> None:
        self.device.reset()
        for port in ALL_PORTS:
            own = number(ip(host_ip(port)))
            own_mac = number(mac(host_mac(port)))
            self.add(f"{RECEIVE}.ports", [port], "host_port")
            self.add(f"{HANDLE}.sources.sources", [port, own_mac, own], "NoAction")
            self.add(f"{HANDLE}.arp.neighbors", [own], "known", [own_mac])
            self.device.table_insert(
                f"{HANDLE}.routing.routes",
                [Lpm(own, 32)],
                f"{HANDLE}.routing.forward",
                [port, number(mac(SWITCH_MAC)), own_mac],
            )
        self.add(f"{RECEIVE}.addresses", [number(ip(SWITCH_IP))], "NoAction")
        self.add(f"{HANDLE}.arp.neighbors", [number(ip(SWITCH_IP))], "known", [number(mac(SWITCH_MAC))])
        self.join(self.epoch)

    def add(self, table: str, key: Sequence[int], action: str, args: Sequence[int] = ()) -> int:
        name = action if action == "NoAction" else f"{table.rsplit('.', 1)[0]}.{action}"
        return self.device.table_insert(table, [Exact(k) for k in key], name, args)

    def member_key(self, port: int) -> list[int]:
        return [port, number(ip(host_ip(port))), udp_port(port), JOB_PORT]

    def join(self, epoch: int, ports: Iterable[int] | None = None) -> None:
        """Enter all workers for an epoch: members, multicast group, receivers."""
        self.epoch = epoch
        full = (1 << self.workers) - 1
        seats = list(ports if ports is not None else range(1, self.workers + 1))
        self.device.multicast_set(GROUP, [(port, 100 + port) for port in seats])
        for bit, port in enumerate(seats):
            args = [bit, 1 << bit, full, self.base, self.window, epoch, GROUP]
            self.add(f"{AGGREGATION}.admission.members", self.member_key(port), "worker", args)
            addresses = [
                *(number(mac(SWITCH_MAC)), number(mac(host_mac(port)))),
                *(number(ip(SWITCH_IP)), number(ip(host_ip(port))), JOB_PORT, udp_port(port)),
            ]
            self.add("SwitchEgress.receivers.receivers", [100 + port], "receiver", addresses)

    def leave(self) -> None:
        """Withdraw all members and receivers."""
        for table in (f"{AGGREGATION}.admission.members", "SwitchEgress.receivers.receivers"):
            for entry in self.device.table_entries(table):
                self.device.table_delete(table, entry.handle)

    def contribution(self, worker: int, chunk: int, values: Sequence[int], **changes: object) -> Frame:
        """What the worker on port worker + 1 sends for a chunk (values padded with zeros)."""
        port = worker + 1
        return Frame(
            eth_src=host_mac(port),
            eth_dst=SWITCH_MAC,
            ip_src=host_ip(port),
            ip_dst=SWITCH_IP,
            udp_src=udp_port(port),
            udp_dst=JOB_PORT,
            values=(*(int(v) for v in values), *([0] * (self.elements - len(values)))),
            chunk=chunk % 2**32,
            slot=chunk % self.window,
            version=chunk // self.window % 2,
        ).but(**changes)

    def result(self, worker: int, sent: Frame, values: Sequence[int], **changes: object) -> Frame:
        """What that worker must get for a contribution it sent."""
        port = worker + 1
        return sent.but(
            eth_src=SWITCH_MAC,
            eth_dst=host_mac(port),
            ip_src=SWITCH_IP,
            ip_dst=host_ip(port),
            udp_src=JOB_PORT,
            udp_dst=udp_port(port),
            msg_type=2,
            size={64: 1, 256: 3}[self.elements],
            values=tuple(int(v) for v in values),
        ).but(**changes)

    def send(self, worker: int, frame: Frame | bytes) -> list[tuple[int, bytes]]:
        """Put one frame in on the worker's port."""
        return self.device.process([(worker + 1, frame if isinstance(frame, bytes) else frame.pack())])

    def verdicts(self, port: int) -> dict[Verdict, int]:
        """Packets by verdict that came in by a port, zeros left out."""
        counts = {
            v: self.device.counter_read("SwitchIngress.port_verdicts", port * 64 + v)[0] for v in Verdict
        }
        return {v: n for v, n in counts.items() if n}

    def worker_verdicts(self, bit: int, job: int = JOB) -> dict[Verdict, int]:
        """Packets by verdict of an admitted worker."""
        name = "SwitchIngress.worker_verdicts"
        counts = {v: self.device.counter_read(name, (job * 64 + bit) * 16 + v)[0] for v in Verdict if v < 16}
        return {v: n for v, n in counts.items() if n}

    def job_verdicts(self, job: int = JOB) -> dict[Verdict, int]:
        """Refused packets that named the job, without a worker."""
        counts = {v: self.device.counter_read("SwitchIngress.job_verdicts", job * 64 + v)[0] for v in Verdict}
        return {v: n for v, n in counts.items() if n}


def load(elements: int, slots: int) -> SwitchDevice:
    """Load one compiled form into an in-process switch."""
    return SwitchDevice.load(form(elements, slots).json_path, cpu_port=510)
