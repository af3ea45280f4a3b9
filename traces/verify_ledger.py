# SPDX-License-Identifier: Apache-2.0
"""One epoch of a job, as a capture shows it: what was sent of the last chunks, and whether it obeys the rules.

1. Chunks are offsets from the epoch's first (where unknown, from the first captured one). Each column of the state is
   an array whose first axis is the offset from `_low` on; the last `keep` chunks stay, what comes later is not judged.
2. What is true of values (sums, copies, places) holds in any capture. What follows from a packet's absence holds
   only from where the capture is complete: from the epoch's start (`anchored`), else for a member from W chunks
   after the first that it was seen to send: those it cannot have sent before.
3. Order is that of the clock. Two links' packets are taken as simultaneous within SLACK; one link end's are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import Table
from .verify_columns import NEVER, Columns
from .verify_findings import Findings, Packet, Rule, Violation
from .verify_tree import ROOT, Tree

SLACK = 1_000_000
"""ns that stamps of different captures may be out of order by: a tap may see a packet after the switch has it."""
KEEP = 2048
"""Chunks that are kept beside 2W."""
DUPLICATED = 4
"""Results for one contribution where the fault table duplicates: it does so at ingress and at egress."""

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Packets of one epoch: index into `table`, and what else is known of them."""

    table: Table
    row: Ints
    seat: Ints
    up: NDArray[np.bool_]
    """Contribution (else result)."""
    primary: NDArray[np.bool_]
    """Captured at the end of its link at which counts and the send rule are judged."""
    ref: Ints

    def take(self, mask: NDArray[np.bool_]) -> Rows:
        """Return those of a mask."""
        return Rows(self.table, *(column[mask] for column in self[1:]))


class Output(NamedTuple):
    """The first copy of a result or partial that waits for its contributions."""

    time: int
    ref: int
    values: NDArray[np.int32]
    e0: int
    e1: int


