# SPDX-License-Identifier: Apache-2.0
"""Control Sources (p4src/routing.p4): who may send from where."""

from __future__ import annotations

from controller.p4info import Entity, P4Info


class Sources:
    """Table `sources`: from a host port only these (MAC, IPv4) sources are accepted."""

    TABLE = "SwitchIngress.handle.sources.sources"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def permit(self, port: int, mac: str, ip: str) -> Entity:
        """Return the entry that lets a host send from its own addresses."""
        return self._p4info.entry(self.TABLE, {"port": port, "mac": mac, "ip": ip})
