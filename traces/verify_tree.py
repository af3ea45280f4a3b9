# SPDX-License-Identifier: Apache-2.0
"""A job's tree in one epoch who sends to which switch, from where, by which link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from .members import Epoch

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
    window: int
    """W; 0 where unknown. Only where it was guessed can it differ between seats."""
    link: str = ""
    """Name of its link, "" where unknown."""
    leaf: int = -1
    """Index of the switch whose uplink this is; -1 for a worker."""
    mbit: float | None = None
    """What its link is shaped to, the lower of both ways; None is not at all, or unknown."""


@dataclass(frozen=True)
class Tree:
    """One epoch of a job."""

    job: int
    epoch: int
    """0 where the capture does not say."""
    order: int
    """Position among the job's epochs."""
    elements: int
    g0: int | None
    """First chunk, unwrapped; None where unknown."""
    began: int | None
    """ns since the Unix epoch, before its first packet; None where unknown."""
    switches: tuple[int, ...]
    """Their IPv4 addresses, the root's first."""
    seats: tuple[Seat, ...]
    inferred: bool = False
    """Whether this was guessed from the packets."""
    doubtful: bool = False
    """Whether some of its seats may be another epoch's, by that guess."""
    duplicates: bool = False
    """Whether the fault table duplicated packets meanwhile."""

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


def trees(epochs: Sequence[Epoch]) -> list[Tree]:
    """Return the trees of epochs that are known, oldest first."""
    found: list[Tree] = []
    counts: Counter[int] = Counter()
    for epoch in sorted(epochs, key=lambda each: each.epoch):
        # The root first: all other switches have a parent.
        places = sorted(epoch.switches, key=lambda place: place.parent is not None)
        index = {place.name: k for k, place in enumerate(places)}
        seats = tuple(
            Seat(
                member.host,
                int(IPv4Address(member.ip)),
                member.udp_port,
                index[member.switch],
                epoch.window,
                member.link,
                index[member.host] if member.rank < 0 else -1,
                min((rate for rate in (member.up_mbit, member.down_mbit) if rate is not None), default=None),
            )
            for member in epoch.members
        )
        found.append(
            Tree(
                epoch.job,
                epoch.epoch,
                counts[epoch.job],
                epoch.elements,
                epoch.g0,
                epoch.began,
                tuple(int(IPv4Address(place.ip)) for place in places),
                seats,
                duplicates=epoch.duplicates,
            )
        )
        counts[epoch.job] += 1
    return found
