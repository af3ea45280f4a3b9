# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace plot`: pictures of what happened on the links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import page, plot
from .errors import FilterError, PlotError
from .series import MOST_ROWS, collect
from .show import numbers
from .terminal import FilesArgument, progress, until_closed


def trace_plot(
    files: FilesArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="A folder, for a picture of each thing; or NAME.png or NAME.svg, for one of all.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One page of all packets, to zoom into; it needs no network."),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="png|svg", help="Of the pictures in a folder.")
    ] = "png",
    job: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of this job: name or number. Repeat for more.")
    ] = None,
    chunk: Annotated[
        str | None, typer.Option(metavar="N-M", help="The waterfall's chunks; else the first ones.")
    ] = None,
) -> None:
    """Draw slots in use, goodput, round trips, retransmissions, links, chunks; or a page of packets."""
    if format_ not in plot.FORMATS:
        raise FilterError(f"--format {format_}", f"there are {' and '.join(plot.FORMATS)}")
    chunks = None if chunk is None else numbers("--chunk", chunk)
    if chunks is not None and len(chunks) > MOST_ROWS:
        raise FilterError(f"--chunk {chunk}", f"a waterfall shows at most {MOST_ROWS} chunks")
    if out is None and html is None:
        raise FilterError("trace plot", "name --out DIR or FILE for pictures, --html FILE for a page")
    if out is not None:
        plot.check(out)
    if html is not None:
        page.check(html)
    written: list[Path] = []
    try:
        with progress(files) as bar:
            series = collect(files, jobs=job or (), chunks=chunks, bar=bar)
            if series.failure is not None and not series.packets:
                raise series.failure  # and what was drawn before stays
            if out is not None:
                written += plot.draw(series, out, format_)
            if html is not None:
                chosen = {each.job for each in series.jobs} if job else ()
                stride = page.write(series, files, html, chosen, bar("packets of the page"))
                written.append(html)
                if stride > 1:
                    series.notes.append(
                        f"{html} has one of every {stride} chunks: --job and fewer files show more"
                    )
    except OSError as error:
        raise PlotError(
            str(error.filename or out or html), f"cannot be written: {error.strerror or error}"
        ) from error
    with until_closed():
        for note in [
            *series.notes,
            *(f"{each.named}: {note}" for each in series.jobs for note in each.notes),
        ]:
            typer.echo(f"note: {note}")
        for path in written:
            typer.echo(path)
    if series.failure is not None:
        raise series.failure
