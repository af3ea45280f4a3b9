# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch`: the embedded switch alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The embedded switch alone.")


class RawCommand(TyperCommand):
    """Leaves its arguments as they are, `--` too, which click would swallow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments for the command."""
        ctx.args = list(args)
        return args


@app.callback()
def _root() -> None:
    """The embedded switch alone."""


@app.command("run", cls=RawCommand, context_settings={"allow_extra_args": True})
def run_command(context: typer.Context) -> None:
    """Run a switch with simple_switch_grpc's flags: -i PORT@INTERFACE ... --no-p4 -- --cpu-port N ..."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from switch.process import run

    run(context.args)


@app.command("stats")
def stats_command(
    path: Annotated[Path, typer.Argument(metavar="SOCKET", help="what --stats-socket named")],
) -> None:
    """Show what each port of a running switch received, sent and lost."""
    from switch.errors import SwitchError
    from switch.stats_socket import read_stats, table

    try:
        answer = read_stats(path)
    except SwitchError as error:
        typer.echo(f"switch: error: {error}", err=True)
        raise typer.Exit(1) from error
    for line in table(answer):
        typer.echo(line)


@app.command("delay")
def delay_command(
    path: Annotated[Path, typer.Argument(metavar="SOCKET", help="what --stats-socket named")],
    port: Annotated[int, typer.Argument(help="number of the port")],
    seconds: Annotated[float, typer.Argument(help="0 to 10; 0 ends it")],
    incoming: Annotated[
        bool, typer.Option("--in", help="what comes in at the port, instead of what leaves by it")
    ] = False,
) -> None:
    """Hold back each packet that leaves by a port of a running switch, as a long link would."""
    from switch.delay import set_delay
    from switch.errors import SwitchError

    try:
        set_delay(path, port, seconds, "in" if incoming else "out")
    except SwitchError as error:
        typer.echo(f"switch: error: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("stf")
def stf_command(
    program: Annotated[Path, typer.Argument(help="bmv2 JSON of p4c", exists=True, dir_okay=False)],
    test: Annotated[
        Path, typer.Argument(help="packets and commands in p4c's STF", exists=True, dir_okay=False)
    ],
    trace: Annotated[bool, typer.Option("--trace", help="tell what happens to each packet")] = False,
) -> None:
    """Run a p4c test file on a program: exit code 0 if every packet comes out as expected."""
    from switch.device import SwitchDevice
    from switch.errors import SwitchError
    from switch.stf import StfError, StfRunner

    try:
        with SwitchDevice.load(program, trace=trace) as device:
            result = StfRunner(device).run(test.read_text("utf-8-sig"))
            for event in device.trace() if trace else ():
                typer.echo(event)
    except UnicodeDecodeError as error:
        typer.echo(f"switch: error: {test} is not text: name the .stf file after the program", err=True)
        raise typer.Exit(1) from error
    except StfError as error:
        typer.echo(f"switch: error: {test}: {error}", err=True)
        raise typer.Exit(1) from error
    except (SwitchError, OSError) as error:
        typer.echo(f"switch: error: {error}", err=True)
        raise typer.Exit(1) from error
    for failure in result.failures:
        typer.echo(failure)
    typer.echo(f"{test.name}: {result.verdict()}")
    raise typer.Exit(0 if result.passed else 1)
