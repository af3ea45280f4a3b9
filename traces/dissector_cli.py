# SPDX-License-Identifier: Apache-2.0
"""`p4reduce trace dissector`: where the dissector for Wireshark and tshark is, and how they get it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from wire.hints import command

from .errors import DissectorError
from .terminal import until_closed

LUA = Path(__file__).with_name("p4reduce.lua")
ASK_SECONDS = 20.0
"""How long tshark is given to say where its folders are."""
_FOLDER = "Personal Lua Plugins:"


def trace_dissector(
    install: Annotated[
        bool, typer.Option("--install", help="Copy it into your own plugins of Wireshark.")
    ] = False,
) -> None:
    """Show packets in Wireshark and tshark: tell where the dissector is, or install it."""
    folder = plugins()
    with until_closed():
        if install:
            typer.echo(f"installed: {put(folder)}; Wireshark and tshark have it from their next start on")
            return
        typer.echo(f"{LUA}\n")
        typer.echo(f"once:    tshark -X lua_script:{LUA} -r CAPTURE -Y 'p4reduce.slot == 3'")
        typer.echo(f"always:  {command('trace dissector --install')}  (copies it into {folder})")


def plugins() -> Path:
    """Return the folder of this user's Lua plugins: as tshark says, else where Wireshark looks by default."""
    default = Path.home() / ".local" / "lib" / "wireshark" / "plugins"
    tshark = shutil.which("tshark")
    if tshark is None:
        return default
    try:
        asked = subprocess.run(
            [tshark, "-G", "folders"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return default
    told = [
        line.removeprefix(_FOLDER).strip() for line in asked.stdout.splitlines() if line.startswith(_FOLDER)
    ]
    return Path(told[0]) if told and told[0] else default


def put(folder: Path) -> Path:
    """Copy the dissector into a folder; return the copy. Raises DissectorError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(LUA, folder / LUA.name))
    except OSError as error:
        raise DissectorError(folder, error.strerror or str(error)) from error
