# SPDX-License-Identifier: Apache-2.0
"""The present epoch of each job as whoever captures its packets needs it: addresses, ports and worker bits.

The fields are those of traces.members.Epoch, which is kept beside captures.
"""

from __future__ import annotations

from typing import Any

from controller.live import LiveJob
from controller.service import Controller
from topologies.record import NetRecord


def epochs(controller: Controller) -> list[dict[str, Any]]:
    """Return the epochs that are installed, by number."""
    found = [_epoch(controller, job) for job in controller.jobs.values() if job.group.installed]
    return sorted(found, key=lambda epoch: int(epoch["epoch"]))


def _epoch(controller: Controller, job: LiveJob) -> dict[str, Any]:
    memberships, hosts = job.group.memberships, [seat.host for seat in job.epoch.seats] if job.epoch else []
    first, switch = memberships[0], controller.record.switch(job.link.name)
    began = [event.time for event in controller.store.events(0, job.name) if event.kind == "epoch"]
    return {
        "job": job.number,
        "job_name": job.name,
        "epoch": first.epoch,
        "window": first.window,
        "lead": first.lead,
        "elements": first.elements,
        "n": first.n,
        "g0": first.g0,
        "t0": first.t0,
        "switches": [{"name": switch.name, "ip": switch.ip, "parent": None}],
        "members": [
            {
                "rank": each.rank,
                "host": host,
                "ip": each.own_ip,
                "udp_port": each.own_port,
                "bit": each.rank,
                "switch": switch.name,
                "link": link(controller.record, host, switch.name),
            }
            for each, host in zip(memberships, hosts, strict=True)
        ],
        # Noted when the switch had its entries, and before a worker heard of it.
        "began": round(began[-1] * 1e9) if began else 0,
        "ended": None,
    }


def link(record: NetRecord, a: str, b: str) -> str:
    """Return the name of the link between two nodes, as captures have it; "" where there is none."""
    joined = any(end.node == b for end in record.peers(a).values())
    return "-".join(sorted((a, b))) if joined else ""
