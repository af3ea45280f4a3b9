# SPDX-License-Identifier: Apache-2.0
"""One epoch of a job, as a capture shows it: what was sent of the last chunks; the rules of single packets.

1. Chunks are offsets from the epoch's first (where that is unknown, from the first captured). The last
   2W + KEEP chunks are kept, what comes later is not judged.
2. What is true of values (sums, copies, places) holds in any capture. What follows from a packet's absence
   holds from where the capture is complete: from the epoch's start (`anchored`), else for a member from W
   chunks after the first that it is seen to send: it cannot have sent those before.
3. Order is that of the clock. Packets of two links count as simultaneous within SLACK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import Table
from .verify_columns import NEVER, Columns
from .verify_findings import Findings, Packet, Rule, Violation
from .verify_tree import Tree

SLACK = 1_000_000
"""ns that stamps of different captures may be out of order by: a tap may see a packet after the switch."""
KEEP = 2048
"""Chunks that are kept beside 2W."""
JUMP = 16
"""Packets far ahead that make a gap."""

UNKNOWN = -1

Ints = NDArray[np.int64]
Text = Callable[[int], str]


class Rows(NamedTuple):
    """Packets of one epoch, parallel arrays; `offset` is 0 until the ledger knows it."""

    row: Ints
    """In `table`."""
    seat: Ints
    up: NDArray[np.bool_]
    """A contribution or partial; else a result."""
    primary: NDArray[np.bool_]
    """Captured at the end of its link where counts and the send rule are judged."""
    ref: Ints
    """Which file and number."""
    time: Ints
    offset: Ints
    """Chunk, from the ledger's first."""

    def take(self, index: NDArray[np.bool_] | Ints) -> Rows:
        """Return those of a mask or of indexes."""
        return Rows._make(column[index] for column in self)


class Context(NamedTuple):
    """What a ledger is told of the capture."""

    findings: Findings
    packet: Callable[[int], Packet]
    """Of a `ref`."""
    captured: Callable[[Tree, int], bool]
    """Whether the link of a seat was."""
    apart: Callable[[Tree, int], bool]
    """Whether the two directions of a seat's link are in files of their own."""
    duplicates: bool
    """Whether the fault table duplicates, as far as the trees do not tell."""
    whole: Callable[[Tree, int], bool | None]
    """Whether a seat's packets were captured from the epoch's start on: False is from later on, None is that
    some are missing."""


