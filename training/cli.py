# SPDX-License-Identifier: Apache-2.0
"""`p4reduce train`: the main job, as `make run` starts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wire.constants import MAX_WORKERS
from wire.errors import P4ReduceError
from wire.hints import command

if TYPE_CHECKING:
    from training.run import Options, Outcome

app = typer.Typer()


class OptionError(P4ReduceError):
    """An option that no run can have; carries it as given."""

    def __init__(self, option: str, allowed: str) -> None:
        super().__init__(f"{option}: {allowed}")
        self.option = option


@app.command()
def train(
    workers: Annotated[int, typer.Option(help="Hosts that train, 1 to 64.")] = 4,
    elements: Annotated[int, typer.Option(help="Values in a packet, 64 or 256.")] = 256,
    loss: Annotated[float, typer.Option(help="Percent of packets that the switch drops, each way.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the data split, the model, and the losses.")] = 1,
    switch: Annotated[
        str | None, typer.Option(help="embedded or bmv2; default: $P4REDUCE_SWITCH, else embedded.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the network up afterwards.")] = False,
    pcap: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Capture every link into this folder.")
    ] = None,
    name: Annotated[str, typer.Option(help="The network's name.")] = "run",
) -> None:
    """Train a classifier data-parallel; the switch sums every gradient. Checks its own result."""
    if not 1 <= workers <= MAX_WORKERS:
        raise OptionError(
            f"--workers {workers}", f"a star has 1 to {MAX_WORKERS}, the bits of a switch's slot"
        )
    if not 0 <= loss < 100:
        raise OptionError(f"--loss {loss:g}", "a percentage of 0 or more and under 100")
    if not 0 <= seed < 1 << 32:
        raise OptionError(f"--seed {seed}", f"a number from 0 to {(1 << 32) - 1}")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from topologies.record import names
    from training.run import CheckError, Options, Watch, run

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

    options = Options(workers, elements, loss, seed, switch, pcap, keep, name)
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
        net = f" --net {name}" if len(names()) > 1 else ""
        for arguments in ("net status", f"net exec{net} h1 ping -c 3 10.0.255.1", f"net down{net}"):
            lines.append(f"  {command(arguments)}")
        lines.insert(-1, f"  {command(f'bench allreduce --net {options.name} --workers {workers}')}")
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if failed:
        raise CheckError(*failed[0])


def _table(outcome: Outcome, options: Options) -> object:
    from rich.table import Table

    ranks = outcome.ranks
    rates = [8 * r["bytes"] / r["seconds"] / 1e6 for r in ranks]
    rows = [
        ("switch target", outcome.target),
        ("workers", str(len(ranks))),
        ("values a packet, window", f"{options.elements}, {outcome.window} slots"),
        (
            "all-reduces",
            f"{ranks[0]['all_reduces']} of {ranks[0]['bytes'] // ranks[0]['all_reduces'] // 4} floats",
        ),
        ("packets sent, received", f"{sum(r['sent'] for r in ranks)}, {sum(r['received'] for r in ranks)}"),
        ("retransmissions", str(sum(r["retransmissions"] for r in ranks))),
        ("dropped by the fault table", f"{outcome.lost} ({options.loss_percent:g} % each way)"),
        ("goodput a worker", f"{sum(rates) / len(rates):.1f} Mbit/s of gradients while reducing"),
    ]
    totals: dict[str, int] = {}
    for counts in outcome.by_worker.values():
        for verdict, (packets, _) in counts.items():
            totals[verdict.name] = totals.get(verdict.name, 0) + packets
    for name, packets in totals.items():
        rows.append((f"switch: {name.lower().replace('_', ' ')}", str(packets)))
    table = Table("", "", show_header=False, title="What the run did")
    for row in rows:
        table.add_row(*row)
    return table
