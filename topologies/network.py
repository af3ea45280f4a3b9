# SPDX-License-Identifier: Apache-2.0
"""A network built with Mininet: hosts in namespaces, veth links, switches in the root namespace.

Mininet's own defaults would be in the way: no controller, no Open vSwitch; interface names that carry the
network's token; and everything quiet before it goes up (no IPv6), since a packet that nobody sent
deliberately is one too many for a slot. Where the switch takes super-packets, the kernel's offloads stay as
they are; elsewhere all are off, since a switch must see packets as a cable would carry them.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Switch

from topologies import links, processes, shaping
from topologies.errors import NetworkError
from topologies.identity import Process
from topologies.parts import LinkRecord, SwitchRecord
from topologies.processes import LoggedProcess
from topologies.record import (
    CONTROLLER,
    CONTROLLER_LOG,
    RECORDER,
    RECORDER_LOG,
    NetRecord,
    load,
    switch_part,
    update,
    with_host,
    with_switch,
)
from topologies.spec import MTU, PLAIN, Way
from topologies.supervise import Kept
from topologies.targets import SwitchProcess, Target
from traces.names import LinkEnd, end_words, link_ends

log = logging.getLogger(__name__)

OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro")
UNKNOWN_OFFLOADS = ("gro", "tx-checksum-sctp", "tx-sctp-segmentation")
"""Those that a switch with super-packets does not undo, or that gain nothing on a veth pair."""
UDP_SUPER_PACKETS = (6, 2)
"""Linux from which a packet socket takes them."""
RECORDER_LIMIT_S = 60.0
"""How long a recorder may take to begin: it may have to compile."""
_DONE = "p4reduce-done"


def run_in(node: Any, *commands: str) -> None:
    """Run shell commands in a Mininet node, stopping at the first that fails; NetworkError then."""
    output: str = node.cmd(" && ".join([*commands, f"echo {_DONE}"]))
    if not output.rstrip().endswith(_DONE):
        raise NetworkError(node.name, f"{output.strip() or 'no output'} (from: {' && '.join(commands)})")


def _ipv6_off(interface: str) -> str:
    return f"{{ [ ! -d /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6; }}"


def offloads_off(super_packets: bool, release: str) -> tuple[str, ...]:
    """Return ethtool's names of the features to switch off, with Linux of this release (as `uname -r`)."""
    if not super_packets:
        return OFFLOADS
    version = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    return UNKNOWN_OFFLOADS if version >= UDP_SUPER_PACKETS else (*UNKNOWN_OFFLOADS, "tx-udp-segmentation")


class QuietIntf(Intf):
    """An interface that is set up wholly before it goes up."""

    def config(
        self, way: Way = PLAIN, qdiscs: tuple[str, ...] = (), super_packets: bool = False, **_params: Any
    ) -> dict[str, Any]:
        """Set MTU, offloads, IPv6 and what it sends, then bring it up; NetworkError when refused."""
        off = offloads_off(super_packets, platform.release())
        conf = f"/proc/sys/net/ipv4/conf/{self.name}"
        commands = [
            f"ip link set {self.name} mtu {MTU}",
            f"ethtool -K {self.name} {' '.join(f'{feature} off' for feature in off)} >/dev/null",
            _ipv6_off(self.name),
        ]
        if not self.node.inNamespace:
            # The kernel must not answer a host's ARP request for one of this machine's own addresses.
            commands.append(f"echo 8 >{conf}/arp_ignore")
        commands += shaping.commands(self.name, way, switch_end=not self.node.inNamespace, qdiscs=qdiscs)
        run_in(self.node, *commands, f"ip link set {self.name} up")
        return {}


class NetHost(Host):
    """A Mininet host without IPv6 whose address is set with checks."""

    def config(self, ip: str | None = None, **_params: Any) -> dict[str, Any]:
        """Give the one interface its address (A.B.C.D/LEN)."""
        name = self.defaultIntf().name
        run_in(self, "ip link set lo up", f"ip address add {ip} dev {name}")
        return {}


