# SPDX-License-Identifier: Apache-2.0
"""What was lost inside a switch: by its fault table, or where a queue was full.

Its links' ends have seen all of what came in, and none of what did not go out. So it must follow from the
other packets, and what nobody waited for does not: these are the least that were lost.
"""

from __future__ import annotations

import numpy as np

from .lives import FAR, Ints, Lives
from .verify_columns import NEVER
from .verify_tree import ROOT

CLEAR = 4
"""Of several that may have completed a chunk, one did if all others were so many times as long before."""


def dropped(lives: Lives) -> Ints | None:
    """Return, by seat, the contributions and the results (k, 2) lost in its switch: so many at least.

    None where the capture does not tell: it takes all switches' ends, both ways, and memberships.
    """
    ups, downs = lives.ups[:, :, FAR], lives.downs[:, :, FAR]
    if lives.tree.inferred or not (ups.any(axis=0) & downs.any(axis=0)).all():
        return None
    found = np.zeros((len(lives.tree.seats), 2), np.int64)
    again = np.concatenate([np.zeros((6, 0), np.int64), *lives.again], axis=1)
    chunk, seat, _, time = again[:4, again[2] == FAR]
    first = lives.first_down[:, :, FAR]
    for k, seats in enumerate(lives.tree.below):
        sent = first[:, seats].min(axis=1)
        for s in seats.tolist():
            mine = seat == s
            found[s, 1] = _results(first[:, s], downs[:, s], sent, chunk[mine], time[mine])
        if k == ROOT:  # a leaf's results follow from its parent's
            found[seats, 0] = _contributions(lives.first_up[:, seats, FAR], sent, seats, chunk, seat, time)
    return found


def _results(first: Ints, seen: Ints, sent: Ints, chunk: Ints, time: Ints) -> int:
    """Count the chunks whose result was not seen until the member sent again, when others' had left.

    A result that is only late, behind a shaper, is seen beside the one that answers what was sent again.
    """
    after = time > sent[chunk]
    asked, answers = np.full(len(sent), NEVER), np.zeros(len(sent), np.int64)
    np.minimum.at(asked, chunk[after], time[after])
    np.add.at(answers, chunk[after], 1)
    return int(((asked < first) & (seen <= answers)).sum())


def _contributions(first: Ints, done: Ints, seats: Ints, chunk: Ints, seat: Ints, time: Ints) -> Ints:
    """Count by seat the chunks that were completed by what it sent again, though all had sent before.

    first: (chunks, seats). A port's packets are taken in order: what a chunk lacks is not merely waiting in
    a queue once chunks are done that each of its members sent later; and what was sent again and is followed
    by such a chunk did not complete this one.
    """
    whole = (first != NEVER).all(axis=1) & (done != NEVER)
    taken = np.stack([_taken(first[:, i], done, first[:, i]) for i in range(len(seats))], axis=1)
    lacking = whole & (taken.max(axis=1) < done)
    ago = np.full(first.shape, np.inf)
    """ns from its last sending to the result, of who may have completed it."""
    for i, s in enumerate(seats.tolist()):
        mine = (seat == s) & (time <= done[chunk])
        last = np.full(len(done), -1)
        np.maximum.at(last, chunk[mine], time[mine])
        may = lacking & (last >= 0) & (_taken(first[:, i], done, last) >= done)
        ago[may, i] = (done - last)[may]
    if len(seats) == 1:
        ago = np.concatenate([ago, np.full((len(ago), 1), np.inf)], axis=1)
    nearest, next_ = np.sort(ago, axis=1)[:, :2].T
    told = np.isfinite(nearest) & (next_ >= CLEAR * nearest)
    return np.bincount(ago[told].argmin(axis=1), minlength=len(seats))[: len(seats)]


def _taken(first: Ints, done: Ints, times: Ints) -> Ints:
    """Return when at the latest the switch had taken what came at a port at these times; NEVER if unknown."""
    order = np.argsort(first, kind="stable")
    earliest = np.append(np.minimum.accumulate(done[order][::-1])[::-1], NEVER)
    found: Ints = earliest[np.searchsorted(first[order], times, "right")]
    return found
