# SPDX-License-Identifier: Apache-2.0
"""Processes that are started again when they end, with pauses that grow, and given up when that helps not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from topologies.errors import TopologyError
from topologies.processes import LoggedProcess

log = logging.getLogger(__name__)

MOST = 5
"""Ends in WITHIN_S after which a process is started again; one more, and it is given up."""
WITHIN_S = 60.0
FIRST_PAUSE_S = 0.5
"""Before the second start in WITHIN_S, doubled for each further one; the first is at once."""


@dataclass
class Kept:
    """A process to keep: `what` names it, `child` is the present one, `start` makes it anew."""

    what: str
    child: Callable[[], LoggedProcess | None]
    start: Callable[[], None]
    ends: list[float] = field(default_factory=list)
    """Seconds of its last ends."""
    due: float | None = None
    """When it is started again; None while it runs."""
    given_up: bool = False


class Keeper:
    """Looks after processes; `give_up` is called with the name of each that is started no more."""

    def __init__(self, kept: Sequence[Kept], give_up: Callable[[str], None]) -> None:
        self._kept = kept
        self._give_up = give_up

    def look(self, now: float) -> None:
        """Start again what has ended and is due; `now` is in seconds of any clock that only goes on."""
        for one in self._kept:
            if one.given_up:
                continue
            child = one.child()
            code = None if child is None else child.poll()
            if child is not None and code is None:
                one.due = None  # also where its start was thought to have failed
                continue
            if one.due is None and code is not None:
                self._ended(one, f"ended with {code}", now)
            if one.due is not None and now >= one.due:
                one.due = None
                try:
                    one.start()
                except (OSError, TopologyError) as error:
                    self._ended(one, f"could not be started: {error}", now)
                else:
                    log.info("%s was started again", one.what)

    def _ended(self, one: Kept, how: str, now: float) -> None:
        one.ends = [*(end for end in one.ends if now - end < WITHIN_S), now]
        if len(one.ends) > MOST:
            one.given_up = True
            log.error("%s %s, %d times in %g s: it is not started again", one.what, how, MOST + 1, WITHIN_S)
            self._give_up(one.what)
            return
        pause = 0.0 if len(one.ends) == 1 else FIRST_PAUSE_S * 2 ** (len(one.ends) - 2)
        one.due = now + pause
        log.error("%s %s; it is started again in %g s", one.what, how, pause)
