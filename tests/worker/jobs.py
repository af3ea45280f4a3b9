# SPDX-License-Identifier: Apache-2.0
"""Jobs of in-memory workers for tests."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from tests.reference.slot_switch import SlotSwitch
from wire.membership import Membership
from wire.packet import Packets, payload_dtype
from worker import Worker
from worker.calls import Call
from worker.engine import Engine
from worker.kernels import Kernels, NumpyKernels
from worker.memory import MemoryFabric, MemoryTransport, reduce_together
from worker.operation import Operation

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


def begin(engine: Engine, *arrays: ArrayLike, op: str = "sum", now: float = 0.0, **options: Any) -> Operation:
    """Begin an all-reduce of arrays of one dtype."""
    return engine.begin(Call(arrays, op, [None] * len(arrays), True), now, **options)


class WatchedTransport(MemoryTransport):
    """Checks the send rule, the slot mapping and the window at every packet, from the wire alone."""

    def __init__(self, membership: Membership, fabric: MemoryFabric, port: int) -> None:
        super().__init__(membership, fabric, port)
        self.member = membership
        self.sent: set[int] = set()
        self.answered: set[int] = set()
        self.first = membership.g0

    def number(self, chunk: int) -> int:
        """Unwrap a chunk number: tests stay below 2^32 chunks an epoch."""
        return self.member.g0 + (chunk - self.member.g0) % 2**32

    def send(self, packets: Packets) -> None:
        w = self.member.window
        assert packets.dtype == payload_dtype(self.member.elements), "the wire's byte order"
        for chunk, place in zip(packets["chunk"].tolist(), packets["place"].tolist(), strict=True):
            g = self.number(chunk)
            assert place == g % w | (g // w % 2) << 15
            assert g < self.first + w, "the send rule"
            self.sent.add(g)
        assert len(self.sent - self.answered) <= w
        super().send(packets)

    def receive(self, timeout: float) -> Packets:
        packets = super().receive(timeout)
        self.answered.update(self.number(chunk) for chunk in packets["chunk"].tolist())
        while self.first in self.answered:
            self.first += 1
        return packets


class Job:
    """n in-memory workers, rank r at port r + 1, of the reference switch or of one with the same methods."""

    def __init__(
        self,
        n: int,
        faults: dict[str, Any] | None = None,
        timeout: float = 30.0,
        switch: Any = None,
        kernels: Kernels | None = None,
        **kwargs,
    ) -> None:
        self.members = memberships(n, **kwargs)
        self.ports = [r + 1 for r in range(n)]
        self.switch = switch or SlotSwitch(self.members[0].elements, SWITCH_IP, SWITCH_MAC)
        self.switch.add_job(self.members, self.ports)
        self.fabric = MemoryFabric(self.switch.process, **(faults or {}))
        self.transports = self._transports()
        kernels = kernels or NumpyKernels()
        self.workers = [
            Worker(m, t, timeout=timeout, kernels=kernels)
            for m, t in zip(self.members, self.transports, strict=True)
        ]

    def _transports(self) -> list[WatchedTransport]:
        return [
            WatchedTransport(m, self.fabric, port) for m, port in zip(self.members, self.ports, strict=True)
        ]

    def all_reduce(self, *arrays: ArrayLike, op: str = "sum", **options: Any) -> list[Any]:
        """One all-reduce of all ranks; what each returned or raised. Options: see reduce_together."""
        return reduce_together(self.fabric, self.workers, arrays, op, **options)

    def new_epoch(self, **kwargs) -> None:
        """Every rank rejoins under a new epoch."""
        old = self.members[0]
        self.switch.remove_job(old.job)
        kept = {k: getattr(old, k) for k in ("window", "lead", "elements")}
        self.members = memberships(old.n, **{**kept, "epoch": old.epoch + 1, **kwargs})
        self.switch.add_job(self.members, self.ports)
        self.transports = self._transports()
        for worker, m, transport in zip(self.workers, self.members, self.transports, strict=True):
            worker.rejoin(m, transport)
