# SPDX-License-Identifier: Apache-2.0
"""What goes in and out of a device's control calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exact:
    """Matches one value."""

    value: int


@dataclass(frozen=True)
class Lpm:
    """Matches the first `prefix_len` bits of the field; 0 matches all."""

    value: int
    prefix_len: int


@dataclass(frozen=True)
class Ternary:
    """Matches where the mask has ones; mask 0 matches all. Also the form of `optional` keys."""

    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    """Matches low..high, both included."""

    low: int
    high: int


MatchValue = Exact | Lpm | Ternary | Range


@dataclass(frozen=True)
class Member:
    """What an entry of an indirect table does: the action of this member of the table's action profile."""

    handle: int


@dataclass(frozen=True)
class Group:
    """What an entry of an indirect table does: that of the member that the selector picks from this group."""

    handle: int


@dataclass(frozen=True)
class Entry:
    """One table entry as it stands; `priority` as P4Runtime counts (larger wins), 0 for none."""

    handle: int
    key: tuple[MatchValue, ...]
    action: str | Member | Group
    args: tuple[int, ...]
    priority: int
    const: bool


@dataclass(frozen=True)
class MeterRates:
    """RFC 2698: committed and peak rate in units (bytes or packets) a second, bursts in units."""

    cir: float
    cburst: int
    pir: float
    pburst: int


@dataclass(frozen=True)
class Colors:
    """What a meter gave each color to, each as (packets, bytes); an unconfigured meter gives green."""

    green: tuple[int, int]
    yellow: tuple[int, int]
    red: tuple[int, int]


@dataclass(frozen=True)
class Stats:
    """Counters of one device since it was loaded."""

    received: int
    sent: int
    too_long: int
    over_budget: int
    faults: int
    digests_lost: int


@dataclass(frozen=True)
class Digest:
    """One sample that the program gave to digest(): the list's name and its fields' values in order."""

    name: str
    values: tuple[int, ...]
