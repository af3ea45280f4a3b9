# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a network; each message names the thing and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from wire.errors import P4ReduceError


class TopologyError(P4ReduceError):
    """Root of this room's errors."""


class SpecError(TopologyError):
    """A network was described that cannot be built; `what` is the part at fault."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


class PreflightError(TopologyError):
    """This machine lacks something; `problems` has one sentence with its remedy for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        head = "this machine cannot run a network yet: " if len(problems) > 1 else ""
        super().__init__(head + " ".join(problems))
        self.problems = tuple(problems)


class RecordError(TopologyError):
    """No such network, one that is already up, or a record that cannot be read; `name` is the network."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class TargetError(TopologyError):
    """A switch target is unknown, absent or did not come up; `target` is its name."""

    def __init__(self, target: str, message: str) -> None:
        super().__init__(message)
        self.target = target


class NetworkError(TopologyError):
    """A network did not come up, go down or pass its self-test; `name` is the network or the node."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class RootlessError(TopologyError):
    """An ordinary user cannot have namespaces here; the message tells why, and the remedy."""
