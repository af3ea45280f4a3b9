# SPDX-License-Identifier: Apache-2.0
"""Which process is meant: its pid together with its start time, since pids are used again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process by pid and start time (clock ticks since boot, field 22 of /proc/PID/stat, proc(5))."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the identity of a living process; ProcessLookupError when there is none."""
        identity = _start_time(pid)
        if identity is None:
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(pid, identity)

    def alive(self) -> bool:
        """Say whether this very process still runs (a zombie does not)."""
        return _start_time(self.pid) == self.start


def _start_time(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command in parentheses may hold spaces and parentheses: split after the last one.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
