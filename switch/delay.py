# SPDX-License-Identifier: Apache-2.0
"""Packets held back at the ports of a running switch: links of a delay where the kernel has no netem."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from switch.stats_socket import StatsSocketError

Direction = Literal["in", "out"]
"""Seen from the switch: `out` is what leaves by the port, `in` what comes in at it."""
MAX_DELAY_S = 10.0


def set_delay(socket: Path, port: int, seconds: float, direction: Direction = "out") -> None:
    """Hold back what passes a port in one direction for `seconds` (0..10) from now on; 0 ends it.

    `socket` is the running switch's --stats-socket (topologies.record.stats_socket). No packet goes on
    earlier than `seconds` after it came to the port; order is kept, also when the delay is changed, which
    does not concern the packets that are held already. A port holds at most 16 MiB a direction; what does
    not fit is dropped and counted in tx_dropped or rx_dropped. A link of two switches of delay d: `out` at
    both ends. Of a host and a switch: `out` and `in` at the switch's. At the start of a switch:
    `--delay PORT:DIRECTION:SECONDS`, repeatable.

    Raises:
        StatsSocketError: nobody answers there, or the switch refuses: no such port, or no such delay.
    """
    raise StatsSocketError(socket, "this version cannot hold packets back")
