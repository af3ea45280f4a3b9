# SPDX-License-Identifier: Apache-2.0
"""The process that records: `python -m traces.recorder --out DIR --end s1-h1=INTERFACE …`, until TERM or INT.

An end in a host's namespace is h1-s1=INTERFACE=PID=INODE, of a process there and of the namespace. One pcapng
file per link end, memberships beside them. It prints a line of JSON when it sees packets ({"recording": …}),
one at its end with the counts ({"ends": …}), and what is wrong on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from wire.constants import RUN_ROOT
from wire.errors import P4ReduceError

from . import blocks
from .capture import BUFFER_BYTES, SNAPLEN, Tap, Workspace
from .errors import CaptureError
from .follow import EpochFollower
from .members import read, write
from .names import DESCRIPTION, MEMBERSHIPS, LinkEnd, captures, end_of

APPLICATION = "p4reduce trace record"
_POLL_MS = 200
_TAKES = 16
"""Of one interface, before the others' turn."""
_DRAIN_SECONDS = 2.0
ALL_BUFFERS_BYTES = 512 << 20
"""Of the kernel for all links together, where they are few: a disk may stand still for a second."""
NICE = -10
"""Before the programs whose packets these are, if allowed: what is missed cannot be had later."""


@dataclass(frozen=True)
class EndCounts:
    """What was recorded at one link end."""

    end: str
    packets: int
    dropped: int
    """Packets (or super-packets) that found no room in the kernel's buffer or ours."""
    uncut: int
    """Super-packets that could not be cut up and are in the file as they were."""
    error: str | None
    """Why it ended early."""


class RingFile:
    """The file of one link end, or the newest of several: `size` bytes each, the last `files` are kept."""

    def __init__(self, folder: Path, end: str, head: bytes, size: int | None, files: int | None) -> None:
        self._folder, self._end, self._head = folder, end, head
        self._size, self._files = size, files
        self._index = 0
        while self._path(self._index).exists():  # of a recorder that died and was started again
            self._index += 1
        self._written = 0
        self._file: IO[bytes] | None = None
        self._open()

    def _path(self, index: int) -> Path:
        number = f".{index:06d}" if self._size is not None else f".{index}" if index else ""
        return self._folder / f"{self._end}{number}.pcapng"

    def _open(self) -> None:
        path = self._path(self._index)
        try:
            self._file = path.open("xb", buffering=0)
            self._file.write(self._head)
        except OSError as error:
            raise CaptureError(str(path), f"cannot be written: {error.strerror}") from error
        self._written = 0
        if self._files is not None and self._index >= self._files:
            self._path(self._index - self._files).unlink(missing_ok=True)

    def write(self, data: memoryview | bytes) -> None:
        """Append whole blocks. Raises CaptureError."""
        assert self._file is not None
        begin = self._file.tell()
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.truncate(begin)  # of a full disk: a block that breaks off would spoil what follows
            self._file.seek(begin)
            raise CaptureError(
                str(self._path(self._index)), f"cannot be written: {error.strerror}"
            ) from error
        self._written += len(data)

    def full(self) -> bool:
        """Say whether the next is to be begun."""
        return self._size is not None and self._written >= self._size

    def next(self, last: bytes) -> None:
        """End this file with `last`, and begin another."""
        self.close(last)
        self._index += 1
        self._open()

    def close(self, last: bytes = b"") -> None:
        """Append what is last, and close. Idempotent."""
        if self._file is not None:
            try:
                if last:
                    self.write(last)
            finally:
                self._file.close()
                self._file = None


class _End:
    """A link end that is being recorded."""

    def __init__(self, name: str, tap: Tap, file: RingFile, space: Workspace) -> None:
        self.name, self.tap, self.file, self.space = name, tap, file, space
        self.began = time.time_ns()
        self.error: str | None = None

    def take(self, most: int) -> bool:
        """Write what is there; say whether there may be more. Raises CaptureError."""
        for _ in range(most):
            taken = self.tap.take(self.space)
            if not taken:
                return False
            self.file.write(taken)
            if self.file.full():
                self.file.next(self._statistics())
        return True

    def _statistics(self) -> bytes:
        dropped = self.tap.dropped()
        return blocks.statistics(self.began, time.time_ns(), self.tap.packets + dropped, dropped)

    def close(self) -> EndCounts:
        """End its file; return its counts. Idempotent."""
        try:
            self.file.close(self._statistics())
        except CaptureError as error:
            self.error = self.error or str(error)
        return EndCounts(self.name, self.tap.packets, self.tap.dropped(), self.tap.uncut, self.error)


