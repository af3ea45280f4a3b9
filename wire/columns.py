# SPDX-License-Identifier: Apache-2.0
"""Tables for people: what does not fit goes on in the next line, and nothing is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


class Uncut:
    """A table that, when it is printed, takes its columns' widths from the terminal's: a cut number lies.

    Where it is too wide, columns go on in the next line between words. Only where not even the longest words
    fit side by side, with no blanks around them, are words folded.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def add_row(self, *cells: str) -> None:
        """As rich's."""
        self._table.add_row(*cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        self._fit(console, options.max_width)
        yield self._table

    def _fit(self, console: Console, width: int) -> None:
        from rich.measure import measure_renderables

        table, columns = self._table, self._table.columns
        wide = console.options.update_width(1 << 16)
        sizes = [measure_renderables(console, wide, [c.header, *c.cells]) for c in columns]
        least, most = sum(size.minimum for size in sizes), sum(size.maximum for size in sizes)
        room = width - (len(columns) + 1 if table.box else 0)
        _, right, _, left = table.padding
        blanks = (left + right) * len(columns)
        if table.box and least + blanks > room:  # lines part the columns, too
            table.padding, blanks = (0, 0, 0, 0), 0
        spare = room - blanks - least
        narrow = 0 <= spare < most - least
        # who wants least is served first: the widest columns alone go on in the next line
        wanting = sorted(zip(columns, sizes, strict=True), key=lambda one: one[1].span)
        for i, (column, size) in enumerate(wanting):
            more = min(size.span, max(spare, 0) // (len(wanting) - i))
            spare -= more
            column.width = size.minimum + more if narrow else None
            column.overflow = "fold"


def uncut(table: Table) -> Uncut:
    """Return the table as it is to be printed, see `Uncut`; rows may still be added."""
    return Uncut(table)
