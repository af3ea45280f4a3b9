# SPDX-License-Identifier: Apache-2.0
"""What benchmarks show while they run, and their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer


@contextmanager
def progress() -> Iterator[tuple[Callable[[str], None], Callable[[str], Callable[[float], None]]]]:
    """Show steps and bars on stderr, so that stdout has the table or JSON alone.

    Yields what takes a step, and what makes a bar of a title; a bar takes the share that is done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Without a terminal all it ever draws is an empty line at the end.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:

        def say(line: str) -> None:
            console.print(line, highlight=False, soft_wrap=True)

        def bar(what: str) -> Callable[[float], None]:
            task = shown.add_task(f"measuring {what}", total=1.0)
            return lambda share: shown.update(task, completed=share)

        yield say, bar


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> None:
    """Print a table whose first `left` columns are words, the others figures."""
    from rich.console import Console
    from rich.table import Table

    from wire.columns import uncut

    table = Table(title=title)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*row)
    # Piped, a table is not cut to 80 columns.
    Console(width=None if sys.stdout.isatty() else 120).print(uncut(table))


def print_absent(absent: Mapping[str, str]) -> None:
    """Say what was not measured, and why."""
    for what, why in absent.items():
        typer.echo(f"{what} was not measured: {why}")
