# SPDX-License-Identifier: Apache-2.0
"""Jobs of in-memory workers for tests."""

from __future__ import annotations

from typing import Any

from tests.reference.slot_switch import SlotSwitch
from wire.membership import Membership
from worker import Worker
from worker.memory import MemoryFabric, MemoryTransport

SWITCH_IP, SWITCH_MAC = "10.0.0.254", "02:00:00:00:00:fe"


def memberships(
    n: int,
    *,
    window: int = 8,
    lead: int = 2,
    elements: int = 64,
    epoch: int = 7,
    g0: int = 0,
    t0: int = 0,
    job: int = 3,
) -> list[Membership]:
    return [
        Membership(
            job=job,
            rank=r,
            n=n,
            switch_ip=SWITCH_IP,
            switch_mac=SWITCH_MAC,
            own_ip=f"10.0.0.{r + 1}",
            own_mac=f"02:00:00:00:00:{r + 1:02x}",
            own_port=40000 + r + 10 * epoch,
            window=window,
            lead=lead,
            epoch=epoch,
            elements=elements,
            g0=g0,
            t0=t0,
        )
        for r in range(n)
    ]


class Job:
    """n in-memory workers at the reference switch, rank r at port r + 1."""

    def __init__(self, n: int, faults: dict[str, Any] | None = None, timeout: float = 30.0, **kwargs) -> None:
        self.members = memberships(n, **kwargs)
        self.ports = [r + 1 for r in range(n)]
        self.switch = SlotSwitch(self.members[0].elements, SWITCH_IP, SWITCH_MAC)
        self.switch.add_job(self.members, self.ports)
        self.fabric = MemoryFabric(self.switch.process, **(faults or {}))
        self.workers = [
            Worker(m, MemoryTransport(m, self.fabric, port), timeout=timeout)
            for m, port in zip(self.members, self.ports, strict=True)
        ]

    def new_epoch(self, **kwargs) -> None:
        """Every rank rejoins under a new epoch."""
        old = self.members[0]
        self.switch.remove_job(old.job)
        kept = {k: getattr(old, k) for k in ("window", "lead", "elements")}
        self.members = memberships(old.n, **{**kept, "epoch": old.epoch + 1, **kwargs})
        self.switch.add_job(self.members, self.ports)
        for worker, m, port in zip(self.workers, self.members, self.ports, strict=True):
            worker.rejoin(m, MemoryTransport(m, self.fabric, port))
