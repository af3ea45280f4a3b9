# SPDX-License-Identifier: Apache-2.0
"""What the controller tells of jobs, switches and tenants, as JSON."""

from __future__ import annotations

import time
from typing import Any

from controller import looks
from controller.live import LiveJob
from controller.service import Controller
from controller.switch_views import named
from controller.switches import SwitchLink
from topologies.processes import link_places


def job(controller: Controller, job: LiveJob) -> dict[str, Any]:
    """Return a job with its ranks."""
    group, now = job.group, time.monotonic()
    ranks: list[dict[str, Any]] = []
    for rank, host in enumerate(group.hosts):
        session = group.sessions.get(rank)
        told: dict[str, Any] = {"rank": rank, "host": host, "ip": controller.record.host(host).ip}
        told["joined"] = session is not None
        if session is not None:
            status = session.status
            placed = group.in_epoch(session) and rank < len(group.memberships)
            told |= {
                "udp_port": group.memberships[rank].own_port if placed else status.udp_port,
                "epoch": status.epoch,
                "begun": status.begun,
                "first_missing": status.first_missing,
                "next_chunk": status.next_chunk,
                "lease_left": max(0.0, session.deadline - now),
                "unmoved": now - session.moved,
            }
        ranks.append(told)
    return {
        "name": job.name,
        "number": job.number,
        "tenant": job.tenant,
        "status": job.status,
        "switch": job.tree.root.switch,
        "slots": job.rent.window,
        "wanted_slots": job.slots,
        "base": job.rent.base,
        "tree": [
            {
                "switch": node.switch,
                "parent": node.parent,
                "hosts": list(node.hosts),
                "leaves": list(node.leaves),
                "base": job.rents[node.switch].base,
            }
            for node in job.tree.nodes
        ],
        "allowed": list(job.allowed),
        "lead": job.lead,
        "rate_bps": job.rate_bps,
        "epoch": group.epoch,
        "g0": group.memberships[0].g0 if group.memberships else 0,
        "t0": group.memberships[0].t0 if group.memberships else 0,
        "change": None if group.change is None else group.change.why,
        "created": job.created,
        "ranks": ranks,
    }


async def counters(job: LiveJob) -> dict[str, Any]:
    """Return a job's counts since it was added, [packets, bytes] by verdict.

    By rank of its contributions, by leaf of the partials that came from there, and those of refused others.

    Raises NotReadyError, SwitchClientError.
    """
    found = await looks.count(job)
    refused = looks.refused(found)
    return {
        "ranks": [
            {"rank": rank, "host": host, "verdicts": named(found.workers.get(rank, {}))}
            for rank, host in enumerate(job.group.hosts)
        ],
        "leaves": {switch: named(counts) for switch, counts in found.leaves.items()},
        "refused": named(refused),
    }


def switch(controller: Controller, link: SwitchLink) -> dict[str, Any]:
    """Return a switch with its slots."""
    site, pool = controller.record.switch(link.name), link.jobs.pool
    return {
        "name": link.name,
        "device_id": site.device_id,
        "ip": site.ip,
        "grpc": site.grpc,
        "ports": {str(port): interface for port, interface in site.ports.items()},
        "peers": {str(port): end.node for port, end in controller.record.peers(link.name).items()},
        "in_line": link.in_line,
        "primary": link.primary,
        "slots": pool.size,
        "free": pool.free,
        "largest_run": pool.largest_run,
        "holders": [{"job": owner, "base": base, "slots": slots} for owner, base, slots in pool.holders()],
    }


def network(controller: Controller) -> dict[str, Any]:
    """Return the network and its switches."""
    record = controller.record
    return {
        "name": record.name,
        "target": record.target,
        "elements": record.elements,
        "slots": record.slots,
        "window": record.window,
        "replicas": record.replicas,
        "lease": controller.sessions.lease,
        "hosts": {host.name: host.ip for host in record.hosts},
        "switches": [switch(controller, link) for link in controller.links.values()],
        "links": link_places(record),
    }


def tenants(controller: Controller) -> list[dict[str, Any]]:
    """Return each tenant's quota and the slots that it uses."""
    quotas = controller.store.tenants()
    names = sorted({*quotas, *(job.tenant for job in controller.jobs.values())})
    return [{"name": name, "quota": quotas.get(name), "used": controller.used_slots(name)} for name in names]
