# SPDX-License-Identifier: Apache-2.0
"""What a worker counts, in total and of one call."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import log2

import numpy as np
from numpy.typing import NDArray

BINS_AN_OCTAVE = 8
"""Bins of the histogram of round trips: each spans 9 %."""
SHORTEST = 1e-6
"""Seconds; what is quicker counts as that."""
OCTAVES = 26
"""From 1 us to a minute."""


class RoundTrips:
    """A histogram of round-trip times with bins of equal ratio: bounded memory, percentiles to 9 %."""

    def __init__(self, bins: NDArray[np.int64] | None = None) -> None:
        self._bins = np.zeros(BINS_AN_OCTAVE * OCTAVES, np.int64) if bins is None else bins

    @property
    def address(self) -> int:
        """Where the int64 counts lie, for C."""
        return self._bins.ctypes.data

    @property
    def count(self) -> int:
        """Round trips counted."""
        return int(self._bins.sum())

    def add(self, seconds: float) -> None:
        """Count one round trip."""
        at = int(BINS_AN_OCTAVE * log2(seconds / SHORTEST)) if seconds > SHORTEST else 0
        self._bins[min(at, len(self._bins) - 1)] += 1

    def percentile(self, percent: float) -> float | None:
        """Return seconds that `percent` of the round trips do not exceed (within 9 %), None without any."""
        upto = np.cumsum(self._bins)
        if not upto[-1]:
            return None
        at = int(np.searchsorted(upto, max(1.0, percent / 100 * upto[-1])))
        return SHORTEST * float(2.0 ** ((at + 0.5) / BINS_AN_OCTAVE))

    def copy(self) -> RoundTrips:
        """Return what has been counted until now."""
        return RoundTrips(self._bins.copy())

    def since(self, before: RoundTrips) -> RoundTrips:
        """Return what was counted since `before`, a copy of this one then."""
        return RoundTrips(self._bins - before._bins)


@dataclass
class Stats:
    """Counts of one worker since it was made, or of one call; packets are aggregation packets.

    A call's are those of the worker between its begin and its end: calls in flight together count each
    other's. Round trips are sampled once a burst received, of packets sent once; one lasts until the last
    worker has sent the same chunk.
    """

    all_reduces: int = 0
    elements: int = 0
    """Values summed, over all all-reduces that ended well."""
    packets_sent: int = 0
    """Retransmissions included."""
    packets_received: int = 0
    """Results that were awaited; others are duplicates or strays."""
    retransmissions: int = 0
    duplicates: int = 0
    """Well-formed results that no chunk waited for."""
    strays: int = 0
    """Packets that are no result of this epoch's slots."""
    bytes_sent: int = 0
    """UDP payload bytes."""
    seconds: float = 0.0
    """Time with an all-reduce under way."""
    packet_seconds: float = 0.0
    """Integral over that time of the packets in flight."""
    limited_seconds: float = 0.0
    """Of that time, when the window kept packets back."""
    rtt: float | None = None
    """The quickest of the last round trips in seconds, None before a first one."""
    round_trips: RoundTrips = field(default_factory=RoundTrips, repr=False)

    @property
    def rtt_p50(self) -> float | None:
        """Median round trip in seconds, within 9 %; None before a first one."""
        return self.round_trips.percentile(50)

    @property
    def rtt_p90(self) -> float | None:
        """Seconds that 90 % of the round trips do not exceed."""
        return self.round_trips.percentile(90)

    @property
    def rtt_p99(self) -> float | None:
        """Seconds that 99 % of the round trips do not exceed."""
        return self.round_trips.percentile(99)

    @property
    def window_mean(self) -> float:
        """Packets in flight, the mean over time."""
        return self.packet_seconds / self.seconds if self.seconds else 0.0

    @property
    def window_limited(self) -> float:
        """Share of the time, 0..1, in which the window kept packets back."""
        return self.limited_seconds / self.seconds if self.seconds else 0.0

    def copy(self) -> Stats:
        """Return these counts as they are now."""
        other = object.__new__(Stats)
        other.__dict__.update(self.__dict__, round_trips=self.round_trips.copy())
        return other

    def since(self, before: Stats) -> Stats:
        """Return what was counted since `before`, a copy of these."""
        counts = {
            f.name: getattr(self, f.name) - getattr(before, f.name)
            for f in fields(self)
            if f.name not in ("rtt", "round_trips")
        }
        return Stats(**counts, rtt=self.rtt, round_trips=self.round_trips.since(before.round_trips))
