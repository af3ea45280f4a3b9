# SPDX-License-Identifier: Apache-2.0
"""When to send again: RFC 6298's estimate with bounds that suit microsecond links."""

from __future__ import annotations

FLOOR = 0.002
"""Seconds. RFC 6298 says 1 s for the Internet; here a round trip takes microseconds to milliseconds."""
CAP = 1.0
"""Seconds, whatever the samples say."""
MOST_BACKOFF = 16.0
"""The time-out grows to this multiple at most: a packet now and then for a late peer costs nothing, while
on a lossy path with a window too small for clean samples a long back-off would never end."""
INITIAL = 0.05
"""Seconds until a first sample: a window of 64 chunks takes bmv2 about 40 ms."""


class RetransmissionTimer:
    """Estimates the retransmission time-out (RFC 6298, sections 2 and 5), in seconds.

    The caller obeys Karn's rule: no samples of chunks sent twice.
    """

    def __init__(self) -> None:
        self.srtt: float | None = None
        self._variation = 0.0
        self._backoff = 1.0

    @property
    def base(self) -> float:
        """Seconds by the samples alone, without back-off."""
        return INITIAL if self.srtt is None else min(CAP, max(FLOOR, self.srtt + 4 * self._variation))

    def patience(self, tries: int = 1) -> float:
        """Seconds that a chunk sent now for the tries-th time may wait for its result."""
        return min(CAP, self.base * min(MOST_BACKOFF, self._backoff * 2.0 ** (tries - 1)))

    def sample(self, seconds: float) -> None:
        """Take the round-trip time of a chunk that was sent once.

        It contains the wait for the other workers and for what they lost. Counted in full, each one's
        time-out would feed on the others' (at 5 % loss it reached the cap); so it counts as the present
        time-out at most, which still learns a slower path within a few samples.
        """
        seconds = min(seconds, self.base)
        if self.srtt is None:
            self.srtt, self._variation = seconds, seconds / 2
        else:
            self._variation += (abs(self.srtt - seconds) - self._variation) / 4
            self.srtt += (seconds - self.srtt) / 8
        self.answered()

    def answered(self) -> None:
        """End a back-off: the path works again (only one packet was sent at a time meanwhile)."""
        self._backoff = 1.0

    def back_off(self) -> None:
        """Double the time-out, up to MOST_BACKOFF and until `answered`."""
        self._backoff = min(MOST_BACKOFF, 2 * self._backoff)
