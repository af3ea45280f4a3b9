# SPDX-License-Identifier: Apache-2.0
"""The series that `trace plot` draws, from one pass over the captures: nothing here draws.

A chunk is under way at a switch from the first contribution that was captured to the first result, or until a
newer one takes its slot, or its epoch ends. A member is looked at where its link was captured: at its own end
if it was there, else at its switch's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np

from .errors import FilterError, TraceFileError
from .files import Told, expand, merged
from .members import Epoch, load
from .show import job_number
from .table import Category, Direction, Table, UdpChecksum
from .timeline import Floats, Histogram, Ints, Timeline
from .verify_capture import Capture
from .verify_findings import Findings
from .verify_infer import infer
from .verify_match import Matcher
from .verify_tree import Tree, trees

MOST_POINTS = 320
"""Bins that a picture shows; fewer, where there are less than"""
PACKETS_A_BIN = 8
ROWS = 240
"""Chunks times workers of a waterfall that nobody chose; what is chosen may have"""
MOST_ROWS = 4096
MOST_SENDS = 32
"""Of one worker's chunk that are kept."""
_OWN, _FAR = 0, 1


@dataclass
class Sent:
    """A worker's part in a chunk of the waterfall: times in ns after the capture's start."""

    sends: list[int] = field(default_factory=list)
    """Its contributions, the first MOST_SENDS of them."""
    result: int | None = None


@dataclass
class JobSeries:
    """One job. Arrays over time have an item for each bin of the whole's `edges`."""

    job: int
    name: str
    """"" where it is not told."""
    windows: list[int]
    """W of its epochs, 0 where unknown."""
    ranks: list[int]
    """n of its epochs."""
    elements: int
    guessed: bool
    """Whether who its members are was guessed from the packets."""
    tensors: set[int] = field(default_factory=set)
    occupancy: dict[str, tuple[Floats, Ints]] = field(default_factory=dict)
    """By switch: chunks under way, their mean in each bin and the most."""
    goodput: dict[str, Floats] = field(default_factory=dict)
    """By worker: bits a second of values, each chunk's result counted once."""
    sent: dict[str, int] = field(default_factory=dict)
    """By worker or leaf: its contributions."""
    again: dict[str, Ints] = field(default_factory=dict)
    """By worker or leaf: contributions that it had sent before."""
    rtt: dict[str, Histogram] = field(default_factory=dict)
    """By worker or leaf: from a contribution's last sending to the first result."""
    spoilt: int = 0
    """Packets with a wrong checksum; they are in nothing else but the links."""
    waterfall: dict[int, dict[str, Sent]] = field(default_factory=dict)
    """By chunk, as on the wire, and worker."""
    notes: list[str] = field(default_factory=list)
    """What cannot be shown, and why."""

    @property
    def named(self) -> str:
        """Say which job."""
        return f"job {self.job}" + (f" ({self.name})" if self.name else "")

    @property
    def title(self) -> str:
        """Say which job, tensors, n, W."""
        n, w = (_few(values) for values in (self.ranks, self.windows))
        words = [self.named, f"n = {n}", f"W = {w}", f"{self.elements} values a packet", self._tensors()]
        return ", ".join(words) + (", members guessed" if self.guessed else "")

    def _tensors(self) -> str:
        told = sorted(self.tensors)
        if len(told) < 2:
            return f"tensor {told[0]}" if told else "no tensor"
        whole = told == list(range(told[0], told[-1] + 1))
        return f"tensors {told[0]} to {told[-1]}" if whole else f"{len(told)} tensors"


