# SPDX-License-Identifier: Apache-2.0
"""The present epoch of each job as whoever captures its packets needs it: addresses, ports and worker bits.

The fields are those of traces.members.Epoch, which is kept beside captures.
"""

from __future__ import annotations

from typing import Any

from controller.live import LiveJob
from controller.placement import Epoch
from controller.service import Controller
from topologies.record import NetRecord


def epochs(controller: Controller) -> list[dict[str, Any]]:
    """Return the epochs that are installed, by number."""
    running = [(job, job.epoch) for job in controller.jobs.values() if job.group.installed]
    found = [_epoch(controller, job, epoch) for job, epoch in running if epoch is not None]
    return sorted(found, key=lambda epoch: int(epoch["epoch"]))


def _epoch(controller: Controller, job: LiveJob, epoch: Epoch) -> dict[str, Any]:
    first, record = job.group.memberships[0], controller.record
    began = [event.time for event in controller.store.events(0, job.name) if event.kind == "epoch"]
    ranks = {host: rank for rank, host in enumerate(epoch.hosts)}
    nodes = [(record.switch(node.switch), node.parent) for node in epoch.tree.nodes]
    members = [
        {
            "rank": ranks.get(seat.host, -1),
            "host": seat.host,
            "ip": seat.ip,
            "udp_port": seat.udp_port,
            "bit": bit,
            "switch": switch,
            "link": link(record, seat.host, switch),
        }
        for switch, job_there in epoch.nodes.items()
        for bit, seat in enumerate(job_there.seats)
    ]
    return {
        "job": job.number,
        "job_name": job.name,
        "epoch": epoch.epoch,
        "window": epoch.window,
        "lead": epoch.lead,
        "elements": first.elements,
        "n": first.n,
        "g0": first.g0,
        "t0": first.t0,
        "switches": [{"name": switch.name, "ip": switch.ip, "parent": parent} for switch, parent in nodes],
        "members": sorted(members, key=lambda member: (member["rank"] < 0, member["rank"], member["host"])),
        # Noted when the switches had its entries, and before a worker heard of it.
        "began": round(began[-1] * 1e9) if began else 0,
        "ended": None,
    }


def link(record: NetRecord, a: str, b: str) -> str:
    """Return the name of the link between two nodes, as captures have it; "" where there is none."""
    joined = any(end.node == b for end in record.peers(a).values())
    return "-".join(sorted((a, b))) if joined else ""
