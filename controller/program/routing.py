# SPDX-License-Identifier: Apache-2.0
"""Control Routing (p4src/routing.p4): ordinary IPv4, by longest prefix, each flow by one of several ways."""

from __future__ import annotations

from controller.p4info import Entity, P4Info, Value


class Routing:
    """Tables `routes` and `next_hops`."""

    TABLE = "SwitchIngress.handle.routing.routes"
    NEXT_HOPS = "SwitchIngress.handle.routing.next_hops"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        p4info.table(self.NEXT_HOPS)
        self._p4info = p4info

    def route(self, ip: str, prefix_len: int, *, port: int, src_mac: str, dst_mac: str) -> Entity:
        """Return the route of a prefix: out of `port`, from the switch's MAC to that of the next hop."""
        args: dict[str, Value] = {"port": port, "src_mac": src_mac, "dst_mac": dst_mac}
        return self._p4info.entry(self.TABLE, {"prefix": (ip, prefix_len)}, "forward", args)

    def spread(self, ip: str, prefix_len: int, *, group: int, ways: int, seed: int) -> Entity:
        """Return the route of a prefix by the next hops 0..ways-1 of a group (16 bits each; seed 32)."""
        args: dict[str, Value] = {"group_": group, "ways_": ways, "seed_": seed}
        return self._p4info.entry(self.TABLE, {"prefix": (ip, prefix_len)}, "spread", args)

    def next_hop(self, group: int, index: int, *, port: int, src_mac: str, dst_mac: str) -> Entity:
        """Return one of the ways that a group's flows are spread over."""
        args: dict[str, Value] = {"port": port, "src_mac": src_mac, "dst_mac": dst_mac}
        return self._p4info.entry(self.NEXT_HOPS, {"group": group, "index": index}, "forward", args)