def _few(values: Sequence[int]) -> str:
    changes = [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    words = [str(value) if value else "unknown" for value in changes]
    return " then ".join(words if len(words) < 4 else [*words[:2], "…", words[-1]])


@dataclass
class Series:
    """All jobs of captures."""

    start: int
    """ns since the Unix epoch, of the first packet."""
    edges: Ints
    """Where bins begin, and the last ends: ns after `start`."""
    links: dict[str, Floats]
    """By link and direction, `h1 → s1`: bits a second on it, of all packets, without preambles and FCS."""
    jobs: list[JobSeries]
    notes: list[str]
    packets: int
    failure: TraceFileError | None = None
    """Of a file that could not be read to its end: what was readable is in here."""


def collect(
    paths: Sequence[Path],
    *,
    jobs: Sequence[str] = (),
    chunks: range | None = None,
    bar: Callable[[str], Told | None] = lambda title: None,
) -> Series:
    """Return the series of captures (files or folders), of jobs given by name or number, else of all.

    `bar` is asked for one for each time that all files are read, with a title, and told of the bytes.
    `chunks` are those of the waterfall, else the first ones. Raises FilterError, MembersError, and
    TraceFileError for folders without captures; see `Series.failure` for files that break off.
    """
    files, epochs = expand(paths), load(paths)
    told, guessed = trees(epochs), Findings()
    if not told:
        told = infer(merged(files, told=bar("who is who")), guessed)
    by_name = {epoch.job_name: epoch.job for epoch in epochs}
    chosen = {job_number(by_name, "--job", job) for job in jobs}
    have = sorted({tree.job for tree in told})
    for job in sorted(chosen - set(have)):
        known = ", ".join(map(str, have)) or "none"
        raise FilterError(f"--job {job}", f"no member of it is in these captures; jobs: {known}")
    told = [tree for tree in told if not chosen or tree.job in chosen]
    tables = merged(files, told=bar("reading"))
    series = _Collector(told, epochs, chunks).collect(tables, guessed.notes)
    if not chosen:  # beside captures there may stand jobs that had ended before
        silent = [job for job in series.jobs if not any(job.sent.values())]
        if len(silent) < len(series.jobs):
            series.jobs = [job for job in series.jobs if job not in silent]
            series.notes += [f"{job.named}: none of its packets are in these captures" for job in silent]
    return series


class _Collector:
    """Takes tables in; what it remembers grows with members and slots, not with packets."""

    def __init__(self, told: Sequence[Tree], epochs: Sequence[Epoch], chunks: range | None) -> None:
        self._told = list(told)
        self._chunks = chunks
        self._capture = Capture()
        self._matcher = Matcher(self._told, self._capture, Findings())
        self._seats = [(tree, seat) for tree in told for seat in tree.seats]
        self._tree_of = [index for index, tree in enumerate(told) for _ in tree.seats]
        names = {int(IPv4Address(place.ip)): place.name for epoch in epochs for place in epoch.switches}
        self._labels = [
            str(IPv4Address(seat.ip)) if tree.inferred else seat.name for tree, seat in self._seats
        ]
        self._switches = [
            [names.get(ip, str(IPv4Address(ip))) for ip in self._told[index].switches]
            for index in range(len(self._told))
        ]
        self._line: Timeline | None = None
        self._flows: dict[tuple[int, int, int], list[int]] = {}
        """By seat, end, slot with version: chunk, its last sending or -1, and whether its result was seen."""
        self._open: dict[tuple[int, int, int], tuple[int, bool]] = {}
        """By tree, switch and slot with version: the chunk there, and whether it is under way."""
        self._before = [self._earlier(index) for index in range(len(told))]
        """Of each tree those whose epochs are over once there is a packet of it."""
        self._over: set[int] = set()
        self._seen: set[int] = set()
        self._rtt: dict[tuple[int, int], Histogram] = {}
        self._used: Counter[tuple[int, int]] = Counter()
        """Contributions by seat and end, 0 where only results were captured."""
        self._wide: dict[int, int] = {}
        self._rows: dict[int, dict[int, dict[tuple[int, int], Sent]]] = {}
        names_by_job = {epoch.job: epoch.job_name for epoch in epochs}
        self._jobs: dict[int, JobSeries] = {}
        for tree in self._told:
            windows = max(seat.window for seat in tree.seats)
            n = sum(seat.leaf < 0 for seat in tree.seats)
            job = self._jobs.setdefault(
                tree.job,
                JobSeries(tree.job, names_by_job.get(tree.job, ""), [], [], tree.elements, tree.inferred),
            )
            job.windows.append(windows)
            job.ranks.append(n)
            most = ROWS // max(1, n) if chunks is None else MOST_ROWS
            self._wide[tree.job] = max(4, most)

    def collect(self, tables: Iterable[Table], notes: Sequence[str]) -> Series:
        packets, failure = 0, None
        try:
            for table in tables:
                if len(table):
                    packets += len(table)
                    if self._line is None:
                        self._line = Timeline(int(table.time[0]))
                    self._enter(table, self._line)
        except TraceFileError as error:
            failure = error
        line = self._line or Timeline(0)
        line.coarsen(min(MOST_POINTS, max(40, packets // PACKETS_A_BIN)))
        jobs = [self._finish(job, line) for job in self._jobs.values()]
        told = list(notes)
        if not jobs:
            told.append("no job's members are known, nor can be guessed: only links are shown")
        links = self._links(line)
        if not links:
            told.append("no packet is in these captures")
        return Series(line.start, line.edges, links, jobs, told, packets, failure)

    def _enter(self, table: Table, line: Timeline) -> None:
        sources = self._capture.enter(table)
        category = table.category
        # Where the file does not say which way: what is for a switch went up.
        way = np.where(
            table.direction != Direction.UNKNOWN,
            table.direction,
            np.where(category == Category.CONTRIBUTION, 3, np.where(category == Category.RESULT, 4, 0)),
        ).astype(np.int64)
        key = sources * 8 + way
        for each in np.unique(key).tolist():
            mine = key == each
            line.add(("link", each >> 3, each & 7), table.time[mine], table.length[mine].astype(np.int64) * 8)
        ours = (category == Category.CONTRIBUTION) | (category == Category.RESULT)
        refs = self._capture.refs(table, sources)
        rows, seats = self._matcher.match(table, np.flatnonzero(ours), sources, refs)
        if len(rows):
            self._follow(table, rows, seats, sources, line)

    def _links(self, line: Timeline) -> dict[str, Floats]:
        """Return the rate of each link and direction: at the end that saw most of it."""
        by_end: dict[tuple[str, str], Floats] = {}
        for index, source in enumerate(self._capture.sources):
            for way in (0, 1, 2, 3, 4):
                rates = line.rates(("link", index, way))
                if rates.any():
                    at = (_flow(source.node, source.link, source.end, way), source.end)
                    by_end[at] = by_end.get(at, np.zeros(len(rates))) + rates
        found: dict[str, Floats] = {}
        for (flow, _), rates in sorted(by_end.items()):
            if flow not in found or rates.sum() > found[flow].sum():
                found[flow] = rates
        return {flow: found[flow] for flow in sorted(found, key=_numbers)}

    def _follow(self, table: Table, rows: Ints, seats: Ints, sources: Ints, line: Timeline) -> None:
        nodes = np.array([source.node for source in self._capture.sources])
        names = np.array([seat.name for _, seat in self._seats])
        ends = np.where(nodes[sources[rows]] == names[seats], _OWN, _FAR)
        wrong = table.udp_checksum[rows] == UdpChecksum.WRONG
        for seat in seats[wrong].tolist():
            self._jobs[self._seats[seat][0].job].spoilt += 1
        rows, seats, ends = rows[~wrong], seats[~wrong], ends[~wrong]
        for job in self._jobs.values():
            job.tensors.update(np.unique(table.tensor[rows[table.job[rows] == job.job]]).tolist())
        up = table.category[rows] == Category.CONTRIBUTION
        place = table.slot[rows].astype(np.int64) << 1 | table.version[rows]
        got: dict[tuple[int, int], list[int]] = {}
        again: dict[tuple[int, int], list[int]] = {}
        rtt: dict[tuple[int, int], list[int]] = {}
        steps: dict[tuple[int, str], list[tuple[int, int]]] = {}
        columns = (seats, ends, place, table.chunk[rows], table.time[rows], up)
        for seat, end, at, chunk, time, is_up in zip(*(column.tolist() for column in columns), strict=True):
            key = (seat, end)
            tree = self._tree_of[seat]
            self._used[key] += is_up
            self._note(seat, end, chunk, time - line.start, is_up)
            for change in self._occupy(tree, self._seats[seat][1].switch, at, chunk, is_up):
                where, by = change
                steps.setdefault(where, []).append((time, by))
            flow = self._flows.setdefault((seat, end, at), [-1, -1, 0])
            if flow[0] != chunk:
                if flow[0] >= 0 and not _newer(chunk, flow[0]):
                    if is_up:
                        again.setdefault(key, []).append(time)
                    continue
                flow[:] = [chunk, time if is_up else -1, int(not is_up)]
                if not is_up:
                    got.setdefault(key, []).append(time)
            elif is_up:
                again.setdefault(key, []).append(time)
                flow[1] = flow[1] if flow[2] else time
            elif not flow[2]:
                flow[2] = 1
                got.setdefault(key, []).append(time)
                if flow[1] >= 0:
                    rtt.setdefault(key, []).append(time - flow[1])
        for (seat, end), times in got.items():
            bits = self._seats[seat][0].elements * 32
            line.add(("got", seat, end), times, bits)
        for (seat, end), times in again.items():
            line.add(("again", seat, end), times, 1)
        for key, waited in rtt.items():
            self._rtt.setdefault(key, Histogram()).add(waited)
        for where, changes in steps.items():
            line.step(("open", *where), [time for time, _ in changes], [by for _, by in changes])

    def _earlier(self, index: int) -> set[int]:
        """Return a job's trees before one that have a member of it: it has a port in one epoch alone."""
        tree = self._told[index]
        mine = {seat.ip for seat in tree.seats}
        return {
            before
            for before, other in enumerate(self._told[:index])
            if other.job == tree.job and mine & {seat.ip for seat in other.seats}
        }

    def _occupy(
        self, tree: int, switch: int, place: int, chunk: int, up: bool
    ) -> Iterator[tuple[tuple[int, str], int]]:
        """Yield changes of the number of chunks under way, by job and switch."""
        job = self._told[tree].job
        if tree in self._over:
            return
        if tree not in self._seen:
            self._seen.add(tree)
            self._over |= self._before[tree]
            for key in [key for key in self._open if key[0] in self._before[tree]]:
                if self._open.pop(key)[1]:
                    yield (job, self._switches[key[0]][key[1]]), -1
        key = (tree, switch, place)
        where = (job, self._switches[tree][switch])
        here = self._open.get(key)
        if here is None or (here[0] != chunk and _newer(chunk, here[0])):
            if here is not None and here[1]:
                yield where, -1
            self._open[key] = (chunk, up)
            if up:
                yield where, 1
        elif here == (chunk, True) and not up:
            self._open[key] = (chunk, False)
            yield where, -1

    def _note(self, seat: int, end: int, chunk: int, time: int, up: bool) -> None:
        """Have a packet in the waterfall, if its chunk is one of it."""
        if self._chunks is not None and chunk not in self._chunks:
            return
        job = self._seats[seat][0].job
        rows = self._rows.setdefault(job, {})
        if chunk not in rows:
            if len(rows) >= self._wide[job] or not up:
                return
            rows[chunk] = {}
        sent = rows[chunk].setdefault((seat, end), Sent())
        if up and len(sent.sends) < MOST_SENDS:
            sent.sends.append(time)
        elif not up and sent.result is None:
            sent.result = time

    def _finish(self, job: JobSeries, line: Timeline) -> JobSeries:
        ends = [_OWN if (seat, _OWN) in self._used else _FAR for seat in range(len(self._seats))]
        for seat, (tree, who) in enumerate(self._seats):
            key = (seat, ends[seat])
            if tree.job != job.job or key not in self._used:
                continue
            label = self._labels[seat]
            zeros = np.zeros(line.bins, np.int64)
            job.sent[label] = job.sent.get(label, 0) + self._used[key]
            job.again[label] = job.again.get(label, zeros) + line.sums(("again", *key))
            if key in self._rtt:
                job.rtt.setdefault(label, Histogram()).counts += self._rtt[key].counts
            if who.leaf < 0:
                job.goodput[label] = job.goodput.get(label, zeros.astype(float)) + line.rates(("got", *key))
        for name in dict.fromkeys(
            name
            for tree, switches in zip(self._told, self._switches, strict=True)
            if tree.job == job.job
            for name in switches
        ):
            job.occupancy[name] = line.levels(("open", job.job, name))
        for chunk, parts in self._rows.get(job.job, {}).items():
            row = job.waterfall.setdefault(chunk, {})
            for (seat, end), sent in sorted(parts.items()):
                if self._seats[seat][1].leaf >= 0 or end != ends[seat]:
                    continue
                if self._labels[seat] in row:  # sent again in a later epoch
                    earlier = row[self._labels[seat]]
                    earlier.sends += sent.sends
                    earlier.result = sent.result if earlier.result is None else earlier.result
                else:
                    row[self._labels[seat]] = sent
        self._missing(job, ends)
        return job

    def _missing(self, job: JobSeries, ends: Sequence[int]) -> None:
        """Say what of a job cannot be shown."""
        silent = [
            self._labels[seat]
            for seat, (tree, _) in enumerate(self._seats)
            if tree.job == job.job and (seat, ends[seat]) not in self._used
        ]
        silent = [label for label in dict.fromkeys(silent) if label not in job.again]
        if silent:
            job.notes.append(f"no packet of {', '.join(silent)} was captured")
        if not job.rtt:
            job.notes.append("no round trips: no contribution was captured at one place with its result")
        if job.spoilt:
            job.notes.append(f"{job.spoilt} packets with a wrong checksum are only in the links' rates")
        if self._chunks is not None and not job.waterfall:
            job.notes.append(f"no chunk of {self._chunks.start} to {self._chunks.stop - 1} was captured")


def _flow(node: str, link: str, end: str, way: int) -> str:
    """Return what a link and direction is called."""
    if not node:
        return f"{end} {('?', 'in', 'out', 'up', 'down')[way]}"
    peer = next((each for each in link.split("-")[:2] if each != node), node)
    port = "".join(f" ({each})" for each in link.split("-")[2:])
    if way == Direction.UP or way == Direction.DOWN:
        one, other = (peer, node) if way == Direction.UP else (node, peer)
        return f"{one} → {other}{port}"
    return f"{link} {('?', '', '', 'up', 'down')[way]}"


def _numbers(name: str) -> list[tuple[int, str]]:
    """Return what sorts h2 before h10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split("([0-9]+)", name)]


def _newer(chunk: int, than: int) -> bool:
    """RFC 1982."""
    return 0 < (chunk - than & 0xFFFFFFFF) < 1 << 31
