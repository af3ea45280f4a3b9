# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch`: the embedded switch alone."""

from __future__ import annotations

import os
from typing import Any

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
