# SPDX-License-Identifier: Apache-2.0
"""The relay of tests: it leaves no connection open, whatever it is doing when it ends."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import ExitStack

import pytest

from tests.controller.racks import relay


@pytest.mark.parametrize("moment", ["accepts", "carries", "carries nothing", "finds nobody"])
def test_a_relay_that_ends_closes_what_it_carries(moment: str) -> None:
    async def work(listener: socket.socket) -> None:
        host, port = listener.getsockname()
        if moment == "finds nobody":
            listener.close()
        async with relay(f"{host}:{port}") as (address, carries):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            if moment.startswith("carries"):
                there = opened.enter_context((await asyncio.to_thread(listener.accept))[0])
                there.sendall(b"x")
                assert await reader.read(64) == b"x"
            if moment == "carries nothing":
                carries.clear()
                there.sendall(b"y")
                await asyncio.sleep(0)
        assert reader.at_eof() or await reader.read(64) == b""
        writer.close()
        await writer.wait_closed()

    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        asyncio.run(asyncio.wait_for(work(listener), 10))
    gc.collect()  # an open stream complains, and pytest takes that for an error
