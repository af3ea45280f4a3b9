# SPDX-License-Identifier: Apache-2.0
"""Control Receive (p4src/p4reduce.p4): which ports there are, and the switch's own addresses."""

from __future__ import annotations

from controller.p4info import Entity, P4Info


class Ports:
    """Table `ports`: packets from any other port are refused."""

    TABLE = "SwitchIngress.receive.ports"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def host(self, port: int) -> Entity:
        """Return the entry of a port with a host behind it: only its own addresses are accepted there."""
        return self._p4info.entry(self.TABLE, {"port": port}, "host_port")

    def switch(self, port: int) -> Entity:
        """Return the entry of a port with another switch behind it: it may send from any source."""
        return self._p4info.entry(self.TABLE, {"port": port}, "switch_port")


class Addresses:
    """Table `addresses`: what is sent to these is for the switch itself."""

    TABLE = "SwitchIngress.receive.addresses"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def own(self, ip: str) -> Entity:
        """Return the entry of an IPv4 address of the switch."""
        return self._p4info.entry(self.TABLE, {"ip": ip})
