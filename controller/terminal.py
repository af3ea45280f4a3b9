# SPDX-License-Identifier: Apache-2.0
"""What the commands that ask a controller share: how it is reached, tables, units, completion."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from controller.errors import ControllerError
from wire import constants
from wire.columns import uncut
from wire.constants import TOKEN_VARIABLE
from wire.control import CALL_SECONDS, SOCKET, ControlClient, find_socket

COMPLETION_SECONDS = 1.0
"""How long a completion may ask a controller."""
PIPE_WIDTH = 140
"""Columns of a table that no terminal cuts."""

UNITS: dict[str, int] = {
    **{f"{prefix}bit": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}bit": 1024**power for power, prefix in enumerate(("ki", "mi", "gi", "ti"), 1)},
    **{f"{prefix}bps": 8 * 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}bps": 8 * 1024**power for power, prefix in enumerate(("ki", "mi", "gi", "ti"), 1)},
}
"""tc's units of rates, tc(8), as bit/s: `bps` is bytes a second."""


class CommandError(ControllerError):
    """A command that cannot be done as it was typed; `what` is the part at fault."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def reach(
    net: str | None, url: str | None, seconds: float = CALL_SECONDS, patience: float = 0.0
) -> ControlClient:
    """Return a client of a network's controller, or of the one at a URL; use it as a context manager.

    Raises CommandError, and UnreachableControllerError if it is unclear which network is meant.
    """
    if url is None:
        return ControlClient(find_socket(net, constants.RUN_ROOT), seconds=seconds, patience=patience)
    if net is not None:
        raise CommandError("--url and --net", "give one of them")
    if not re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[^/\s:\[\]@?#]+)(:\d{1,5})?/?", url):
        raise CommandError(f"--url {url}", "is not http://HOST:PORT")
    return ControlClient(url.rstrip("/"), os.environ.get(TOKEN_VARIABLE), seconds)


def bits_per_second(text: str) -> int:
    """Return a rate as tc takes it, 200mbit or 25mbps or a bare number of bit/s; CommandError for others."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([a-z]*)", text.strip().lower())
    unit = UNITS.get(found[2] or "bit") if found else None
    if found is None or unit is None:
        raise CommandError(
            f"rate {text or repr(text)}",
            "a rate is a number and a unit of tc: 500kbit, 200mbit, 1gbit (bit/s), 25mbps (byte/s)",
        )
    return round(float(found[1]) * unit)


def rate_words(bps: int | None) -> str:
    """Return a rate as people read it."""
    if bps is None:
        return "none"
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if bps >= size:
            return f"{bps / size:g} {unit}"
    return f"{bps} bit/s"


# ---- output
def print_json(value: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(value, indent=1))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; a terminal folds what is too wide, a pipe gets PIPE_WIDTH columns."""
    from rich.console import Console
    from rich.table import Table

    table = uncut(Table(*heads))
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False).print(table)


# ---- completion
def complete_networks(incomplete: str) -> list[str]:
    """Name the networks whose controllers serve."""
    found = sorted(path.parent.name for path in constants.RUN_ROOT.glob(f"[!.]*/{SOCKET}"))
    return [name for name in found if name.startswith(incomplete)]


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the controller's jobs."""
    return _names(ctx, "/v1/jobs", incomplete, lambda told: [job["name"] for job in told])


def complete_tenants(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the tenants."""
    return _names(ctx, "/v1/tenants", incomplete, lambda told: [tenant["name"] for tenant in told])


def complete_switches(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the network's switches."""
    return _names(ctx, "/v1/network", incomplete, lambda told: [each["name"] for each in told["switches"]])


def complete_hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the network's hosts that may come next in a list h1,h2,…"""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    found = _names(ctx, "/v1/network", last, lambda told: list(told["hosts"]))
    return [f"{before}{comma}{host}" for host in found if host not in taken]


def complete_links(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the network's links, h1-s1."""
    try:
        from topologies.record import load_default

        found = {link.name for link in load_default(ctx.params.get("net")).links}
        return sorted(name for name in found if name.startswith(incomplete))
    except Exception:  # as below
        return []


def _names(ctx: typer.Context, path: str, incomplete: str, names: Callable[[Any], list[str]]) -> list[str]:
    params = ctx.params
    try:
        with reach(params.get("net"), params.get("url"), COMPLETION_SECONDS) as client:
            return [name for name in names(client.call("GET", path)) if name.startswith(incomplete)]
    except Exception:  # a completion that cannot ask offers nothing, whatever the reason
        return []


NetOption = Annotated[
    str | None,
    typer.Option(
        "--net",
        metavar="NAME",
        help="Which network; needless when only one runs.",
        autocompletion=complete_networks,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help=f"A controller's TCP address, http://…, with ${TOKEN_VARIABLE}."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The job.", autocompletion=complete_jobs, show_default=False)
]
SwitchArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SWITCH", help="Which switch; needless if there is one.", autocompletion=complete_switches
    ),
]


def name_list(option: str, text: str, like: str) -> list[str]:
    """Return the names of a list like h1,h2,…; CommandError, which names the option, if one is empty."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise CommandError(f"{option} {text or repr(text)}", f"is not a list like {like}")
    return names
