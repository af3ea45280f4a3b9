# SPDX-License-Identifier: Apache-2.0
"""A job's all-reduce alone, and beside a host that floods the switch: how much longer it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from controller.program import Program
from controller.setup import connect
from topologies import jobs
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.spec import NetworkSpec, star
from wire.constants import JOBS, job_port
from wire.verdicts import Verdict

from .allreduce.group import SwitchGroup
from .errors import BenchError

JOB = "flood"
DTYPE = "int32"
REPEATS = 5
SILENCE_LIMIT_S = 60.0
SLOWEST_BYTES_PER_S = 50_000
"""Of the victim; slower than this it hangs."""
SLOTS = 4
START_LIMIT_S = 60.0
DISCARD = 9
"""UDP port (RFC 863) of nobody."""
SMALLEST = 18
"""UDP payload of a frame that has 60 bytes, the least of Ethernet without FCS."""
LIMIT = 1.1
"""The aim: the victim's time beside a flood by its time alone."""


@dataclass(frozen=True)
class Flood:
    """What a host sends all the time."""

    words: str
    verdict: Verdict
    """That nearly all of it meets."""
    to_victim: bool = False
    """To a worker's host instead of the switch: ordinary traffic, which shares that host's link."""
    admitted: bool = False
    """In a job of its own, held to a rate."""
    payload: int | None = None
    """Bytes of UDP payload; None for a contribution's."""


ALONE = "alone"
FLOODS = {
    "held": Flood("its own job's contributions, held to their rate", Verdict.OVER_RATE, admitted=True),
    "forged": Flood("contributions to a job that it is not in", Verdict.NOT_ADMITTED),
    "small": Flood("the smallest frames to a job port", Verdict.NOT_ADMITTED, payload=SMALLEST),
    "routed": Flood("ordinary packets to a worker's host", Verdict.ROUTED, to_victim=True),
}


@dataclass(frozen=True)
class Beside:
    """What was measured beside one flood, or none."""

    flood: str
    seconds: tuple[float, ...]
    """Of each timed all-reduce of the victim."""
    retransmissions: int
    mbit_per_s: float
    """That came in from the flooding host at the switch, Ethernet headers included."""
    packets_per_s: float
    verdicts: dict[str, float]
    """Shares of its packets by verdict's name, from one in a thousand on."""

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)


def network(workers: int, link_mbit: float) -> NetworkSpec:
    """Describe a star of the victim's workers and one more host, on links of that rate."""
    return star(workers + 1, link_mbit)


def measure(
    record: NetRecord,
    nbytes: int,
    rate_bps: int,
    rounds: int,
    say: Callable[[str], None],
    bar: Callable[[float], None],
) -> list[Beside]:
    """Measure a job on all hosts but the last, alone and beside each flood from there, in turns.

    `nbytes` are each worker's array, `rate_bps` what the flooding tenant's own job may send. Raises as
    SwitchGroup, and BenchError where a flood was not what it should be.
    """
    kinds = [ALONE, *FLOODS]
    found: dict[str, list[Beside]] = {name: [] for name in kinds}
    for turn in range(rounds):
        for at, name in enumerate(kinds):
            say(f"round {turn + 1} of {rounds}: {name}")
            found[name].append(_beside(record, name, nbytes, rate_bps))
            bar((turn * len(kinds) + at + 1) / (rounds * len(kinds)))
    return [_joined(parts) for parts in found.values()]


def ratios(found: Sequence[Beside]) -> dict[str, float]:
    """Return each flood's median time by that alone."""
    alone = next(beside.median for beside in found if beside.flood == ALONE)
    return {beside.flood: beside.median / alone for beside in found}


def words(name: str) -> str:
    """Return what a row of the table is, for people."""
    return FLOODS[name].words if name in FLOODS else name


def _beside(record: NetRecord, name: str, nbytes: int, rate_bps: int) -> Beside:
    flooder = record.hosts[-1].name
    victims = [host.name for host in record.hosts[:-1]]
    flood = FLOODS.get(name)
    with (
        connect(record, record.switches[0].name, primary=False) as reader,
        nullcontext() if flood is None else _flooding(record, flood, rate_bps),
    ):
        verdicts = Program(reader.p4info).verdicts
        port = next(p for p, end in record.peers(reader.name).items() if end.node == flooder)
        before, started = verdicts.of_ports(reader, [port]).ingress.get(port, {}), perf_counter()
        with SwitchGroup(record, victims) as group:
            group.start()
            limit_s = SILENCE_LIMIT_S + REPEATS * nbytes / SLOWEST_BYTES_PER_S
            group.ask(DTYPE, nbytes, 1, limit_s)  # which warms up
            found = group.ask(DTYPE, nbytes, REPEATS, limit_s)
        after, seconds = verdicts.of_ports(reader, [port]).ingress.get(port, {}), perf_counter() - started
    retransmissions = int(found.counts["retransmissions"])
    packets = {v: n - before.get(v, (0, 0))[0] for v, (n, _) in after.items()}
    octets = sum(n - before.get(v, (0, 0))[1] for v, (_, n) in after.items())
    total = sum(packets.values())
    if flood is None:
        return Beside(name, found.seconds, retransmissions, 0.0, 0.0, {})
    if packets.get(flood.verdict, 0) < total / 2:
        raise BenchError(record.target, f"{flood.words}: not most were {flood.verdict.name}, but {packets}")
    mbit = 8e-6 * octets / seconds
    shares = {verdict.name.lower(): n / total for verdict, n in packets.items() if 1000 * n >= total}
    return Beside(name, found.seconds, retransmissions, mbit, total / seconds, shares)


@contextmanager
def _flooding(record: NetRecord, flood: Flood, rate_bps: int) -> Iterator[None]:
    """Let the last host flood while the body runs."""
    host, victim, switch = record.hosts[-1], record.hosts[0], record.switches[0]
    words = ["--ip", host.ip, "--elements", str(record.elements)]
    to, port = (victim.ip, DISCARD) if flood.to_victim else (switch.ip, job_port(JOBS - 1))
    if flood.payload is not None:
        words += ["--bytes", str(flood.payload)]
    with jobs.control_of(record) as control, ExitStack() as stack:
        if flood.admitted:
            told = stack.enter_context(jobs.job(control, JOB, [host.name], slots=SLOTS, rate_bps=rate_bps))
            port = job_port(told["number"])
            words += ["--net", record.name, "--job", JOB]
        words += ["--to", to, "--port", str(port)]
        flooder = stack.enter_context(Ranks(record, [host.name], "bench.flood", [words]))
        next(flooder.heard(START_LIMIT_S))
        yield


def _joined(parts: Sequence[Beside]) -> Beside:
    """Put the turns of one flood together."""
    first = parts[0]
    seconds = tuple(s for part in parts for s in part.seconds)
    rates = [part.mbit_per_s for part in parts], [part.packets_per_s for part in parts]
    mbit, packets = (sum(values) / len(parts) for values in rates)
    again = sum(part.retransmissions for part in parts)
    return Beside(first.flood, seconds, again, mbit, packets, parts[-1].verdicts)
