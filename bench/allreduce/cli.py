# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench import terminal

from . import options
from .cells import (
    DEFAULT_LIMIT_S,
    DTYPES,
    PEERS,
    QUICK_LIMIT_S,
    Cell,
    cells_of,
    default_cells,
    quick_cells,
)

if TYPE_CHECKING:
    from topologies.record import NetRecord

    from .run import Outcome

BUDGET_S = 1.0
QUICK_BUDGET_S = 0.4


def bench_allreduce(
    sizes: Annotated[
        str | None, typer.Option(help="Bytes of each worker's array: 4KiB,4MiB; usual: 4MiB, bmv2 256KiB.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Workers, each in its own host: 2,8; usual: 4, or NAME's hosts.")
    ] = None,
    links: Annotated[
        str | None, typer.Option(help="Rates of the links: 100mbit,1gbit,unshaped; usual: unshaped.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Percent of packets that the switch drops each way: 0,0.1,1; usual: 0.")
    ] = None,
    targets: Annotated[str | None, typer.Option(help="embedded,bmv2; usual: each that is present.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float32,int32; usual: both.")] = None,
    peers: Annotated[
        str, typer.Option(help="What is measured beside: gloo,numpy,pingpong, or none.")
    ] = ",".join(PEERS),
    quick: Annotated[bool, typer.Option("--quick", help="A few cells, in a minute.")] = False,
    elements: Annotated[
        int | None, typer.Option(help="Values in a packet, 64 or 256; default 256, or NAME's.")
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A network that runs; default: stars of its own, then taken down."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write everything as JSON; - prints it, and no tables."),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw goodput into PNG files there (matplotlib).")
    ] = None,
) -> None:
    """Goodput of all-reduces, beside Gloo's ring on the same links; every result is compared with a sum.

    Without options that choose cells: a set that shows how goodput depends on workers, links, sizes and loss,
    in 15 minutes. With any of them: all combinations, with the usual values of the others. No cell takes
    more than 20 seconds each way: what would is not begun, and the end says so.
    """
    from . import plots as drawing
    from .run import Run

    if plots is not None:
        drawing.check()
        plots.mkdir(parents=True, exist_ok=True)
    if json_file is not None and str(json_file) != "-" and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file}: its folder does not exist", param_hint="--json")
    chosen = any(option is not None for option in (sizes, workers, links, loss, targets, dtypes))
    if quick and (chosen or net is not None):
        raise typer.BadParameter("it has cells of its own: give no other choice", param_hint="--quick")
    ways = options.peers("--peers", peers)
    absent: dict[str, str] = {}
    running = None
    limit_s = None
    if net is not None:
        running = _running(net, elements, {"--links": links, "--loss": loss, "--targets": targets})
        counts = (
            [len(running.hosts)] if workers is None else options.words("--workers", workers, options.workers)
        )
        if max(counts) > len(running.hosts):
            raise typer.BadParameter(f"network {net} has {len(running.hosts)} hosts", param_hint="--workers")
        cells = _combined(sizes, counts, [_rate_of(running)], [0.0], [running.target], dtypes)
    else:
        present = _present(targets, absent)
        if quick:
            cells, limit_s = quick_cells(present), QUICK_LIMIT_S
        elif not chosen:
            cells, limit_s = default_cells(present), DEFAULT_LIMIT_S
        else:
            counts = [4] if workers is None else options.words("--workers", workers, options.workers)
            rates = [None] if links is None else options.words("--links", links, options.link)
            losses = [0.0] if loss is None else options.words("--loss", loss, options.loss)
            cells = _combined(sizes, counts, rates, losses, present, dtypes)
    with terminal.progress() as (say, bar):
        run = Run(
            peers=ways,
            budget_s=QUICK_BUDGET_S if quick else BUDGET_S,
            limit_s=limit_s,
            elements=256 if elements is None else elements,
            say=say,
            progress=bar("cells"),
        )
        run.outcome.absent.update(absent)
        try:
            run.all(cells, running)
        except BaseException:  # a signal, or a wrong sum
            if run.outcome.results:
                say("it ended early; what was measured until then:")
                _report(run.outcome, json_file)
            raise
    _report(run.outcome, json_file)
    if plots is not None:
        for path in drawing.draw(run.outcome, plots):
            typer.echo(f"drawn: {path}", err=True)


def _report(outcome: Outcome, json_file: Path | None) -> None:
    from . import report

    text = json.dumps(report.tree(outcome), indent=1)
    if json_file is not None and str(json_file) == "-":
        typer.echo(text)
        return
    if json_file is not None:
        json_file.write_text(text + "\n")
    report.print_all(outcome, typer.echo)


def _combined(
    sizes: str | None,
    counts: Sequence[int],
    rates: Sequence[float | None],
    losses: Sequence[float],
    targets: Sequence[str],
    dtypes: str | None,
) -> list[Cell]:
    from .cells import by_place

    return by_place(
        cells_of(
            targets,
            counts,
            rates,
            None if sizes is None else options.words("--sizes", sizes, options.nbytes),
            DTYPES if dtypes is None else options.words("--dtypes", dtypes, options.dtype),
            losses,
        )
    )


def _present(wanted: str | None, absent: dict[str, str]) -> list[str]:
    """Return the targets to measure; note in `absent` those that cannot run here. TargetError if none can."""
    from topologies.targets import choose, targets

    known = targets()
    if wanted is not None:
        asked = options.words("--targets", wanted, options.one_of(tuple(known)))
        return [choose(name).name for name in asked]
    for target in known.values():
        missing = target.missing()
        if missing is not None:
            absent[target.name] = missing
    return [name for name in known if name not in absent] or [choose().name]


def _running(net: str, elements: int | None, fixed: dict[str, str | None]) -> NetRecord:
    """Return a running network; it is as it is, so these options cannot be given with it."""
    from topologies.record import load

    record = load(net)
    for option, value in fixed.items():
        if value is not None:
            raise typer.BadParameter(f"network {net} is measured as it is", param_hint=option)
    if elements not in (None, record.elements):
        raise typer.BadParameter(f"network {net} runs with {record.elements}", param_hint="--elements")
    return record


def _rate_of(record: NetRecord) -> float | None:
    """Return the rate of the network's slowest link, None where none is shaped."""
    rates = [link.rate_mbit for link in record.links if link.rate_mbit is not None]
    return min(rates) if rates else None
