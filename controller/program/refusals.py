# SPDX-License-Identifier: Apache-2.0
"""Control Refusals (p4src/refusals.p4): the switch tells of packets that it refused, at a bounded rate."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from p4.v1 import p4runtime_pb2

from controller.entities import INSERT, MODIFY, Switch, updates
from controller.errors import P4InfoError, WriteError
from controller.p4info import Entity, P4Info
from wire.verdicts import REPORTED, Verdict

MAX_REPORTS_PER_S = 10
"""Of one port, by the program itself (REPORT_INTERVAL_US)."""
LIST_SIZE = 64
"""Reports in a message at most."""
LIST_NS = 100_000_000
"""How long the first report of a message waits for others."""
ACK_NS = 1_000_000_000
"""A report that is word for word one not acknowledged so long is left out."""


@dataclass(frozen=True)
class Refusal:
    """One refused packet. What its headers did not tell, or is not known without admission, is None."""

    time: float
    """Unix time when the report arrived, a few tenths of a second after the packet."""
    port: int
    """That it came in by."""
    verdict: Verdict
    eth_src: str
    ip_src: str | None = None
    ip_dst: str | None = None
    udp_src: int | None = None
    udp_dst: int | None = None
    job: int | None = None
    """That a UDP port names; anybody may have written it."""
    worker: int | None = None
    """Worker bit of the entry that admitted the packet (0 also for a parent's result)."""
    epoch: int | None = None
    """Of that entry."""
    chunk: int | None = None
    """Modulo 2^32, as the packet says."""
    version: int | None = None
    slot: int | None = None
    """Relative to the job's pool, as the packet says."""

    def __str__(self) -> str:
        """Return it in words, for people."""
        words = [f"{self.verdict.name.lower().replace('_', ' ')}: from {self.eth_src}"]
        if self.ip_src is not None:
            ends = [str(self.ip_src), str(self.ip_dst)]
            if self.udp_src is not None:
                ends = [f"{ends[0]}:{self.udp_src}", f"{ends[1]}:{self.udp_dst}"]
            words.append(f"{ends[0]} to {ends[1]}")
        for name in ("job", "worker", "epoch", "chunk", "slot"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name} {value}")
        return f"{', '.join(words)}, by port {self.port}"


class Refusals:
    """Digest `refusal_t`."""

    DIGEST = "refusal_t"

    def __init__(self, p4info: P4Info) -> None:
        self._digest = p4info.digest(self.DIGEST)
        self._p4info = p4info

    def subscription(self) -> Entity:
        """Return the entity that, inserted, has the switch tell its primary."""
        entity = p4runtime_pb2.Entity()
        entry = entity.digest_entry
        entry.digest_id = self._digest.id
        entry.config.max_list_size, entry.config.max_timeout_ns = LIST_SIZE, LIST_NS
        entry.config.ack_timeout_ns = ACK_NS
        return entity

    def subscribe(self, switch: Switch) -> None:
        """Have the switch tell its primary, until its program is loaded again. Raises as Switch.write."""
        entity = self.subscription()
        try:
            switch.write(updates(INSERT, [entity]))
        except WriteError as error:
            if [failure.code for failure in error.failures] != ["ALREADY_EXISTS"]:
                raise
            switch.write(updates(MODIFY, [entity]))

    def decode(self, time: float, digests: Any) -> list[Refusal]:
        """Return the refusals of a p4.v1.DigestList that came at `time`; P4InfoError if it is no such."""
        return [self._refusal(time, sample) for sample in self._p4info.samples(digests)]

    def _refusal(self, time: float, sample: dict[str, int]) -> Refusal:
        verdict = sample["verdict"]
        if verdict not in REPORTED:
            raise P4InfoError(
                self.DIGEST, f"{verdict} is no verdict of a refusal: another version's program?"
            )

        def known(flag: str, name: str) -> int | None:
            return sample[name] if sample[flag] else None

        def address(name: str) -> str | None:
            return str(ipaddress.IPv4Address(sample[name])) if sample["ipv4"] else None

        return Refusal(
            time=time,
            port=sample["port"],
            verdict=Verdict(verdict),
            eth_src=sample["eth_src"].to_bytes(6, "big").hex(":"),
            ip_src=address("ip_src"),
            ip_dst=address("ip_dst"),
            udp_src=known("udp", "udp_src"),
            udp_dst=known("udp", "udp_dst"),
            job=known("for_job", "job"),
            worker=known("admitted", "worker"),
            epoch=known("admitted", "epoch"),
            chunk=known("agg", "chunk"),
            version=known("agg", "version"),
            slot=known("agg", "slot"),
        )
