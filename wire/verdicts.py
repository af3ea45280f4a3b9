# SPDX-License-Identifier: Apache-2.0
"""Every verdict the data plane gives a packet, numbered here once (p4src/verdicts.p4 is made from it)."""

from __future__ import annotations

from enum import IntEnum

WORKER_VERDICTS = 16
"""Verdicts below this are given after admission and counted per (job, worker bit) too."""
VERDICTS = 64
"""Size of a port's block in the counter arrays."""


class Verdict(IntEnum):
    """What became of one packet. Everything whose name is not in PASSED was dropped."""

    ABSORBED = 0
    """Summed into its slot; others are still missing."""
    COMPLETED = 1
    """The last missing contribution: the result went to all."""
    REPLAYED = 2
    """The slot was done: the stored result went to this worker alone."""
    DUPLICATE = 3
    """This worker had contributed, and others are still missing."""
    STALE = 4
    """The slot has moved on to a newer chunk."""
    OLD_EPOCH = 5
    """The slot belongs to a newer epoch."""
    PARTIAL_SENT = 6
    """At a leaf: the last missing contribution, the partial went up."""
    PARTIAL_RESENT = 7
    """At a leaf: a repeated contribution, the partial went up once more."""
    RESULT_STORED = 8
    """At a leaf: the parent's result was stored and went to all."""
    RESULT_UNEXPECTED = 9
    """At a leaf: a result that its slot does not wait for."""
    SLOT_BEYOND_POOL = 10
    BAD_UDP_CHECKSUM = 11
    OVER_RATE = 12
    """The job's meter says red."""
    WRONG_TYPE = 13
    """A result from a worker, or a contribution from a parent."""
    WRONG_SIZE = 14
    """The size field does not name the number of elements that this network runs."""

    BAD_LENGTH = 15
    """Not an aggregation frame: truncated, trailing bytes, or lengths that differ."""

    NOT_ADMITTED = 16
    """No entry for (port, IPv4 source, UDP source port, UDP destination port)."""
    TWO_JOB_PORTS = 17
    """Both UDP ports are job ports."""
    BAD_IP_CHECKSUM = 19
    FRAGMENT = 20
    IP_OPTIONS = 21
    MALFORMED = 22
    """Headers that end too early or contradict themselves."""
    UNKNOWN_PORT = 23
    NOT_FOR_SWITCH = 24
    """Addressed to the switch, but neither aggregation nor ping."""
    SPOOFED_SOURCE = 25
    """From a host port with a MAC or IPv4 source that is not that host's, or an ICMP error about a packet
    that was not sent to it."""
    NO_ROUTE = 26
    TTL_EXPIRED = 27
    NOT_IPV4 = 28
    ARP_UNKNOWN = 29
    BAD_PACKET_OUT = 30
    NO_RECEIVER = 31
    """Egress: a multicast copy whose replication id has no receiver entry."""

    ROUTED = 40
    ARP_ANSWERED = 41
    PING_ANSWERED = 42
    PEEKED = 43

    FAULT_DROPPED = 48
    FAULT_DUPLICATED = 49
    FAULT_CORRUPTED = 50


PASSED = frozenset(
    {
        Verdict.COMPLETED,
        Verdict.REPLAYED,
        Verdict.PARTIAL_SENT,
        Verdict.PARTIAL_RESENT,
        Verdict.RESULT_STORED,
        Verdict.ROUTED,
        Verdict.ARP_ANSWERED,
        Verdict.PING_ANSWERED,
        Verdict.PEEKED,
        Verdict.FAULT_DUPLICATED,
        Verdict.FAULT_CORRUPTED,
    }
)
"""Verdicts that send something; of the others the packet itself goes no further."""

FIRST_REPORTED, LAST_REPORTED = Verdict.SLOT_BEYOND_POOL, Verdict.BAD_PACKET_OUT
REPORTED = frozenset({Verdict.OLD_EPOCH, *(v for v in Verdict if FIRST_REPORTED <= v <= LAST_REPORTED)})
"""Refusals that the controller is told of, at a bounded rate (p4src/refusals.p4).

Not what ordinary loss and reordering bring (absorbed, duplicate, stale, unexpected results), nor what the
fault table drops, nor a copy without a receiver, which nobody sent.
"""


def port_counter(port: int, verdict: Verdict) -> int:
    """Return the index of a verdict in the counter arrays that count per port."""
    return port * VERDICTS + verdict


def job_counter(job: int, verdict: Verdict) -> int:
    """Return the index of a verdict in the array of a job's packets that no worker is known for."""
    return job * VERDICTS + verdict


def worker_counter(job: int, bit: int, verdict: Verdict) -> int:
    """Return the index of an admitted packet's verdict for (job, worker bit)."""
    if verdict >= WORKER_VERDICTS:
        raise ValueError(f"{verdict.name} is given before admission: no worker is known for it")
    return (job * 64 + bit) * WORKER_VERDICTS + verdict


def p4_constants() -> str:
    """Return the text of p4src/verdicts.p4."""
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Made from wire/verdicts.py by `make p4`; the numbers are explained there.",
        "typedef bit<6> verdict_t;",
    ]
    lines += [f"const verdict_t V_{v.name} = {int(v)};" for v in Verdict]
    lines.append(f"const bit<32> VERDICTS = {VERDICTS};")
    lines.append(f"const bit<32> WORKER_VERDICTS = {WORKER_VERDICTS};")
    lines.append(f"const verdict_t FIRST_REPORTED = V_{FIRST_REPORTED.name};")
    lines.append(f"const verdict_t LAST_REPORTED = V_{LAST_REPORTED.name};")
    return "\n".join(lines) + "\n"
