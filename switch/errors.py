# SPDX-License-Identifier: Apache-2.0
"""What the embedded switch raises: one family under `SwitchError`."""

# ruff: noqa: N818  (the names say what is wrong: `except TableFull`)

from __future__ import annotations

from pathlib import Path

from wire.errors import P4ReduceError


class SwitchError(P4ReduceError):
    """Root of the embedded switch's errors."""


class LoadError(SwitchError):
    """A JSON that this switch cannot run: names the construct and, where p4c gave it, the source line.

    `program` is its file, where it comes from one.
    """

    def __init__(self, construct: str, why: str, source: str = "", program: str = "the program") -> None:
        self.construct = construct
        self.why = why
        self.source = source
        self.program = program
        at = f" ({source})" if source else ""
        super().__init__(f"cannot load {program}: {construct}{at}: {why}")

    def of(self, file: str | Path) -> LoadError:
        """The same error, of the program in a file."""
        return LoadError(self.construct, self.why, self.source, str(file))


class BuildError(SwitchError):
    """The C compiler is missing, failed, or the cache folder cannot be trusted."""


class DeviceError(SwitchError):
    """A control call on a loaded device that cannot be done; nothing was changed."""


class NoSuchObject(DeviceError):
    """No table, action, counter, meter, register, group or session has this name or number."""


class NoSuchEntry(DeviceError):
    """The table has no entry with this handle."""


class DuplicateEntry(DeviceError):
    """An entry with the same match (and priority, where there is one) exists."""


class TableFull(DeviceError):
    """The table holds as many entries as the program gave it."""


class BadKey(DeviceError):
    """A match key of the wrong kind, count, width or priority."""


class BadAction(DeviceError):
    """An action that the table does not have, or arguments of the wrong count or width."""


class InUse(DeviceError):
    """A member that a group or entry names, or a group that an entry names."""


class Immutable(DeviceError):
    """A const table, const default action or an object the program does not let anyone change."""


class BadIndex(DeviceError):
    """An index beyond the size of a counter, meter or register array, or a value that does not fit."""
