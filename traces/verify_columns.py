# SPDX-License-Identifier: Apache-2.0
"""The state of `trace verify`: one array a fact, its first axis the chunks that are kept, oldest first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEVER = np.iinfo(np.int64).max
"""A time or chunk that has not come."""


class Columns:
    """Facts of chunks; a row that is new says that nothing was seen of its chunk."""

    def __init__(self, seats: int, switches: int, elements: int) -> None:
        self.seats, self.switches, self.elements = seats, switches, elements
        # Of each chunk and seat.
        self.known = np.zeros((0, seats), np.bool_)
        """A contribution was captured."""
        self.digest = np.zeros((0, seats), np.uint64)
        self.sent_tag = np.zeros((0, seats), np.int16)
        """Its tensor << 1 | flag."""
        self.sent = np.full((0, seats), NEVER)
        """When the first was."""
        self.sent_ref = np.zeros((0, seats), np.int64)
        self.got = np.full((0, seats), NEVER)
        """When the first result was, at either end of its link."""
        self.got_ref = np.zeros((0, seats), np.int64)
        self.heard = np.full((0, seats), NEVER)
        """When the first result was, at the end where the send rule is judged."""
        self.balance = np.zeros((0, seats), np.int32)
        """Results that the seat may still get."""
        # Of each chunk and switch.
        self.have = np.zeros((0, switches), np.int16)
        """Members whose contribution was captured."""
        self.complete = np.zeros((0, switches), np.int64)
        """When the last of them was."""
        self.poor = np.zeros((0, switches), np.bool_)
        """The sum is not known: values were not captured, or copies differ."""
        self.e0 = np.full((0, switches), -128, np.int8)
        self.e1 = np.full((0, switches), -128, np.int8)
        self.sums = np.zeros((0, switches, elements), np.int32)
        # Of each chunk.
        self.tag = np.full(0, -1, np.int16)
        """tensor << 1 | flag of its contributions; -1 before the first."""
        self.mixed = np.zeros(0, np.bool_)
        """They differ."""
        self.answered = np.zeros(0, np.bool_)
        """A result was captured, anywhere in the tree."""
        self.answer = np.zeros(0, np.uint64)
        """Its digest."""
        self.answer_time = np.full(0, NEVER)
        self.answer_ref = np.zeros(0, np.int64)
        self._names = [name for name, column in vars(self).items() if isinstance(column, np.ndarray)]
        self._empty = {name: self._one(name) for name in self._names}

    def __len__(self) -> int:
        return len(self.tag)

    def _one(self, name: str) -> NDArray[Any]:
        """Return the row of a chunk that nothing is known of."""
        fill = {
            "sent": NEVER,
            "got": NEVER,
            "heard": NEVER,
            "answer_time": NEVER,
            "e0": -128,
            "e1": -128,
            "tag": -1,
        }
        column: NDArray[Any] = getattr(self, name)
        return np.full((1, *column.shape[1:]), fill.get(name, 0), column.dtype)

    def cover(self, chunks: int) -> None:
        """Have at least so many rows."""
        more = chunks - len(self)
        if more > 0:
            for name in self._names:
                added = np.repeat(self._empty[name], more, axis=0)
                setattr(self, name, np.concatenate([getattr(self, name), added]))

    def drop(self, chunks: int) -> None:
        """Forget the oldest rows."""
        for name in self._names:
            setattr(self, name, getattr(self, name)[chunks:].copy())
