# SPDX-License-Identifier: Apache-2.0
"""Jobs side by side, and what may happen to them on the way: all sums stay exact.

Parts of the network are killed while tensors are under way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.network.net import LIMIT_S, Net, Sums, load, star_of_four, wait_for
from tests.network.tensors import Call
from tests.network.test_all_reduce import assert_exact
from topologies import jobs, processes
from topologies import record as records
from topologies.identity import Process
from topologies.ranks import Ranks
from topologies.targets import Target
from wire.control import SOCKET

pytestmark = pytest.mark.root

LEASE_S = 5.0
BYTES = {"embedded": 2 << 20, "bmv2": 1 << 17}
"""Of each tensor."""


@pytest.fixture(scope="module")
def net(target: Target) -> Iterator[Net]:
    with star_of_four(target, lease=LEASE_S) as net:
        yield net


class Running:
    """A job whose ranks are at work."""

    def __init__(self, net: Net, name: str, ranks: Ranks, calls: list[Call], seed: int, paths: list[Path]):
        self.net, self.name, self.ranks, self.calls, self.seed = net, name, ranks, calls, seed
        self.paths = paths
        self._heard = ranks.heard(LIMIT_S)
        self._epoch = 0

    def until(self, number: int) -> None:
        """Wait until a rank is through that call: then the next one is under way."""
        for _, message in self._heard:
            if message.get("done") == number:
                return
        raise AssertionError(f"nobody got to call {number}")

    def told(self) -> dict[str, Any]:
        """What the controller says of the job."""
        return dict(self.net.control.call("GET", f"/v1/jobs/{self.name}"))

    def wait_new_epoch(self) -> None:
        """Wait until the job runs in another epoch than at the last such call."""
        wait_for("a new epoch", lambda: self.told()["epoch"] > self._epoch)
        self._epoch = int(self.told()["epoch"])

    def finish(self) -> None:
        """Wait for the ranks' end; all they got must be right."""
        for _ in self._heard:
            pass
        results = [load(path) for path in self.paths]
        assert_exact(Sums(results, []), self.calls, self.seed, self.net.record.elements)


@contextmanager
def running(net: Net, name: str, hosts: list[str], folder: Path, calls: int = 4) -> Iterator[Running]:
    size = BYTES[net.record.target] // 4
    todo = [Call(("int32", "float32")[number % 2], size) for number in range(calls)]
    seed = sum(name.encode())
    paths = [folder / f"{name}{rank}.npz" for rank in range(len(hosts))]
    arguments = [net.arguments(name, rank, todo, seed, path) for rank, path in enumerate(paths)]
    with (
        jobs.job(net.control, name, hosts, tenant=f"tenant-{name}"),
        Ranks(net.record, hosts, "tests.network.rank", arguments) as ranks,
    ):
        yield Running(net, name, ranks, todo, seed, paths)


def kill(process: Process | None) -> None:
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def now(net: Net) -> records.NetRecord:
    return records.load(net.record.name)


