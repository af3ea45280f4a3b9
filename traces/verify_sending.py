# SPDX-License-Identifier: Apache-2.0
"""What a member may send, and how many results it may get, at one end of its link."""

from __future__ import annotations

import numpy as np

from .verify_columns import NEVER
from .verify_findings import Rule
from .verify_ledger import SLACK, Ledger, Rows

DUPLICATED = 4
"""Results for one contribution where the fault table duplicates: it does at ingress and at egress."""


def check_counts(ledger: Ledger, rows: Rows) -> None:
    """Each result answers a contribution of this member, or came when its own had been taken."""
    columns = ledger.columns
    rows = rows.take(rows.primary & (rows.offset >= ledger.floor[rows.seat]))
    if not len(rows.row):
        return
    key = (rows.offset - ledger.low) * columns.seats + rows.seat
    rows = rows.take(np.lexsort((~rows.up, rows.time, key)))  # of the same time: contributions first
    key.sort()
    duplicates = ledger.context.duplicates or ledger.tree.duplicates
    change = np.where(rows.up, DUPLICATED if duplicates else 1, -1)
    total = np.cumsum(change)
    begins = np.flatnonzero(np.diff(key, prepend=-1))
    group = np.cumsum(np.diff(key, prepend=-1) != 0) - 1
    balance = columns.balance.reshape(-1)
    left = total - (total[begins] - change[begins])[group] + balance[key]
    ends = np.append(begins[1:], len(key)) - 1
    balance[key[ends]] = left[ends]
    extra: list[int] = []
    for g in np.unique(group[left < 0]).tolist():
        low = 0
        for i in range(int(begins[g]), int(ends[g]) + 1):
            if left[i] < low:  # each result beyond those before it
                extra.append(i)
                low = int(left[i])
        balance[key[ends[g]]] -= low
    ledger.findings.checked["numbers of results"] += int((~rows.up).sum())
    which = np.array(extra, np.int64)
    over = rows.time[which] > ledger.over

    def text(i: int) -> str:
        name = ledger.name(rows.seat[i])
        if rows.time[i] > ledger.over:
            return f"{name} gets a result in an epoch that is over, and for nothing it sent before its end"
        return f"{name} has got more results of the chunk than it sent contributions"

    ledger.tell(Rule.COUNT, rows, which[~over], text, lambda i: _first(ledger, rows, i))
    ledger.tell(Rule.EPOCH, rows, which[over], text, lambda i: _first(ledger, rows, i))


def _first(ledger: Ledger, rows: Rows, i: int) -> list[int]:
    """Return the ref of the first contribution, if there is one."""
    p, seat = int(rows.offset[i]) - ledger.low, int(rows.seat[i])
    return [int(ledger.columns.sent_ref[p, seat])] if ledger.columns.known[p, seat] else []


def check_sending(ledger: Ledger, rows: Rows) -> None:
    """The send rule, and with it the window."""
    rows = rows.take(rows.up & rows.primary)
    known = ledger.windows[rows.seat] > 0
    ledger.findings.unchecked["the send rule where W is unknown"] += int((~known).sum())
    rows = rows.take(known)
    for seat in np.unique(rows.seat):
        mine = rows.take(rows.seat == seat)
        ledger.findings.checked["the send rule"] += len(mine.row)
        _check_seat(ledger, mine, int(seat))


def _check_seat(ledger: Ledger, rows: Rows, seat: int) -> None:
    w = int(ledger.windows[seat])
    start = max(int(ledger.floor[seat]), ledger.low)
    needs = rows.offset - w
    rows, needs = rows.take(needs >= start), needs[needs >= start]
    if not len(needs):
        return
    heard = ledger.columns.heard[start - ledger.low : int(needs.max()) + 1 - ledger.low, seat]
    slack = SLACK if ledger.context.apart(ledger.tree, seat) else 0
    allowed = np.maximum.accumulate(heard)[needs - start]
    broken = np.flatnonzero(allowed > np.minimum(rows.time, NEVER - slack) + slack)
    if not len(broken):
        return
    windows: list[int] = []
    rules: list[int] = []
    for i in broken.tolist():
        (windows if _under_way(ledger, rows, seat, i) > w else rules).append(i)

    def text(i: int) -> str:
        missing = start + int(np.flatnonzero(heard[: needs[i] - start + 1] > rows.time[i] + slack)[0])
        chunk = ledger.wire_chunk(missing)
        return f"{ledger.name(seat)} sends it while chunk {chunk}, W = {w} or more before it, has no result"

    def crowd(i: int) -> str:
        many = _under_way(ledger, rows, seat, i)
        return f"{ledger.name(seat)} sends it, and has {many} chunks without result: W is {w}"

    def evidence(i: int) -> list[int]:
        """The late result, if it came at all."""
        at = start - ledger.low + int(np.flatnonzero(heard[: needs[i] - start + 1] > rows.time[i] + slack)[0])
        return [int(ledger.columns.got_ref[at, seat])] if heard[at - start + ledger.low] != NEVER else []

    ledger.tell(Rule.WINDOW, rows, np.array(windows, np.int64), crowd, evidence)
    ledger.tell(Rule.SEND, rows, np.array(rules, np.int64), text, evidence)
    # Told once: what follows is judged as if these results had come.
    last = int(needs[broken].max()) + 1 - start
    heard[:last] = np.minimum(heard[:last], int(rows.time[broken].min()))


def _under_way(ledger: Ledger, rows: Rows, seat: int, i: int) -> int:
    """Return how many chunks the seat had sent and no result of, with this one."""
    from_ = max(0, int(ledger.floor[seat]) - ledger.low)
    sent, heard = ledger.columns.sent[from_:, seat], ledger.columns.heard[from_:, seat]
    return int(((sent <= rows.time[i]) & (heard > rows.time[i])).sum())
