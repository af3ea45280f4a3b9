# SPDX-License-Identifier: Apache-2.0
"""Goodput of all-reduces over real links: every rank a process in its own host, every result verified."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from controller.epochs import EpochStore
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.setup import connect, job_controller, seat
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.targets import targets
from wire.verdicts import Verdict

from .errors import BenchError

JOB = 0
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
    done. Raises RankError (also for a wrong sum), BenchError, and the
    errors of the controller.
    """
    size = nbytes // 4
    plan = json.dumps({"dtypes": dtypes, "size": size, "repeats": REPEATS, "target": record.target})
    arguments = [["--ip", record.host(host).ip, "--plan", plan] for host in hosts]
    heard: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    total, done = len(dtypes) * REPEATS * len(hosts), 0
    say(f"network {record.name}, {record.target}: starting {len(hosts)} workers")
    with (
        connect(record, record.switches[0].name) as client,
        Ranks(record, hosts, "bench.rank", arguments) as ranks,
    ):
        faults_before = _faults(record, client)
        jobs = job_controller(record, client, EpochStore(record.directory / "controller.db"))
        seats = [seat(record, host, port) for host, port in zip(hosts, ranks.ports(), strict=True)]
        members = jobs.add_job(JOB, seats, targets()[record.target].default_window)
        try:
            for rank, membership in enumerate(members):
                ranks.tell(rank, membership.to_json())
            for rank, message in ranks.heard(SILENCE_LIMIT_S + nbytes / SLOWEST_BYTES_PER_S):
                heard.setdefault((message["dtype"], message["repeat"]), {})[rank] = message
                done += 1
                progress(done / total)
        finally:
            jobs.remove_job(JOB)
        faulted = _faults(record, client) - faults_before
    if faulted:
        counts = ", ".join(f"{n:,} {verdict.name.split('_')[1].lower()}" for verdict, n in faulted.items())
        say(f"network {record.name} has faults set: {counts} packets meanwhile")
    return [_cell(record, hosts, dtype, 4 * size, heard) for dtype in dtypes]


def _faults(record: NetRecord, client: SwitchClient) -> Counter[Verdict]:
    """Return the packets that the switch's fault tables have dropped, duplicated or corrupted so far."""
    program, ports = Program(client.p4info), record.peers(record.switches[0].name)
    found: Counter[Verdict] = Counter()
    for faults in (program.ingress_faults, program.egress_faults):
        for counts in faults.injected(client, ports).values():
            found.update({verdict: packets for verdict, (packets, _) in counts.items()})
    return found


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
