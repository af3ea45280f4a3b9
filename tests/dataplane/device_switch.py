# SPDX-License-Identifier: Apache-2.0
"""The compiled program with the methods of the reference switch, so that the same tests drive both."""

from __future__ import annotations

from collections.abc import Sequence

from switch.device import Exact, SwitchDevice
from tests.dataplane.frames import ip, mac
from tests.dataplane.rig import AGGREGATION, RECEIVE, number
from wire.membership import Membership
from wire.verdicts import Verdict

MEMBERS = f"{AGGREGATION}.admission.members"
RECEIVERS = "SwitchEgress.receivers.receivers"


class DeviceSwitch:
    """One switch with its address, and jobs added as the controller would. Frames in, frames out."""

    def __init__(self, device: SwitchDevice, switch_ip: str) -> None:
        self.device = device
        device.reset()
        self._insert(f"{RECEIVE}.addresses", [number(ip(switch_ip))], "NoAction", [])
        for port in range(1, 65):
            self._insert(f"{RECEIVE}.ports", [port], f"{RECEIVE}.host_port", [])

    def _insert(self, table: str, key: Sequence[int], action: str, args: Sequence[int]) -> None:
        self.device.table_insert(table, [Exact(k) for k in key], action, args)

    def add_job(self, memberships: Sequence[Membership], ports: Sequence[int], base: int = 0) -> None:
        """Admit the ranks of a job, rank r at switch port ports[r] as worker bit r, pool from slot `base`."""
        group = memberships[0].job + 1
        self.device.multicast_set(group, [(port, 1000 * group + port) for port in ports])
        for m, port in zip(memberships, ports, strict=True):
            addresses = [number(mac(m.switch_mac)), number(mac(m.own_mac)), number(ip(m.switch_ip))]
            addresses += [number(ip(m.own_ip)), m.port, m.own_port]
            self._insert(RECEIVERS, [1000 * group + port], "SwitchEgress.receivers.receiver", addresses)
            args = [m.rank, 1 << m.rank, (1 << m.n) - 1, base, m.window, m.epoch, group]
            key = [port, number(ip(m.own_ip)), m.own_port, m.port]
            self._insert(MEMBERS, key, f"{AGGREGATION}.admission.worker", args)

    def remove_job(self, job: int) -> None:
        """Withdraw a job's entries; its registers keep what they hold."""
        port = 0xBE00 + job
        for table, field, index in ((MEMBERS, "key", 3), (RECEIVERS, "args", 4)):
            for entry in self.device.table_entries(table):
                value = entry.key[index].value if field == "key" else entry.args[index]  # type: ignore[union-attr]
                if value == port:
                    self.device.table_delete(table, entry.handle)

    def process(self, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Run frames (port, bytes) in order; return the frames sent, in order."""
        return self.device.process(frames)

    def counts(self, port: int) -> dict[Verdict, int]:
        """Packets by verdict that came in by a port, zeros left out."""
        read = self.device.counter_read
        counts = {v: read("SwitchIngress.port_verdicts", port * 64 + v)[0] for v in Verdict}
        return {v: n for v, n in counts.items() if n}
