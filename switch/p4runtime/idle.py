# SPDX-License-Identifier: Apache-2.0
"""Entries that nothing hit for their idle timeout (spec 1.4, 9.1.8 and 16.4).

Each entry is looked at when its time may have come, so that a notification comes within milliseconds of it,
where simple_switch sweeps once a second; then again after as long, while nothing hits it.
"""

from __future__ import annotations

import heapq
import itertools

from switch.device import SwitchDevice
from switch.errors import NoSuchEntry

LEAST_NS = 10_000_000
"""Shorter timeouts are checked only this often."""

MOST = 256
"""Entries that one look sees to: writes wait for it, and all of a table may be due at once."""

Where = tuple[str, int]
"""Table name and entry handle."""


class IdleEntries:
    """The entries with an idle timeout."""

    def __init__(self, device: SwitchDevice) -> None:
        self._device = device
        self._timeouts: dict[Where, int] = {}
        self._due: list[tuple[int, int, Where]] = []
        """(when to look, serial number, entry); only the entry's last serial number counts."""
        self._serials: dict[Where, int] = {}
        self._next = itertools.count()

    def set(self, where: Where, timeout_ns: int, now_ns: int) -> None:
        """Watch an entry from now on, or with 0 no more."""
        self.forget(where)
        if timeout_ns > 0:
            self._timeouts[where] = timeout_ns
            self._look_at(where, now_ns + timeout_ns - self.idle_ns(where))

    def forget(self, where: Where) -> None:
        """Watch an entry no more."""
        self._timeouts.pop(where, None)
        self._serials.pop(where, None)

    def idle_ns(self, where: Where) -> int:
        """Nanoseconds since an entry was hit, or inserted."""
        return 1000 * self._device.table_idle_us(*where)

    def poll(self, now_ns: int) -> tuple[list[Where], int | None]:
        """Return the entries that are idle, and the nanoseconds until the next look, None for none."""
        idle = []
        for _ in range(MOST):
            if not self._due or self._due[0][0] > now_ns:
                break
            _, serial, where = heapq.heappop(self._due)
            if self._serials.get(where) != serial:
                continue
            timeout = self._timeouts[where]
            try:
                left = timeout - self.idle_ns(where)
            except NoSuchEntry:
                self.forget(where)
                continue
            if left <= 0:
                idle.append(where)
                left = timeout
            self._look_at(where, now_ns + max(left, LEAST_NS))
        return idle, max(self._due[0][0] - now_ns, 0) if self._due else None

    def _look_at(self, where: Where, when_ns: int) -> None:
        serial = self._serials[where] = next(self._next)
        heapq.heappush(self._due, (when_ns, serial, where))
