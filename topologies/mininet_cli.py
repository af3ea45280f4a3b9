# SPDX-License-Identifier: Apache-2.0
"""Mininet's own command line on a network that runs: `p4reduce net cli`.

The nodes are kept by the network's daemon. Here they are made again around what runs: a host is a new shell
in its namespace, a switch one in the root namespace, a link two interfaces that are there already. When the
command line ends, so do these shells, and nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Mininet imports distutils, and has escapes that Python frowns at
    from mininet.cli import CLI
    from mininet.link import Intf, Link
    from mininet.net import Mininet
    from mininet.node import Host, Switch

from topologies.errors import NetworkError
from topologies.record import NetRecord


class RunningIntf(Intf):
    """An interface that is there already, left as it is."""

    def config(self, address: str | None = None, prefix_len: int | None = None, **_: Any) -> dict[str, Any]:
        """Only remember its IPv4 address."""
        self.ip, self.prefixLen = address, prefix_len
        return {}


class RunningLink(Link):
    """A link whose interfaces are there already."""

    @classmethod
    def makeIntfPair(cls, *_: Any, **__: Any) -> None:  # noqa: N802 (Mininet's name)
        """Make none."""


class RunningHost(Host):
    """Another shell in the namespace of a host that runs."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """Enter the namespace of the process that holds it."""
        super().startShell(f"-cda{self.params['holder']}")


class RunningSwitch(Switch):
    """A shell beside a switch that runs."""

    def start(self, controllers: Any) -> None:
        """It runs."""


@contextmanager
def attached(record: NetRecord) -> Iterator[Any]:
    """Yield a Mininet object around a network that runs, and end its shells afterwards.

    Raises NetworkError when a host has died.
    """
    Mininet.inited = True  # else it raises system-wide limits and leaves them so
    net = Mininet(controller=None, build=False)
    hosts = {host.name: host for host in record.hosts}
    macs = {host.name: host.mac for host in record.hosts}
    try:
        for host in record.hosts:
            if host.process is None or not host.process.alive():
                raise NetworkError(host.name, f"the host has ended: see p4reduce net status of {record.name}")
            net.addHost(host.name, cls=RunningHost, inNamespace=False, holder=host.process.pid)
        for switch in record.switches:
            net.addSwitch(switch.name, cls=RunningSwitch, dpid=f"{switch.device_id:x}")
        for link in record.links:
            given = [
                {"address": hosts[end.node].ip, "prefix_len": hosts[end.node].prefix_len}
                if end.node in hosts
                else {}
                for end in (link.a, link.b)
            ]
            net.addLink(
                link.a.node,
                link.b.node,
                port1=link.a.port,
                port2=link.b.port,
                cls=RunningLink,
                intf=RunningIntf,
                intfName1=link.a_interface,
                intfName2=link.b_interface,
                addr1=macs.get(link.a.node),
                addr2=macs.get(link.b.node),
                params1=given[0],
                params2=given[1],
            )
        net.built = True
        yield net
    finally:
        for node in [*net.hosts, *net.switches]:
            node.terminate()


def run(record: NetRecord) -> None:
    """Read commands from standard input until `exit`. Raises NetworkError."""
    with attached(record) as net:
        CLI(net)
