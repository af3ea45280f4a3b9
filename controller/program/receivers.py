# SPDX-License-Identifier: Apache-2.0
"""Control Receivers (p4src/p4reduce.p4): to whom a multicast copy is addressed, by its replication id."""

from __future__ import annotations

from controller.p4info import Entity, P4Info, Value


class Receivers:
    """Table `receivers`; replication ids are new in every epoch."""

    TABLE = "SwitchEgress.receivers.receivers"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def receiver(
        self, rid: int, *, src_mac: str, dst_mac: str, src_ip: str, dst_ip: str, src_port: int, dst_port: int
    ) -> Entity:
        """Return the entry of replication id 1..65535: all addresses and UDP ports of the copy."""
        args: dict[str, Value] = {
            "src_mac": src_mac,
            "dst_mac": dst_mac,
            "src_ip": src_ip,
            "dst_ip": dst_ip,
            "src_port": src_port,
            "dst_port": dst_port,
        }
        return self._p4info.entry(self.TABLE, {"rid": rid}, "receiver", args)
