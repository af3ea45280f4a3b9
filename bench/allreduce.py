# SPDX-License-Identifier: Apache-2.0
"""Goodput of all-reduces over real links: every rank a process in its own host, every result verified."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from topologies import jobs
from topologies.ranks import Ranks
from topologies.record import NetRecord

from .errors import BenchError

REPEATS = 5
DTYPES = ("float32", "int32")
DEFAULT_BYTES = {"embedded": 4 << 20, "bmv2": 256 << 10}
"""A second or less an all-reduce on each target."""
SLOWEST_BYTES_PER_S = 50_000
"""A rank reports after each all-reduce; slower than this it hangs."""
SILENCE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Cell:
    """What was measured of one dtype on one target."""

    target: str
    dtype: str
    workers: int
    elements: int
    """Values a packet."""
    nbytes: int
    """Of each worker's array."""
    seconds: tuple[float, ...]
    """Of each timed all-reduce at its slowest rank."""
    packets: int
    """Sent by all ranks in the timed ones, retransmissions included."""
    retransmissions: int

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)

    @property
    def mbit_per_s(self) -> float:
        """Array bits that each worker had summed in a second, in the median all-reduce."""
        return 8e-6 * self.nbytes / self.median

    @property
    def melements_per_s(self) -> float:
        """The same in millions of values."""
        return 1e-6 * self.nbytes / 4 / self.median


def measure(
    record: NetRecord,
    hosts: Sequence[str],
    dtypes: Sequence[str],
    nbytes: int,
    say: Callable[[str], None],
    progress: Callable[[float], None],
) -> list[Cell]:
    """All-reduce arrays of `nbytes` over these hosts of a running network; rank r is on hosts[r].

    `say` is told the steps, and what the network's fault table did meanwhile; `progress` the share that is
    done. Raises RankError (also for a wrong sum), BenchError and ControlError.
    """
    size = nbytes // 4
    plan = json.dumps({"dtypes": dtypes, "size": size, "repeats": REPEATS, "target": record.target})
    name = f"bench-{os.getpid()}"
    common = ["--net", record.name, "--job", name, "--plan", plan]
    arguments = [[*common, "--rank", str(rank)] for rank in range(len(hosts))]
    heard: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    total, done = len(dtypes) * REPEATS * len(hosts), 0
    ends = jobs.switch_ends(record, hosts)
    say(f"network {record.name}, {record.target}: starting {len(hosts)} workers")
    with jobs.control_of(record) as control:
        before = jobs.faulted(control, ends)
        with jobs.job(control, name, hosts), Ranks(record, hosts, "bench.rank", arguments) as ranks:
            for rank, message in ranks.heard(SILENCE_LIMIT_S + nbytes / SLOWEST_BYTES_PER_S):
                if "joined" in message:
                    continue
                heard.setdefault((message["dtype"], message["repeat"]), {})[rank] = message
                done += 1
                progress(done / total)
        faulted = jobs.faulted(control, ends) - before
    if faulted:
        counts = ", ".join(f"{packets:,} {what}" for what, packets in faulted.items())
        say(f"network {record.name} has faults set: {counts} packets meanwhile")
    return [_cell(record, hosts, dtype, 4 * size, heard) for dtype in dtypes]


def _cell(
    record: NetRecord,
    hosts: Sequence[str],
    dtype: str,
    nbytes: int,
    heard: dict[tuple[str, int], dict[int, dict[str, float]]],
) -> Cell:
    timed = [heard.get((dtype, repeat), {}) for repeat in range(REPEATS)]
    if any(len(of_ranks) != len(hosts) for of_ranks in timed):
        raise BenchError(record.target, f"not every rank reported each of its all-reduces of {dtype}")
    messages = [message for of_ranks in timed for message in of_ranks.values()]
    return Cell(
        target=record.target,
        dtype=dtype,
        workers=len(hosts),
        elements=record.elements,
        nbytes=nbytes,
        seconds=tuple(max(message["seconds"] for message in of_ranks.values()) for of_ranks in timed),
        packets=sum(int(message["packets"]) for message in messages),
        retransmissions=sum(int(message["retransmissions"]) for message in messages),
    )


def ratios(cells: Sequence[Cell], peer: str) -> dict[str, dict[str, float]]:
    """Return target → dtype → goodput as a multiple of the peer target's; {} where the peer is missing."""
    base = {cell.dtype: cell.mbit_per_s for cell in cells if cell.target == peer}
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.target != peer and cell.dtype in base:
            found.setdefault(cell.target, {})[cell.dtype] = cell.mbit_per_s / base[cell.dtype]
    return found
