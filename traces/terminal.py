# SPDX-License-Identifier: Apache-2.0
"""What the trace commands share: options, and pipes that end early."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

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
def until_closed() -> Iterator[None]:
    """Run the body until it is done or nobody reads its output any more, as with `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
