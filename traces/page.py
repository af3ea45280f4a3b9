# SPDX-License-Identifier: Apache-2.0
"""`trace plot --html`: one page with all packets on their links and the slots in use, to zoom into.

It is one file that asks for nothing else. Of captures with too many packets it has every second, fourth …
chunk, each with all of its packets, and says so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import show
from .errors import PlotError, TraceFileError
from .files import Told, expand, merged
from .members import load
from .model import Judged, Model, Verdict
from .names import source
from .series import Series
from .table import Category, Table

SUFFIXES = (".html", ".htm")
MOST_PACKETS = 40_000
"""Of a page; one has about 100 bytes."""
MOST_STRIDE = 1 << 32
"""Beyond it only chunk 0 is left, which may have been sent that often."""
TEMPLATE = Path(__file__).with_name("page.html")
KINDS = ("contribution", "sent again", "result", "result again", "refused or malformed", "other")
_CONTRIBUTION, _AGAIN, _RESULT, _RESULT_AGAIN, _REFUSED, _OTHER = range(len(KINDS))
_NUMBERS = ("job", "chunk", "slot", "version", "tensor", "flag", "e0", "e1", "number", "length")
_WORDS = ("end", "file", "src", "dst", "worker", "verdict", "reason", "job_name", "udp_checksum")
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


def check(out: Path) -> None:
    """Raise PlotError unless `out` is a page's name in a folder that is there."""
    if out.suffix.lower() not in SUFFIXES:  # or a name too few would write over a capture
        raise PlotError(str(out), f"a page's name ends in {' or '.join(SUFFIXES)}")
    if not out.parent.is_dir() or out.is_dir():
        why = "it is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise PlotError(str(out), f"the page cannot be written: {why}")


def write(
    series: Series,
    paths: Sequence[Path],
    out: Path,
    jobs: Collection[int],
    told: Told | None = None,
) -> int:
    """Write the page of captures, of these jobs; return of how many chunks it has one.

    `told` is told of the bytes that are read, which are once those of all files.
    Raises OSError, and MembersError.
    """
    sample = _Sample(paths, jobs, told)
    data = sample.data(series)
    # In a script element nothing may look like its end; U+2028 and U+2029 are escaped by json.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    out.write_text(TEMPLATE.read_text().replace("@DATA@", text, 1))
    return sample.stride


