# SPDX-License-Identifier: Apache-2.0
"""What programs that run on a network ask of its controller: a job while they run, faults, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from topologies.record import NetRecord
from topologies.spec import End
from wire.control import RESTART_SECONDS, SOCKET, ControlClient, ControlError


def control_of(record: NetRecord) -> ControlClient:
    """Return a client of a network's controller; close it."""
    return ControlClient(record.directory / SOCKET, patience=RESTART_SECONDS)


@contextmanager
def job(control: ControlClient, name: str, hosts: Sequence[str], **wanted: Any) -> Iterator[dict[str, Any]]:
    """Have a job, rank r on hosts[r], while the block lasts; yield what the controller tells of it.

    `wanted` are further fields of the request: slots, lead, rate_bps, tenant. Raises ControlError.
    """
    told = control.call("POST", "/v1/jobs", {"name": name, "workers": list(hosts), **wanted})
    try:
        yield told
    except BaseException:
        with suppress(ControlError):  # what came before says more
            control.call("DELETE", f"/v1/jobs/{name}")
        raise
    control.call("DELETE", f"/v1/jobs/{name}")


def switch_ends(record: NetRecord, hosts: Iterable[str]) -> list[End]:
    """Return the switch ports that hosts hang on."""
    return [end for host in hosts for end in record.peers(record.host(host).name).values()]


def set_faults(control: ControlClient, ends: Iterable[End], **shares: float) -> None:
    """Let switches fault the packets of some ports both ways, until it is set anew.

    `shares` are drop, duplicate and corrupt, 0..1 (0 if left out), and the seed. Raises ControlError.
    """
    for end in ends:
        for direction in ("in", "out"):
            body = {"port": end.port, "direction": direction, **shares}
            control.call("PUT", f"/v1/switches/{end.node}/faults", body)


def faulted(control: ControlClient, ends: Iterable[End]) -> Counter[str]:
    """Return how many packets of some ports were dropped, duplicated and corrupted so far, by these words."""
    found: Counter[str] = Counter()
    told: dict[str, Any] = {}
    for end in ends:
        if end.node not in told:
            told[end.node] = control.call("GET", f"/v1/switches/{end.node}/counters")["ports"]
        for way in ("faults_in", "faults_out"):
            for verdict, (packets, _) in told[end.node][str(end.port)][way].items():
                found[verdict.removeprefix("fault_")] += packets
    return found
