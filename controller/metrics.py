# SPDX-License-Identifier: Apache-2.0
"""All counts of a network's jobs and switches in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from controller.service import Controller


async def exposition(controller: Controller) -> tuple[str, str]:
    """Return the page and its content type."""
    registry = CollectorRegistry()
    free = Gauge("p4reduce_slots_free", "Free slots of a switch", ["switch"], registry=registry)
    for link in controller.links.values():
        free.labels(link.name).set(link.jobs.pool.free)
    return generate_latest(registry).decode(), CONTENT_TYPE_PLAIN_0_0_4
