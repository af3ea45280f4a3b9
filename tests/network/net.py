# SPDX-License-Identifier: Apache-2.0
"""A network under test: jobs on it, frames into it, and what its switch has counted."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.p4runtime import SwitchClient
from tests.network.tensors import Call
from topologies import jobs, manager, processes
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.spec import star
from topologies.targets import Target
from wire.control import ControlClient
from wire.verdicts import Verdict

LIMIT_S = 60.0


@dataclass(frozen=True)
class Sums:
    """What the ranks of one job got."""

    results: list[list[NDArray[Any]]]
    """By rank, then by call."""
    stats: list[dict[str, Any]]


@contextmanager
def star_of_four(target: Target, lease: float | None = None) -> Iterator[Net]:
    """Bring a star of four hosts up, named as no other; see manager.up for the `lease`."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    with pytest.MonkeyPatch.context() as patch:
        # What runs in the hosts is part of these tests, which are not installed.
        folder = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).strip(":"))
        with (
            manager.network(star(4), name=name, target=target.name, elements=64, lease=lease) as record,
            jobs.control_of(record) as control,
        ):
            yield Net(record, control)


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

    def arguments(self, job: str, rank: int, calls: Sequence[Call], seed: int, results: Path) -> list[str]:
        """Return what a rank is told (tests.network.rank)."""
        told = json.dumps([asdict(call) for call in calls])
        where = ["--net", self.record.name, "--job", job, "--rank", str(rank)]
        return [*where, "--seed", str(seed), "--calls", told, "--results", str(results)]

    def reduce(
        self, hosts: Sequence[str], calls: Sequence[Call], seed: int, folder: Path, *, scapy: bool = False
    ) -> Sums:
        """Run a job of one rank a host, each in its own process, through all calls."""
        results = [folder / f"rank{rank}.npz" for rank in range(len(hosts))]
        arguments = [self.arguments("test", rank, calls, seed, path) for rank, path in enumerate(results)]
        if scapy:
            for host, words in zip(hosts, arguments, strict=True):
                words += ["--scapy-on", self.record.host(host).interface]
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
