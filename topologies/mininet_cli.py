# SPDX-License-Identifier: Apache-2.0
"""Mininet's own command line on a network that runs: `p4reduce net cli`.

The nodes are kept by the network's daemon. Here they are made again around what runs: a host is a new shell
in its namespace, a switch one in the root namespace, a link two interfaces that are there already. When the
command line ends, so do these shells, and nothing else.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from subprocess import PIPE, STDOUT, TimeoutExpired
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Mininet imports distutils, and has escapes that Python frowns at
    from mininet.cli import CLI
    from mininet.link import Intf, Link
    from mininet.log import output
    from mininet.net import Mininet
    from mininet.node import Host, Switch

from topologies import link_cli, links
from topologies.errors import NetworkError
from topologies.record import NetRecord
from wire.errors import P4ReduceError

IPERF_LIMIT_S = 10.0
"""How long iperf's server may take to listen, and to end."""


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


class RunningNet(Mininet):
    """Nodes that run already, links that change as `net link` changes them, and an iperf that ends."""

    def __init__(self, record: NetRecord) -> None:
        super().__init__(controller=None, build=False)
        self.record = record

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:  # noqa: N802 (Mininet's name)
        """Take a link down or up. Raises P4ReduceError."""
        link = links.find(self.record, f"{src}-{dst}")
        self.record = link_cli.change(self.record, link, {}, None, status == "down")

    def iperf(  # type: ignore[override]
        self,
        hosts: Any = None,
        l4Type: str = "TCP",  # noqa: N803 (Mininet's names)
        udpBw: str = "10M",  # noqa: N803
        fmt: str | None = None,
        seconds: int = 5,
        port: int = 5001,
    ) -> list[str]:
        """Measure what passes between two hosts; return the server's and the client's figures as text.

        Mininet's own kills every iperf of this machine first, and waits for ever for a line that iperf 2.1
        does not print. Raises NetworkError.
        """
        client, server = hosts or (self.hosts[0], self.hosts[-1])
        output("*** Iperf: testing", l4Type, "bandwidth between", client, "and", server, "\n")
        words = [
            "iperf",
            "-p",
            str(port),
            *(["-f", fmt] if fmt else []),
            *(["-u"] if l4Type == "UDP" else []),
        ]
        try:
            serving = server.popen([*words, "-s"], stdout=PIPE, stderr=STDOUT, text=True)
        except OSError as error:
            raise NetworkError(server.name, f"iperf: {error.strerror}; apt-get install iperf") from error
        try:
            _wait_listening(serving, l4Type.lower(), port)
            bandwidth = ["-b", udpBw] if l4Type == "UDP" else []
            told, _, code = client.pexec([*words, "-t", str(seconds), "-c", server.IP(), *bandwidth])
            if code != 0:
                raise NetworkError(client.name, f"iperf ended with {code}: {told.strip()}")
        finally:
            serving.send_signal(SIGINT)
            try:
                served = serving.communicate(timeout=IPERF_LIMIT_S)[0]
            except TimeoutExpired:
                serving.kill()
                served = serving.communicate()[0]
        result = [self._parseIperf(served), self._parseIperf(told)]
        if l4Type == "UDP":
            result.insert(0, udpBw)
        output(f"*** Results: {result}\n")
        return result


def _wait_listening(process: Any, protocol: str, port: int) -> None:
    """Wait until somebody in a process' namespace has a socket at a port; NetworkError in the end."""
    deadline = time.monotonic() + IPERF_LIMIT_S
    while True:
        sockets = Path(f"/proc/{process.pid}/net", protocol).read_text().splitlines()[1:]
        if any(line.split()[1].endswith(f":{port:04X}") for line in sockets):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise NetworkError("iperf", f"its server does not listen at port {port}; apt-get install iperf")
        time.sleep(0.05)


@contextmanager
def attached(record: NetRecord) -> Iterator[Any]:
    """Yield a Mininet object around a network that runs, and end its shells afterwards.

    Raises NetworkError when a host has died.
    """
    Mininet.inited = True  # else it raises system-wide limits and leaves them so
    net = RunningNet(record)
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


class Commands(CLI):
    """Mininet's commands; one of ours that fails says so and does not end the others."""

    def onecmd(self, line: str) -> bool | None:
        """Do what one line says; True ends the command line."""
        try:
            done: bool | None = super().onecmd(line)
        except P4ReduceError as failed:
            print(f"error: {failed}", file=sys.stderr)
            return None
        return done


def run(record: NetRecord) -> None:
    """Read commands from standard input until `exit`. Raises NetworkError."""
    with attached(record) as net:
        Commands(net)
