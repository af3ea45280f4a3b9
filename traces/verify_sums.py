# SPDX-License-Identifier: Apache-2.0
"""Whether results and partials are the sums of contributions that were captured before them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import Table
from .verify_columns import NEVER
from .verify_findings import Rule
from .verify_ledger import SLACK, Ints, Ledger, Rows
from .verify_tree import ROOT

UNKNOWN = "sums of chunks whose contributions are not known"


class Outputs(NamedTuple):
    """First copies of what switches gave: results of the tree (switch 0), or partials of a leaf."""

    switch: Ints
    offset: Ints
    time: Ints
    ref: Ints
    e0: NDArray[np.int8]
    e1: NDArray[np.int8]
    values: NDArray[np.int32]

    def take(self, index: NDArray[np.bool_] | Ints) -> Outputs:
        """Return those of a mask or of indexes."""
        return Outputs._make(column[index] for column in self)


class Sums:
    """The sums of an epoch's last chunks, and the outputs that wait for theirs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        tree = ledger.tree
        self._waiting = _nothing(tree.elements)
        self._members = np.array([len(seats) for seats in tree.below], np.int64)
        self._leaf_of = np.array([seat.leaf for seat in tree.seats], np.int64)
        self._unseen = [
            k for k, up in enumerate(tree.uplink) if up >= 0 and not ledger.context.captured(tree, up)
        ]
        """Leaves whose partials were not captured: what they must have sent is added instead."""
        self.matched = np.zeros((len(tree.switches), 2), np.int64)
        """Of each switch: sums that were wrong, and those that were right and not of zeros alone."""

    def add(self, table: Table, rows: Rows, fresh: Ints) -> None:
        """Add first contributions to the sums of their switches."""
        ledger, columns = self._ledger, self._ledger.columns
        whole = self._whole(table, rows.row[fresh])
        poor = rows.take(fresh[~whole])
        columns.poor[poor.offset - ledger.low, ledger.switch_of[poor.seat]] = True
        ledger.findings.unchecked["contributions whose values were not captured"] += len(poor.row)
        rows = rows.take(fresh[whole])
        values = _values(table, rows.row, columns.elements)
        for seat in np.unique(rows.seat):
            k, mine = ledger.switch_of[seat], rows.seat == seat
            p, row = rows.offset[mine] - ledger.low, rows.row[mine]
            columns.sums[p, k] += values[mine]  # each p once; numpy's int32 sums are mod 2^32
            columns.e0[p, k] = np.maximum(columns.e0[p, k], table.e0[row])
            columns.e1[p, k] = np.maximum(columns.e1[p, k], table.e1[row])

    def compare(self, table: Table, rows: Rows, new_up: Ints, new_down: Ints) -> None:
        """Compare outputs whose contributions are all there; the others wait."""
        partials = new_up[self._leaf_of[rows.seat[new_up]] >= 0]
        new = np.concatenate([partials, new_down])
        switch = np.concatenate([self._leaf_of[rows.seat[partials]], np.full(len(new_down), ROOT)])
        whole = self._whole(table, rows.row[new])
        self._ledger.findings.unchecked["sums whose values were not captured"] += int((~whole).sum())
        rows, switch = rows.take(new[whole]), switch[whole]
        fresh = Outputs(
            switch,
            rows.offset,
            rows.time,
            rows.ref,
            table.e0[rows.row],
            table.e1[rows.row],
            _values(table, rows.row, self._ledger.columns.elements),
        )
        if not len(self._waiting.switch):
            outputs = fresh
        else:
            outputs = Outputs._make(np.concatenate([a, b]) for a, b in zip(self._waiting, fresh, strict=True))  # type: ignore[list-item]
        ready = self._have(outputs.switch, outputs.offset) == self._members[outputs.switch]
        self._judge(outputs.take(ready))
        self._waiting = outputs.take(~ready)

    def _whole(self, table: Table, row: Ints) -> NDArray[np.bool_]:
        """Say which packets' values are there, as many as they must be."""
        elements = table.elements[row]
        whole: NDArray[np.bool_] = (elements == self._ledger.columns.elements) & (elements > 0)
        return whole

    def _have(self, switch: Ints, offset: Ints) -> Ints:
        """Return how many members' contributions are there."""
        columns, p = self._ledger.columns, offset - self._ledger.low
        have = columns.have[p, switch].astype(np.int64)
        for k in self._unseen:
            have += (switch == ROOT) & (columns.have[p, k] == self._members[k])
        return have

    def _judge(self, outputs: Outputs) -> None:
        ledger, columns = self._ledger, self._ledger.columns
        p, k = outputs.offset - ledger.low, outputs.switch
        complete = columns.complete[p, k]
        sums, e0, e1 = columns.sums[p, k], columns.e0[p, k], columns.e1[p, k]
        poor = columns.poor[p, k]
        for leaf in self._unseen:
            at = k == ROOT
            complete[at] = np.maximum(complete[at], columns.complete[p[at], leaf])
            sums[at] += columns.sums[p[at], leaf]
            e0[at] = np.maximum(e0[at], columns.e0[p[at], leaf])
            e1[at] = np.maximum(e1[at], columns.e1[p[at], leaf])
            poor[at] |= columns.poor[p[at], leaf]
        wrong = (outputs.values != sums).any(axis=1) & ~poor
        louder = ((outputs.e0 != e0) | (outputs.e1 != e1)) & ~poor
        np.add.at(self.matched, (k[wrong], 0), 1)
        np.add.at(self.matched, (k[~wrong & ~poor & outputs.values.any(axis=1)], 1), 1)
        ledger.findings.checked["sums"] += int((~poor).sum())
        ledger.findings.unchecked[UNKNOWN] += int(poor.sum())
        for i in np.flatnonzero(wrong).tolist():
            at = np.flatnonzero(outputs.values[i] != sums[i])
            first = int(at[0])
            self._tell(
                Rule.SUM,
                outputs,
                i,
                f"{self._what(outputs, i)} is not the sum: {len(at)} of {columns.elements} values differ, "
                f"value {first} is {outputs.values[i, first]} where the sum is {sums[i, first]}",
            )
        for i in np.flatnonzero(louder).tolist():
            self._tell(
                Rule.EXPONENT,
                outputs,
                i,
                f"{self._what(outputs, i)} has exponents {outputs.e0[i]}, {outputs.e1[i]} where the greatest "
                f"are {e0[i]}, {e1[i]}",
            )
        for i in np.flatnonzero(outputs.time < complete - SLACK).tolist():
            seats = np.array(self._seats(int(k[i])), np.int64)
            late = columns.sent[p[i], seats] > outputs.time[i] + SLACK
            # Else it may have been sent before the capture, too.
            late &= self._would_be_there(seats, outputs.offset[i : i + 1])[0]
            if late.any():
                last = int(seats[late][columns.sent[p[i], seats[late]].argmax()])
                behind = (columns.sent[p[i], last] - outputs.time[i]) / 1e6
                text = f"comes {behind:.3f} ms before the contribution of {ledger.name(last)}"
                self._tell(Rule.EARLY, outputs, i, f"{self._what(outputs, i)} {text}")

    def _what(self, outputs: Outputs, i: int) -> str:
        k = int(outputs.switch[i])
        return (
            "the result" if k == ROOT else f"the partial of {self._ledger.name(self._ledger.tree.uplink[k])}"
        )

    def _seats(self, switch: int) -> list[int]:
        """Return who contributed at a switch, members of leaves whose partials are not there among them."""
        tree = self._ledger.tree
        found = [int(seat) for seat in tree.below[switch]]
        if switch == ROOT:
            for k in self._unseen:
                found.remove(tree.uplink[k])
                found += [int(seat) for seat in tree.below[k]]
        return found

    def _tell(self, rule: Rule, outputs: Outputs, i: int, text: str) -> None:
        ledger, columns = self._ledger, self._ledger.columns
        if ledger.tree.doubtful and rule is Rule.EARLY:
            return
        k, p = int(outputs.switch[i]), int(outputs.offset[i]) - ledger.low
        seats = [s for s in self._seats(k) if columns.known[p, s]]
        refs = [int(outputs.ref[i]), *(int(columns.sent_ref[p, s]) for s in seats)]
        who = self.switch_name(k)
        member = f"{ledger.tree.job}/{ledger.tree.epoch}/{who}"
        if ledger.findings.wanted(rule, member, 1):
            time = int(outputs.time[i])
            ledger.findings.add(
                [ledger.violation(rule, who, int(outputs.offset[i]), text, time, refs)], member
            )

    def switch_name(self, switch: int) -> str:
        """Return what a switch is called where its sums are told of."""
        return "its switch" if switch == ROOT else self._ledger.name(self._ledger.tree.uplink[switch])

    # ---- what never came
    def evict(self, chunks: int) -> None:
        """Judge what is missing of the oldest chunks, before they are forgotten."""
        self._missing_contributions(chunks)
        self._early_at_leaves(chunks)
        self._waiting = self._waiting.take(self._waiting.offset >= self._ledger.low + chunks)

    def _missing_contributions(self, chunks: int) -> None:
        ledger, columns, tree = self._ledger, self._ledger.columns, self._ledger.tree
        for k in range(len(tree.switches)):
            if k == ROOT:
                there, time, ref = columns.answered, columns.answer_time, columns.answer_ref
            else:
                up = tree.uplink[k]
                there, time, ref = columns.known[:, up], columns.sent[:, up], columns.sent_ref[:, up]
            at = np.flatnonzero(there[:chunks] & (columns.have[:chunks, k] < self._members[k]))
            at = at[self._have(np.full(len(at), k), at + ledger.low) < self._members[k]]
            seats = np.array(self._seats(k), np.int64)
            sure = ~columns.known[np.ix_(at, seats)] & self._would_be_there(seats, at + ledger.low)
            told = sure.any(axis=1)
            ledger.findings.unchecked[UNKNOWN] += int((~told).sum())
            for p, lacking in zip(at[told].tolist(), sure[told], strict=True):
                names = ", ".join(ledger.name(s) for s in seats[lacking].tolist())
                output = _nothing(columns.elements)._replace(
                    switch=np.array([k]),
                    offset=np.array([p + ledger.low]),
                    time=time[p : p + 1],
                    ref=ref[p : p + 1],
                )
                over = int(time[p]) > ledger.over
                self._tell(
                    Rule.EPOCH if over else Rule.EARLY,
                    output,
                    0,
                    f"{self._what(output, 0)} comes without a contribution of {names}"
                    + (" in an epoch that is over" if over else ""),
                )

    def _would_be_there(self, seats: Ints, offset: Ints) -> NDArray[np.bool_]:
        """Say of each chunk and seat whether a contribution would have been captured, had it been sent."""
        ledger = self._ledger
        captured = np.array([ledger.context.captured(ledger.tree, int(seat)) for seat in seats], np.bool_)
        there: NDArray[np.bool_] = captured & (offset[:, None] >= ledger.floor[seats])
        return there

    def _early_at_leaves(self, chunks: int) -> None:
        """A leaf has its results from its parent."""
        ledger, columns, tree = self._ledger, self._ledger.columns, self._ledger.tree
        for k, up in enumerate(tree.uplink):
            if up < 0 or k in self._unseen or tree.doubtful:
                continue
            for seat in tree.below[k].tolist():
                got, above = columns.got[:chunks, seat], columns.got[:chunks, up]
                early = np.flatnonzero((got != NEVER) & (got < above - SLACK))
                early = early[early + ledger.low >= ledger.floor[up]]
                rows = Rows(
                    early,
                    np.full(len(early), seat),
                    np.zeros(len(early), np.bool_),
                    np.ones(len(early), np.bool_),
                    columns.got_ref[early, seat],
                    got[early],
                    early + ledger.low,
                )
                text = f"{ledger.name(seat)} has a result before its leaf {ledger.name(up)} had one"
                ledger.tell(Rule.EARLY, rows, np.arange(len(early)), lambda _i, text=text: text)  # type: ignore[misc]


def _nothing(elements: int) -> Outputs:
    none = np.zeros(0, np.int64)
    return Outputs(
        none, none, none, none, np.zeros(0, np.int8), np.zeros(0, np.int8), np.zeros((0, elements), np.int32)
    )


def _values(table: Table, rows: Ints, elements: int) -> NDArray[np.int32]:
    return table.values(rows) if len(rows) else np.zeros((0, elements), np.int32)
