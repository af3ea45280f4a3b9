# SPDX-License-Identifier: Apache-2.0
"""A network under test: jobs on it, frames into it, and what its switch has counted."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.epochs import EpochStore
from controller.jobs import JobController
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.faults import Shares
from controller.setup import job_controller, seat
from tests.network.tensors import Call
from topologies import processes
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.targets import choose
from wire.verdicts import Verdict

LIMIT_S = 60.0
JOB = 3


@dataclass(frozen=True)
class Sums:
    """What the ranks of one job got."""

    results: list[list[NDArray[Any]]]
    """By rank, then by call."""
    stats: list[dict[str, Any]]


class Net:
    """A star that is up, and a client of its switch."""

    def __init__(self, record: NetRecord, client: SwitchClient) -> None:
        self.record = record
        self.client = client
        self.program = Program(client.p4info)
        self.ports = list(record.peers("s1"))

    def jobs(self) -> JobController:
        return job_controller(self.record, self.client, EpochStore(self.record.directory / "controller.db"))

    @contextmanager
    def faults(self, shares: Shares) -> Iterator[None]:
        """Let every port fault its packets both ways while the block lasts."""
        try:
            self._set(shares)
            yield
        finally:
            self._set(Shares())

    def _set(self, shares: Shares) -> None:
        for port in self.ports:
            self.program.ingress_faults.set(self.client, port, shares)
            self.program.egress_faults.set(self.client, port, shares)

    def counted(self, verdict: Verdict) -> int:
        """Packets that came in, on all ports, and were given this verdict."""
        by_port = self.program.verdicts.of_ports(self.client, self.ports).ingress
        return sum(counts.get(verdict, (0, 0))[0] for counts in by_port.values())

    def injected(self, verdict: Verdict) -> tuple[int, int]:
        """Packets that the fault table faulted so: at ingress, at egress."""
        both = (self.program.ingress_faults, self.program.egress_faults)
        found = [faults.injected(self.client, self.ports) for faults in both]
        ingress, egress = (sum(c.get(verdict, (0, 0))[0] for c in by_port.values()) for by_port in found)
        return ingress, egress

    def reduce(
        self, hosts: Sequence[str], calls: Sequence[Call], seed: int, folder: Path, *, scapy: bool = False
    ) -> Sums:
        """Run a job of one rank a host, each in its own process, through all calls."""
        results = [folder / f"rank{rank}.npz" for rank in range(len(hosts))]
        arguments = []
        for host, path in zip(hosts, results, strict=True):
            own = self.record.host(host)
            told = json.dumps([asdict(call) for call in calls])
            words = ["--ip", own.ip, "--seed", str(seed), "--calls", told, "--results", str(path)]
            arguments.append([*words, *(["--scapy-on", own.interface] if scapy else [])])
        window = choose(self.record.target).default_window
        jobs = self.jobs()
        stats: dict[int, dict[str, Any]] = {}
        with Ranks(self.record, hosts, "tests.network.rank", arguments) as ranks:
            seats = [seat(self.record, h, port) for h, port in zip(hosts, ranks.ports(), strict=True)]
            members = jobs.add_job(JOB, seats, window)
            try:
                for rank, membership in enumerate(members):
                    ranks.tell(rank, membership.to_json())
                for rank, message in ranks.heard(LIMIT_S):
                    stats[rank] = message.get("stats", {})
            finally:
                jobs.remove_job(JOB)
        arrays = []
        for path in results:
            with np.load(path) as loaded:
                arrays.append([loaded[name] for name in loaded.files])
        return Sums(arrays, [stats[rank] for rank in range(len(hosts))])


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
