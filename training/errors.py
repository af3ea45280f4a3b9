# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a training run apart from its network."""

from __future__ import annotations

from wire.errors import P4ReduceError


class OptionError(P4ReduceError):
    """An option that no run can have, or that this network contradicts; carries it as given."""

    def __init__(self, option: str, allowed: str) -> None:
        super().__init__(f"{option}: {allowed}")
        self.option = option


class CheckError(P4ReduceError):
    """The run finished, and a check on its result failed; carries the check's name."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"check failed: {check}: {detail}")
        self.check = check
