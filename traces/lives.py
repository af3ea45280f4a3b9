# SPDX-License-Identifier: Apache-2.0
"""The lives of chunks as a capture shows them: when each member sent one, and when it got the result.

What `trace explain` counts with. Memory grows with the chunks of a run, by 64 bytes a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .table import Category, Table, UdpChecksum
from .verify_capture import Capture
from .verify_columns import NEVER
from .verify_findings import Findings
from .verify_match import Matcher
from .verify_tree import Tree

Ints = NDArray[np.int64]
OWN, FAR = 0, 1
"""Ends of a member's link: its own, and its switch's."""
WAYS = 2
MOST_AHEAD = 1 << 20
"""Chunks that one may be ahead of all before it: what is further is no chunk of this run."""


@dataclass
class Lives:
    """One epoch of a job. Arrays have a row for each chunk, a column for each seat, and one for each end."""

    tree: Tree
    first_up: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """ns, NEVER where none was captured."""
    first_down: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    ups: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Contributions captured there."""
    downs: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    spoilt: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """(seat, end, up or down): packets with a wrong checksum, which are in nothing else here."""
    bytes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """(seat, end, up or down)."""
    again: list[Ints] = field(default_factory=list)
    """(6, k) each: chunk, seat, end, time, source, number of contributions that were not the first there."""
    base: int = 0
    """The wire's number of row 0."""

    def __post_init__(self) -> None:
        seats = len(self.tree.seats)
        for name, fill in (("first_up", NEVER), ("first_down", NEVER), ("ups", 0), ("downs", 0)):
            setattr(self, name, np.full((0, seats, WAYS), fill))
        self.spoilt, self.bytes = np.zeros((2, seats, WAYS, 2), np.int64)

    def end(self, seat: int) -> int:
        """Return the end at which a seat was captured: its own if it was."""
        return OWN if self.ups[:, seat, OWN].any() or self.downs[:, seat, OWN].any() else FAR

    def both(self, seat: int) -> bool:
        """Say whether both ends of a seat's link were captured, both ways."""
        return all(bool(n[:, seat, end].any()) for n in (self.ups, self.downs) for end in (OWN, FAR))

    def retransmitted(self) -> Ints:
        """Return (6, k): as `again`, at the end that each seat was captured at."""
        every = np.concatenate([np.zeros((6, 0), np.int64), *self.again], axis=1)
        ends = np.array([self.end(seat) for seat in range(len(self.tree.seats))], np.int64)
        chosen: Ints = every[:, every[2] == ends[every[1]]]
        return chosen

    def cover(self, chunks: int) -> None:
        """Have rows for so many chunks; grows by half at least."""
        have = len(self.first_up)
        if chunks > have:
            more = max(chunks - have, have // 2, 1024)
            for name, fill in (("first_up", NEVER), ("first_down", NEVER), ("ups", 0), ("downs", 0)):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full((more, *old.shape[1:]), fill)]))

    def trim(self) -> None:
        """Give back the rows without packets at the end."""
        used = np.flatnonzero((self.ups + self.downs).any(axis=(1, 2)))
        end = int(used[-1]) + 1 if len(used) else 0
        for name in ("first_up", "first_down", "ups", "downs"):
            setattr(self, name, getattr(self, name)[:end])