class Ledger:
    """The state of one epoch, and what all its rules use."""

    def __init__(self, tree: Tree, context: Context) -> None:
        self.tree, self.context, self.findings = tree, context, context.findings
        whole = [context.whole(tree, seat) for seat in range(len(tree.seats))]
        self.anchored = any(whole)
        """Whether its beginning was captured, so that chunks are counted from g0."""
        self.columns = Columns(len(tree.seats), len(tree.switches), tree.elements)
        self.windows = np.array([seat.window for seat in tree.seats], np.int64)
        self.keep = 2 * int(self.windows.max()) + KEEP
        self.low = self.high = 0
        """The chunks that are kept: low..high-1."""
        self.over = NEVER
        """When the epoch was over at every switch."""
        self.floor = np.array([0 if each else NEVER for each in whole], np.int64)
        """The first chunk of each seat of which the capture holds all; NEVER until it is known."""
        self._lossy = np.array([each is None for each in whole], np.bool_)
        self.switch_of = np.array([seat.switch for seat in tree.seats], np.int64)
        self._leaves = np.array([seat.leaf >= 0 for seat in tree.seats], np.bool_)
        self._base = tree.g0 if self.anchored else None
        self._phase = np.full(len(tree.seats), UNKNOWN)
        """What (offset + phase) mod 2W makes the place of a chunk: version * W + slot."""
        if self._base is not None:
            self._phase[:] = [self._base % (2 * max(1, seat.window)) for seat in tree.seats]

    def refresh(self) -> None:
        """See anew which seats' packets are missing."""
        for seat in range(len(self.tree.seats)):
            if self.context.whole(self.tree, seat) is None:
                self._lossy[seat], self.floor[seat] = True, NEVER

    # ---- telling
    def name(self, seat: int) -> str:
        """Return what a seat is called."""
        return self.tree.seats[seat].name

    def wire_chunk(self, offset: int) -> int:
        """Return a chunk as on the wire."""
        return ((self._base or 0) + offset) % 2**32

    def tell(
        self,
        rule: Rule,
        rows: Rows,
        which: Ints,
        text: Text,
        others: Callable[[int], Sequence[int]] = lambda _i: (),
    ) -> None:
        """Report rows that break a rule: `text` and the refs `others` of an index say how."""
        for seat in np.unique(rows.seat[which]):
            mine = which[rows.seat[which] == seat]
            member = f"{self.tree.job}/{self.tree.epoch}/{self.name(int(seat))}"
            told = mine[: self.findings.wanted(rule, member, len(mine))]
            self.findings.add(
                (
                    self.violation(
                        rule,
                        self.name(int(seat)),
                        int(rows.offset[i]),
                        text(i),
                        int(rows.time[i]),
                        [int(rows.ref[i]), *others(i)],
                    )
                    for i in told.tolist()
                ),
                member,
            )

    def violation(
        self, rule: Rule, member: str, offset: int, text: str, time: int, refs: Sequence[int]
    ) -> Violation:
        """Return a violation of this epoch."""
        packets = tuple(self.context.packet(ref) for ref in refs)
        tree = self.tree
        return Violation(rule, tree.job, tree.epoch, self.wire_chunk(offset), member, text, time, packets)

    # ---- which chunk
    def place(self, table: Table, rows: Rows) -> Rows:
        """Return those rows whose chunks are kept, with their offsets, once there is room for them."""
        rows = rows._replace(offset=self._offsets(table, rows))
        wild = self._wild(rows)
        if wild.any() and wild[int(wild.argmax()) :].all():
            # Nobody shows that it was not a gap in the capture.
            self.findings.unchecked["packets of chunks far ahead, at an end of the capture"] += int(
                wild.sum()
            )
            rows, wild = rows.take(~wild), wild[~wild]
        before = (rows.offset < 0) & self.anchored
        self.tell(
            Rule.SEND,
            rows,
            np.flatnonzero(wild & rows.up),
            lambda i: f"{self.name(rows.seat[i])} sends a chunk far beyond what has results",
        )
        self.tell(
            Rule.EARLY,
            rows,
            np.flatnonzero(wild & ~rows.up),
            lambda i: f"{self.name(rows.seat[i])} gets a result of a chunk far beyond what was sent",
        )
        self.tell(
            Rule.EPOCH,
            rows,
            np.flatnonzero(before),
            lambda i: (
                f"{self.name(rows.seat[i])} {'sends' if rows.up[i] else 'gets the result of'} a chunk before "
                f"the epoch's first, {self.tree.g0}"
            ),
        )
        old = ~before & (rows.offset < self.low)
        self.findings.unchecked["packets of chunks that were no longer kept"] += int(old.sum())
        rows = rows.take(~(wild | before | old))
        if len(rows.row):
            self.high = max(self.high, int(rows.offset.max()) + 1)
            self.columns.cover(self.high - self.low)
            self._check_places(table, rows)
        return rows

    def _offsets(self, table: Table, rows: Rows) -> Ints:
        chunk = table.chunk[rows.row].astype(np.int64)
        if self._base is None:
            self._base = int(chunk[0])
            self.low = self.high = -KEEP
        ahead = (chunk - (self._base + self.high) % 2**32) & 0xFFFFFFFF
        offset: Ints = self.high + ((ahead ^ 0x80000000) - 0x80000000)
        return offset

    def _wild(self, rows: Rows) -> NDArray[np.bool_]:
        """Say which chunks are further ahead than all the packets since could have brought the run."""
        most = max(self.high, 0) + 2 * max(int(self.windows.max()), 64) + len(rows.row)
        wild: NDArray[np.bool_] = rows.offset >= most
        return wild

    def gap(self, table: Table, rows: Rows) -> int | None:
        """Return where a gap in the capture is: not one packet is far ahead but most are from there on."""
        wild = self._wild(rows._replace(offset=self._offsets(table, rows)))
        first = int(wild.argmax())
        behind = wild[first:]
        return first if wild.any() and behind.sum() >= JUMP and 2 * behind.sum() > len(behind) else None

    def restart(self) -> None:
        """Begin anew after a gap."""
        self.findings.unchecked["gaps in the capture: what was under way at one"] += 1
        self.columns.drop(len(self.columns))
        self._base, self.anchored = None, False
        self._phase[:] = UNKNOWN
        self.floor[:] = NEVER

    def _check_places(self, table: Table, rows: Rows) -> None:
        known = self.windows[rows.seat] > 0
        self.findings.unchecked["slots and versions where W is unknown"] += int((~known).sum())
        rows = rows.take(known)
        w = self.windows[rows.seat]
        slot, version = table.slot[rows.row].astype(np.int64), table.version[rows.row].astype(np.int64)
        place = version * w + slot
        for seat in np.unique(rows.seat[self._phase[rows.seat] == UNKNOWN]):
            mine = (rows.seat == seat) & (slot < w)
            phases, many = np.unique(
                (place - rows.offset)[mine] % (2 * self.windows[seat]), return_counts=True
            )
            self._phase[seat] = phases[many.argmax()] if len(phases) else UNKNOWN
        right = (rows.offset + self._phase[rows.seat]) % (2 * w)

        def text(i: int) -> str:
            what = "a contribution of" if rows.up[i] else "a result for"
            return (
                f"{what} {self.name(rows.seat[i])} is in slot {slot[i]}.{version[i]}, not in "
                f"{right[i] % w[i]}.{right[i] // w[i]} (W is {w[i]})"
            )

        self.tell(Rule.PLACE, rows, np.flatnonzero((place != right) | (slot >= w)), text)
        self.findings.checked["slots and versions"] += len(rows.row)

    # ---- what was sent
    def enter(self, table: Table, rows: Rows) -> tuple[Ints, Ints]:
        """Enter packets; return the indexes of each seat's first contributions, and of first results."""
        up, down = np.flatnonzero(rows.up), np.flatnonzero(~rows.up)
        new_up = self._enter_contributions(table, rows, up) if len(up) else up
        new_down = self._enter_results(table, rows, down) if len(down) else down
        return new_up, new_down

    def _enter_contributions(self, table: Table, rows: Rows, up: Ints) -> Ints:
        columns = self.columns
        seat, p, row = rows.seat[up], rows.offset[up] - self.low, rows.row[up]
        for s in np.flatnonzero((self.floor == NEVER) & ~self._lossy):
            mine = np.flatnonzero(seat == s)
            if len(mine):
                self.floor[s] = rows.offset[up[mine[0]]] + (int(self.windows[s]) or KEEP)
        key = p * columns.seats + seat
        places, first = np.unique(key, return_index=True)
        new = ~columns.known.reshape(-1)[places]
        places = places[new]
        fresh: Ints = up[first[new]]
        columns.known.reshape(-1)[places] = True
        columns.digest.reshape(-1)[places] = table.digest[rows.row[fresh]]
        columns.sent_tag.reshape(-1)[places] = self._tags(table, rows.row[fresh])
        columns.sent.reshape(-1)[places] = rows.time[fresh]
        columns.sent_ref.reshape(-1)[places] = rows.ref[fresh]
        np.add.at(columns.have, (rows.offset[fresh] - self.low, self.switch_of[rows.seat[fresh]]), 1)
        np.maximum.at(
            columns.complete,
            (rows.offset[fresh] - self.low, self.switch_of[rows.seat[fresh]]),
            rows.time[fresh],
        )
        differ = self._differing(columns.digest.reshape(-1)[key], table.digest[row])
        columns.poor[p[differ], self.switch_of[seat[differ]]] = True
        tag = self._tags(table, row)
        # A leaf's partial has those of whichever contribution it answers.
        other = (columns.sent_tag.reshape(-1)[key] != tag) & ~self._leaves[seat]
        other[differ] = True
        self.tell(
            Rule.COPIES,
            rows,
            up[other],
            lambda i: f"two contributions of {self.name(rows.seat[i])} differ",
            lambda i: [int(columns.sent_ref[rows.offset[i] - self.low, rows.seat[i]])],
        )
        places, first = np.unique(p, return_index=True)
        unset = columns.tag[places] < 0
        columns.tag[places[unset]] = tag[first[unset]]
        columns.mixed[p[columns.tag[p] != tag]] = True
        self.findings.checked["contributions"] += len(up)
        return fresh

    def _enter_results(self, table: Table, rows: Rows, down: Ints) -> Ints:
        columns = self.columns
        seat, p, row = rows.seat[down], rows.offset[down] - self.low, rows.row[down]
        places, first = np.unique(p, return_index=True)
        new = ~columns.answered[places]
        places, fresh = places[new], down[first[new]]
        columns.answered[places] = True
        columns.answer[places] = table.digest[rows.row[fresh]]
        columns.answer_time[places] = rows.time[fresh]
        columns.answer_ref[places] = rows.ref[fresh]
        self.tell(
            Rule.COPIES,
            rows,
            down[self._differing(columns.answer[p], table.digest[row])],
            lambda i: f"the result for {self.name(rows.seat[i])} differs from another of its chunk",
            lambda i: [int(columns.answer_ref[rows.offset[i] - self.low])],
        )
        tag = self._tags(table, row)
        wrong = (columns.tag[p] >= 0) & ~columns.mixed[p] & (columns.tag[p] != tag)

        def echo(i: int) -> str:
            sent, at = int(columns.tag[rows.offset[i] - self.low]), rows.row[i]
            return (
                f"the result for {self.name(rows.seat[i])} says tensor {table.tensor[at]}, "
                f"flag {table.flag[at]}; the contributions said {sent >> 1}, {sent & 1}"
            )

        self.tell(Rule.ECHO, rows, down[wrong], echo)
        key = p * columns.seats + seat
        places, first = np.unique(key, return_index=True)
        unset = columns.got.reshape(-1)[places] == NEVER
        columns.got.reshape(-1)[places[unset]] = rows.time[down[first[unset]]]
        columns.got_ref.reshape(-1)[places[unset]] = rows.ref[down[first[unset]]]
        near = rows.primary[down]
        np.minimum.at(columns.heard.reshape(-1), key[near], rows.time[down[near]])
        self.findings.checked["results"] += len(down)
        return fresh

    @staticmethod
    def _differing(stored: NDArray[np.uint64], digest: NDArray[np.uint64]) -> Ints:
        """Return where both are known and differ: 0 is of values that were not captured."""
        found: Ints = np.flatnonzero((stored != digest) & (stored != 0) & (digest != 0))
        return found

    @staticmethod
    def _tags(table: Table, row: Ints) -> NDArray[np.int16]:
        return table.tensor[row].astype(np.int16) << 1 | table.flag[row]
