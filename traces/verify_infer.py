# SPDX-License-Identifier: Apache-2.0
"""Memberships guessed from the packets, for captures that come without.

1. Who sends contributions is a member; where it sends them is its switch. A switch that sends some is a leaf.
2. A job has one member a host, and every epoch gives it a new port: a second port begins the next epoch. A
   member that was silent in one is then taken for one of another. So where there are several, only what holds
   of all of a job's contributions is judged: over its epochs their values are the same.
3. W follows from slots that wrap: slot 0 after slot W-1. Where none does it stays unknown.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceFileError
from .table import Category, Table, UdpChecksum
from .verify_findings import Findings
from .verify_tree import Seat, Tree

MOST_PORTS = 4096
"""Ports that are remembered, the first ones: who forges packets must not fill the memory."""
MOST_SENDERS = 320
"""Addresses that a job's epoch may have: 256 workers, and leaves."""


@dataclass
class _Port:
    """A port that contributions came from."""

    job: int
    ip: int
    port: int
    switch: int
    first: int
    """When the first was captured."""
    windows: Counter[int] = field(default_factory=Counter)
    elements: Counter[int] = field(default_factory=Counter)

    @property
    def window(self) -> int:
        """W by most wraps, 0 if none was seen."""
        return self.windows.most_common(1)[0][0] if self.windows else 0


def infer(tables: Iterable[Table], findings: Findings) -> list[Tree]:
    """Return trees as the packets show them, and note what was guessed.

    Of a file that breaks off, what can be read is: who reads it again is told.
    """
    ports: dict[tuple[int, ...], _Port] = {}
    beyond = 0
    with contextlib.suppress(TraceFileError):
        for table in tables:
            beyond += _collect(table, ports)
    if beyond:
        findings.notes.append(
            f"contributions come from over {MOST_PORTS} ports: those after are not guessed from"
        )
        findings.unchecked["contributions from ports beyond the first ones"] += beyond
    jobs: defaultdict[int, list[_Port]] = defaultdict(list)
    for port in sorted(ports.values(), key=lambda each: each.first):
        jobs[port.job].append(port)
    return [tree for job in sorted(jobs) for tree in _trees(jobs[job], findings)]


def _collect(table: Table, ports: dict[tuple[int, ...], _Port]) -> int:
    """Take in contributions; return how many are from ports that there is no room for."""
    beyond = 0
    rows = np.flatnonzero(
        (table.category == Category.CONTRIBUTION) & (table.udp_checksum != UdpChecksum.WRONG)
    )
    columns = (table.job, table.src_ip, table.src_port, table.dst_ip)
    keys, which = np.unique(
        np.stack([column[rows].astype(np.int64) for column in columns]), axis=1, return_inverse=True
    )
    many = np.bincount(which.reshape(-1)).tolist()
    for index, key in enumerate(keys.T.tolist()):
        if len(ports) >= MOST_PORTS and tuple(key) not in ports:
            beyond += many[index]
            continue
        mine = rows[which.reshape(-1) == index]
        port = ports.setdefault(
            tuple(key), _Port(key[0], key[1], key[2], key[3], int(table.time[mine].min()))
        )
        port.elements.update(_counts(table.elements[mine]))
        _, first = np.unique(table.chunk[mine], return_index=True)
        chunk, slot, version = (column[mine[first]] for column in (table.chunk, table.slot, table.version))
        wraps = (np.diff(chunk) == 1) & (slot[1:] == 0) & (version[1:] != version[:-1])
        port.windows.update(_counts(slot[:-1][wraps].astype(np.int64) + 1))
    return beyond


def _counts(values: NDArray[Any]) -> dict[int, int]:
    found, many = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), many.tolist(), strict=True))


def _trees(ports: list[_Port], findings: Findings) -> list[Tree]:
    """Return a job's trees; `ports` in the order of their first packets."""
    epochs: list[list[_Port]] = [[]]
    present: set[int] = set()
    for port in ports:
        if port.ip in present:
            epochs.append([])
            present.clear()
        epochs[-1].append(port)
        present.add(port.ip)
    job, number = ports[0].job, len(epochs)
    senders = max(map(len, epochs))
    if senders > MOST_SENDERS:
        findings.notes.append(
            f"job {job}: {senders} addresses send contributions, more than a job can have: it is not judged "
            "without memberships"
        )
        return []
    if number > 1:
        findings.unchecked["epochs that are not told of: what ended them, and who had to contribute"] += (
            number
        )
    found = []
    for order, epoch in enumerate(epochs):
        found += _components(epoch, doubtful=number > 1)
        who = ", ".join(
            f"{IPv4Address(port.ip)}:{port.port} (W {port.window or 'unknown'})" for port in epoch
        )
        findings.notes.append(f"job {job}, epoch {order + 1} of {number}, guessed from its packets: {who}")
    return found


def _components(epoch: list[_Port], *, doubtful: bool) -> list[Tree]:
    """Return the trees of an epoch: one, unless uplinks are missing in the capture."""
    switches = list(dict.fromkeys(port.switch for port in epoch))
    parent = {port.ip: port.switch for port in epoch if port.ip in switches}
    elements = sum((port.elements for port in epoch), Counter()).most_common(1)[0][0]
    found = []
    for root in switches:
        if root in parent:
            continue
        inside = [root]
        for switch in inside:  # grows
            inside += [each for each in switches if parent.get(each) == switch and each not in inside]
        seats = tuple(
            Seat(
                f"{IPv4Address(port.ip)}:{port.port}",
                port.ip,
                port.port,
                inside.index(port.switch),
                port.window,
                "",
                inside.index(port.ip) if port.ip in inside else -1,
            )
            for port in epoch
            if port.switch in inside
        )
        tree = Tree(epoch[0].job, 0, 0, elements, None, None, tuple(inside), seats, True, doubtful)
        found.append(tree)
    return found
