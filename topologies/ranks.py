# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job as processes, one in each host: started, heard (lines of JSON), and always ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from topologies import processes
from topologies import record as records
from topologies.errors import NetworkError
from topologies.record import NetRecord
from wire.errors import P4ReduceError

START_LIMIT_S = 120.0
"""How long ranks may take to join their job: all start at once, and each loads its libraries."""
END_LIMIT_S = 60.0
"""How long a rank may take to end that says nothing more."""
WATCH_S = 1.0
"""How often the network's processes are looked at while the ranks are silent."""
_SAID_BYTES = 4000


class RankError(P4ReduceError):
    """A rank failed, ended or fell silent; carries the rank, its host and what it said last."""

    def __init__(self, rank: int, host: str, what: str, said: str = "") -> None:
        super().__init__(f"rank {rank} on {host}: {what}" + (f"\n{said.rstrip()}" if said.strip() else ""))
        self.rank = rank
        self.host = host
        self.said = said


class Ranks:
    """Processes of `python -m MODULE ARGUMENTS`, rank r in hosts[r]. Use as a context manager.

    `arguments[r]` are rank r's.
    """

    def __init__(
        self, record: NetRecord, hosts: Sequence[str], module: str, arguments: Sequence[Sequence[str]]
    ) -> None:
        self.hosts = list(hosts)
        self._record = record
        self._children: list[subprocess.Popen[bytes]] = []
        self._errors = [tempfile.TemporaryFile() for _ in hosts]  # noqa: SIM115 - closed in close()
        self._buffers = [b"" for _ in hosts]
        self._selector = selectors.DefaultSelector()
        # Each rank has a core's worth of work: numpy's own threads would only fight for it.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            for rank, host in enumerate(hosts):
                child = processes.host_popen(
                    record,
                    host,
                    [sys.executable, "-m", module, *arguments[rank]],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._errors[rank],
                    cwd=record.directory,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for us: we end the ranks
                )
                self._children.append(child)
                assert child.stdout is not None
                os.set_blocking(child.stdout.fileno(), False)
                self._selector.register(child.stdout, selectors.EVENT_READ, rank)
        except BaseException:
            self.close()
            raise

    def heard(self, silence_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, message) as they come, until all ranks have ended well.

        Raises RankError when one fails, ends badly, or when none says anything for `silence_s` seconds (or
        START_LIMIT_S at first, if that is more), and NetworkError when a part of the network dies for good.
        """
        silence_s, then = max(silence_s, START_LIMIT_S + WATCH_S), silence_s
        deadline = time.monotonic() + silence_s
        while self._selector.get_map():
            ready = self._selector.select(WATCH_S)
            if ready:
                silence_s = then
                deadline = time.monotonic() + silence_s
            elif dead := records.load(self._record.name, self._record.root).dead():
                raise NetworkError(self._record.name, f"{', '.join(dead)} died while the ranks were at work")
            elif time.monotonic() > deadline:
                waiting = [key.data for key in self._selector.get_map().values()]
                raise RankError(
                    waiting[0],
                    self.hosts[waiting[0]],
                    f"no rank said anything for {silence_s:g} s (waiting for ranks {waiting})",
                    self._said(waiting[0]),
                )
            for key, _ in ready:
                rank: int = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    self._selector.unregister(key.fileobj)
                    if self._children[rank].wait(END_LIMIT_S) != 0:
                        raise self._ended(rank)
                    continue
                *lines, self._buffers[rank] = (self._buffers[rank] + data).split(b"\n")
                for line in lines:
                    message: dict[str, Any] = json.loads(line)
                    if "error" in message:
                        raise RankError(rank, self.hosts[rank], message["error"])
                    yield rank, message

    def _said(self, rank: int) -> str:
        file = self._errors[rank]
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SAID_BYTES))
        return file.read().decode(errors="replace")

    def _ended(self, rank: int) -> RankError:
        code = self._children[rank].wait(END_LIMIT_S)
        return RankError(rank, self.hosts[rank], f"its process ended with code {code}", self._said(rank))

    def close(self) -> None:
        """End the ranks that still run."""
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + processes.GRACE_S
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        self._selector.close()
        for file in self._errors:
            file.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
