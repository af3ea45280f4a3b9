# SPDX-License-Identifier: Apache-2.0
"""Packets that switches refused: the last of each source, and a bounded number of events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from controller.program.refusals import Refusal
from wire.verdicts import Verdict

EVENT_SECONDS = 5.0
"""Between two events about packets that a port refused for one reason."""
SOURCES = 4096
"""Sources whose last refused packet is remembered."""


class Refused:
    """`note` is told (job number or None, text) of what becomes an event."""

    def __init__(self, note: Callable[[int | None, str], None]) -> None:
        self.latest: dict[tuple[str | None, int | None], tuple[float, Refusal]] = {}
        """By (IPv4 source, UDP source), the latest last: when a packet of it was refused, and which."""
        self._note = note
        self._told: dict[tuple[str, int, Verdict], tuple[float, int]] = {}
        """By switch, port and verdict: when an event told of it, and how many reports came since."""

    def take(self, switch: str, refusal: Refusal) -> None:
        """Take a switch's report in."""
        now = time.monotonic()
        source = (refusal.ip_src, refusal.udp_src)
        self.latest.pop(source, None)
        self.latest[source] = (now, refusal)
        while len(self.latest) > SOURCES:
            self.latest.pop(next(iter(self.latest)))
        # What a flood could push out of the log is worth more than its thousandth packet.
        kind = (switch, refusal.port, refusal.verdict)
        since, more = self._told.get(kind, (-math.inf, 0))
        if now - since < EVENT_SECONDS:
            self._told[kind] = (since, more + 1)
            return
        self._told[kind] = (now, 0)
        before = f"; {more} more reports like it since the last" if more else ""
        self._note(refusal.job, f"switch {switch}: {refusal}{before}")