class _Sample:
    """Packets of at most MOST_PACKETS, all those of every `stride`-th chunk."""

    def __init__(self, paths: Sequence[Path], jobs: Collection[int], told: Told | None) -> None:
        files, epochs = expand(paths), load(paths)
        links = [source(path).link for path in files]
        self.model = Model(epochs, links)
        # A link's two ends show every packet twice, and what comes a second time is not sent again.
        own_ends = Model(epochs, links)
        self._own = {(member.host, member.link) for epoch in epochs for member in epoch.members}
        self._ends: dict[str, set[str]] = {}
        for path in files:
            self._ends.setdefault(source(path).link, set()).add(source(path).node)
        self.stride, self.seen = 1, 0
        self._kept: list[tuple[int, dict[str, Any]]] = []
        """Each with the number that decides whether it stays: its chunk, or where it is in its file."""
        with contextlib.suppress(TraceFileError):  # series have it: see Series.failure
            for table in merged(files, values=True, told=told):
                table = show.ours(table, self.model.switches)
                own = self._at_own_end(table)
                for part, model in ((table.take(~own), self.model), (table.take(own), own_ends)):
                    self._enter(part, model.judge(part), jobs)

    def _at_own_end(self, table: Table) -> Mask:
        """Say which rows are of members' own ends of links that were captured at both."""
        for each in table.sources:
            self._ends.setdefault(each.link, set()).add(each.node)
        found = [
            len(self._ends[each.link]) > 1
            and (
                (each.node, each.link) in self._own if self._own else each.node == min(self._ends[each.link])
            )
            for each in table.sources
        ]
        return np.asarray(found, bool)[table.file]

    def _enter(self, table: Table, judged: Judged, jobs: Collection[int]) -> None:
        wanted = np.ones(len(table), bool)
        if jobs:
            wanted = np.isin(table.job, list(jobs)) | (table.category == Category.OTHER)
        rows = np.flatnonzero(wanted)
        self.seen += len(rows)
        of_chunk = (table.category != Category.OTHER) & (table.size != 0)
        by = np.where(of_chunk, table.chunk.astype(np.int64), table.number)[rows]
        for first in range(0, len(rows), MOST_PACKETS):
            part = slice(first, first + MOST_PACKETS)
            stays = by[part] % self.stride == 0
            here = rows[part][stays]
            told = show.packets(table, judged, self.model, here)
            kinds = _kinds(table, judged, here).tolist()
            for number, kind, packet in zip(by[part][stays].tolist(), kinds, told, strict=True):
                self._kept.append((number, packet | {"what": kind}))
            while len(self._kept) > MOST_PACKETS and self.stride <= MOST_STRIDE:
                self.stride *= 2
                self._kept = [each for each in self._kept if each[0] % self.stride == 0]
            del self._kept[MOST_PACKETS:]

    def data(self, series: Series) -> dict[str, Any]:
        """Return what the page shows, as JSON's types: packets as columns, words by their index."""
        words: dict[str | None, int] = {None: 0}
        packets = sorted((packet for _, packet in self._kept), key=lambda packet: int(packet["time"]))
        columns: dict[str, list[Any]] = {
            "t": [packet["time"] - series.start for packet in packets],
            "kind": [packet["what"] for packet in packets],
            "way": [{"in": 1, "out": 2}.get(packet["direction"], 0) for packet in packets],
            "values": [packet["values"] for packet in packets],
        }
        for name in _NUMBERS:
            columns[name] = [packet[name] for packet in packets]
        for name in _WORDS:
            columns[name] = [words.setdefault(packet[name] or None, len(words)) for packet in packets]
        begun = datetime.fromtimestamp(series.start / 1e9, timezone.utc)
        return {
            "title": "; ".join(job.title for job in series.jobs) or "no job",
            "begun": f"{begun:%Y-%m-%d %H:%M:%S} UTC",
            "span": int(series.edges[-1]),
            "notes": [
                *series.notes,
                *(f"job {job.job}: {note}" for job in series.jobs for note in job.notes),
            ],
            "stride": self.stride,
            "shown": len(packets),
            "seen": self.seen,
            "kinds": KINDS,
            "words": ["", *list(words)[1:]],
            "packets": columns,
            "slots": _slots(packets, series.start, self.model),
            "edges": series.edges.tolist(),
            "occupancy": [
                {
                    "job": job.job,
                    "label": f"{job.name or f'job {job.job}'}, {switch}",
                    "window": max(job.windows),
                    "mean": np.round(mean, 3).tolist(),
                    "most": most.tolist(),
                }
                for job in series.jobs
                for switch, (mean, most) in job.occupancy.items()
            ],
        }


def _kinds(table: Table, judged: Judged, rows: Rows) -> NDArray[np.int64]:
    """Return each row's index into KINDS."""
    category, verdict, again = table.category[rows], judged.verdict[rows], judged.again[rows]
    refused = (category == Category.MALFORMED) | (verdict == Verdict.REFUSED)
    kinds: NDArray[np.int64] = np.select(
        [
            category == Category.OTHER,
            refused,
            category == Category.CONTRIBUTION,
        ],
        [_OTHER, _REFUSED, np.where(again, _AGAIN, _CONTRIBUTION)],
        np.where(verdict == Verdict.RESULT_AGAIN, _RESULT_AGAIN, _RESULT),
    )
    return kinds


def _slots(packets: Sequence[dict[str, Any]], start: int, model: Model) -> list[dict[str, Any]]:
    """Return of each job and switch when which chunk was in which slot: from contribution to result."""
    found: dict[tuple[int, str], dict[int, list[Any]]] = {}
    for packet in packets:
        if packet["what"] in (_REFUSED, _OTHER):
            continue
        up = packet["what"] in (_CONTRIBUTION, _AGAIN)
        switch = (packet["dst"] if up else packet["src"]).split(":")[0]
        chunks = found.setdefault((packet["job"], switch), {})
        time = packet["time"] - start
        if up:
            life = [packet["slot"], packet["version"], packet["chunk"], time, None]
            chunks.setdefault(packet["chunk"], life)
        elif packet["chunk"] in chunks and chunks[packet["chunk"]][4] is None:
            chunks[packet["chunk"]][4] = time
    return [
        {
            "job": job,
            "label": f"{model.job_names.get(job, f'job {job}')}, {_switch(model, switch)}",
            "lives": list(chunks.values()),
        }
        for (job, switch), chunks in sorted(found.items())
    ]


def _switch(model: Model, address: str) -> str:
    return model.switches.get(int(IPv4Address(address)), address)
