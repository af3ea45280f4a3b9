# SPDX-License-Identifier: Apache-2.0
"""Control Routing (p4src/routing.p4): ordinary IPv4, by longest prefix."""

from __future__ import annotations

from controller.p4info import Entity, P4Info, Value


class Routing:
    """Table `routes`."""

    TABLE = "SwitchIngress.handle.routing.routes"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def route(self, ip: str, prefix_len: int, *, port: int, src_mac: str, dst_mac: str) -> Entity:
        """Return the route of a prefix: out of `port`, from the switch's MAC to that of the next hop."""
        args: dict[str, Value] = {"port": port, "src_mac": src_mac, "dst_mac": dst_mac}
        return self._p4info.entry(self.TABLE, {"prefix": (ip, prefix_len)}, "forward", args)
