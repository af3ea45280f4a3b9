# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job as processes, one in each host: started, told, heard (lines of JSON), always ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
        self._messages: deque[tuple[int, dict[str, Any] | None]] = deque()
        """None from a rank whose process ended badly."""
        self._selector = selectors.DefaultSelector()
        # Each rank has a core's worth of work: numpy's own threads would only fight for it.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            for rank, host in enumerate(hosts):
                child = processes.host_popen(
                    record,
                    host,
                    [sys.executable, "-m", module, *arguments[rank]],
                    stdin=subprocess.PIPE,
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

    def tell(self, **fields: Any) -> None:
        """Send every rank one line of JSON on its standard input; RankError when one has ended."""
        line = json.dumps(fields).encode() + b"\n"
        for rank, child in enumerate(self._children):
            assert child.stdin is not None
            try:
                child.stdin.write(line)
                child.stdin.flush()
            except BrokenPipeError:
                raise self._ended(rank) from None

    def heard(self, silence_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, message) as they come, until all ranks have ended well.

        Raises RankError when one fails, ends badly, or when none says anything for `silence_s` seconds (or
        START_LIMIT_S at first, if that is more), and NetworkError when a part of the network dies for good.
        """
        silence_s, then = max(silence_s, START_LIMIT_S + WATCH_S), silence_s
        deadline = time.monotonic() + silence_s
        while self._selector.get_map():
            if self._read(WATCH_S):
                silence_s = then
                deadline = time.monotonic() + silence_s
            elif time.monotonic() > deadline:
                waiting = [key.data for key in self._selector.get_map().values()]
                raise self._silent(waiting, f"no rank said anything for {silence_s:g} s")
            while self._messages:
                yield self._message()

    def answers(self, limit_s: float) -> list[dict[str, Any]]:
        """Return the next message of each rank, in their order.

        Raises RankError when one fails, ends, or has said nothing in `limit_s` seconds; NetworkError as
        `heard`.
        """
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + limit_s
        while len(found) < len(self.hosts):
            while self._messages and len(found) < len(self.hosts):
                rank, message = self._message()
                found[rank] = message
            waiting = [rank for rank in range(len(self.hosts)) if rank not in found]
            if not waiting:
                break
            reading = {key.data for key in self._selector.get_map().values()}
            if ended := [rank for rank in waiting if rank not in reading]:
                raise self._ended(ended[0])
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent(waiting, f"no answer in {limit_s:.3g} s")
            self._read(min(WATCH_S, left))
        return [found[rank] for rank in range(len(self.hosts))]

    def _read(self, wait_s: float) -> bool:
        """Take what ranks say within a moment; False if they are silent."""
        ready = self._selector.select(wait_s)
        if not ready and (dead := records.load(self._record.name, self._record.root).dead()):
            raise NetworkError(self._record.name, f"{', '.join(dead)} died while the ranks were at work")
        for key, _ in ready:
            rank: int = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
                if self._children[rank].wait(END_LIMIT_S) != 0:
                    self._messages.append((rank, None))  # after what others said before
                continue
            *lines, self._buffers[rank] = (self._buffers[rank] + data).split(b"\n")
            self._messages.extend((rank, json.loads(line)) for line in lines)
        return bool(ready)

    def _message(self) -> tuple[int, dict[str, Any]]:
        rank, message = self._messages.popleft()
        if message is None:
            raise self._ended(rank)
        if "error" in message:
            raise RankError(rank, self.hosts[rank], message["error"])
        return rank, message

    def _silent(self, waiting: Sequence[int], what: str) -> RankError:
        first = waiting[0]
        return RankError(
            first, self.hosts[first], f"{what} (waiting for ranks {list(waiting)})", self._said(first)
        )

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
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # what a rank that has ended was told
                        pipe.close()
        self._selector.close()
        for file in self._errors:
            file.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