def test_two_tenants_at_once(net: Net, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(running(net, "one", ["h1", "h2", "h3"], tmp_path))
        two = stack.enter_context(running(net, "two", ["h4", "h3", "h2"], tmp_path))
        one.finish()
        two.finish()


def test_a_controller_that_is_killed_disturbs_nothing(net: Net, tmp_path: Path) -> None:
    with running(net, "calm", ["h1", "h2", "h3", "h4"], tmp_path, calls=6) as job:
        job.until(0)
        before, epoch = now(net).controller, job.told()["epoch"]
        kill(before)
        job.finish()
        wait_for("the controller to be back", lambda: now(net).controller not in (None, before))
        wait_for("its socket", (net.record.directory / SOCKET).exists)
        assert wait_for("its answer", lambda: answer(net, "calm"))["epoch"] == epoch
    assert now(net).dead() == []


def answer(net: Net, job: str) -> dict[str, Any] | None:
    """What a controller says of the job, none while none answers."""
    from wire.control import UnreachableControllerError

    try:
        return dict(net.control.call("GET", f"/v1/jobs/{job}"))
    except UnreachableControllerError:
        return None


def test_a_switch_that_is_killed_gives_its_jobs_new_epochs(net: Net, tmp_path: Path) -> None:
    with running(net, "lost", ["h1", "h2", "h3", "h4"], tmp_path, calls=6) as job:
        job.until(0)
        epoch, switch = job.told()["epoch"], now(net).switches[0]
        kill(switch.process)
        job.finish()
        assert job.told()["epoch"] > epoch
        again = now(net).switches[0]
        assert (again.grpc, again.ports) == (switch.grpc, switch.ports)
        assert again.process != switch.process
    events = net.control.call("GET", "/v1/events", job="lost")
    assert any("switch s1 lost its state" in event["text"] for event in events)


def test_a_window_that_changes_in_mid_tensor_under_loss(net: Net, tmp_path: Path) -> None:
    with net.faults(drop=0.02, duplicate=0.01, seed=3):
        with running(net, "resized", ["h1", "h2", "h3"], tmp_path, calls=6) as job:
            for number, factor in enumerate((2, 1)):
                job.until(number)
                if not number:
                    job.wait_new_epoch()  # its first one
                slots = factor * net.record.window
                net.control.call("PATCH", "/v1/jobs/resized", {"slots": slots})
                job.wait_new_epoch()
                assert job.told()["slots"] == slots
            job.finish()


def test_a_worker_that_is_killed_is_named_to_the_others_and_may_come_back(net: Net, tmp_path: Path) -> None:
    size, seed = BYTES[net.record.target] // 4, 77
    calls, after = [Call("int32", size)] * 100, [Call("float32", size)] * 2
    paths = [tmp_path / f"{rank}.npz" for rank in range(3)]
    first = [net.arguments("risky", rank, calls, seed, path) for rank, path in enumerate(paths)]
    then = ["--after", json.dumps([asdict(call) for call in after])]
    with jobs.job(net.control, "risky", ["h1", "h2", "h3"]):
        survivors = [first[0] + then, first[2] + then]
        with Ranks(net.record, ["h1", "h3"], "tests.network.rank", survivors) as ranks:
            heard = ranks.heard(LIMIT_S)
            with Ranks(net.record, ["h2"], "tests.network.rank", [first[1]]):
                next(message for _, message in heard if message.get("done") == 0)
                kill(rank_process(net, "h2"))
                lost = [next(m["lost"] for _, m in heard if "lost" in m) for _ in range(2)]
            for text in lost:
                assert "rank 1 on h2" in text
                assert f"it said nothing for {LEASE_S:g} s" in text
            again = net.arguments("risky", 1, after, seed + 1, paths[1])
            with Ranks(net.record, ["h2"], "tests.network.rank", [again]) as back:
                for _ in back.heard(LIMIT_S):
                    pass
                for _ in heard:
                    pass
    assert_exact(Sums([load(path) for path in paths], []), after, seed + 1, net.record.elements)


def rank_process(net: Net, host: str) -> Process:
    """The one rank that runs in a host."""
    netns = net.record.host(host).netns
    (found,) = [
        process
        for process in processes.inside(net.record)
        if os.stat(f"/proc/{process.pid}/ns/net").st_ino == netns
        and b"tests.network.rank" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    ]
    return found


def serving(net: Net) -> int:
    """Pid of the process that listens at the controller's socket (SO_PEERCRED, unix(7)); 0 if none does."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(net.record.directory / SOCKET))
        except OSError:
            return 0
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def test_a_second_controller_takes_over_and_back(net: Net, tmp_path: Path) -> None:
    words = ["controller", "--net", net.record.name, "--lease", str(LEASE_S)]
    log = tmp_path / "second.log"
    with log.open("w") as sink:
        second = subprocess.Popen([sys.executable, "-m", "controller", *words], stdout=sink, stderr=sink)
    try:
        wait_for("the second to be a backup", lambda: "is its backup" in log.read_text())
        first = now(net).controller
        assert first is not None
        assert serving(net) == first.pid
        with running(net, "two-controllers", ["h1", "h2", "h3", "h4"], tmp_path) as job:
            job.until(0)
            kill(first)
            wait_for("the second to serve", lambda: serving(net) == second.pid)
            job.finish()
            third = now(net).controller
            assert third is not None
            assert third != first
            controllers = net.record.directory / "controller.log"
            wait_for(
                "the first to be a backup, started again",
                lambda: "is its backup" in controllers.read_text().splitlines()[-1],
            )
        second.terminate()
        assert second.wait(LIMIT_S) == 0
        wait_for("the first to serve again", lambda: serving(net) == third.pid)
        wait_for("the switch to be in line", net.in_line)
    finally:
        second.kill()
        second.wait()
