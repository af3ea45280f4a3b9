# SPDX-License-Identifier: Apache-2.0
"""The present epoch of each job as whoever captures its packets needs it: addresses, ports and worker bits.

The fields are those of traces.members.Epoch, which is kept beside captures.
"""

from __future__ import annotations

from typing import Any

from controller.live import LiveJob
from controller.placement import Epoch
from controller.service import Controller
from topologies.errors import RecordError
from topologies.record import NetRecord, load


def epochs(controller: Controller) -> list[dict[str, Any]]:
    """Return the epochs that are installed, by number."""
    running = [(job, job.epoch) for job in controller.jobs.values() if job.group.installed]
    found = [_epoch(controller, job, epoch) for job, epoch in running if epoch is not None]
    return sorted(found, key=lambda epoch: int(epoch["epoch"]))


def _epoch(controller: Controller, job: LiveJob, epoch: Epoch) -> dict[str, Any]:
    first, record = job.group.memberships[0], _fresh(controller.record)
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
            **_rates(record, seat.host, switch),
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
        "duplicates": any(
            shares.duplicate for name in controller.links for shares in controller.store.faults(name).values()
        ),
    }


def _fresh(record: NetRecord) -> NetRecord:
    """Return the record as it is now: links change while the network runs."""
    try:
        return load(record.name, record.root)
    except RecordError:
        return record


def _rates(record: NetRecord, member: str, switch: str) -> dict[str, float | None]:
    """Return what the link between two nodes is shaped to, in Mbit/s of frames; None is not at all."""
    for cable in record.links:
        for ends, up, down in (
            ((cable.a, cable.b), cable.forth, cable.back),
            ((cable.b, cable.a), cable.back, cable.forth),
        ):
            if tuple(end.node for end in ends) == (member, switch):
                return {"up_mbit": up.rate_mbit, "down_mbit": down.rate_mbit}
    return {"up_mbit": None, "down_mbit": None}


def link(record: NetRecord, a: str, b: str) -> str:
    """Return the name of the link between two nodes, as captures have it; "" where there is none."""
    joined = any(end.node == b for end in record.peers(a).values())
    return "-".join(sorted((a, b))) if joined else ""
