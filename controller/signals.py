# SPDX-License-Identifier: Apache-2.0
"""A broadcast for waiters of one asyncio loop."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all who wait at the moment, and nobody later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set_off(self) -> None:
        """Wake those who wait."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, seconds: float) -> None:
        """Wait to be woken, `seconds` at most."""
        try:
            await asyncio.wait_for(self._event.wait(), max(0.0, seconds))
        except asyncio.TimeoutError:
            return
