# SPDX-License-Identifier: Apache-2.0
"""All counts of a network's jobs and switches in Prometheus' text format, read when they are asked for.

A switch that is not reached is told as that, without its counts and its jobs'.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from controller import drops, looks
from controller.errors import SwitchClientError
from controller.live import LiveJob
from controller.service import Controller
from controller.switches import PortCell, SwitchLink
from controller.tally import JobCounts
from wire.verdicts import Verdict

FIRST_TIME = (Verdict.ABSORBED, Verdict.COMPLETED, Verdict.PARTIAL_SENT)
"""Verdicts of contributions that were summed: each once for a worker and chunk."""
REFUSED, LOST = "refused", "lost"


class Page(Collector):
    """The metrics of one scrape."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        job, rank, switch = ["job"], ["job", "rank"], ["switch"]
        self._workers = GaugeMetricFamily("p4reduce_job_workers", "Workers that hold a rank", labels=job)
        self._slots = GaugeMetricFamily("p4reduce_job_slots", "Slots rented", labels=job)
        self._packets = CounterMetricFamily(
            "p4reduce_worker_packets", "Admitted packets of a worker", labels=[*rank, "verdict"]
        )
        self._bytes = CounterMetricFamily(
            "p4reduce_worker_bytes", "Bytes of admitted packets of a worker", labels=[*rank, "verdict"]
        )
        self._goodput = CounterMetricFamily(
            "p4reduce_worker_goodput_bytes", "Bytes of values summed, each once, of a worker", labels=rank
        )
        leaf = ["job", "leaf", "verdict"]
        self._partials = CounterMetricFamily(
            "p4reduce_leaf_packets", "Partials of a leaf switch at its parent", labels=leaf
        )
        self._partial_bytes = CounterMetricFamily(
            "p4reduce_leaf_bytes", "Bytes of partials of a leaf switch at its parent", labels=leaf
        )
        self._others = CounterMetricFamily(
            "p4reduce_job_refused_packets",
            "Refused packets that name a job and come from no worker of it",
            labels=[*job, "reason"],
        )
        self._reached = GaugeMetricFamily(
            "p4reduce_switch_reached", "1 if the switch is reached and holds what it should", labels=switch
        )
        self._free = GaugeMetricFamily("p4reduce_switch_slots_free", "Free slots", labels=switch)
        self._used = GaugeMetricFamily("p4reduce_switch_slots_used", "Rented slots", labels=switch)
        self._entries = GaugeMetricFamily(
            "p4reduce_switch_table_entries", "Entries of a table", labels=[*switch, "table"]
        )
        port = [*switch, "port"]
        self._refused = CounterMetricFamily(
            "p4reduce_switch_port_refused_packets", "Packets that a port refused", labels=[*port, "reason"]
        )
        self._faults = CounterMetricFamily(
            "p4reduce_switch_port_fault_packets",
            "Packets that were faulted on purpose",
            labels=[*port, "direction", "fault"],
        )
        self._lost = CounterMetricFamily(
            "p4reduce_switch_port_lost_packets",
            "Packets that the switch process itself lost",
            labels=[*port, "kind"],
        )

    def collect(self) -> Iterable[Metric]:
        """Give all families, for the registry."""
        yield from (value for value in vars(self).values() if isinstance(value, Metric))

    def add_job(self, job: LiveJob) -> None:
        """Take in what the books say of a job."""
        self._workers.add_metric([job.name], len(job.group.sessions))
        self._slots.add_metric([job.name], job.rent.window)

    def add_counts(self, job: LiveJob, found: JobCounts) -> None:
        """Take in a job's counts."""
        for rank in range(len(job.group.hosts)):
            labels, counts = [job.name, str(rank)], found.workers.get(rank, {})
            for verdict, (packets, octets) in counts.items():
                self._packets.add_metric([*labels, _label(verdict)], packets)
                self._bytes.add_metric([*labels, _label(verdict)], octets)
            summed = sum(counts.get(verdict, (0, 0))[0] for verdict in FIRST_TIME)
            self._goodput.add_metric(labels, 4 * self._elements * summed)
        for leaf, counts in found.leaves.items():
            for verdict, (packets, octets) in counts.items():
                self._partials.add_metric([job.name, leaf, _label(verdict)], packets)
                self._partial_bytes.add_metric([job.name, leaf, _label(verdict)], octets)
        for verdict, (packets, _) in looks.refused(found).items():
            self._others.add_metric([job.name, _label(verdict)], packets)

    def add_switch(self, link: SwitchLink) -> None:
        """Take in what the books say of a switch."""
        self._reached.add_metric([link.name], int(link.in_line))
        self._free.add_metric([link.name], link.jobs.pool.free)
        self._used.add_metric([link.name], link.jobs.pool.size - link.jobs.pool.free)

    def add_tables(self, link: SwitchLink, sizes: Counter[str]) -> None:
        """Take in how many entries each table of a switch has."""
        for table in link.p4info.tables:
            self._entries.add_metric([link.name, table], sizes[table])

    def add_ports(self, link: SwitchLink, cells: dict[PortCell, int]) -> None:
        """Take in what a switch's ports counted, as `_ports` gives it."""
        for (what, port, kind), packets in cells.items():
            if what == REFUSED:
                self._refused.add_metric([link.name, str(port), kind], packets)
            elif what == LOST:
                self._lost.add_metric([link.name, str(port), kind], packets)
            else:
                self._faults.add_metric([link.name, str(port), what, kind.removeprefix("fault_")], packets)


