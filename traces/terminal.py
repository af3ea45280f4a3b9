# SPDX-License-Identifier: Apache-2.0
"""What the trace commands share: options, progress, and pipes that end early."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .files import Told, expand

NetOption = Annotated[
    str | None,
    typer.Option("--net", metavar="NAME", help="Which network; needless when only one runs."),
]
FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILES...", help="Captures, or folders of them.", show_default=False),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="p4reduce, or switchml: its ports lie among ours, so say it."
    ),
]


@contextmanager
def progress(paths: Sequence[Path]) -> Iterator[Callable[[str], Told]]:
    """Draw bars on stderr, if that is a terminal: yields what makes one, of a title, for reading them all.

    Raises TraceFileError as `expand`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    total = sum(path.stat().st_size for path in expand(paths))
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:

        def bar(title: str) -> Told:
            task = shown.add_task(title, total=total)
            return lambda more: shown.advance(task, more)

        yield bar


@contextmanager
def until_closed() -> Iterator[None]:
    """Run the body until it is done or nobody reads its output any more, as with `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
