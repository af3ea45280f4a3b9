# SPDX-License-Identifier: Apache-2.0
"""The parts of a network that runs, as its record has them: hosts, switches, links."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.identity import Process
from topologies.spec import PLAIN, End, Way, lower_rate


@dataclass(frozen=True)
class HostRecord:
    """A host that runs: `process` is the shell that holds its namespace, `netns` the namespace's inode."""

    name: str
    ip: str
    prefix_len: int
    mac: str
    interface: str
    process: Process | None = None
    netns: int | None = None


@dataclass(frozen=True)
class SwitchRecord:
    """A switch that runs: `grpc` is HOST:PORT of its P4Runtime server, `ports` its interfaces by port."""

    name: str
    device_id: int
    ip: str
    mac: str
    log: str
    ports: dict[int, str]
    grpc: str | None = None
    process: Process | None = None


@dataclass(frozen=True)
class LinkRecord:
    """A link that runs: its two ends, their interfaces, and what each way does (`forth` is from a to b)."""

    a: End
    b: End
    a_interface: str
    b_interface: str
    forth: Way = PLAIN
    back: Way = PLAIN
    down: bool = False
    """Whether somebody took it down (net link --down)."""

    @property
    def rate_mbit(self) -> float | None:
        """The lower of both ways' rates."""
        return lower_rate(self.forth, self.back)

    @property
    def name(self) -> str:
        """As people call it: s1-s2."""
        return f"{self.a.node}-{self.b.node}"
