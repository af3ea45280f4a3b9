# SPDX-License-Identifier: Apache-2.0
"""What a running switch counted, for whoever connects to a Unix socket: one JSON object, then the end.

    {"device_id": 1,
     "ports": {"2": {"interface": "eth2", "rx_packets": 10, ..., "tx_dropped": 0, ...,
                     "delay_in": 0.0, "delay_out": 0.005}},
     "packet_in_lost": 0,
     "program": {"received": 10, "sent": 9, "too_long": 0, "over_budget": 0, "faults": 0, "digests_lost": 0}}

A port's counters are those of `ports.PortStats`, the kernel's drops as of half a second ago, its delays in
seconds; `program` is null while none is loaded. The answer comes when the client has ended its side, having
sent nothing. A line of JSON instead changes a port's delay (switch/delay.py):

    {"delay": {"port": 2, "direction": "out", "seconds": 0.005}}

It is answered with {} when that is done, or {"error": "why not"}. The socket is its owner's alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from switch.errors import SwitchError

log = logging.getLogger("switch.stats")

CLIENT_S = 2.0
"""A client that asks or takes its answer more slowly gets none."""
MAX_REQUEST = 4096
LOOK_UP_S = 0.5
MAX_ANSWER = 1 << 22
MAX_PATH = 107
"""Bytes that the kernel takes as the path of a Unix socket."""


class StatsSocketError(SwitchError):
    """A socket that cannot be served or asked; `path` is where."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}")


class StatsSocket:
    """Serves until `stop`, which also removes the socket."""

    def __init__(
        self, path: Path, collect: Callable[[], dict[str, Any]], change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Listen at `path`; `collect` gives the object, `change` does what is asked or raises SwitchError.

        Both are called from a thread.

        Raises:
            StatsSocketError: there is something that listens or is no socket, or no right to put one there.
        """
        self.path = path
        self._collect = collect
        self._change = change
        self._socket = _listening(path)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stats", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the socket. Idempotent."""
        if self._end.is_set():
            return
        self._end.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waking:
            waking.settimeout(CLIENT_S)
            waking.connect(str(self.path))
        self._thread.join(CLIENT_S + 2 * LOOK_UP_S)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._end.is_set():
            try:
                client, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:  # out of file descriptors: others will be closed
                log.warning("%s: %s", self.path, error.strerror)
                self._end.wait(LOOK_UP_S)
                continue
            with client, contextlib.suppress(OSError):  # the client has gone
                answer = self._answer(_request(client))
                client.settimeout(CLIENT_S)
                client.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: bytes) -> dict[str, Any]:
        if not request:
            return self._collect()
        try:
            wanted = json.loads(request)
        except (ValueError, RecursionError):
            wanted = None
        if not isinstance(wanted, dict):
            return {"error": "the request is no JSON object"}
        try:
            self._change(wanted)
        except SwitchError as error:
            return {"error": str(error)}
        return {}


def _request(client: socket.socket) -> bytes:
    """Read a line, or all until the client ends its side; OSError where it takes too long or is too much."""
    end = time.monotonic() + CLIENT_S
    data = bytearray()
    while b"\n" not in data:
        client.settimeout(max(end - time.monotonic(), 1e-6))
        part = client.recv(MAX_REQUEST)
        if not part:
            break
        data += part
        if len(data) > MAX_REQUEST:
            raise OSError(errno.EMSGSIZE, "the request is too long")
    return bytes(data)


def read_stats(path: Path) -> dict[str, Any]:
    """Ask a running switch what it counted.

    Raises:
        StatsSocketError: nobody answers there, or no answer comes within CLIENT_S.
    """
    answer = _exchange(path, b"")
    if not _is_answer(answer):
        raise StatsSocketError(path, "what answers is no switch")
    return answer


def ask(path: Path, request: dict[str, Any]) -> None:
    """Have a running switch change something.

    Raises:
        StatsSocketError: as read_stats; or the switch refuses, and says why.
    """
    answer = _exchange(path, json.dumps(request).encode() + b"\n")
    if answer != {}:
        why = answer.get("error") if isinstance(answer, dict) else None
        raise StatsSocketError(path, why if isinstance(why, str) else "what answers is no switch")


def _exchange(path: Path, request: bytes) -> Any:
    _check_length(path)
    end = time.monotonic() + CLIENT_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(CLIENT_S)
            asking.connect(str(path))
            asking.sendall(request)
            asking.shutdown(socket.SHUT_WR)
            data = bytearray()
            while part := asking.recv(1 << 16):
                data += part
                if len(data) > MAX_ANSWER:
                    raise StatsSocketError(path, "what answers is no switch")
                asking.settimeout(max(end - time.monotonic(), 1e-6))
        return json.loads(data)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise StatsSocketError(path, "no switch serves it; start one with --stats-socket") from error
    except (BrokenPipeError, ConnectionResetError) as error:  # it closed, or ended, before it heard us
        raise StatsSocketError(path, "what answers is no switch, or one that ends") from error
    except OSError as error:
        raise StatsSocketError(path, f"cannot be asked: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StatsSocketError(path, "what answers is no switch") from error


def _is_answer(answer: Any) -> TypeGuard[dict[str, Any]]:
    if not (isinstance(answer, dict) and isinstance(answer.get("ports"), dict)):
        return False
    parts = [*answer["ports"].values(), answer.get("program") or {}]
    return all(isinstance(part, dict) for part in parts)


COLUMNS = ("rx_packets", "rx_dropped", "rx_errors", "tx_packets", "tx_dropped", "tx_errors")


def table(answer: dict[str, Any]) -> list[str]:
    """Lines for people: a port each, and what else was lost."""
    rows = [("port", "interface", *(column.replace("_", " ") for column in COLUMNS))]
    for number, port in answer["ports"].items():
        counted = (str(port.get(column, "?")) for column in COLUMNS)
        rows.append((str(number), str(port.get("interface", "?")), *counted))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if answer.get("packet_in_lost"):
        lines.append(f"{answer['packet_in_lost']} packets to the controller were lost")
    program = answer.get("program") or {}
    lines += [
        f"{program[name]} {what}"
        for name, what in (
            ("faults", "packets were dropped by faults of the program, see the log"),
            ("over_budget", "copies or passes were cut off: one packet made too many"),
            ("too_long", "packets were too long"),
            ("digests_lost", "digests were lost"),
        )
        if program.get(name)
    ]
    return lines


def _check_length(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_PATH:
        raise StatsSocketError(path, f"a socket's path has at most {MAX_PATH} bytes: choose a shorter one")


def _listening(path: Path) -> socket.socket:
    _check_length(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_over(path)
        made.bind(str(path))
        os.chmod(path, 0o600)  # before listen: nobody could have connected yet
        made.listen()
        made.settimeout(LOOK_UP_S)
    except OSError as error:
        made.close()
        raise StatsSocketError(path, f"cannot put a socket there: {error.strerror or error}") from error
    except StatsSocketError:
        made.close()
        raise
    return made


def _remove_left_over(path: Path) -> None:
    """Remove the socket of a switch that was killed."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise StatsSocketError(path, "there is a file that is no socket: choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(CLIENT_S)
        try:
            asking.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise StatsSocketError(path, "another switch serves it: choose another path")
