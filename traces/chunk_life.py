# SPDX-License-Identifier: Apache-2.0
"""How the chunks of a job spent their time, which `trace explain` goes by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wire.constants import frame_bytes

from .lives import FAR, OWN, Ints, Lives
from .verify_columns import NEVER

FULL = 0.9
"""Share of the most chunks under way that counts as a full window."""


class Life:
    """How chunks of a job spent their time: ns, an item for each chunk and worker, of all epochs.

    Chunks that were sent again tell of loss, not of where time goes: they are left out unless most were.
    """

    def __init__(self, epochs: Sequence[Lives]) -> None:
        parts: dict[str, list[Ints]] = {name: [] for name in ("whole", "wait", "switch", "rest")}
        full: list[NDArray[np.bool_]] = []
        self.window = 0
        self.most = 0
        self.own = False
        """Whether workers' own ends were captured."""
        began, ended = NEVER, 0
        spans: list[Ints] = []
        sent_bytes: list[float] = []
        for lives in epochs:
            tree = lives.tree
            again = np.zeros(len(lives.ups), np.bool_)
            again[lives.retransmitted()[0]] = True
            if 2 * again.sum() > len(again):
                again[:] = False
            workers = np.array([s for s, seat in enumerate(tree.seats) if seat.leaf < 0], np.int64)
            for s in workers.tolist():
                end = lives.end(s)
                sent, got = lives.first_up[:, s, end], lives.first_down[:, s, end]
                done = np.flatnonzero((sent != NEVER) & (got != NEVER) & (got >= sent) & ~again)
                if not len(done):
                    continue
                self.own = self.own or end == OWN
                full_at = complete(lives, workers, end)[done]
                known = full_at != NEVER
                done, full_at = done[known], np.clip(full_at[known], sent[done[known]], got[done[known]])
                parts["whole"].append(got[done] - sent[done])
                parts["wait"].append(full_at - sent[done])
                parts["rest"].append(got[done] - full_at)
                at_switch = complete(lives, workers, FAR)[done]
                out = lives.first_down[done, s, FAR]
                seen = (at_switch != NEVER) & (out != NEVER)
                parts["switch"].append(np.maximum(out[seen] - at_switch[seen], 0))
                spans.append(np.stack([at_switch[seen], np.maximum(out[seen], at_switch[seen])]))
                sent_bytes.append(float((sent != NEVER).sum()) * frame_bytes(tree.elements))
                began, ended = (
                    min(began, int(sent[done].min(initial=NEVER))),
                    max(ended, int(got[done].max(initial=0))),
                )
                order = np.sort(sent[sent != NEVER])
                results = np.searchsorted(np.sort(got[got != NEVER]), order)
                under_way = np.arange(1, len(order) + 1) - results
                most = int(under_way.max(initial=0))
                last = np.diff(results, append=NEVER) > 0  # sent before the next result came
                full.append(under_way[last] >= FULL * most)
                self.most, self.window = max(self.most, most), max(self.window, tree.seats[s].window)
        none = np.zeros(0, np.int64)
        self.whole, self.wait, self.switch, self.rest = (
            np.concatenate([none, *parts[name]]) for name in ("whole", "wait", "switch", "rest")
        )
        self.full = float(np.concatenate([np.zeros(0, np.bool_), *full]).mean()) if full else 0.0
        self.seconds = (ended - began) / 1e9 if ended else 0.0
        self.median = float(np.median(self.whole)) if len(self.whole) else 0.0
        self.busy = _union(np.concatenate([np.zeros((2, 0), np.int64), *spans], axis=1)) / 1e9
        """Seconds in which the switch had a chunk that was complete."""
        self.bits = 8 * sum(sent_bytes) / max(1, sum(seat.leaf < 0 for seat in epochs[0].tree.seats))
        """That a worker sent, retransmissions aside."""

    def share(self, part: Ints) -> float:
        """Return the share of a chunk's life that a part is, over all chunks."""
        if not len(part) or not self.whole.sum():
            return 0.0
        return float(part.mean() / self.whole.mean())


def _union(spans: Ints) -> int:
    """Return how long any of the spans, (2, k) of beginnings and ends, lasted."""
    if not spans.shape[1]:
        return 0
    begins, ends = spans[:, np.argsort(spans[0], kind="stable")]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([begins[:1], reached[:-1]])
    return int(np.maximum(reached - np.maximum(begins, before), 0).sum())


def complete(lives: Lives, seats: Ints, end: int) -> Ints:
    """Return when the last of these members had sent each chunk: at that end of their links if captured."""
    first = lives.first_up[:, seats, :]
    there = (first[:, :, end] != NEVER).any(axis=0)
    times = np.where(there, first[:, :, end], first[:, :, 1 - end])
    last: Ints = times.max(axis=1)
    return last
