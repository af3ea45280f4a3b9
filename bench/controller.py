# SPDX-License-Identifier: Apache-2.0
"""What the controller daemon can do: jobs added, epochs begun, and how fast it is back after it was killed.

A real daemon keeps one real switch process without ports; workers are what the API sees of them. The peer of
each figure is the number that it must stay below.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import star
from topologies.targets import SwitchProcess, Target
from wire.constants import MAX_WORKERS
from wire.control import SOCKET, ControlClient, ControlError

from .errors import BenchError

NAME = "controller"
FIRST_UDP_PORT = 1024
START_LIMIT_S = 120.0
LEASE_S = 600.0
"""The workers here say nothing after they have joined."""
ADD_LIMIT_S = 0.05
RECONCILE_LIMIT_S = 15.0

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Figures:
    """What was measured of one target; times in seconds."""

    target: str
    jobs: int
    workers: int
    slots: int
    """Of each job."""
    adds: list[float]
    """Of each call that adds a job."""
    begins: list[float]
    """Of each job's last rank, from its wish to join to its membership."""
    restart: float
    """From the start of a daemon after kill -9 until its API answers, all jobs in line and undisturbed."""
    reinstall: float
    """From the return of a switch that lost its state until it holds all again."""
    rss_mb: float
    """Of the daemon, with all jobs."""

    @property
    def adds_per_s(self) -> float:
        """Jobs added a second, one after another."""
        return len(self.adds) / sum(self.adds)

    @property
    def add_median(self) -> float:
        """Seconds."""
        return median(self.adds)


def measure(
    target: Target, jobs: int, workers: int, say: Callable[[str], None], progress: Progress
) -> Figures:
    """Add `jobs` jobs of `workers` workers to a switch, and restart the daemon and the switch under them.

    Raises BenchError, TargetError, ControlError.
    """
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
        record = new_record(
            NAME,
            star(MAX_WORKERS),
            target=target.name,
            elements=256,
            slots=target.default_slots,
            window=target.default_window,
            replicas=target.replicas,
            root=Path(folder),
        )
        slots = min(target.default_window, target.default_slots // jobs)
        if slots < 1:
            raise BenchError(
                target.name, f"{jobs} jobs need as many slots, and there are {target.default_slots}"
            )
        record.claim()
        with _switch(record, target) as record:
            say(f"{target.name}: the daemon loads the program")
            with _daemon(record) as (pid, client, _):
                say(f"{target.name}: {jobs} jobs of {workers} workers")
                adds, begins = _fill(client, record, jobs, workers, slots, progress)
                rss = _rss_mb(pid)
            say(f"{target.name}: the daemon was killed and is started again")
            with _daemon(record) as (_, client, seconds):
                _check(client, record, jobs, "in line")
        with _switch(record, target) as record:
            say(f"{target.name}: a new switch gets everything again")
            with _daemon(record) as (_, client, reinstall):
                _check(client, record, jobs, "its program was loaded")
    return Figures(target.name, jobs, workers, slots, adds, begins, seconds, reinstall, rss)


def _fill(
    client: ControlClient, record: NetRecord, jobs: int, workers: int, slots: int, progress: Progress
) -> tuple[list[float], list[float]]:
    hosts = record.hosts
    adds, begins = [], []
    for job in range(jobs):
        chosen = [hosts[(job * workers + rank) % len(hosts)] for rank in range(workers)]
        name = f"job{job}"
        body = {"name": name, "workers": [host.name for host in chosen], "slots": slots}
        started = time.perf_counter()
        client.call("POST", "/v1/jobs", body)
        adds.append(time.perf_counter() - started)
        for rank, host in enumerate(chosen):
            port = FIRST_UDP_PORT + job
            started = time.perf_counter()
            joined = client.call("POST", f"/v1/jobs/{name}/ranks/{rank}", {"ip": host.ip, "udp_port": port})
        status = {"udp_port": port, "wait": 30.0}
        told = client.call("POST", f"/v1/sessions/{joined['session']}/sync", status, wait=30.0)
        if told["do"] != "go":
            raise BenchError(record.target, f"{name} was to begin, and was told to: {told['do']}")
        begins.append(time.perf_counter() - started)
        progress((job + 1) / jobs)
    return adds, begins


def _check(client: ControlClient, record: NetRecord, jobs: int, said: str) -> None:
    """Make sure that the daemon is back with all jobs, and did to the switch what it should."""
    running = [job for job in client.call("GET", "/v1/jobs") if job["epoch"]]
    texts = [event["text"] for event in client.call("GET", "/v1/events") if event["kind"] == "switch"]
    if len(running) != jobs or said not in texts[-1]:
        raise BenchError(record.target, f"{len(running)} of {jobs} jobs are back; the switch: {texts[-1]}")


@contextmanager
def _switch(record: NetRecord, target: Target) -> Iterator[NetRecord]:
    entry = record.switches[0]
    child = SwitchProcess(
        target,
        name=entry.name,
        device_id=entry.device_id,
        ports={},
        log=Path(entry.log),
        directory=record.directory,
    )
    try:
        found = with_switch(record, entry.name, process=child.wait_ready(), grpc=child.grpc)
        found.save()
        yield found
    finally:
        child.stop()


@contextmanager
def _daemon(record: NetRecord) -> Iterator[tuple[int, ControlClient, float]]:
    """Run the daemon, killed at the end; yield its pid, a client, and the seconds until it answered."""
    socket = record.directory / SOCKET
    socket.unlink(missing_ok=True)
    started = time.perf_counter()
    command = [sys.executable, "-m", "controller", "controller", "--net", record.name]
    with (record.directory / "controller.log").open("ab") as log:
        child = subprocess.Popen(
            [*command, "--root", str(record.root), "--lease", str(LEASE_S)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=record.directory,
            start_new_session=True,
        )
    try:
        with ControlClient(socket) as client:
            network = _answer(client, child, record)
            seconds = time.perf_counter() - started
            if not all(switch["in_line"] for switch in network["switches"]):
                raise BenchError(record.target, f"the switch is not in line; {_tail(record)}")
            yield child.pid, client, seconds
    finally:
        child.kill()
        child.wait()


def _answer(client: ControlClient, child: subprocess.Popen[bytes], record: NetRecord) -> dict[str, Any]:
    limit = time.monotonic() + START_LIMIT_S
    while True:
        try:
            network: dict[str, Any] = client.call("GET", "/v1/network")
            return network
        except ControlError:
            if child.poll() is not None:
                raise BenchError(record.target, f"the daemon ended; {_tail(record)}") from None
            if time.monotonic() > limit:
                raise BenchError(
                    record.target, f"waited {START_LIMIT_S:g} s for the daemon to answer; {_tail(record)}"
                ) from None
            time.sleep(0.005)


def _tail(record: NetRecord) -> str:
    lines = (record.directory / "controller.log").read_text(errors="replace").splitlines()[-8:]
    return "its log ends:\n  " + "\n  ".join(lines)


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
