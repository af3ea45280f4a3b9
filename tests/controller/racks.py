# SPDX-License-Identifier: Apache-2.0
"""A leaf-spine of served switches in this process, and a controller of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.changes import Status
from controller.epochs import EpochStore
from controller.readback import Key, read_all
from controller.service import Controller
from controller.setup import connect
from controller.store import Store
from controller.switches import SwitchLink
from tests.controller.served import Served
from topologies.builders import leaf_spine
from topologies.record import NetRecord, new_record, with_switch

MEMBERS = "SwitchIngress.handle.aggregation.admission.members"
LEAVES, SPINES = ("s1", "s2"), ("s3", "s4")


@asynccontextmanager
async def relay(address: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a relay to another, and what to clear for it to carry nothing, as if a process hung.

    All its connections are closed after it.
    """
    carries, tasks, streams = asyncio.Event(), set[asyncio.Task[None]](), list[asyncio.StreamWriter]()
    carries.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await carries.wait()
                writer.write(data)
        await carries.wait()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*address.split(":"))
        except OSError:  # nobody is there
            writer.close()
            return
        streams.append(back)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams.append(writer)
        tasks.add(asyncio.create_task(carry(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", carries
    finally:
        server.close()
        await asyncio.sleep(0)  # whoever has been accepted is among the streams then
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            stream.transport.abort()
        # A loop that ends before would leave their sockets open.
        await asyncio.gather(*(stream.wait_closed() for stream in streams), return_exceptions=True)


class Racks:
    """Leaves s1 (h1, h2) and s2 (h3, h4) below the spines s3 and s4."""

    def __init__(self, root: Path) -> None:
        record = new_record(
            "t", leaf_spine(2, 2, 2), target="embedded", elements=64, slots=1024, root=root, interfaces=root
        )
        record.directory.mkdir()
        self.served = {switch.name: Served(switch.device_id) for switch in record.switches}
        for name, served in self.served.items():
            record = with_switch(record, name, grpc=served.address)
        self.record: NetRecord = record

    def kill(self, name: str) -> None:
        """End a switch's process; its address stays its own."""
        self.served.pop(name).close()

    def start(self, name: str) -> None:
        """Start a switch that was killed."""
        switch = self.record.switch(name)
        assert switch.grpc is not None
        self.served[name] = Served(switch.device_id, switch.grpc)

    def close(self) -> None:
        for served in self.served.values():
            served.close()

    def held(self, name: str) -> dict[Key, Any]:
        """All entries of a switch."""
        with connect(self.record, name, primary=False) as client:
            return {key: item.value for key, item in read_all(client).items()}

    def admitted(self, name: str) -> dict[str, int]:
        """By the address that a switch admits for jobs: the epoch."""
        found: dict[str, int] = {}
        for key, value in self.held(name).items():
            if key[:2] == ("table", MEMBERS):
                address: Any = key[3]
                found[".".join(map(str, int(address).to_bytes(4, "big")))] = dict(value[1])["epoch"]
        return found

    @asynccontextmanager
    async def controlled(self, lease: float = 60.0) -> AsyncIterator[Controller]:
        """A controller, stopped as if it were killed: what it knows is on disk."""
        path = self.record.directory / "controller.db"
        epochs, store = EpochStore(path), Store(path)
        links = [SwitchLink(self.record, switch.name) for switch in self.record.switches]
        controller = Controller(self.record, store, epochs, links, lease)
        try:
            await controller.start()
            yield controller
        finally:
            await controller.stop()
            store.close()


@contextmanager
def racks(root: Path) -> Iterator[Racks]:
    made = Racks(root)
    with ExitStack() as stack:
        stack.callback(made.close)
        yield made


class Workers:
    """A job's workers by hand: they do at once what they are told, and have completed no chunk."""

    def __init__(self, controller: Controller, job: str, sids: list[str], port: int) -> None:
        self.controller, self.job, self.sids, self.port = controller, job, sids, port
        self.status = [Status(udp_port=port + rank) for rank in range(len(sids))]
        self.memberships: list[dict[str, Any]] = [{} for _ in sids]
        self.first_missing = 0

    @classmethod
    def join(cls, controller: Controller, job: str, port: int = 5000) -> Workers:
        """Take all ranks of a job, from UDP ports `port` on."""
        live = controller.job(job)
        ips = [controller.record.host(host).ip for host in live.group.hosts]
        sids = [controller.sessions.join(live, r, ip, port + r).sid for r, ip in enumerate(ips)]
        return cls(controller, job, sids, port)

    async def tell(self, rank: int, wait: float = 0.0) -> dict[str, Any]:
        return await self.controller.sessions.sync(self.sids[rank], self.status[rank], wait)

    async def follow(self, turns: int = 400) -> list[dict[str, Any]]:
        """Do what is asked until all ranks were told to go on; return their memberships."""
        went: set[int] = set()
        for _ in range(turns):
            for rank, status in enumerate(self.status):
                told = await self.tell(rank, 0.02)
                if told["do"] == "stop":
                    went.clear()
                    port = status.udp_port + 100
                    self.status[rank] = Status(
                        epoch=status.epoch,
                        stopped=told["change"],
                        udp_port=port,
                        first_missing=self.first_missing,
                        next_chunk=self.first_missing,
                    )
                elif told["do"] == "go":
                    went.add(rank)
                    self.memberships[rank] = told["membership"]
                    self.status[rank] = Status(
                        epoch=told["membership"]["epoch"],
                        udp_port=status.udp_port,
                        first_missing=self.first_missing,
                        next_chunk=self.first_missing,
                    )
                elif told["do"] == "fail":
                    self.status[rank] = replace(status, failed=told["change"])
                else:
                    assert told["do"] == "nothing", told
            if len(went) == len(self.sids):
                return self.memberships
        raise AssertionError(f"{self.job} did not begin: {self.controller.store.events()[-5:]}")
