# SPDX-License-Identifier: Apache-2.0
"""`p4reduce controller`: the daemon, in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from wire.addresses import parse_address
from wire.constants import TOKEN, TOKEN_VARIABLE

app = typer.Typer(add_completion=False)


@app.command()
def controller(
    net: Annotated[
        str | None, typer.Option("--net", metavar="NAME", help="Which network; needless when only one runs.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Serve on TCP too, by token: ${TOKEN_VARIABLE}, else DIR/{TOKEN}."
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

    from controller.daemon import make_token, serve, wait_built
    from controller.logs import BoundedLog
    from topologies.record import CONTROLLER_LOG, load_default
    from wire.constants import RUN_ROOT

    record = wait_built(load_default(net, root or RUN_ROOT))
    address = parse_address("--listen", listen) if listen is not None else None
    token = make_token(record.directory / TOKEN) if address is not None else None
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[BoundedLog(record.directory / CONTROLLER_LOG)],
    )
    for loud in ("uvicorn.error", "httpx"):
        logging.getLogger(loud).setLevel(logging.WARNING)
    asyncio.run(serve(record, address, token, lease))
