# SPDX-License-Identifier: Apache-2.0
"""What a worker counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """Totals of one worker; packets are aggregation packets, seconds those spent inside all-reduces."""

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
    rtt: float | None = None
    """The quickest of the last round trips in seconds, None before a first one."""