class NetSwitch(Switch):
    """A Mininet switch that is a process of one of the targets, in the root namespace."""

    def __init__(
        self, name: str, entry: SwitchRecord, target: Target, record: NetRecord, **params: Any
    ) -> None:
        super().__init__(name, dpid=f"{entry.device_id:x}", **params)
        self.entry = entry
        self.target = target
        self.record = record
        self.child: SwitchProcess | None = None

    def start(self, controllers: Any) -> None:
        """Start the process, once it has ended again; wait_ready() says when it serves."""
        grpc = None if self.child is None else self.child.grpc
        if self.child is not None:
            self.record = load(self.record.name, self.record.root)  # its links may have changed
        self.child = SwitchProcess(
            self.target,
            name=self.name,
            device_id=self.entry.device_id,
            ports=self.entry.ports,
            log=Path(self.entry.log),
            directory=self.record.directory,
            grpc=grpc,
            super_packets=self.record.super_packets,
            flags=links.delay_flags(self.record, self.name),
        )

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 (Mininet's name)
        """End the process first: bmv2 dies badly of an interface that goes away."""
        if self.child is not None:
            self.child.stop()
        super().stop(deleteIntfs)


def _child(node: NetSwitch) -> SwitchProcess | None:
    return node.child


class Network:
    """The network of a record; build() makes it, stop() removes it, whatever state it is in."""

    def __init__(self, record: NetRecord, target: Target) -> None:
        self.record = record
        self.target = target
        self._net: Any = None
        self._controller: LoggedProcess | None = None
        self._recorder: LoggedProcess | None = None

    def build(self) -> None:
        """Build everything and start the switches; the record is saved with each step."""
        # First, as it loads while we build; it waits for the switches' addresses.
        self._start_controller()
        # Mininet's first object would raise system-wide limits and leave them so; ours needs none of them.
        Mininet.inited = True
        self._net = Mininet(controller=None, host=NetHost, switch=NetSwitch, build=False)
        for host in self.record.hosts:
            node = self._net.addHost(host.name, ip=f"{host.ip}/{host.prefix_len}")
            # Before its interface exists, which takes the default.
            run_in(node, _ipv6_off("all"), _ipv6_off("default"))
            netns = os.stat(f"/proc/{node.pid}/ns/net").st_ino
            self.note(partial(with_host, name=host.name, process=Process.of(node.pid), netns=netns))
        for entry in self.record.switches:
            self._net.addSwitch(entry.name, entry=entry, target=self.target, record=self.record)
        for link in self.record.links:
            self._add_link(link)
        if self.record.pcap is not None:
            self._start_recorder()
            self._wait_recorder()
        self._net.start()
        for node in self._net.switches:
            process = node.child.wait_ready()
            self.note(partial(with_switch, name=node.name, process=process, grpc=node.child.grpc))

    def _start_controller(self) -> None:
        record = self.record
        argv = [sys.executable, "-m", "controller", "controller", "--net", record.name]
        argv += ["--root", str(record.root)]
        argv += [] if record.lease is None else ["--lease", str(record.lease)]
        argv += [] if record.listen is None else ["--listen", record.listen]
        directory = record.directory
        self._controller = LoggedProcess(argv, log=directory / CONTROLLER_LOG, directory=directory)
        self.note(partial(replace, controller=self._controller.process))

    def _start_recorder(self) -> None:
        record = self.record
        argv = [sys.executable, "-m", "traces.recorder", "--out", str(record.pcap)]
        argv += ["--net", record.name, "--root", str(record.root)]
        argv += end_words(self._recorded())
        self._recorder = LoggedProcess(argv, log=record.directory / RECORDER_LOG, directory=record.directory)
        self.note(partial(replace, recorder=self._recorder.process))

    def _recorded(self) -> list[LinkEnd]:
        """Return the link ends that are recorded: all."""
        return link_ends(processes.link_places(self.record))

    def _wait_recorder(self) -> None:
        """Wait until every link end has its file: then its packets are seen."""
        assert self._recorder is not None
        folder, deadline = Path(str(self.record.pcap)), time.monotonic() + RECORDER_LIMIT_S
        while not all((folder / f"{end.name}.pcapng").exists() for end in self._recorded()):
            late = time.monotonic() > deadline
            if late or self._recorder.poll() is not None:
                why = f"it did not begin in {RECORDER_LIMIT_S:g} s" if late else "it ended"
                raise NetworkError(self.record.name, f"its recorder: {why}; {self._recorder.log_tail()}")
            time.sleep(0.02)

    def _restart_switch(self, node: NetSwitch) -> None:
        node.start(())
        assert node.child is not None
        self.note(partial(with_switch, name=node.name, process=node.child.process))

    def kept(self) -> list[Kept]:
        """Return the processes that are started again when they end."""
        switches = [
            Kept(switch_part(node.name), partial(_child, node), partial(self._restart_switch, node))
            for node in self._net.switches
        ]
        controller = Kept(CONTROLLER, lambda: self._controller, self._start_controller)
        recorder = Kept(RECORDER, lambda: self._recorder, self._start_recorder)
        return [controller, *switches, *([recorder] if self.record.pcap is not None else [])]

    def give_up(self, what: str) -> None:
        """Say in the record that a process will not be started again."""
        self.note(lambda record: replace(record, given_up=(*record.given_up, what)))

    def note(self, change: Callable[[NetRecord], NetRecord]) -> None:
        """Change the record, here and on disk, where others change it too (see records.update)."""
        self.record = update(self.record.name, change, self.record.root)

    def _add_link(self, link: LinkRecord) -> None:
        hosts = {host.name: host for host in self.record.hosts}
        devices = {switch.name: switch.device_id for switch in self.record.switches}

        def mac(node: str, port: int) -> str:
            if node in hosts:
                return hosts[node].mac
            return (
                f"02:02:{devices[node] >> 8:02x}:{devices[node] & 255:02x}:{port >> 8:02x}:{port & 255:02x}"
            )

        self._net.addLink(
            link.a.node,
            link.b.node,
            port1=link.a.port,
            port2=link.b.port,
            cls=Link,
            intf=QuietIntf,
            intfName1=link.a_interface,
            intfName2=link.b_interface,
            addr1=mac(link.a.node, link.a.port),
            addr2=mac(link.b.node, link.b.port),
            params1={"way": links.by_kernel(self.record, link.forth)},
            params2={"way": links.by_kernel(self.record, link.back)},
            qdiscs=self.record.qdiscs,
            super_packets=self.record.super_packets,
        )

    def stop(self) -> None:
        """End what runs in the hosts, the controller, the switches, links and hosts, in this order."""
        processes.end_guests(self.record)
        if self._controller is not None:
            self._controller.terminate()
        if self._net is not None:
            self._stop_nodes()
        if self._controller is not None:
            self._controller.stop()
        processes.sweep(self.record)

    def _stop_nodes(self) -> None:
        for node in self._net.switches:
            if node.child is not None:
                node.child.stop()
        if self._recorder is not None:
            self._recorder.stop()  # it has the last packets, and links go with the nodes
        try:
            self._net.stop()
        except Exception:
            # A node interrupted in the middle of a command refuses the next one: the sweep does the rest.
            log.exception("Mininet could not take the network down by itself")
