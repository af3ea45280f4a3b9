# SPDX-License-Identifier: Apache-2.0
"""A network under test: jobs on it, frames into it, and what its switch has counted."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.p4runtime import SwitchClient
from tests.network.tensors import Call
from topologies import jobs, processes
from topologies.ranks import Ranks
from topologies.record import NetRecord
from wire.control import ControlClient
from wire.verdicts import Verdict

LIMIT_S = 60.0


@dataclass(frozen=True)
class Sums:
    """What the ranks of one job got."""

    results: list[list[NDArray[Any]]]
    """By rank, then by call."""
    stats: list[dict[str, Any]]


class Net:
    """A star that is up, and a client of its controller."""

    def __init__(self, record: NetRecord, control: ControlClient) -> None:
        self.record = record
        self.control = control
        self.ends = jobs.switch_ends(record, [host.name for host in record.hosts])

    @contextmanager
    def faults(self, **shares: float) -> Iterator[None]:
        """Let every port fault its packets both ways while the block lasts; see jobs.set_faults."""
        try:
            jobs.set_faults(self.control, self.ends, **shares)
            yield
        finally:
            jobs.set_faults(self.control, self.ends)

    def _ports(self) -> list[dict[str, Any]]:
        return list(self.control.call("GET", "/v1/switches/s1/counters")["ports"].values())

    def counted(self, verdict: Verdict) -> int:
        """Packets that came in, on all ports, and were given this verdict."""
        return sum(port["in"].get(verdict.name.lower(), [0])[0] for port in self._ports())

    def injected(self, verdict: Verdict) -> tuple[int, int]:
        """Packets that the fault table faulted so: at ingress, at egress."""
        ports, name = self._ports(), verdict.name.lower()
        ingress, egress = (sum(p[w].get(name, [0])[0] for p in ports) for w in ("faults_in", "faults_out"))
        return ingress, egress

    def arguments(self, job: str, hosts: Sequence[str], calls: Sequence[Call], seed: int) -> list[list[str]]:
        """Return what the ranks of a job are told, apart from where their results go (tests.network.rank)."""
        told = json.dumps([asdict(call) for call in calls])
        common = ["--net", self.record.name, "--job", job, "--seed", str(seed), "--calls", told]
        return [[*common, "--rank", str(rank)] for rank in range(len(hosts))]

    def reduce(
        self, hosts: Sequence[str], calls: Sequence[Call], seed: int, folder: Path, *, scapy: bool = False
    ) -> Sums:
        """Run a job of one rank a host, each in its own process, through all calls."""
        arguments = self.arguments("test", hosts, calls, seed)
        results = [folder / f"rank{rank}.npz" for rank in range(len(hosts))]
        for host, path, words in zip(hosts, results, arguments, strict=True):
            words += ["--results", str(path)]
            words += ["--scapy-on", self.record.host(host).interface] if scapy else []
        stats: dict[int, dict[str, Any]] = {}
        with (
            jobs.job(self.control, "test", hosts),
            Ranks(self.record, hosts, "tests.network.rank", arguments) as ranks,
        ):
            for rank, message in ranks.heard(LIMIT_S):
                stats[rank] = message.get("stats", {})
        return Sums([load(path) for path in results], [stats[rank] for rank in range(len(hosts))])

    @contextmanager
    def direct(self) -> Iterator[SwitchClient]:
        """Be the switch's primary in the controller's place while the block lasts; there are no jobs then."""
        switch = self.record.switch("s1")
        assert switch.grpc is not None
        with SwitchClient(switch.name, switch.device_id, switch.grpc, standby=True) as client:
            client.take_over()
            yield client
        wait_for("the controller to be primary again", self.in_line)

    def in_line(self) -> bool:
        """Whether the controller has the switch in line."""
        return bool(self.control.call("GET", "/v1/switches/s1")["in_line"])


def load(path: Path) -> list[NDArray[Any]]:
    """Return a rank's results by call."""
    with np.load(path) as loaded:
        return [loaded[name] for name in loaded.files]


def wait_for(what: str, ready: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Wait until `ready` returns something true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := ready()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.05)
    return found


class RawHost:
    """The raw interface of one host: frames in, frames out. Use as a context manager."""

    def __init__(self, record: NetRecord, host: str) -> None:
        self.name = host
        self._child: subprocess.Popen[bytes] = processes.host_popen(
            record,
            host,
            [sys.executable, "-m", "tests.network.raw", record.host(host).interface],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._buffer = b""
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        while b"\n" not in self._buffer:
            assert select.select([fd], [], [], LIMIT_S)[0], f"waited {LIMIT_S:g} s for a frame at {self.name}"
            part = os.read(fd, 1 << 16)
            assert part, f"the helper in {self.name} ended with {self._child.wait(LIMIT_S)}"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def send(self, frame: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(frame.hex().encode() + b"\n")
        self._child.stdin.flush()

    def until(self, last: bytes) -> list[bytes]:
        """Return the frames that arrive before the first one that ends with `last`, and that one."""
        found = [bytes.fromhex(self._line())]
        while not found[-1].endswith(last):
            found.append(bytes.fromhex(self._line()))
        return found

    def __enter__(self) -> RawHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        self._child.communicate(timeout=LIMIT_S)
