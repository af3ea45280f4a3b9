# SPDX-License-Identifier: Apache-2.0
"""The life of a slot or a chunk over all links, merged by the clock: `trace slot` and `trace chunk`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np

from . import show
from .errors import TraceFileError
from .files import expand, merged, readable
from .members import load
from .model import REASONS, WORDS, Judged, Model, Verdict
from .names import source
from .table import Category, Table


@dataclass(frozen=True)
class Event:
    """One packet at one end of a link."""

    time: int
    """ns since the Unix epoch."""
    path: Path
    number: int
    end: str
    link: str
    node: str
    """Who the end belongs to, "" where unknown."""
    member: str
    """Worker or leaf that sent it or is to get it; its address where it is no known member."""
    switch: str
    """The switch at the other side."""
    what: str
    """contribution, partial or result."""
    again: bool
    """A contribution or partial that was sent before."""
    chunk: int
    slot: int
    version: int
    verdict: str
    """What the switch made of it; "" where it was not captured there, or a result is the first."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return vars(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class Life:
    """Events in the order of time."""

    events: list[Event]
    more: int
    """Those beyond what was asked for."""
    there: range | None = None
    """From the least to the greatest slot or chunk of the job that a packet names; None if none does."""
    failure: TraceFileError | None = None
    """Of a file that could not be read to its end: what was readable is in here."""


def life(
    paths: Sequence[Path],
    job: str,
    *,
    slot: range | None = None,
    chunk: range | None = None,
    most: int = 1000,
    format: str = "p4reduce",
) -> Life:
    """Return what happened to slots or chunks of a job, given by name or number, in captures.

    Raises FilterError for an unknown job, MembersError, and TraceFileError where a path is no capture file;
    a file that breaks off gives what is readable.
    """
    files = expand(paths)
    epochs = load(paths)
    ends = [source(path) for path in files]
    links = [end.link for end in ends]
    # A link's two ends show every packet twice: the switches' slots are followed by their own ends.
    model, other = Model(epochs, links), Model(epochs, links)
    number = show.job_number({epoch.job_name: epoch.job for epoch in epochs}, "job", job)
    wanted = show.Filter(jobs=frozenset({number}), slots=slot, chunks=chunk)
    # Members' own ends, where the other was captured, too.
    own = {
        (member.link, member.host)
        for epoch in epochs
        for member in epoch.members
        if any(end.link == member.link and end.node not in ("", member.host) for end in ends)
    }
    events: list[Event] = []
    errors: list[TraceFileError] = []
    more, there = 0, None
    for table in readable(merged(files, format=format), errors):
        at_switch, elsewhere = _split(table, own)
        for part, judged in ((at_switch, True), (elsewhere, False)):
            by = model if judged else other
            verdicts = by.judge(part)
            rows = wanted.rows(part, verdicts, by)
            events += [_event(part, verdicts, by, int(row), judged) for row in rows[:most]]
            more += len(rows) - len(rows[:most])
            there = _span(part, number, "chunk" if slot is None else "slot", there)
        # Tables come in the order of time: what is beyond now stays so.
        events.sort(key=lambda event: event.time)
        more += len(events[most:])
        del events[most:]
    return Life(events, more, there, errors[0] if errors else None)


def _span(table: Table, job: int, column: str, known: range | None) -> range | None:
    """Return the range that holds `known` and all of a job's chunks or slots in a table."""
    some = getattr(table, column)[(table.job == job) & (table.category != Category.OTHER) & (table.size != 0)]
    if not len(some):
        return known
    low, high = int(some.min()), int(some.max())
    return range(low, high + 1) if known is None else range(min(low, known[0]), max(high, known[-1]) + 1)


def _split(table: Table, own: set[tuple[str, str]]) -> tuple[Table, Table]:
    """Return the packets at other ends, and at members' own (link, node)."""
    far = np.array([(each.link, each.node) in own for each in table.sources], np.bool_)
    there = far[table.file] if len(far) else np.zeros(len(table), np.bool_)
    return table.take(~there), table.take(there)


def _event(table: Table, judged: Judged, model: Model, row: int, at_switch: bool) -> Event:
    where = table.sources[table.file[row]]
    up = table.category[row] == Category.CONTRIBUTION
    host, rank = model.names[judged.member[row]] if judged.member[row] >= 0 else ("", 0)
    ip = IPv4Address(int(table.src_ip[row] if up else table.dst_ip[row]))
    switch_ip = str(IPv4Address(int(table.dst_ip[row] if up else table.src_ip[row])))
    member = host or str(ip)
    ends = where.link.split("-") if where.node else []
    others = [end for end in ends if end != host]
    verdict = Verdict(judged.verdict[row])
    word = WORDS[verdict] if at_switch and verdict is not Verdict.RESULT else ""
    if judged.reason[row]:
        word += f" ({REASONS[int(judged.reason[row])]})"
    return Event(
        time=int(table.time[row]),
        path=where.path,
        number=int(table.number[row]),
        end=where.end,
        link=where.link,
        node=where.node,
        member=member,
        switch=others[0] if host and len(others) == 1 else switch_ip,
        what="result" if not up else "partial" if rank < 0 else "contribution",
        again=bool(judged.again[row]),
        chunk=int(table.chunk[row]),
        slot=int(table.slot[row]),
        version=int(table.version[row]),
        verdict=word,
    )


def columns(events: Sequence[Event]) -> list[str]:
    """Return who has a column: members, then switches that are no members, each in the order of its name."""

    def order(name: str) -> tuple[int, str]:
        return len(name), name

    members = sorted({event.member for event in events}, key=order)
    return [*members, *sorted({event.switch for event in events} - set(members), key=order)]


def cells(event: Event, label: str) -> dict[str, str]:
    """Return what an event puts into which columns; `label` names its chunk or slot."""
    again = " again" if event.again else ""
    what = "" if event.what == "contribution" else f"{event.what} "
    if event.node == event.member:
        verb = "got" if event.what == "result" else f"sent{again}"
        return {event.member: f"{what}{label} {verb}"}
    if event.what == "result":
        return {event.member: f"<-- {what}{label}", event.switch: event.verdict}
    return {event.member: f"{what}{label}{again} -->", event.switch: event.verdict}
