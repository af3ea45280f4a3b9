# SPDX-License-Identifier: Apache-2.0
"""Control Admission (p4src/admission.p4): who may contribute to a job, new in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

from controller.p4info import Entity, P4Info, Value


@dataclass(frozen=True)
class Sender:
    """Whose packets an entry admits: ingress port, IPv4 source, both UDP ports."""

    port: int
    ip: str
    udp_src: int
    udp_dst: int


@dataclass(frozen=True)
class Pool:
    """The job's slots at one switch in one epoch, and the multicast group of its receivers."""

    base: int
    window: int
    epoch: int
    group: int


@dataclass(frozen=True)
class Uplink:
    """Where a leaf's partial goes, and from which addresses and UDP ports."""

    up_port: int
    src_mac: str
    dst_mac: str
    src_ip: str
    dst_ip: str
    src_port: int
    dst_port: int


def full_mask(workers: int) -> int:
    """Return the worker bits of a slot that all of `workers` have contributed to."""
    return (1 << workers) - 1


class Admission:
    """Table `members`."""

    TABLE = "SwitchIngress.handle.aggregation.admission.members"

    def __init__(self, p4info: P4Info) -> None:
        p4info.table(self.TABLE)
        self._p4info = p4info

    def worker(self, sender: Sender, bit: int, workers: int, pool: Pool) -> Entity:
        """Return the entry of worker `bit` of `workers` at a switch that completes the sum itself."""
        args = {**_share(bit, workers), **_slots(pool), "group": pool.group}
        return self._p4info.entry(self.TABLE, _key(sender), "worker", args)

    def leaf_worker(self, sender: Sender, bit: int, workers: int, pool: Pool, uplink: Uplink) -> Entity:
        """Return the entry of a worker at a leaf, which sends its partial up."""
        args = {**_share(bit, workers), **_slots(pool), **vars(uplink)}
        return self._p4info.entry(self.TABLE, _key(sender), "leaf_worker", args)

    def parent(self, sender: Sender, workers: int, pool: Pool) -> Entity:
        """Return a leaf's entry of its parent: `sender.udp_src` is the job port, `udp_dst` the leaf's own."""
        args = {"full": full_mask(workers), **_slots(pool), "group": pool.group}
        return self._p4info.entry(self.TABLE, _key(sender), "parent", args)


def _key(sender: Sender) -> dict[str, Value | tuple[Value, int]]:
    return {
        "port": sender.port,
        "ip_src": sender.ip,
        "udp_src": sender.udp_src,
        "udp_dst": sender.udp_dst,
    }


def _share(bit: int, workers: int) -> dict[str, Value]:
    return {"bit_index": bit, "mask": 1 << bit, "full": full_mask(workers)}


def _slots(pool: Pool) -> dict[str, Value]:
    return {"base": pool.base, "window": pool.window, "epoch": pool.epoch}