class Recorder:
    """Records link ends into a folder. Use it as a context manager, then `run`.

    `jobs` limits what is recorded to those jobs' packets. Raises CaptureError.
    """

    def __init__(
        self,
        out: Path,
        ends: Sequence[LinkEnd],
        jobs: Collection[int] | None = None,
        ring_size: int | None = None,
        ring_files: int | None = None,
    ) -> None:
        self._out = out
        self._wanted = ends
        self._jobs = jobs
        self._ring = ring_size, ring_files
        self._ends: list[_End] = []
        self._stack = ExitStack()
        self._stop = False

    def __enter__(self) -> Recorder:
        with ExitStack() as stack:
            workspace = Workspace()
            room = max(BUFFER_BYTES, ALL_BUFFERS_BYTES // max(len(self._wanted), 1))
            for end in self._wanted:
                tap = Tap(end.interface, self._jobs, room, end.namespace)
                stack.callback(tap.close)
                described = blocks.interface(end.interface, f"{DESCRIPTION}{end.name}", SNAPLEN)
                file = RingFile(self._out, end.name, blocks.section(APPLICATION) + described, *self._ring)
                stack.callback(file.close)
                self._ends.append(_End(end.name, tap, file, workspace))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self) -> None:
        """Let `run` end; may be called from a signal's handler."""
        self._stop = True

    def run(self, reader: int | None = None) -> None:
        """Record until `stop`, until no interface is left, or until nobody reads from the pipe `reader`."""
        poll = select.poll()
        if reader is not None:
            poll.register(reader, 0)  # of whom this is part; who was killed cannot say `stop`
        open_ = {end.tap.fileno(): end for end in self._ends}
        for number in open_:
            poll.register(number, select.POLLIN)
        while open_ and not self._stop:
            ready = {number for number, _ in poll.poll(_POLL_MS)}
            if reader in ready:
                break
            for number in ready | {number for number, end in open_.items() if end.tap.was_down}:
                end = open_[number]
                try:
                    end.take(_TAKES)
                except CaptureError as error:
                    end.error = str(error)
                    print(f"error: {end.name}: {error}", file=sys.stderr, flush=True)
                    poll.unregister(number)
                    del open_[number]
        deadline = time.monotonic() + _DRAIN_SECONDS
        for end in open_.values():
            try:
                while end.take(_TAKES) and time.monotonic() < deadline:
                    pass
            except CaptureError as error:
                end.error = str(error)

    def close(self) -> list[EndCounts]:
        """End the files with their statistics; return the counts."""
        return [end.close() for end in self._ends]


def prepare(out: Path) -> None:
    """Make a folder for captures; CaptureError if it cannot be made, or holds captures already."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = [path.name for path in captures(out)]
    except OSError as error:
        raise CaptureError(str(out), f"the folder cannot be used: {error.strerror}") from error
    if old:
        more = f" and {len(old) - 1} more" if old[1:] else ""
        raise CaptureError(
            str(out), f"it holds captures already ({old[0]}{more}): remove them, or name another folder"
        )


def record(
    recorder: Recorder,
    out: Path,
    socket: Path | None,
    say: IO[str],
    signals: Sequence[int] = (),
    reader: int | None = None,
) -> list[EndCounts]:
    """Record until a signal, or as Recorder.run does; memberships are of the controller at `socket`."""
    with recorder, ExitStack() as stack:
        for number in signals:
            signal.signal(number, lambda *_: recorder.stop())
        if socket is not None:
            file = out / MEMBERSHIPS
            known = read(file) if file.exists() else []  # of a recorder that died and was started again
            stack.enter_context(EpochFollower(socket, partial(write, file), known))
        print(json.dumps({"recording": str(out)}), file=say, flush=True)
        recorder.run(reader)
        return recorder.close()


def main() -> None:
    """Record as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m traces.recorder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end", action="append", default=[], metavar="NAME=INTERFACE[=PID=INODE]")
    parser.add_argument("--job", action="append", type=int, metavar="NUMBER")
    parser.add_argument("--net", help="the network whose memberships are kept beside the captures")
    parser.add_argument("--root", type=Path, default=RUN_ROOT)
    parser.add_argument("--ring-size", type=int, metavar="BYTES")
    parser.add_argument("--ring-files", type=int)
    asked = parser.parse_args()
    ends = [end_of(word) for word in asked.end]
    from wire.control import SOCKET

    socket = asked.root / asked.net / SOCKET if asked.net else None
    with suppress(OSError):
        os.nice(NICE)
    try:
        recorder = Recorder(asked.out, ends, asked.job, asked.ring_size, asked.ring_files)
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        counts = record(recorder, asked.out, socket, sys.stdout, signals, sys.stdout.fileno())
    except P4ReduceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    try:
        print(json.dumps({"ends": [asdict(each) for each in counts]}), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it is written once more at exit


if __name__ == "__main__":
    main()
