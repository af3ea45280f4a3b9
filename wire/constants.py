# SPDX-License-Identifier: Apache-2.0
"""Numbers of the packet format and of the data plane that several rooms share (protocol.md, The packet)."""

from pathlib import Path

RUN_ROOT = Path("/run/p4reduce")
"""Holds a folder for each network that runs: its record, logs and its controller's socket."""
TOKEN = "controller.token"
"""In that folder, owner-only: what a caller over TCP must know."""
TOKEN_VARIABLE = "P4REDUCE_TOKEN"
"""Holds that token at both ends, where it is set."""
NET_VARIABLE = "P4REDUCE_NET"
"""Names the network where nothing else does; `net exec` sets it in a host's processes."""

JOB_PORT_BASE = 0xBE00
"""UDP port of job 0; job j has JOB_PORT_BASE + j (SwitchML's range lies inside)."""
JOBS = 256

MSG_CONTRIBUTION = 1
MSG_RESULT = 2

SIZE_CODES = {64: 1, 256: 3}
"""The `size` field of the agg header by elements a packet (SwitchML's enum)."""
ELEMENT_CHOICES = tuple(SIZE_CODES)

HEADER_BYTES = 52
"""Ethernet 14, IPv4 20, UDP 8, agg 8, exponents 2: a frame has HEADER_BYTES + 4 * elements bytes."""
PAYLOAD_HEADER_BYTES = 10
"""agg and exponents: what precedes the values in the UDP payload."""

EXPONENT_UNUSED = -128
"""An exponent that carries nothing; also that of an all-zero chunk."""

MAX_WORKERS = 64
"""Worker bits of one slot on one switch."""
MAX_RANKS = 256
"""Ranks of a job: quantization leaves room for so many (docs/protocol.md, Numbers)."""

FEW_SLOTS = 1024
MANY_SLOTS = 16384
"""Slots (each of two versions) that the program is compiled for: bmv2 needs 1 GB for the many."""

CPU_PORT = 510
"""Packet in and out of the controller; both targets get --cpu-port with it."""
DROP_PORT = 511

SESSION_INGRESS_DUPLICATE = 512
"""Clone session of the fault table's duplicates at ingress; those at egress of port p use p + 1."""

TTL = 64
"""TTL of what the switch itself sends."""


def job_port(job: int) -> int:
    """Return the UDP port of job 0..255; ValueError outside."""
    if not 0 <= job < JOBS:
        raise ValueError(f"job {job} is not in 0..{JOBS - 1}")
    return JOB_PORT_BASE + job


def is_job_port(port: int) -> bool:
    """Say whether a UDP port belongs to a job (then no worker or leaf may use it as its own)."""
    return JOB_PORT_BASE <= port < JOB_PORT_BASE + JOBS


def frame_bytes(elements: int) -> int:
    """Return the bytes of an aggregation frame, Ethernet header included, FCS not."""
    return HEADER_BYTES + 4 * elements