class Collector:
    """Makes lives of tables."""

    def __init__(self, told: Sequence[Tree]) -> None:
        self._told = list(told)
        self.capture = Capture()
        self.lives = [Lives(tree) for tree in told]
        self.began, self.ended = NEVER, 0
        self._matcher = Matcher(self._told, self.capture, Findings())
        self._bases = np.cumsum([0, *(len(tree.seats) for tree in told)])
        self._tree_of = np.repeat(np.arange(len(told)), np.diff(self._bases))
        self._names = np.array([seat.name for tree in told for seat in tree.seats])
        self._heads: dict[int, int] = {}
        self._link = np.full(len(self._tree_of), -1, np.int64)
        """The one link that a seat is judged by: the first, where its packets pass several."""
        self._links: dict[str, int] = {}

    def collect(self, tables: Iterable[Table]) -> list[Lives]:
        """Take in all packets; return the epochs of which there were any."""
        for table in tables:
            if len(table):
                self._enter(table)
        for lives in self.lives:
            lives.trim()
        return [lives for lives in self.lives if len(lives.ups)]

    def _enter(self, table: Table) -> None:
        self.began = min(self.began, int(table.time.min()))
        self.ended = max(self.ended, int(table.time.max()))
        sources = self.capture.enter(table)
        refs = self.capture.refs(table, sources)
        ours = (table.category == Category.CONTRIBUTION) | (table.category == Category.RESULT)
        row, seat = self._matcher.match(table, np.flatnonzero(ours), sources, refs)
        names = [self._links.setdefault(source.link, len(self._links)) for source in self.capture.sources]
        link = np.array(names, np.int64)[sources[row]] if len(row) else seat
        seen, first = np.unique(seat, return_index=True)
        unset = self._link[seen] < 0
        self._link[seen[unset]] = link[first[unset]]
        near = link == self._link[seat]
        row, seat = row[near], seat[near]
        nodes = np.array([source.node for source in self.capture.sources])
        end = np.where(nodes[sources[row]] == self._names[seat], OWN, FAR) if len(row) else seat
        for index in np.unique(self._tree_of[seat]).tolist():
            mine = self._tree_of[seat] == index
            self._enter_epoch(index, table, row[mine], seat[mine] - self._bases[index], end[mine], sources)

    def _enter_epoch(self, index: int, table: Table, row: Ints, seat: Ints, end: Ints, sources: Ints) -> None:
        lives = self.lives[index]
        up = (table.category[row] == Category.CONTRIBUTION).astype(np.int64)
        wrong = table.udp_checksum[row] == UdpChecksum.WRONG
        np.add.at(lives.spoilt, (seat[wrong], end[wrong], up[wrong]), 1)
        np.add.at(lives.bytes, (seat, end, up), table.length[row])
        row, seat, end, up = row[~wrong], seat[~wrong], end[~wrong], up[~wrong]
        if not len(row):
            return
        chunk = table.chunk[row].astype(np.int64)
        if index not in self._heads:
            # Packets that were under way may come before it.
            early = 2 * max(1, *(each.window for each in lives.tree.seats))
            lives.base = (int(chunk[0]) - (early if lives.tree.g0 is None else 0)) % 2**32
            if lives.tree.g0 is not None:
                lives.base = max(
                    lives.tree.g0, lives.tree.g0 + ((int(chunk[0]) - lives.tree.g0) % 2**32) - early
                )
            self._heads[index] = 0
        head = self._heads[index]
        offset = head + (((chunk - (lives.base + head)) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
        good = (offset >= 0) & (offset < head + MOST_AHEAD)
        row, seat, end, up, offset = row[good], seat[good], end[good], up[good], offset[good]
        if not len(row):
            return
        self._heads[index] = max(head, int(offset.max()))
        lives.cover(self._heads[index] + 1)
        time = table.time[row]
        for way, first, count in ((0, lives.first_down, lives.downs), (1, lives.first_up, lives.ups)):
            mine = up == way
            place = (offset[mine], seat[mine], end[mine])
            if way:
                key = (offset[mine] * len(lives.tree.seats) + seat[mine]) * WAYS + end[mine]
                _, once = np.unique(key, return_index=True)
                repeated = np.ones(len(key), np.bool_)
                repeated[once] = False
                repeated |= count[place] > 0
                which = row[mine][repeated]
                lives.again.append(
                    np.stack(
                        [
                            *(offset[mine][repeated], seat[mine][repeated], end[mine][repeated]),
                            *(table.time[which], sources[which], table.number[which]),
                        ]
                    )
                )
            np.minimum.at(first, place, time[mine])
            np.add.at(count, place, 1)
