# SPDX-License-Identifier: Apache-2.0
"""When to give up waiting: from the quicker ones of the last round trips.

RFC 6298's mean and variation will not do. A round trip here contains the wait for every other worker, and
for what each of them lost: their time-outs enter our samples, ours enter theirs, and the estimate feeds on
itself up to its cap (4 workers, 5 % loss each way: 10 to 40 s where 1 s is enough). In the quickest eighth of
the last ones nobody waited for that.
"""

from __future__ import annotations

import ctypes
import math

FLOOR = 0.002
"""Seconds; a round trip takes microseconds to milliseconds."""
SAMPLES = 64
"""Round trips remembered: long enough for one that no loss at another worker has delayed."""
CAP = 1.0
"""Seconds, whatever the samples say."""
MOST_BACKOFF = 16.0
"""The time-out grows to this multiple at most: a packet now and then for a late peer costs nothing, while
on a lossy path with a window too small for clean samples a long back-off would never end."""
INITIAL = 0.05
"""Seconds until a first sample: a window of 64 chunks takes bmv2 about 40 ms."""


class RetransmissionTimer(ctypes.Structure):
    """Estimates the retransmission time-out, in seconds; backs off as RFC 6298, section 5.

    The caller obeys Karn's rule: no samples of chunks sent twice. C sees a struct timer (kernel.h).
    """

    base: float
    """Seconds by the samples alone, without back-off."""
    _fields_ = (
        *((name, ctypes.c_double) for name in ("_quickest", "base", "_backoff")),
        ("_samples", ctypes.c_double * SAMPLES),
        ("_sampled", ctypes.c_uint64),
    )

    def __init__(self) -> None:
        super().__init__(math.nan, INITIAL, 1.0)

    @property
    def quickest(self) -> float | None:
        """The quickest of the remembered round trips, None before a first one."""
        return self._quickest if self._sampled else None

    def patience(self, tries: int = 1) -> float:
        """Seconds that a chunk sent now for the tries-th time may wait for its result."""
        return min(CAP, self.base * min(MOST_BACKOFF, self._backoff * 2.0 ** (tries - 1)))

    def sample(self, seconds: float) -> None:
        """Take the round-trip time of a chunk that was sent once."""
        self._samples[self._sampled % SAMPLES] = seconds
        self._sampled += 1
        ascending = sorted(self._samples[: min(self._sampled, SAMPLES)])
        self._quickest = ascending[0]
        self.base = min(CAP, max(FLOOR, self._quickest + 4 * ascending[len(ascending) // 8]))
        self.answered()

    def answered(self) -> None:
        """End a back-off: the path works again (only one packet was sent at a time meanwhile)."""
        self._backoff = 1.0

    def back_off(self) -> None:
        """Double the time-out, up to MOST_BACKOFF and until `answered`."""
        self._backoff = min(MOST_BACKOFF, 2 * self._backoff)
