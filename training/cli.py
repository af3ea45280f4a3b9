# SPDX-License-Identifier: Apache-2.0
"""`p4reduce train`: the main job, as `make run` starts it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.errors import CheckError, OptionError
from wire.constants import MAX_WORKERS
from wire.hints import command
from wire.percent import PercentError, percent

if TYPE_CHECKING:
    from training.run import Options, Outcome

app = typer.Typer()


@app.command()
def train(
    workers: Annotated[
        int | None, typer.Option(help="Hosts that train, 1 to 64; default 4, or all of --net's.")
    ] = None,
    elements: Annotated[
        int | None, typer.Option(help="Values in a packet, 64 or 256; default 256, or --net's.")
    ] = None,
    loss: Annotated[
        str, typer.Option(metavar="PERCENT", help="Of the packets, as 1%, that the switch drops, each way.")
    ] = "0",
    seed: Annotated[int, typer.Option(help="Of the data split, the model, and the losses.")] = 1,
    switch: Annotated[
        str | None, typer.Option(help="embedded or bmv2; default: $P4REDUCE_SWITCH, else embedded.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the network up afterwards.")] = False,
    pcap: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Capture every link into this folder.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the network that is brought up; default: run.")
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A network that runs; default: a star of its own, taken down."),
    ] = None,
    job: Annotated[str, typer.Option(help="The job's name.")] = "train",
) -> None:
    """Train a classifier data-parallel; the switch sums every gradient. Checks its own result."""
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise OptionError(
            f"--workers {workers}", f"a star has 1 to {MAX_WORKERS}, the bits of a switch's slot"
        )
    loss_percent = _loss(loss)
    if not 0 <= seed < 1 << 32:
        raise OptionError(f"--seed {seed}", f"a number from 0 to {(1 << 32) - 1}")
    for option, given in (("--name", name is not None), ("--pcap", pcap is not None), ("--keep", keep)):
        if given and net is not None:
            raise OptionError(option, f"it is for a network of its own: leave it out, or --net {net}")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from topologies.record import names
    from training.run import Options, Watch, run

    console = Console(width=None if sys.stdout.isatty() else 110)
    progress = Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # elsewhere all it ever draws is an empty line at the end
    )

    class Drawn(Watch):
        """Lines and a progress bar on the terminal."""

        def say(self, line: str) -> None:
            console.print(line, highlight=False, soft_wrap=True)

        def epoch(self, epoch: int, epochs: int, loss: float) -> None:
            if not progress.tasks:
                progress.add_task("epochs", total=epochs, loss=loss)
            progress.update(progress.tasks[0].id, completed=epoch + 1, loss=loss)
            console.print(f"epoch {epoch + 1:2d}/{epochs}  loss {loss:.4f}", highlight=False)

    options = Options(workers, elements, loss_percent, seed, switch, pcap, keep, name or "run", net, job)
    with progress:
        outcome = run(options, Drawn())
    console.print(_table(outcome, options))
    failed = [(what, detail) for what, holds, detail in outcome.checks() if not holds]
    for what, holds, detail in outcome.checks():
        console.print(f"{'ok    ' if holds else 'FAILED'} {what}: {detail}", highlight=False, soft_wrap=True)
    if pcap is not None:
        console.print(f"captures of every link: {pcap.absolute()}", highlight=False, soft_wrap=True)
    if keep:
        lines = [f"network {options.name} is still up; try:"]
        which = f" --net {options.name}" if len(names()) > 1 else ""
        for arguments in ("net status", f"net exec{which} h1 ping -c 3 10.0.255.1", f"net down{which}"):
            lines.append(f"  {command(arguments)}")
        bench = f"bench allreduce --net {options.name} --workers {outcome.plan.n}"
        lines.insert(-1, f"  {command(bench)}")
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if failed:
        raise CheckError(*failed[0])


def _loss(text: str) -> float:
    with suppress(PercentError):
        if percent(text) < 100:
            return percent(text)
    raise OptionError(
        f"--loss {text or 'nothing'}", "a percentage of 0 or more and under 100: 1, 1% or 0.05%"
    )


def _table(outcome: Outcome, options: Options) -> object:
    from rich.table import Table

    ranks = outcome.ranks
    # A network of its own has no losses but these; one that is up may have its links'.
    asked = options.net is None or options.loss_percent > 0
    told = f" ({options.loss_percent:g} % each way)" if asked else ""
    rates = [8 * r["bytes"] / r["seconds"] / 1e6 for r in ranks]
    rows = [
        ("switch target", outcome.target),
        ("workers", str(len(ranks))),
        ("values a packet, window", f"{outcome.elements}, {outcome.window} slots"),
        (
            "all-reduces",
            f"{ranks[0]['all_reduces']} of {ranks[0]['bytes'] // ranks[0]['all_reduces'] // 4} floats",
        ),
        ("packets sent, received", f"{sum(r['sent'] for r in ranks)}, {sum(r['received'] for r in ranks)}"),
        ("retransmissions", str(sum(r["retransmissions"] for r in ranks))),
        ("dropped by the fault table", f"{outcome.lost}{told}"),
        ("goodput a worker", f"{sum(rates) / len(rates):.1f} Mbit/s of gradients while reducing"),
    ]
    for name, packets in outcome.verdicts.items():
        rows.append((f"switch: {name.replace('_', ' ')}", str(packets)))
    table = Table("", "", show_header=False, title="What the run did")
    for row in rows:
        table.add_row(*row)
    return table
