# SPDX-License-Identifier: Apache-2.0
"""What can go wrong while training through the network."""

from __future__ import annotations

from wire.errors import P4ReduceError


class RankError(P4ReduceError):
    """A rank's process ended or stopped talking; carries the rank and what it last said."""

    def __init__(self, rank: int, host: str, what: str, said: str = "") -> None:
        super().__init__(f"rank {rank} on {host}: {what}" + (f"\n{said.rstrip()}" if said.strip() else ""))
        self.rank = rank
        self.host = host
        self.said = said


class CheckError(P4ReduceError):
    """The run finished, and a check on its result failed; carries the check's name."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"check failed: {check}: {detail}")
        self.check = check