async def exposition(controller: Controller) -> tuple[str, str]:
    """Return the page and its content type."""
    page = Page(controller.record.elements)
    jobs = list(controller.jobs.values())
    for job in jobs:
        page.add_job(job)
    for link in controller.links.values():
        page.add_switch(link)
        try:
            for job, found in await looks.counts([job for job in jobs if job.links[0] is link]):
                page.add_counts(job, found)
            async with link.lock:
                if link.in_line:
                    page.add_tables(link, await asyncio.to_thread(_table_sizes, link))
                    page.add_ports(link, await asyncio.to_thread(_ports, link))
        except SwitchClientError:  # it went away; p4reduce_switch_reached will tell
            continue
    registry = CollectorRegistry()
    registry.register(page)
    return generate_latest(registry).decode(), CONTENT_TYPE_PLAIN_0_0_4


def _table_sizes(link: SwitchLink) -> Counter[str]:
    entities = link.read([link.p4info.all_entries(name) for name in link.p4info.tables])
    return Counter(_tables(link, entities))


def _tables(link: SwitchLink, entities: Iterable[object]) -> Iterator[str]:
    names = {table.id: name for name, table in link.p4info.tables.items()}
    for entity in entities:
        entry = entity.table_entry  # type: ignore[attr-defined]
        if not entry.is_default_action:
            yield names[entry.table_id]


def _ports(link: SwitchLink) -> dict[PortCell, int]:
    """Return packets by (REFUSED, LOST, or the direction of a fault; port; reason or kind)."""
    ports = link.record.switch(link.name).ports
    found = link.program.verdicts.of_ports(link, ports)
    cells: dict[PortCell, tuple[int, int]] = {}
    for what, counted in (
        (REFUSED, found.ingress),
        (REFUSED, found.egress),
        ("in", found.ingress_faults),
        ("out", found.egress_faults),
    ):
        for port, counts in counted.items():
            for verdict, count in counts.items():
                if what != REFUSED or verdict in looks.REFUSED:
                    cells[what, port, _label(verdict)] = count
    own = {cell: packets for cell, (packets, _) in link.ports.own(cells).items()}
    for port, kinds in drops.of_ports(link.record, link.name).items():
        own |= {(LOST, port, kind): packets for kind, packets in kinds.items()}
    return own


def _label(verdict: Verdict) -> str:
    return verdict.name.lower()
