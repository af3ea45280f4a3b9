# SPDX-License-Identifier: Apache-2.0
"""What a benchmark may find wrong with what it measured."""

from __future__ import annotations

from wire.errors import P4ReduceError


class BenchError(P4ReduceError):
    """A measurement that says nothing about the switch; carries the target's name."""

    def __init__(self, target: str, message: str) -> None:
        super().__init__(f"{target}: {message}")
        self.target = target


class RefusedError(BenchError):
    """The switch did not take the contributions as it had to: the rate is that of something else."""


class WrongSumError(BenchError):
    """A result is not the sum of what was contributed."""


class MissingError(BenchError):
    """Something that an option needs is not installed; carries the option's name."""
