# SPDX-License-Identifier: Apache-2.0
"""Packets held back at the ports of a running switch: links of a delay where the kernel has no netem."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from switch.errors import SwitchError
from switch.stats_socket import ask

Direction = Literal["in", "out"]
"""Seen from the switch: `out` is what leaves by the port, `in` what comes in at it."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
MAX_DELAY_S = 10.0
MAX_PORT = (1 << 16) - 1


class DelayError(SwitchError):
    """A delay that no port can have."""


@dataclass(frozen=True)
class Delay:
    """For how long a port holds back each packet of one direction; DelayError for what cannot be."""

    port: int
    direction: Direction
    seconds: float

    def __post_init__(self) -> None:
        if type(self.port) is not int or not 0 <= self.port <= MAX_PORT:
            raise DelayError(f"port {self.port!r:.40} is no port: name a number of 0..{MAX_PORT}")
        if self.direction not in DIRECTIONS:
            raise DelayError(f"direction {self.direction!r:.40} is neither in nor out")
        seconds = self.seconds
        if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_DELAY_S or math.isnan(seconds):
            raise DelayError(f"a delay of {seconds!r:.40} s cannot be: it is 0 to {MAX_DELAY_S:g} s")

    @classmethod
    def from_words(cls, words: str) -> Delay:
        """Read PORT:DIRECTION:SECONDS, such as 3:out:0.005. Raises DelayError."""
        parts = words.split(":")
        try:
            port, direction, seconds = parts
            return cls(int(port), direction, float(seconds))  # type: ignore[arg-type]  # it is checked
        except ValueError:
            raise DelayError(f"{words!r:.40} is not PORT:DIRECTION:SECONDS, such as 3:out:0.005") from None

    @classmethod
    def from_request(cls, request: dict[str, Any]) -> Delay:
        """Read what `set_delay` sends. Raises DelayError."""
        given = request.get("delay")
        if len(request) != 1 or not isinstance(given, dict) or set(given) != set(cls.__dataclass_fields__):
            raise DelayError("the request is not understood: it asks for nothing that this version has")
        return cls(**given)


def set_delay(socket: Path, port: int, seconds: float, direction: Direction = "out") -> None:
    """Hold back what passes a port in one direction for `seconds` (0..10) from now on; 0 ends it.

    `socket` is the running switch's --stats-socket (topologies.record.stats_socket). No packet goes on
    earlier than `seconds` after it came to the port; order is kept, also when the delay is changed, which
    does not concern the packets that are held already. A port holds at most 16 MiB a direction; what does
    not fit is dropped and counted in tx_dropped or rx_dropped. A link of two switches of delay d: `out` at
    both ends. Of a host and a switch: `out` and `in` at the switch's. At the start of a switch:
    `--delay PORT:DIRECTION:SECONDS`, repeatable.

    Raises:
        DelayError: no port can have such a delay.
        StatsSocketError: nobody answers there, or the switch refuses: there is no such port.
    """
    ask(socket, {"delay": asdict(Delay(port, direction, seconds))})
