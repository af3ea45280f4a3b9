# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce`: each room brings its own sub-commands, loaded when they are used."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from wire.errors import P4ReduceError

ROOMS = {
    "net": ("topologies.cli", "Networks: up, status, link, exec, shell, cli, switch, draw, doctor, down."),
    "controller": (
        "controller.controller_cli",
        "Keep a network's jobs and serve its API (net up starts one).",
    ),
    "job": ("controller.job_cli", "Tenants' jobs: add, list, show, resize, drain, rm, events, quota."),
    "slots": ("controller.look_cli", "The slots of a job: chunk, who has contributed, who is missing."),
    "explain": ("controller.look_cli", "Why a job does not progress, in plain words."),
    "top": ("controller.top", "A live table of jobs and switches."),
    "switch": ("switch.cli", "The embedded switch alone."),
    "worker": ("worker.cli", "A worker on a host: run."),
    "trace": ("traces.cli", "Packet traces: record, show, verify, explain, slot, chunk, plot, dissector."),
    "train": ("training.cli", "Train a model through the network."),
    "bench": ("bench.cli", "Benchmarks and comparisons, each prints a table."),
}
"""Sub-command → the module whose `app` it is, and what it does. A room without the module is absent.

Where the app has a command of that very name among others, it is that one.
"""


class Rooms(TyperGroup):
    """A command group that imports a room only when its sub-command is used: `--help` stays quick."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the rooms that have a command line."""
        return [name for name, (module, _) in ROOMS.items() if _exists(module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a room's command, None for an unknown one; for the list in `--help` a stub does."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, help_text = ROOMS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=help_text)
        command: Any = typer.main.get_command(importlib.import_module(module).app)
        command = getattr(command, "commands", {}).get(cmd_name, command)
        command.name = cmd_name
        # The rooms' apps may be made with typer's defaults; one program has one completion.
        command.params = [param for param in command.params if param.name not in _COMPLETION]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the room of what was typed; where there is none, typer suggests some of `commands`."""
        self.commands = {name: TyperCommand(name) for name in self.list_commands(ctx)}
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a room's name, with the rooms as ROOMS has them."""
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the rooms as ROOMS has them."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _exists(module: str) -> bool:
    """Say whether ROOM.NAME is there, without importing the room as find_spec(module) would."""
    room, _, name = module.partition(".")
    spec = importlib.util.find_spec(room)
    folders = spec.submodule_search_locations if spec is not None else None
    return any(Path(folder, f"{name}.py").exists() for folder in folders or ())


_COMPLETION = ("install_completion", "show_completion")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"p4reduce {version('p4reduce')}")
        raise typer.Exit


app = typer.Typer(
    cls=Rooms,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Gradients summed by the network: a testbed.",
)


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_AGAIN_S = 0.01
_ATTEMPTS = 200
"""Two seconds: who waits there for longer is interrupted all the same."""


def _half_locked(frame: FrameType | None) -> bool:
    """Say whether the code is about to take or release a lock of `threading`, which is written in Python.

    An exception there leaves the lock held, or lost: who unwinds would wait for ever, or fail of it.
    """
    if frame is None or frame.f_code.co_filename != threading.__file__:
        return False
    return frame.f_code.co_name != "wait" or "gotit" not in frame.f_locals  # set while it waits


def _unwinding() -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that exits where the main thread is, or a moment later."""
    attempts, code = 0, 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal attempts, code
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the clean-up
        attempts += 1
        code = code or 128 + number
        if attempts < _ATTEMPTS and _half_locked(frame):
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        raise SystemExit(code)

    return handle


MAKERS = (["net", "up"], ["net", "doctor"], ["train"], ["bench"])
"""How the commands begin that make networks, or try whether they could."""


def _enter_own_networks(words: list[str]) -> None:
    """Go where an ordinary user's networks are; where that cannot be, the command says what it lacks.

    A command that makes none goes there only if there are some. One for a controller elsewhere stays.
    """
    elsewhere = words[:1] != ["net"] and words[:1] != ["trace"] and any(w.startswith("--url") for w in words)
    if os.geteuid() == 0 or "--help" in words[:3] or elsewhere:
        return
    from topologies import rootless
    from topologies.errors import RootlessError

    with suppress(RootlessError):
        rootless.enter(make=any(words[: len(maker)] == maker for maker in MAKERS))


SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Where Debian has tc, ethtool and ifconfig, and which are not on every user's path."""


def _find_system_commands() -> None:
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(each for each in SYSTEM_FOLDERS if each not in path)])


def _open_what_is_closed() -> None:
    """Let standard streams that the caller closed be empty ones: nothing else then gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as we run


def main() -> None:
    """Run the command line; an error of ours becomes one line and its exit code, so does a full disk.

    TERM and HUP (a closed session) unwind as Ctrl-C does, so that what was started is stopped again.
    """
    _open_what_is_closed()
    _find_system_commands()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup keeps HUP ignored
            signal.signal(number, _unwinding())
    try:
        _enter_own_networks(sys.argv[1:])
        app()
    except P4ReduceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error.filename or 'what is written'}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer would fail again
        sys.exit(1)
