# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with captures, and with recording them."""

from __future__ import annotations

from pathlib import Path

from wire.errors import P4ReduceError


class TraceError(P4ReduceError):
    """Root of this room's errors."""


class TraceFileError(TraceError):
    """A file that is no capture, or breaks off: raised after all that was readable has been given.

    `number` is the packet (from 1) that could not be read, None where it is about the whole file; `offset` is
    where in the file, in bytes after decompression, None where that says nothing.
    """

    def __init__(
        self, path: Path, number: int | None, what: str, remedy: str, offset: int | None = None
    ) -> None:
        where = "" if number is None else f", packet {number}"
        where += "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{path}{where}: {what}; {remedy}")
        self.path = path
        self.number = number
        self.offset = offset
        self.what = what
        self.remedy = remedy


class PayloadError(TraceError):
    """Values are asked of a packet that has none here; `row` is its row in the table."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row} has no values: {why}")
        self.row = row


class MembersError(TraceError):
    """A file of memberships that cannot be understood; `path` names it."""

    def __init__(
        self,
        path: Path,
        what: str,
        remedy: str = "p4reduce trace record wrote it: move it away to read the captures alone",
    ) -> None:
        super().__init__(f"{path}: {what}; {remedy}")
        self.path = path


class FilterError(TraceError):
    """What is asked for cannot be found in any capture; `option` is the part at fault."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"{option}: {why}")
        self.option = option


class CaptureError(TraceError):
    """Packets that cannot be recorded; `what` is the interface or link at fault."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what


class PlotError(TraceError):
    """A picture that cannot be drawn or written; `path` is where it should go."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class DissectorError(TraceError):
    """The dissector could not be installed; `folder` is where it should go."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(
            f"{folder}: the dissector cannot be copied there: {why}; give yourself the folder, or load it "
            "each time with tshark -X lua_script:FILE"
        )
        self.folder = folder
