# SPDX-License-Identifier: Apache-2.0
"""Control Arp (p4src/routing.p4): whom the switch answers for."""

from __future__ import annotations

from controller.p4info import Entity, P4Info


class Arp:
    """Table `neighbors`: every address that is known, with its MAC; ARP is never flooded."""

    TABLE = "SwitchIngress.handle.arp.neighbors"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def neighbor(self, ip: str, mac: str) -> Entity:
        """Return the entry that answers requests for `ip` with `mac`."""
        return self._p4info.entry(self.TABLE, {"ip": ip}, "known", {"mac_": mac})
