# SPDX-License-Identifier: Apache-2.0
"""`p4reduce worker …`: a rank of a job, without writing a program."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.terminal import JobArgument, JsonOption, NetOption, print_json, print_table

if TYPE_CHECKING:
    from .run import Options, Outcome

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A worker on a host.")

CODES = {
    "0": "all iterations are done",
    "1": "anything else went wrong",
    "2": "the command, the array or a file cannot be used as given",
    "3": "the ranks' calls differ",
    "4": "another worker was lost",
    "5": "time-out: a result, or a rank, did not come",
    "6": "the job ended or is being drained, or its controller went away",
    "7": "values that cannot be summed (NaN, infinity)",
    "8": "the rank cannot be had: no such job or rank, another host's, or taken",
    "130, 143": "Ctrl-C, TERM: it has left the job",
}
"""Exit codes of `worker run`; the errors carry them."""
EPILOG = "\n\n".join(["Exit codes:", *(f"{code}  {why}" for code, why in CODES.items())])


@app.callback()
def _root() -> None:
    """A worker on a host."""


@app.command("run", epilog=EPILOG)
def run_command(
    job: JobArgument,
    rank: Annotated[int, typer.Option(min=0, help="Which rank of the job, 0 to n-1: this host's.")],
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of a generated array, as 64MiB; default 1MiB.")
    ] = None,
    iters: Annotated[
        int | None, typer.Option(min=1, help="How often it is summed; default 10, 1 with --input.")
    ] = None,
    input: Annotated[
        Path | None, typer.Option(metavar="A.npy", help="An array to sum; memory-mapped.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="B.npy", help="Where the last sum goes, once it is complete.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32 (default), int32, float16, bfloat16, or float64: as float32 on the way."),
    ] = None,
    op: Annotated[str, typer.Option(help="sum, or mean (floats).")] = "sum",
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the other ranks, and for any result.")
    ] = 60.0,
    net: NetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sum an array over all ranks of a job: a generated one, or a file's. Run it on the rank's host.

    p4reduce net exec h1 -- p4reduce worker run JOB --rank 0

    All ranks give the same size, dtype, op and iterations. It checks no sum: it does not know what the
    others contribute.
    """
    from .run import OptionError, Options, run

    if input is not None and size is not None:
        raise OptionError("--size and --input", "give one of them")
    if size is None and input is None:
        size = "1MiB"
    iters = iters or (10 if input is None else 1)
    options = Options(job, rank, net, size, input, output, iters, dtype, op, timeout)
    with _Drawn(iters) as drawn:
        try:
            outcome = run(options, drawn)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, TERM
            drawn.stopped(job)
            raise
    if as_json:
        print_json(tree(options, outcome))
    else:
        print_table((f"job {job}", f"rank {rank} of {outcome.n}"), rows(options, outcome))


class _Drawn:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, iters: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._iters = iters
        self._rank, self._at = "this rank", "was waiting for the other ranks"
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("waiting for the other ranks", total=None)

    def __enter__(self) -> _Drawn:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def joined(self, rank: int, n: int) -> None:
        """Tell that all ranks are there; see run.Watch."""
        self._rank, self._at = f"rank {rank} of {n}", f"was before all-reduce 1 of {self._iters}"
        self._bar.reset(self._task, total=float(self._iters), description=f"rank {rank} of {n}")

    def progress(self, iteration: int, done: int, elements: int) -> None:
        """Draw; see run.Watch."""
        share = done / elements if elements else 1.0
        words = f"all-reduce {iteration + 1}/{self._iters}"
        self._at = f"was in all-reduce {iteration + 1} of {self._iters} ({share:.0%} summed)"
        self._bar.update(self._task, completed=iteration + share, description=words)

    def stopped(self, job: str) -> None:
        """Say so, and how far it was."""
        self._bar.stop()
        typer.echo(f"stopped: {self._rank} {self._at}, and has left job {job}", err=True)


def tree(options: Options, outcome: Outcome) -> dict[str, Any]:
    """Return what --json prints: times in seconds, rates in bit/s."""
    stats = outcome.stats
    return {
        "job": options.job,
        "rank": options.rank,
        "n": outcome.n,
        "op": options.op,
        "dtype": outcome.dtype,
        "elements": outcome.elements,
        "bytes": outcome.bytes,
        "iters": len(outcome.seconds),
        "seconds": outcome.seconds,
        "goodput_bps": outcome.goodput,
        "packets_sent": stats.packets_sent,
        "packets_received": stats.packets_received,
        "retransmissions": stats.retransmissions,
        "duplicates": stats.duplicates,
        "strays": stats.strays,
        "rtt": {"p50": stats.rtt_p50, "p90": stats.rtt_p90, "p99": stats.rtt_p99},
        "window": {"slots": outcome.window, "mean": stats.window_mean, "limited": stats.window_limited},
        "output": None if options.output is None else str(options.output.absolute()),
    }


def rows(options: Options, outcome: Outcome) -> list[tuple[str, str]]:
    """Return the table that people read."""
    stats, seconds = outcome.stats, outcome.seconds
    found = [
        ("all-reduces", f"{len(seconds)} of {outcome.elements} {outcome.dtype} ({outcome.bytes} bytes)"),
        ("seconds each", f"median {median(seconds):.4g}, {min(seconds):.4g} to {max(seconds):.4g}"),
        ("goodput", f"{outcome.goodput / 1e6:.1f} Mbit/s"),
        ("packets sent, received", f"{stats.packets_sent}, {stats.packets_received}"),
        ("retransmissions", str(stats.retransmissions)),
        ("duplicates, strays", f"{stats.duplicates}, {stats.strays}"),
        ("round trip, 50 90 99 %", ", ".join(map(_ms, (stats.rtt_p50, stats.rtt_p90, stats.rtt_p99)))),
        (
            "packets in flight",
            f"mean {stats.window_mean:.1f} of {outcome.window} slots; "
            f"slots or congestion window held packets back {100 * stats.window_limited:.0f} % of the time",
        ),
    ]
    if options.output is not None:
        found.append(("written", str(options.output)))
    return found


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.3g} ms"
