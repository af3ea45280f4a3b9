# SPDX-License-Identifier: Apache-2.0
"""A controller that serves, in threads of this process: the API on sockets, embedded switches behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from controller.api import make_api
from controller.connections import Connection
from controller.epochs import EpochStore
from controller.service import Controller
from controller.store import Store
from controller.switches import SwitchLink
from tests.controller.served import Served
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import NetworkSpec, star
from wire.control import SOCKET, ControlClient, ControlError
from wire.membership import Membership
from worker import Worker
from worker.memory import MemoryFabric, MemoryTransport

TOKEN = "open sesame"
LIMIT_S = 60.0
T = TypeVar("T")


class Office:
    """A network below `root`, its controller on the network's socket and, with TOKEN, at `url`."""

    def __init__(
        self,
        root: Path,
        served: Served,
        *others: Served,
        name: str = "t",
        hosts: int = 5,
        spec: NetworkSpec | None = None,
        slots: int = 1024,
        state: Path | None = None,
        lease: float = 60.0,
    ) -> None:
        """A star, unless `spec` and its `others` are given; `state` is what a controller before it left."""
        self.served = served
        spec = spec or star(hosts)
        record = new_record(
            name, spec, target="embedded", elements=64, slots=slots, root=root, interfaces=root
        )
        record.directory.mkdir()
        for switch, each in zip(spec.switches, (served, *others), strict=True):
            record = with_switch(record, switch.name, grpc=each.address)
        self.record: NetRecord = record
        self.socket = self.record.directory / SOCKET
        self.controller: Controller
        self.fabric = MemoryFabric(served.process)
        self.url = ""
        self._state = state or self.record.directory / "controller.db"
        self._lease = lease
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._attending: list[threading.Thread] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        epochs, store = EpochStore(self._state), Store(self._state)
        links = [SwitchLink(self.record, switch.name) for switch in self.record.switches]
        self.controller = Controller(self.record, store, epochs, links, self._lease)
        await self.controller.start()
        local = socket.socket(socket.AF_UNIX)
        local.bind(str(self.socket))
        local.listen()
        remote = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{remote.getsockname()[1]}"
        config = uvicorn.Config(
            make_api(self.controller, TOKEN),
            http=Connection,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._ready.set()  # who connects now is served in a moment
        try:
            await self._server.serve(sockets=[local, remote])
        finally:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # uvicorn leaves open what has not ended in time
            await self.controller.stop()
            store.close()
            local.close()
            remote.close()

    def __enter__(self) -> Office:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._attending:
            thread.join(LIMIT_S)
        self._server.should_exit = True
        self._thread.join(LIMIT_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something where the controller runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    @contextmanager
    def client(self) -> Iterator[ControlClient]:
        with ControlClient(self.socket) as client:
            yield client

    def attend(self, members: list[Member]) -> None:
        """Answer the controller for these workers until the office closes, as their own threads would.

        What they have to tell has been told when this returns.
        """
        with self.client() as client:
            for member in members:
                member.tell(client, wait=0)
        self._attending += [threading.Thread(target=self._attend, args=[member]) for member in members]
        for thread in self._attending[-len(members) :]:
            thread.start()

    def _attend(self, member: Member) -> None:
        with self.client() as client:
            while not self._ended.is_set():
                try:
                    told = member.tell(client, wait=1.0)
                except ControlError:
                    return
                if told["do"] == "drain":  # nothing is under way: none of them is driven meanwhile
                    client.call("DELETE", f"/v1/sessions/{member.sid}")
                    return
                if told["do"] in ("stop", "go"):
                    member.obey(told)
                elif told["do"] != "nothing":
                    self._ended.wait(0.1)

    def add(self, name: str, ports: list[int], **fields: Any) -> list[Member]:
        """Add a job of one worker a host from h1 on, and let them all join with these UDP ports."""
        with self.client() as client:
            hosts = [f"h{rank + 1}" for rank in range(len(ports))]
            client.call("POST", "/v1/jobs", {"name": name, "workers": hosts, **fields})
            members = [Member(self, name, rank, port) for rank, port in enumerate(ports)]
            for member in members:
                member.join(client)
            for member in members:
                member.enter(client)
            for member in members:
                member.tell(client)
        return members


class Member:
    """A worker by hand: it says what its engine is only when it is told to."""

    def __init__(self, office: Office, job: str, rank: int, port: int) -> None:
        self.office, self.job, self.rank, self.port = office, job, rank, port
        self.ip = f"10.0.0.{rank + 1}"
        self.sid = ""
        self.stopped = 0
        self.worker: Worker

    def join(self, client: ControlClient) -> None:
        told = client.call(
            "POST", f"/v1/jobs/{self.job}/ranks/{self.rank}", {"ip": self.ip, "udp_port": self.port}
        )
        self.sid = told["session"]

    def enter(self, client: ControlClient) -> None:
        told = client.call(
            "POST", f"/v1/sessions/{self.sid}/sync", {"udp_port": self.port, "wait": LIMIT_S}, wait=LIMIT_S
        )
        assert told["do"] == "go", told
        membership = Membership(**told["membership"])
        transport = MemoryTransport(membership, self.office.fabric, self.rank + 1)
        self.worker = Worker(membership, transport, timeout=30.0)

    def obey(self, told: dict[str, Any]) -> None:
        """Stop for a change, or go on after it with the same members."""
        if told["do"] == "stop":
            with self.worker.changed:
                self.worker.stop(told["why"])
            self.stopped, self.port = told["change"], self.port + 100
        else:
            membership = Membership(**told["membership"])
            transport = MemoryTransport(membership, self.office.fabric, self.rank + 1)
            with self.worker.changed:
                self.worker.resume(membership, transport)
            self.stopped = 0

    def tell(self, client: ControlClient, **fields: Any) -> dict[str, Any]:
        engine = self.worker.engine
        status = {
            "epoch": engine.membership.epoch,
            "begun": engine.begun,
            "next_chunk": engine.next_chunk,
            "first_missing": engine.first_missing,
        } | ({"stopped": self.stopped, "udp_port": self.port} if self.stopped else {})
        wait = float(fields.get("wait", 0.0))
        told: dict[str, Any] = client.call(
            "POST", f"/v1/sessions/{self.sid}/sync", status | fields, wait=wait
        )
        return told
