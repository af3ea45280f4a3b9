# SPDX-License-Identifier: Apache-2.0
"""The daemon that keeps a network's jobs: `p4reduce controller`."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn

from controller.api import make_api
from controller.connections import Connection, take_all_files
from controller.epochs import EpochStore
from controller.errors import ControllerError, SwitchClientError
from controller.service import Controller
from controller.store import Store
from controller.switches import SwitchLink
from topologies.errors import RecordError
from topologies.record import NetRecord, load
from wire.addresses import listening
from wire.constants import TOKEN_VARIABLE
from wire.control import SOCKET

log = logging.getLogger(__name__)

STATE = "controller.db"
LOCK = "controller.lock"
LOOK_SECONDS = 0.2
"""How often a backup looks whether the one before it has ended."""
BUILD_SECONDS = 120.0
"""How long a network may take until its switches serve P4Runtime."""
BUILD_LOOK_SECONDS = 0.05
GONE_LOOK_SECONDS = 1.0
"""How often it is looked whether the network is still there."""
SHUTDOWN_SECONDS = 2
"""How long calls under way may take when the daemon ends."""
BACKLOG = 1024


class DaemonError(ControllerError):
    """The daemon cannot serve; `what` is the address or file at fault."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def wait_built(record: NetRecord) -> NetRecord:
    """Wait until all switches of a network that is being built have an address; return its record then.

    Raises RecordError when it goes away, DaemonError when it crashed or takes longer than BUILD_SECONDS.
    """
    limit = time.monotonic() + BUILD_SECONDS
    while any(switch.grpc is None for switch in record.switches):
        if not record.owner.alive():
            raise DaemonError(record.name, "the network crashed while it was being built: take it down")
        if time.monotonic() > limit:
            raise DaemonError(
                record.name, f"waited {BUILD_SECONDS:g} s for its switches: see {record.directory}/daemon.log"
            )
        time.sleep(BUILD_LOOK_SECONDS)
        record = load(record.name, record.root)
    return record


async def _end_with(record: NetRecord, stop: asyncio.Event) -> None:
    """Stop when the network has been taken down: a backup must not take over what is no more."""
    while not _gone(record):
        await asyncio.sleep(GONE_LOOK_SECONDS)
    log.info("network %s has been taken down", record.name)
    stop.set()


def _gone(record: NetRecord) -> bool:
    try:
        found = load(record.name, record.root)
        return found.owner != record.owner or found.state == "stopping"
    except RecordError:
        return not (record.directory / "net.json").exists()


async def serve(record: NetRecord, listen: tuple[str, int] | None, token: str | None, lease: float) -> None:
    """Keep a network's jobs until SIGTERM or SIGINT; before that as a backup while another controller does.

    `listen` is a TCP address beside the Unix socket, whose callers need the `token`. Raises DaemonError,
    ListenError, StateError, FormError, P4InfoError.
    """
    take_all_files()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ExitStack() as stack:
        stack.callback(asyncio.create_task(_end_with(record, stop)).cancel)
        lock = os.open(record.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        links = [SwitchLink(record, switch.name) for switch in record.switches]
        for link in links:
            stack.callback(link.close)
        if not await _wait_turn(record, links, lock, stop):
            return
        path = record.directory / STATE
        store = Store(path)  # first: it refuses what another version wrote
        stack.callback(store.close)
        epochs = EpochStore(path)
        sockets = [listening(*listen, BACKLOG)] if listen is not None else []
        controller = Controller(record, store, epochs, links, lease)
        try:
            await controller.start()
            sockets.append(stack.enter_context(_unix_socket(record.directory / SOCKET)))
            await _serve_http(controller, token, sockets, stop)
        finally:
            await controller.stop()


async def _wait_turn(record: NetRecord, links: Sequence[SwitchLink], lock: int, stop: asyncio.Event) -> bool:
    """Wait, as the switches' backup, until no other controller keeps this network.

    False if we stop before, or the network does. Who is primary the switches elect. The lock is for the state
    file: it goes with its holder's process.
    """
    backup = False
    while not stop.is_set():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not _gone(record)
        except BlockingIOError:
            if not backup:
                log.info("another controller keeps network %s: this one is its backup", record.name)
                backup = True
        for link in links:
            try:
                await asyncio.to_thread(link.connect)
            except SwitchClientError as error:
                log.debug("%s", error)
        try:
            await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
        except asyncio.TimeoutError:
            continue
    return False


class _Server(uvicorn.Server):
    """Leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve_http(
    controller: Controller, token: str | None, sockets: list[socket.socket], stop: asyncio.Event
) -> None:
    config = uvicorn.Config(
        make_api(controller, token),
        http=Connection,
        lifespan="off",
        proxy_headers=False,  # who calls is told by the socket, not by the caller
        access_log=False,
        log_config=None,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


@contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, for its owner alone. What a killed controller left is replaced."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(BACKLOG)
        draft.replace(path)  # whoever finds it can connect
        yield listener
    except OSError as error:
        raise DaemonError(str(path), f"cannot listen: {error.strerror}") from error
    finally:
        listener.close()
        for left in (draft, path):
            left.unlink(missing_ok=True)


def make_token(path: Path) -> str:
    """Return what callers over TCP must know: $P4REDUCE_TOKEN, else what the file has, else a new one.

    The file has it afterwards, for its owner alone; over a restart it stays. Raises DaemonError.
    """
    try:
        token = os.environ.get(TOKEN_VARIABLE) or (path.read_text().strip() if path.exists() else "")
        token = token or secrets.token_urlsafe(24)
        with open(path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(token + "\n")
    except (OSError, UnicodeError) as error:
        raise DaemonError(str(path), f"the token cannot be kept: {error}") from error
    return token
