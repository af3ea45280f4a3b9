# SPDX-License-Identifier: Apache-2.0
"""`trace verify`: a capture against the contract (docs/protocol.md), by code that the engine has no part in.

Packets come in the order of the captures' clocks. Each is matched to a member of one epoch of its job by the
UDP port that the member has in that epoch alone; then the epoch's ledger judges it. Memory is bounded: the
last chunks of the last epochs of each job are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .files import expand, merged
from .members import load
from .table import Category, Problem, Table, UdpChecksum
from .verify_capture import Capture
from .verify_columns import NEVER
from .verify_findings import Findings, Rule
from .verify_infer import infer
from .verify_ledger import SLACK, Context, Ints, Ledger, Rows
from .verify_match import Matcher
from .verify_sending import check_counts, check_sending
from .verify_sums import Sums
from .verify_tree import Tree, trees

BATCH = 1 << 14
"""Packets that are judged together."""
EPOCHS = 4
"""Epochs of a job that are kept."""


def verify(
    paths: Sequence[Path],
    *,
    duplicates: bool = False,
    findings: Findings | None = None,
) -> Findings:
    """Check captures (files or folders) against the contract and return what was found.

    `duplicates` says that the switch's fault table duplicates packets, where memberships do not: then a
    contribution may have several results. `findings` is added to, so that something is left where a file
    breaks off: TraceFileError, after all that was readable has been judged. Raises MembersError.
    """
    files = expand(paths)
    told = trees(load(paths))
    findings = findings if findings is not None else Findings()
    if not told:
        told = infer(merged(files), findings)
    verifier = Verifier(told, findings, paths=files, duplicates=duplicates)
    try:
        for table in merged(files, values=True):
            verifier.feed(table)
    finally:
        verifier.close()
    return findings


class _Epoch:
    """What judges an epoch."""

    def __init__(self, tree: Tree, context: Context) -> None:
        self.ledger = Ledger(tree, context)
        self.sums = Sums(self.ledger)

    def feed(self, table: Table, rows: Rows) -> None:
        ledger, sums = self.ledger, self.sums
        gap = ledger.gap(table, rows)
        if gap is not None:
            before, rows = rows.take(np.arange(gap)), rows.take(np.arange(gap, len(rows.row)))
            if gap:
                self.feed(table, before)
            self.drop_all()
            ledger.restart()
            self.feed(table, rows)
            return
        rows = ledger.place(table, rows)
        if len(rows.row):
            new_up, new_down = ledger.enter(table, rows)
            sums.add(table, rows, new_up)
            sums.compare(table, rows, new_up, new_down)
            check_counts(ledger, rows)
            check_sending(ledger, rows)
            self._drop(ledger.high - ledger.low - ledger.keep)

    def _drop(self, chunks: int) -> None:
        """Judge the oldest chunks for good, and forget them."""
        if chunks > 0:
            self.sums.evict(chunks)
            self.ledger.columns.drop(chunks)
            self.ledger.low += chunks

    def drop_all(self) -> None:
        """Judge all that is still open."""
        self._drop(len(self.ledger.columns))


class Verifier:
    """Judges packets by the trees of jobs: `feed` tables in the order of time, then `close`."""

    def __init__(
        self,
        told: Sequence[Tree],
        findings: Findings,
        *,
        paths: Sequence[Path] = (),
        duplicates: bool = False,
    ) -> None:
        self.findings = findings
        self.capture = Capture(paths)
        self._trees = list(told)
        self._context = Context(
            findings, self.capture.packet, self._captured, self._apart, duplicates, self._whole
        )
        self._epochs: dict[int, _Epoch] = {}
        self._closed: set[int] = set()
        self._over = [NEVER] * len(self._trees)
        self._matcher = Matcher(self._trees, self.capture, findings)
        self._bases = np.cumsum([0, *(len(tree.seats) for tree in self._trees)])
        self._tree_of = np.repeat(np.arange(len(self._trees)), np.diff(self._bases))
        self._end = np.full(len(self._tree_of), -1, np.int64)
        """The link end that saw a seat's first contribution: there it is judged. Its own, if captured."""
        self._index = {id(tree): index for index, tree in enumerate(self._trees)}

    def feed(self, table: Table) -> None:
        """Judge packets."""
        for start in range(0, len(table), BATCH):
            self._feed(table.take(slice(start, start + BATCH)))

    def close(self) -> None:
        """Judge what was still open."""
        for index in sorted(self._epochs):
            self._close(index)
        self._matcher.close()

    def _feed(self, table: Table) -> None:
        sources = self.capture.enter(table)
        refs = self.capture.refs(table, sources)
        halves = np.isin(table.problem, (Problem.SUPER_PACKET, Problem.SNAPPED))
        if halves.any() and self.capture.lose(sources[halves]):
            for epoch in self._epochs.values():
                epoch.ledger.refresh()
        row, seat = self._matcher.match(table, self._ours(table, sources), sources, refs)
        up = table.category[row] == Category.CONTRIBUTION
        end = self.capture.ends(sources[row])
        senders, first = np.unique(seat[up], return_index=True)
        unset = self._end[senders] < 0
        self._end[senders[unset]] = end[up][first[unset]]
        tree = self._tree_of[seat]
        rows = Rows(
            row,
            seat - self._bases[tree],
            up,
            self._end[seat] == end,
            refs[row],
            table.time[row],
            np.zeros_like(row),
        )
        self._end_epochs(rows, tree)
        for index in np.unique(tree).tolist():
            self._judge(index, table, rows.take(tree == index))

    def _ours(self, table: Table, sources: Ints) -> Ints:
        """Return the rows that rules look at."""
        ignored = self.findings.ignored
        for problem in Problem:
            many = int((table.problem == problem).sum()) if problem else 0
            if many:
                ignored[f"malformed packets to job ports: {problem.name.lower().replace('_', ' ')}"] += many
        ours = (table.category == Category.CONTRIBUTION) | (table.category == Category.RESULT)
        wrong = ours & (table.udp_checksum == UdpChecksum.WRONG)
        wrong |= ours & self._spoilt_by_chance(table, sources)
        ignored["packets with a wrong UDP checksum"] += int(wrong.sum())
        self.findings.checked["packets"] += len(table)
        return np.flatnonzero(ours & ~wrong)

    def _spoilt_by_chance(self, table: Table, sources: Ints) -> NDArray[np.bool_]:
        """Say whose checksums are not unfinished but wrong: those of a sender who finishes most."""
        unfinished: NDArray[np.bool_] = table.udp_checksum == UdpChecksum.UNFINISHED
        if unfinished.any():
            kinds = np.stack([sources, table.category])[:, unfinished]
            for source, category in np.unique(kinds, axis=1).T.tolist():
                same = (sources == source) & (table.category == category)
                finished = same & (table.udp_checksum == UdpChecksum.RIGHT)
                if finished.sum() > (same & unfinished).sum():
                    unfinished = unfinished & ~same
        chance: NDArray[np.bool_] = (table.udp_checksum == UdpChecksum.UNFINISHED) & ~unfinished
        return chance

    def _end_epochs(self, rows: Rows, tree: Ints) -> None:
        """An epoch is over at every switch when any of its job has given a result in a later one."""
        down = ~rows.up
        for index in np.unique(tree[down]).tolist():
            time, newer = int(rows.time[down & (tree == index)].min()), self._trees[index]
            for older, each in enumerate(self._trees):
                if each.job == newer.job and each.order < newer.order:
                    self._over[older] = min(self._over[older], time)
                    if each.order <= newer.order - EPOCHS:
                        self._close(older)

    def _judge(self, index: int, table: Table, rows: Rows) -> None:
        if index in self._closed:
            self.findings.unchecked["packets of epochs that were no longer kept"] += len(rows.row)
            return
        tree, over = self._trees[index], self._over[index]
        late = rows.up & (rows.time - SLACK > over)
        self.findings.ignored["contributions in an epoch that was over"] += int(late.sum())
        if index not in self._epochs:
            self._epochs[index] = _Epoch(tree, self._context)
        self._epochs[index].ledger.over = over
        rows = rows.take(~late)
        if len(rows.row):
            self._epochs[index].feed(table, rows)

    def _close(self, index: int) -> None:
        if index in self._epochs and index not in self._closed:
            self._closed.add(index)
            epoch = self._epochs.pop(index)
            epoch.drop_all()
            self._excuse(index, epoch)

    def _excuse(self, index: int, epoch: _Epoch) -> None:
        """Withdraw what only shows that the capture lacks something."""
        tree = self._trees[index]
        for seat, member in enumerate(tree.seats):
            end = self._end[self._bases[index] + seat]
            if end >= 0 and not self.capture.has_results(end):
                why = f"the send rule at {self.capture.end_name(end)}, where no results were captured"
                for rule in (Rule.SEND, Rule.WINDOW):
                    self.findings.withdraw(rule, f"{tree.job}/{tree.epoch}/{member.name}", why)
        for switch, (wrong, right) in enumerate(epoch.sums.matched.tolist()):
            if not tree.inferred or wrong <= right:
                continue
            whose = f"{tree.job}/{tree.epoch}/{epoch.sums.switch_name(switch)}"
            why = "sums: most are not those of the members that the capture shows, so some may not be in it"
            for rule in (Rule.SUM, Rule.EXPONENT):
                self.findings.withdraw(rule, whose, why)

    def _captured(self, tree: Tree, seat: int) -> bool:
        link = tree.seats[seat].link
        if link and any(source.node for source in self.capture.sources):
            return link in self.capture.links
        return bool(self._end[self._bases[self._index[id(tree)]] + seat] >= 0)

    def _whole(self, tree: Tree, seat: int) -> bool | None:
        link, end = tree.seats[seat].link, int(self._end[self._bases[self._index[id(tree)]] + seat])
        if self.capture.lossy(link, end):
            self.findings.unchecked["links whose capture lacks packets: what follows from one's absence"] += 1
            return None
        if not link and not tree.inferred:  # other switches are between, and ways may change
            self.findings.unchecked[
                "members away from their switch: what follows from a packet's absence"
            ] += 1
            return None
        return tree.began is not None and tree.g0 is not None and self.capture.since(link) <= tree.began

    def _apart(self, tree: Tree, seat: int) -> bool:
        return self.capture.apart(int(self._end[self._bases[self._index[id(tree)]] + seat]))
