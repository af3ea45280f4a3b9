# SPDX-License-Identifier: Apache-2.0
"""How packets are gathered into bursts: the engine's numbers, in Python and in C."""

from __future__ import annotations

BURST = 126
"""Most packets sent at once: enough to make fixed costs small, little enough to stay in a cache; two messages
of UDP_SEGMENT."""
SHARE = 4
"""While half the window is under way, a burst of less than the window divided by this waits for more."""
STEP = 1e-8
"""Seconds between packets of one burst, for the record: which of them was sent first."""
LULL = 0.5
"""Share of a round trip for which results gather while at least half a window is under way."""
LEAST_LULL = 0.002
"""Seconds: on a quicker path to sleep and to wake costs more than it saves."""
