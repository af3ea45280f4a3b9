# SPDX-License-Identifier: Apache-2.0
"""`p4reduce controller`: the daemon, in the foreground."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

TOKEN_VARIABLE = "P4REDUCE_TOKEN"


@app.command()
def controller(
    net: Annotated[
        str | None, typer.Option("--net", metavar="NAME", help="Which network; needless when only one runs.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Serve on TCP too, with a token: ${TOKEN_VARIABLE}, else a new one."
        ),
    ] = None,
    lease: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="Seconds after which a silent worker is lost.")
    ] = 10.0,
    root: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Keep a running network's jobs and serve its API; as a backup while another controller does.

    `net up` starts one for each network. This command is for a second one, which takes over when the first
    ends, and for one with other options.
    """
    import asyncio

    from controller.daemon import DaemonError, serve, wait_built
    from topologies.record import load_default
    from wire.constants import RUN_ROOT

    record = wait_built(load_default(net, root or RUN_ROOT))
    address: tuple[str, int] | None = None
    token: str | None = None
    if listen is not None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise DaemonError(f"--listen {listen}", "is not HOST:PORT")
        address = (host, int(port))
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if TOKEN_VARIABLE not in os.environ:
            typer.echo(f"token: {token}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for loud in ("uvicorn.error", "httpx"):
        logging.getLogger(loud).setLevel(logging.WARNING)
    asyncio.run(serve(record, address, token, lease))
