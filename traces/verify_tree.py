# SPDX-License-Identifier: Apache-2.0
"""A job's tree in one epoch as `trace verify` needs it: who sends to which switch, from where, by which link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

ROOT = 0
"""Index of the root among a tree's switches."""


@dataclass(frozen=True)
class Seat:
    """A worker, or a leaf switch, as a member below the switch that it sends to."""

    name: str
    """The host or leaf switch, for people and to find its link's ends."""
    ip: int
    port: int
    """UDP port of its own in this epoch."""
    switch: int
    """Index of the switch that it sends to."""
    link: str = ""
    """Name of its link, "" where unknown."""
    leaf: int = -1
    """Index of the switch whose uplink this is; -1 for a worker."""


@dataclass(frozen=True)
class Tree:
    """One epoch of a job."""

    job: int
    epoch: int
    """0 where the capture does not say; later ones of a job are greater all the same where they are told."""
    order: int
    """Position among the job's epochs."""
    window: int
    """W; 0 where unknown."""
    elements: int
    g0: int | None
    """First chunk, unwrapped; None where unknown."""
    began: int | None
    """ns since the Unix epoch; None where unknown, or if it was before the capture."""
    switches: tuple[int, ...]
    """Their IPv4 addresses, the root's first."""
    seats: tuple[Seat, ...]
    inferred: bool = False
    """Whether this was guessed from the packets."""

    @cached_property
    def below(self) -> tuple[NDArray[np.int64], ...]:
        """The seats of each switch."""
        at = np.array([seat.switch for seat in self.seats], np.int64)
        return tuple(np.flatnonzero(at == k) for k in range(len(self.switches)))

    @cached_property
    def uplink(self) -> tuple[int, ...]:
        """The seat that is each switch's uplink; -1 for the root."""
        found = [-1] * len(self.switches)
        for index, seat in enumerate(self.seats):
            if seat.leaf >= 0:
                found[seat.leaf] = index
        return tuple(found)
