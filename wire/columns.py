# SPDX-License-Identifier: Apache-2.0
"""Tables for people: what does not fit goes on in the next line, and nothing is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def uncut(table: Table) -> Table:
    """Return the table with every column folded where the terminal is too narrow: a cut number lies."""
    for column in table.columns:
        column.overflow = "fold"
    return table
