# SPDX-License-Identifier: Apache-2.0
"""What must outlive the controller: the last epoch, and the UDP ports of former lives (DESIGN.md, Epochs).

Both are on disk before a switch or a worker hears of them. Packets of a worker's former life may still be
on their way: a UDP port is refused for ten minutes after it was in use at that address.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.errors import BindAgainError, StateError
from wire.constants import is_job_port

QUARANTINE_SECONDS = 600.0
MAX_EPOCH = (1 << 32) - 1


@dataclass(frozen=True)
class Source:
    """A worker's socket in one epoch."""

    host: str
    ip: str
    udp_port: int


class EpochStore:
    """The state file of one network. `clock` gives Unix time in seconds. One process uses it at a time."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Read the file if it is there; StateError if it cannot be read.

        Ports that were in use when the last controller ended count as used until now.
        """
        self._path = path
        self._clock = clock
        self.last = 0
        """The last epoch given out, 0 before the first."""
        self._live: set[tuple[str, int]] = set()
        self._retired: dict[tuple[str, int], float] = {}
        try:
            self._load(path.read_text())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                path, f"cannot be read ({error}); remove it when none of this network's jobs runs"
            ) from error

    def begin(self, sources: Sequence[Source]) -> int:
        """Return a new epoch, max(last + 1, Unix time), whose workers send from `sources`; persisted first.

        Raises BindAgainError (nothing is taken then), StateError when it cannot be persisted.
        """
        now = self._clock()
        self._retired = {k: t for k, t in self._retired.items() if now - t < QUARANTINE_SECONDS}
        taken: set[tuple[str, int]] = set()
        for source in sources:
            self._check(source, taken, now)
            taken.add((source.ip, source.udp_port))
        epoch = max(self.last + 1, int(now))
        if epoch > MAX_EPOCH:
            raise StateError(self._path, f"epoch {epoch} has more than 32 bits: is the clock right?")
        self.last = epoch
        self._live |= taken
        self._save()
        return epoch

    def end(self, sources: Sequence[Source]) -> None:
        """Note that nobody sends from these any more: their ten minutes begin now."""
        now = self._clock()
        for source in sources:
            key = (source.ip, source.udp_port)
            self._live.discard(key)
            self._retired[key] = now
        self._save()

    def _check(self, source: Source, taken: set[tuple[str, int]], now: float) -> None:
        key = (source.ip, source.udp_port)
        if not 0 < source.udp_port < 65536:
            reason = "is no UDP port (1..65535)"
        elif is_job_port(source.udp_port):
            reason = "lies among the job ports"
        elif key in taken:
            reason = "is that of two workers"
        elif key in self._live:
            reason = "is in use by a job"
        elif key in self._retired:
            reason = f"was in use {max(0.0, now - self._retired[key]):.0f} s ago (ten minutes must pass)"
        else:
            return
        raise BindAgainError(source.host, source.ip, source.udp_port, reason)

    def _load(self, text: str) -> None:
        state = json.loads(text)
        self.last = int(state["last_epoch"])
        now = self._clock()
        for ip, port, since in state["ports"]:
            self._retired[str(ip), int(port)] = now if since is None else float(since)

    def _save(self) -> None:
        ports: list[list[object]] = [[ip, port, None] for ip, port in sorted(self._live)]
        ports += [[ip, port, since] for (ip, port), since in sorted(self._retired.items())]
        text = json.dumps({"last_epoch": self.last, "ports": ports}) + "\n"
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            with open(draft, "w", encoding="utf-8", opener=_private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the new name, too, must survive
            finally:
                os.close(folder)
        except OSError as error:
            raise StateError(self._path, f"cannot be written: {error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
