# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: the switch in this process, and one that runs as a process on veth pairs.

Both are driven by the same P4Runtime messages.
"""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4

from tests.switch.differential.compile import PROGRAMS
from tests.switch.differential.packets import VLAN
from tests.switch.p4rt import DEVICE_ID, Controller, Served, code_name
from tests.switch.veth import Link
from topologies.targets import SwitchProcess, Target

PORTS = range(6)
BATCH = 64
LIMIT_S = 1.0
QUIET_S = 0.03
SILENT_S = 0.002
END_S = 5.0
"""Within which a process whose calls fail has ended, if it has: writing its core takes time."""
OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro", "tx-udp-segmentation")
SHORTEST = 14
"""Bytes below which the kernel sends no frame."""

Packets = list[tuple[int, bytes]]


class Program:
    """A program of this folder, as a P4Runtime client pushes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.json = (PROGRAMS / f"{name}.json").read_bytes()
        self.info = text_format.Parse((PROGRAMS / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


class Side(Protocol):
    """A switch that takes a program, writes and packets."""

    name: str
    client: Controller

    def put(self, port: int, frame: bytes, wanted: int) -> Packets:
        """Let a frame in; what leaves, sorted. A process is given time for `wanted` packets."""

    def left_over(self) -> Packets:
        """What leaves after all that was put in."""


class Process(Side, Protocol):
    """One that may end, and be late."""

    quiet_s: float
    """How long nothing more has to come after a packet."""

    def start(self) -> None:
        """Start it, anew if need be, without a program."""

    def has_ended(self) -> bool:
        """Whether it ends, or has ended, by itself."""


class InProcess:
    """The embedded switch, without sockets for its packets."""

    name = "in process"

    def __init__(self) -> None:
        self.made = 0
        """Packets that left after the last one, those included that no raw socket sees."""
        self.served = Served()
        self.client = Controller(self.served.address)

    def put(self, port: int, frame: bytes, wanted: int = 0) -> Packets:
        out = self.served.receive(port, frame)
        self.made = len(out)
        return sorted(seen(out))

    def left_over(self) -> Packets:
        return []

    def close(self) -> None:
        self.client.close()
        self.served.close()


class EndedError(Exception):
    """The process has ended by itself."""


class AsProcess:
    """A switch target with a veth pair to each port."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.name = target.name
        self.quiet_s = 0.0
        self._target = target
        self._folder = folder
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._links = {}
            for port in PORTS:
                self._links[port] = link = Link()
                stack.callback(link.close)
                _plain(link)
            self._ports = {link.socket.fileno(): port for port, link in self._links.items()}
            self._poll = stack.enter_context(select.epoll())
            for fd in self._ports:
                self._poll.register(fd, select.EPOLLIN)
            self._run = stack.enter_context(ExitStack())
            self.start()
            self._stack = stack.pop_all()

    def start(self) -> None:
        self._run.close()
        self._process = SwitchProcess(
            self._target,
            name="s1",
            device_id=DEVICE_ID,
            ports={port: link.port for port, link in self._links.items()},
            log=self._folder / f"{self.name}.log",
            directory=self._folder,
            super_packets=False,
        )
        self._run.callback(self._process.stop)
        self._process.wait_ready()
        self.client = Controller(self._process.grpc)
        self._run.callback(self.client.close)
        self.left_over()

    def put(self, port: int, frame: bytes, wanted: int) -> Packets:
        # Nothing tells when a packet is done with of which none leaves; the next may enter by another port,
        # and of two that wait bmv2 takes either first.
        quiet_s = self.quiet_s if wanted else max(self.quiet_s, SILENT_S)
        self._links[port].send(frame)
        found: Packets = []
        deadline = time.monotonic() + LIMIT_S
        while True:
            left = quiet_s if len(found) >= wanted else max(deadline - time.monotonic(), 0)
            ready = self._poll.poll(left)
            if not ready:
                self.check()
                return sorted(found)
            for fd, _ in ready:
                where = self._ports[fd]
                found.append((where, self._links[where].socket.recv(65536)))

    def left_over(self) -> Packets:
        """What comes out without anything that goes in."""
        found: Packets = []
        while ready := self._poll.poll(QUIET_S):
            found += [(self._ports[fd], self._links[self._ports[fd]].socket.recv(65536)) for fd, _ in ready]
        return found

    def has_ended(self) -> bool:
        deadline = time.monotonic() + END_S
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def check(self) -> None:
        """Raise EndedError if it has."""
        code = self._process.poll()
        if code is not None:
            raise EndedError(f"{self.name} has ended with {code}; {self._process.log_tail()}")

    def close(self) -> None:
        self._stack.close()


def _plain(link: Link) -> None:
    for name in (link.port, link.host):
        # One frame at a time, as it is on the wire.
        features = [word for feature in OFFLOADS for word in (feature, "off")]
        subprocess.run(["ethtool", "-K", name, *features], check=True, capture_output=True)
        # A random packet may happen to be a question to this machine.
        Path(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore").write_text("8")


def seen(packets: Packets) -> Packets:
    """What raw sockets on the links would have seen of what leaves."""
    found = []
    for port, frame in packets:
        if port in PORTS and len(frame) >= SHORTEST:
            # The kernel takes a VLAN tag off.
            tagged = frame[12:14] in VLAN and len(frame) >= SHORTEST + 4
            found.append((port, frame[:12] + frame[16:] if tagged else frame))
    return found


def push(side: Side, program: Program) -> None:
    side.client.set_pipeline(p4info=program.info, json=program.json)


def write(side: Side, updates: Sequence[Any]) -> list[str]:
    """The canonical code of each update."""
    codes: list[str] = []
    for at in range(0, len(updates), BATCH):
        batch = updates[at : at + BATCH]
        try:
            side.client.write(*batch)
            codes += ["OK"] * len(batch)
        except grpc.RpcError as error:
            details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
            if details is None:
                raise
            for packed in status_pb2.Status.FromString(details).details:
                one = p4.Error()
                assert packed.Unpack(one)
                codes.append(code_name(one.canonical_code))
    return codes


def state(side: Side, info: Any) -> list[str]:
    """All table entries with their counters, and all cells of counter arrays, in words and sorted."""
    asked = []
    for known in info.tables:
        if known.is_const_table:
            continue  # how const entries are told, the specification has changed
        entry = p4.TableEntry(table_id=known.preamble.id)
        if known.direct_resource_ids:
            entry.counter_data.SetInParent()
        asked.append(p4.Entity(table_entry=entry))
    for counter in info.counters:
        asked.append(p4.Entity(counter_entry=p4.CounterEntry(counter_id=counter.preamble.id)))
    widths = {(t.preamble.id, f.id): f.bitwidth for t in info.tables for f in t.match_fields}
    found = []
    for entity in side.client.read(*asked):
        if entity.HasField("table_entry"):
            entry = entity.table_entry
            kept = [m for m in entry.match if not _everything(m.range, widths[entry.table_id, m.field_id])]
            del entry.match[:]
            entry.match.extend(sorted(kept, key=lambda match: match.field_id))
            entry.action.action.params.sort(key=lambda param: param.param_id)
        found.append(text_format.MessageToString(entity, as_one_line=True))
    return sorted(found)


def _everything(of: Any, width: int) -> bool:
    """Whether it is a range of all values, which bmv2's server tells and the specification leaves out."""
    return int.from_bytes(of.low, "big") == 0 and int.from_bytes(of.high, "big") == (1 << width) - 1