class Ledger:
    """The state of one epoch; `feed` it packets in the order of time, then `close` it."""

    def __init__(
        self,
        tree: Tree,
        findings: Findings,
        packet: Callable[[int], Packet],
        *,
        anchored: bool,
        duplicates: bool,
        captured: Callable[[int], bool],
        two_files: Callable[[int], bool],
    ) -> None:
        self.tree, self._findings, self._packet = tree, findings, packet
        self._anchored, self._captured, self._two_files = anchored, captured, two_files
        self._weight = DUPLICATED if duplicates else 1
        self._w = tree.window
        self._keep = 2 * self._w + KEEP
        self._columns = Columns(len(tree.seats), len(tree.switches), tree.elements)
        self._base: int | None = tree.g0 if anchored else None
        self._phase = tree.g0 % (2 * self._w) if anchored and tree.g0 is not None and self._w else None
        self._low = self._high = 0
        self._floor = np.full(len(tree.seats), 0 if anchored else NEVER, np.int64)
        """The first chunk of each seat of which the capture holds all."""
        self._outputs: dict[tuple[int, int], Output] = {}
        self._members = np.array([len(seats) for seats in tree.below])
        self._switch_of = np.array([seat.switch for seat in tree.seats], np.int64)
        self._leaf_of = np.array([seat.leaf for seat in tree.seats], np.int64)
        self._over = NEVER
        self.matched = 0
        """Results that were the sum of something that is not all zeros."""

    # ---- a batch
    def feed(self, rows: Rows, over: int) -> None:
        """Take packets in; `over` is the time from which the epoch was over at every switch."""
        self._over = over
        late = rows.up & (rows.table.time[rows.row] > over + min(SLACK, NEVER - over))
        self._findings.ignored["contributions in an epoch that was over"] += int(late.sum())
        rows = rows.take(~late)
        if not len(rows.row):
            return
        offset = self._offsets(rows)
        rows, offset = self._within(rows, offset)
        if not len(rows.row):
            return
        self._high = max(self._high, int(offset.max()) + 1)
        self._columns.cover(self._high - self._low)
        position = offset - self._low
        self._check_places(rows, offset)
        fresh = self._contributions(rows, position)
        self._results(rows, position)
        self._compare(fresh)
        self._check_counts(rows, position)
        if self._w:
            self._check_sending(rows, position)
        if self._high - self._low > self._keep:
            self._evict(self._high - self._keep)

    def close(self) -> None:
        """Judge what is still open."""
        self._evict(self._high)

    def _offsets(self, rows: Rows) -> Ints:
        chunk = rows.table.chunk[rows.row].astype(np.int64)
        if self._base is None:
            self._base = int(chunk[0])
            self._low = self._high = -(self._w or 64)
        ahead = (chunk - (self._base + self._high) % 2**32) & 0xFFFFFFFF
        return self._high + ((ahead ^ 0x80000000) - 0x80000000)

    def _within(self, rows: Rows, offset: Ints) -> tuple[Rows, Ints]:
        """Leave out chunks that the state has not, or cannot have yet."""
        wild = offset >= max(self._high, 0) + 2 * max(self._w, 64) + len(offset)
        if 2 * wild.sum() > len(offset):
            # Not one packet but most of them: the capture has a gap, and begins anew.
            self._evict(self._high)
            self._findings.unchecked["gap in the capture: what was under way"] += 1
            self._base, self._phase, self._anchored = None, None, False
            self._floor[:] = NEVER
            return self._within(rows, self._offsets(rows))
        before = (offset < 0) if self._anchored else np.zeros(len(offset), np.bool_)
        self._tell(
            Rule.SEND,
            rows,
            np.flatnonzero(wild & rows.up),
            lambda i: f"{self._name(rows.seat[i])} sends a chunk far beyond what has results",
        )
        self._tell(
            Rule.EARLY,
            rows,
            np.flatnonzero(wild & ~rows.up),
            lambda i: f"{self._name(rows.seat[i])} gets a result of a chunk far beyond what was sent",
        )
        self._tell(
            Rule.EPOCH,
            rows,
            np.flatnonzero(before),
            lambda i: (
                f"{self._name(rows.seat[i])} {'sends' if rows.up[i] else 'gets a result of'} a chunk from "
                f"before the epoch's first, {self.tree.g0}"
            ),
        )
        old = ~before & (offset < self._low)
        self._findings.unchecked["packets later than the chunks that are kept"] += int(old.sum())
        good = ~(wild | before | old)
        return rows.take(good), offset[good]

    # ---- rules of single packets
    def _check_places(self, rows: Rows, offset: Ints) -> None:
        if not self._w:
            return
        table, cycle = rows.table, 2 * self._w
        slot, version = table.slot[rows.row].astype(np.int64), table.version[rows.row].astype(np.int64)
        place = version * self._w + slot
        if self._phase is None:
            phases, many = np.unique((place - offset)[slot < self._w] % cycle, return_counts=True)
            if not len(phases):
                return
            self._phase = int(phases[many.argmax()])
        right = (offset + self._phase) % cycle
        wrong = np.flatnonzero((place != right) | (slot >= self._w))

        def text(i: int) -> str:
            what = "contribution of" if rows.up[i] else "result for"
            return (
                f"{what} {self._name(rows.seat[i])} in slot {slot[i]}.{version[i]}, not in "
                f"{right[i] % self._w}.{right[i] // self._w} (W {self._w})"
            )

        self._tell(Rule.PLACE, rows, wrong, text)
        self._findings.checked["places"] += len(offset)

    # ---- contributions
    def _contributions(self, rows: Rows, position: Ints) -> list[tuple[int, Ints, Rows]]:
        """Enter contributions; return outputs that are new: switch, positions, packets of partials."""
        mine = np.flatnonzero(rows.up)
        if not len(mine):
            return self._new_results(rows, position)
        columns, table = self._columns, rows.table
        seat, p, row = rows.seat[mine], position[mine], rows.row[mine]
        time, digest = table.time[row], table.digest[row]
        self._see_first(seat, p)
        key = p * columns.seats + seat
        places, first = np.unique(key, return_index=True)
        new = ~columns.known.reshape(-1)[places]
        places, first = places[new], first[new]
        columns.known.reshape(-1)[places] = True
        columns.digest.reshape(-1)[places] = digest[first]
        columns.sent.reshape(-1)[places] = time[first]
        columns.sent_ref.reshape(-1)[places] = rows.ref[mine][first]
        stored = columns.digest.reshape(-1)[key]
        differ = np.flatnonzero((stored != digest) & (stored != 0) & (digest != 0))
        columns.poor[p[differ], self._switch_of[seat[differ]]] = True
        self._tell(
            Rule.COPIES,
            rows,
            mine[differ],
            lambda i: f"two contributions of {self._name(rows.seat[i])} differ",
            lambda i: [int(columns.sent_ref[position[i], rows.seat[i]])],
        )
        self._findings.checked["contributions"] += len(mine)
        self._enter_tags(table, row, p)
        self._add(rows, mine[first], position)
        found = self._new_results(rows, position)
        for k, up in enumerate(self.tree.uplink):
            if up >= 0:
                chosen = mine[first][seat[first] == up]
                found.append((k, position[chosen], rows.take(_mask(len(rows.row), chosen))))
        return found

    def _see_first(self, seat: Ints, p: Ints) -> None:
        if self._anchored:
            return
        for s in np.flatnonzero(self._floor == NEVER):
            sent = np.flatnonzero(seat == s)
            if len(sent):
                self._floor[s] = self._low + int(p[sent[0]]) + (self._w or KEEP)

    def _enter_tags(self, table: Table, row: Ints, p: Ints) -> None:
        columns = self._columns
        tag = table.tensor[row].astype(np.int16) << 1 | table.flag[row]
        places, first = np.unique(p, return_index=True)
        unset = columns.tag[places] < 0
        columns.tag[places[unset]] = tag[first[unset]]
        columns.mixed[p[columns.tag[p] != tag]] = True

    def _add(self, rows: Rows, chosen: Ints, position: Ints) -> None:
        """Add first copies to their switches' sums."""
        columns, table = self._columns, rows.table
        whole = table.elements[rows.row[chosen]] == columns.elements
        without = chosen[~whole]
        columns.poor[position[without], self._switch_of[rows.seat[without]]] = True
        self._findings.unchecked["contributions whose values were not captured"] += len(without)
        values = table.values(rows.row[chosen[whole]])
        for s in np.unique(rows.seat[chosen]):
            k = self._switch_of[s]
            mine = chosen[rows.seat[chosen] == s]
            columns.have[position[mine], k] += 1
            np.maximum.at(columns.complete[:, k], position[mine], table.time[rows.row[mine]])
            those = rows.seat[chosen[whole]] == s
            mine = chosen[whole][those]
            p, row = position[mine], rows.row[mine]
            columns.sums[p, k] += values[those]
            columns.e0[p, k] = np.maximum(columns.e0[p, k], table.e0[row])
            columns.e1[p, k] = np.maximum(columns.e1[p, k], table.e1[row])

    # ---- results and partials
    def _new_results(self, rows: Rows, position: Ints) -> list[tuple[int, Ints, Rows]]:
        down = np.flatnonzero(~rows.up)
        places, first = np.unique(position[down], return_index=True)
        new = ~self._columns.answered[places]
        return [(ROOT, places[new], rows.take(_mask(len(rows.row), down[first[new]])))] if new.any() else []

    def _results(self, rows: Rows, position: Ints) -> None:
        columns, table = self._columns, rows.table
        mine = np.flatnonzero(~rows.up)
        if not len(mine):
            return
        seat, p, row = rows.seat[mine], position[mine], rows.row[mine]
        digest, time, ref = table.digest[row], table.time[row], rows.ref[mine]
        places, first = np.unique(p, return_index=True)
        new = ~columns.answered[places]
        places, first = places[new], first[new]
        columns.answered[places] = True
        columns.answer[places] = digest[first]
        columns.answer_time[places] = time[first]
        columns.answer_ref[places] = ref[first]
        stored = columns.answer[p]
        differ = np.flatnonzero((stored != digest) & (stored != 0) & (digest != 0))
        self._tell(
            Rule.COPIES,
            rows,
            mine[differ],
            lambda i: f"the result for {self._name(rows.seat[i])} differs from another of the same chunk",
            lambda i: [int(columns.answer_ref[position[i]])],
        )
        tag = table.tensor[row].astype(np.int16) << 1 | table.flag[row]
        wrong = np.flatnonzero((columns.tag[p] >= 0) & ~columns.mixed[p] & (columns.tag[p] != tag))

        def echo(i: int) -> str:
            sent = int(columns.tag[position[i]])
            at = rows.row[i]
            return (
                f"the result for {self._name(rows.seat[i])} says tensor {table.tensor[at]}, flag {table.flag[at]} "
                f"where contributions said {sent >> 1}, {sent & 1}"
            )

        self._tell(Rule.ECHO, rows, mine[wrong], echo)
        key = p * columns.seats + seat
        places, first = np.unique(key, return_index=True)
        unset = columns.got.reshape(-1)[places] == NEVER
        columns.got.reshape(-1)[places[unset]] = time[first[unset]]
        columns.got_ref.reshape(-1)[places[unset]] = ref[first[unset]]
        at = rows.primary[mine]
        np.minimum.at(columns.heard.reshape(-1), key[at], time[at])
        self._findings.checked["results"] += len(mine)

    def _compare(self, fresh: list[tuple[int, Ints, Rows]]) -> None:
        """Compare the outputs that are new, and those that waited, with the sums where these are complete."""
        waiting = [
            (k, o, output) for (k, o), output in self._outputs.items() if self._complete(k, o - self._low)
        ]
        for k, o, output in waiting:
            del self._outputs[k, o]
            self._judge(k, np.array([o - self._low]), [output])
        for k, p, rows in fresh:
            table = rows.table
            whole = table.elements[rows.row] == self._columns.elements
            p = self._sorted(p, rows)[whole]
            row, ref = rows.row[whole], rows.ref[whole]
            self._findings.unchecked["sums whose values were not captured"] += int((~whole).sum())
            values = table.values(row)
            done = self._complete_at(k, p)
            outputs = [
                Output(int(t), int(at), v, int(a), int(b))
                for t, at, v, a, b in zip(
                    table.time[row], ref, values, table.e0[row], table.e1[row], strict=True
                )
            ]
            self._judge(k, p[done], [output for output, ok in zip(outputs, done, strict=True) if ok])
            for place, output in zip(p[~done], np.flatnonzero(~done), strict=True):
                self._outputs[k, self._low + int(place)] = outputs[output]
