# SPDX-License-Identifier: Apache-2.0
"""What a switch holds and has counted, as JSON. What blocks runs in a thread, under the switch's lock."""

from __future__ import annotations

import asyncio
from typing import Any

from controller import drops
from controller.p4info import P4Info
from controller.program.verdicts import Counts
from controller.readback import GROUP, SESSION, TABLE, read_all
from controller.requests import NotReadyError
from controller.switches import SwitchLink


async def entries(link: SwitchLink) -> dict[str, Any]:
    """Return all that a switch holds: {tables: {name: [{key, action, args}]}, groups, sessions, rates}.

    Groups and sessions are [port, replication id] by number, rates bit/s by job. Raises NotReadyError,
    SwitchClientError.
    """
    async with link.lock:
        _check_reached(link)
        return await asyncio.to_thread(_entries, link)


def _entries(link: SwitchLink) -> dict[str, Any]:
    p4info = link.p4info
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in p4info.tables}
    engines: dict[object, dict[str, Any]] = {GROUP: {}, SESSION: {}}
    for item in read_all(link).values():
        kind = item.key[0]
        if kind == TABLE:
            tables[str(item.key[1])].append(_row(p4info, item.entity))
        elif kind in engines:
            engines[kind][str(item.key[1])] = item.value
    rates = {str(job): rate for job, rate in link.program.rates.read(link).items()}
    return {"tables": tables, "groups": engines[GROUP], "sessions": engines[SESSION], "rates": rates}


def _row(p4info: P4Info, entity: Any) -> dict[str, Any]:
    row = p4info.row(entity)
    table = p4info.tables[row.table]
    key = {
        name: f"{table.fields[name].show(value[0])}/{value[1]}"
        if isinstance(value, tuple)
        else table.fields[name].show(value)
        for name, value in row.key.items()
    }
    action = table.actions.get(row.action) if row.action is not None else None
    args = {
        name: action.params[name].show(value) if action is not None and name in action.params else str(value)
        for name, value in row.args.items()
    }
    return {"key": key, "action": (row.action or "").rpartition(".")[2], "args": args}


async def counters(link: SwitchLink) -> dict[str, Any]:
    """Return what each port counted: {ports: {port: {in, out, faults_in, faults_out, lost}}}.

    The first four are [packets, bytes] by verdict, as the switch counts them since its program was loaded;
    `lost` are packets that the switch process itself lost, null where nothing is known. Raises NotReadyError,
    SwitchClientError.
    """
    async with link.lock:
        _check_reached(link)
        return {"ports": await asyncio.to_thread(_ports, link)}


def _ports(link: SwitchLink) -> dict[str, Any]:
    ports = link.record.switch(link.name).ports
    found = link.program.verdicts.of_ports(link, ports)
    lost = drops.of_ports(link.record, link.name)
    return {
        str(port): {
            "interface": ports[port],
            "in": named(found.ingress.get(port, {})),
            "out": named(found.egress.get(port, {})),
            "faults_in": named(found.ingress_faults.get(port, {})),
            "faults_out": named(found.egress_faults.get(port, {})),
            "lost": lost.get(port),
        }
        for port in sorted(ports)
    }


def named(counts: Counts) -> dict[str, list[int]]:
    """Return counts by the verdict's name in small letters."""
    return {verdict.name.lower(): list(count) for verdict, count in counts.items()}


def _check_reached(link: SwitchLink) -> None:
    if not link.in_line:
        why = f" ({link.complaint})" if link.complaint else ""
        raise NotReadyError(link.name, f"switch {link.name} is not reached now{why}; try again")
