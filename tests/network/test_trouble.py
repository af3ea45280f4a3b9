# SPDX-License-Identifier: Apache-2.0
"""What may happen to workers at work: held (SIGSTOP), reordered, called differently; and the command.

Every sum is exact, or every worker gets one clear error in time and the job goes on. (Losses, repeats and
corruption are in test_all_reduce; what is killed and comes back in test_tenants.)
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.network.net import LIMIT_S, Net, Sums, load, star_of_four, wait_for
from tests.network.tensors import Call
from tests.network.test_all_reduce import assert_exact
from tests.network.test_tenants import BYTES, rank_process, running
from topologies import jobs, processes
from topologies.ranks import RankError, Ranks
from topologies.targets import Target
from wire.constants import NET_VARIABLE

pytestmark = pytest.mark.root

LEASE_S = 5.0
HOSTS = ["h1", "h2", "h3"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "workers.md"
COMMAND = [sys.executable, "-c", "from controller.cli import main; main()", "worker", "run"]


@pytest.fixture(scope="module")
def net(target: Target) -> Iterator[Net]:
    with star_of_four(target, lease=LEASE_S) as net:
        yield net


@contextmanager
def held(net: Net, host: str) -> Iterator[None]:
    """Stop the one rank of a host while the block lasts."""
    process = rank_process(net, host)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if process.alive():
            os.kill(process.pid, signal.SIGCONT)


class Troubled:
    """A job of three, each rank a `Ranks` of its own: they fail one by one, and go on with `after`."""

    def __init__(self, net: Net, stack: ExitStack, name: str, folder: Path, calls: Any, *more: str) -> None:
        size = BYTES[net.record.target] // 4
        self.net, self.name, self.seed, self.more = net, name, sum(name.encode()), more
        self.after = [Call("float32", size), Call("int32", size)]
        self.paths = [folder / f"{name}{rank}.npz" for rank in range(3)]
        stack.enter_context(jobs.job(net.control, name, HOSTS))
        self._stack = stack
        self.heard = [self.start(rank, calls[rank], self.seed, self.after) for rank in range(3)]

    def start(
        self, rank: int, calls: Sequence[Call], seed: int, after: Sequence[Call]
    ) -> Iterator[dict[str, Any]]:
        """Start a rank, and return what it says."""
        words = self.net.arguments(self.name, rank, calls, seed, self.paths[rank])
        words += ["--after", json.dumps([asdict(call) for call in after]), *self.more]
        ranks = self._stack.enter_context(
            Ranks(self.net.record, [HOSTS[rank]], "tests.network.rank", [words])
        )
        return (message for _, message in ranks.heard(LIMIT_S))

    def until(self, rank: int, what: str) -> dict[str, Any]:
        """Wait until a rank says something with that key."""
        return next(message for message in self.heard[rank] if what in message)

    def finish(self) -> None:
        """All ranks end, and what they got after the trouble is right."""
        for heard in self.heard:
            for message in heard:
                assert "lost" not in message, message
        sums = Sums([load(path) for path in self.paths], [])
        assert_exact(sums, self.after, self.seed + 1, self.net.record.elements)


def many(net: Net) -> list[list[Call]]:
    """More calls than come to an end, the same at each of three ranks."""
    return [[Call("int32", BYTES[net.record.target] // 4)] * 400] * 3


def test_a_worker_held_for_less_than_its_lease_delays_and_no_more(net: Net, tmp_path: Path) -> None:
    with running(net, "held", HOSTS, tmp_path, calls=6) as job:
        job.until(0)
        epoch = job.told()["epoch"]
        with held(net, "h2"):
            time.sleep(LEASE_S / 2)
        job.finish()
        assert job.told()["epoch"] == epoch


def test_a_worker_held_for_longer_than_its_lease_is_lost_to_all_and_told_so(net: Net, tmp_path: Path) -> None:
    with ExitStack() as stack:
        job = Troubled(net, stack, "held-long", tmp_path, many(net))
        job.until(1, "done")
        with held(net, "h2"):
            for rank in (0, 2):
                told = job.until(rank, "lost")
                assert told["kind"] == "WorkerLostError"
                assert f"lost rank 1 on h2 (it said nothing for {LEASE_S:g} s)" in told["lost"]
        with pytest.raises(
            RankError, match=f"is over: it said nothing for {LEASE_S:g} s. Join the job again"
        ):
            job.until(1, "lost")
        job.heard[1] = job.start(1, job.after, job.seed + 1, [])
        job.finish()


def test_a_call_that_times_out_names_the_worker_that_is_held(net: Net, tmp_path: Path) -> None:
    with ExitStack() as stack:
        job = Troubled(net, stack, "late", tmp_path, many(net), "--call-timeout", "2")
        job.until(1, "done")
        with held(net, "h2"):
            # Whoever's time is up first asks the switch; the other is told of that.
            told = [job.until(rank, "lost") for rank in (0, 2)]
        assert "StalledError" in [message["kind"] for message in told]
        for message in told:
            assert "rank 1 (host h2)" in message["lost"]
            if message["kind"] == "StalledError":
                assert "no result for 2 s" in message["lost"]
                assert "The switch has nothing of rank 1 (host h2) for chunk" in message["lost"]
        own = job.until(1, "lost")  # it is told of the others' errors, or its own time was up as well
        own_time = own["kind"] == "StalledError" and "no result for 2 s" in own["lost"]
        assert own_time or "waiting for rank 1 (host h2)" in own["lost"]
        job.finish()


@pytest.mark.parametrize("what", ["dtype", "order"])
def test_ranks_that_call_differently_are_told_and_go_on(net: Net, what: str, tmp_path: Path) -> None:
    one, other = Call("int32", 5000), Call("float32" if what == "dtype" else "int32", 3000)
    first = [one, other] if what == "order" else [one, one]
    second = {"dtype": [one, other], "order": [other, one]}[what]
    with ExitStack() as stack:
        job = Troubled(net, stack, f"differ-{what}", tmp_path, [first, second, first])
        for rank in range(3):
            told = job.until(rank, "lost")
            assert told["kind"] == "MismatchError"
            assert f"rank 1 called sum of 3000 {other.dtype} " in told["lost"]
            assert "the others called sum of 5000 int32 " in told["lost"]
        job.finish()


def test_sums_are_exact_though_packets_overtake_each_other(net: Net, tmp_path: Path) -> None:
    """A rank's packets leave in any order, some a burst late, and results are taken in any order."""
    size = BYTES[net.record.target] // 4
    calls = [Call("int32", size), Call("float32", size)]
    paths = [tmp_path / f"rank{rank}.npz" for rank in range(3)]
    words = [
        [*net.arguments("shuffled", rank, calls, 12, path), "--shuffle"] for rank, path in enumerate(paths)
    ]
    with (
        net.faults(drop=0.01, duplicate=0.02, seed=9),
        jobs.job(net.control, "shuffled", HOSTS),
        Ranks(net.record, HOSTS, "tests.network.rank", words) as ranks,
    ):
        for _ in ranks.heard(LIMIT_S):
            pass
    assert_exact(Sums([load(path) for path in paths], []), calls, 12, net.record.elements)


def command(net: Net, host: str, *words: object) -> subprocess.Popen[str]:
    """Start `p4reduce worker run` in a host."""
    argv = [*COMMAND, *map(str, words), "--net", net.record.name]
    pipe = subprocess.PIPE
    return processes.host_popen(
        net.record, host, argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command; its code, and what it said."""
    out, said = child.communicate(timeout=LIMIT_S)
    return child.returncode, out, said


def test_the_command_sums_files(net: Net, tmp_path: Path) -> None:
    arrays = [np.random.default_rng(rank).integers(-(2**31), 2**31, (70, 90), np.int32) for rank in range(2)]
    with jobs.job(net.control, "files", ["h1", "h2"]):
        children = []
        for rank, array in enumerate(arrays):
            np.save(tmp_path / f"a{rank}.npy", array)
            files = ("--input", tmp_path / f"a{rank}.npy", "--output", tmp_path / f"b{rank}.npy")
            children.append(command(net, f"h{rank + 1}", "files", "--rank", rank, *files, "--json"))
        for rank, child in enumerate(children):
            code, out, said = ended(child)
            assert (code, said) == (0, "")
            told = json.loads(out)
            assert (told["n"], told["elements"]) == (2, 6300)
            assert told["packets_sent"] - told["retransmissions"] == told["packets_received"] == 1 + 99
            np.testing.assert_array_equal(
                np.load(tmp_path / f"b{rank}.npy"), arrays[0] + arrays[1], strict=True
            )


def test_the_command_leaves_the_job_on_ctrl_c(net: Net, tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_text("of before")
    with jobs.job(net.control, "broken", ["h1", "h2"]):
        words = ("broken", "--size", "1MiB", "--iters", 100000, "--output", tmp_path / "b.npy")
        first, second = (command(net, f"h{rank + 1}", *words, "--rank", rank) for rank in range(2))
        wait_for("two all-reduces", lambda: all(r.get("begun", 0) > 1 for r in told(net, "broken")["ranks"]))
        first.send_signal(signal.SIGINT)
        code, out, said = ended(first)
        assert (code, out) == (130, "")
        assert re.fullmatch(r"stopped: rank 0 of 2 was in all-reduce \d+ of 100000 .*left job broken\n", said)
        code, out, said = ended(second)
        assert (code, out) == (4, "")
        assert said.startswith("error: job broken: lost rank 0 on h1 (")
        assert said.count("\n") == 1
        assert not any(rank["joined"] for rank in told(net, "broken")["ranks"])
        assert told(net, "broken")["status"] == "waiting"
    assert [path.name for path in tmp_path.iterdir()] == ["b.npy"]
    assert (tmp_path / "b.npy").read_text() == "of before"


def test_the_page_s_program(net: Net, tmp_path: Path) -> None:
    page = PAGE.read_text()
    program = tmp_path / "sum.py"
    program.write_text(re.findall(r"```py\n(.*?)```", page, re.DOTALL)[0])
    console = re.findall(r"```console\n(.*?)```", page, re.DOTALL)[0]
    hosts = re.findall(r"job add alice --workers (\S+)$", console, re.MULTILINE)[0].split(",")
    starts = re.findall(r"net exec (h\d) \S+python sum.py (\d)", console)
    assert [(hosts[int(rank)], rank) for _, rank in starts] == starts
    environment = {**os.environ, NET_VARIABLE: net.record.name}  # as net exec does
    with jobs.job(net.control, "alice", hosts):
        children = [
            processes.host_popen(
                net.record,
                host,
                [sys.executable, str(program), rank],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for host, rank in starts
        ]
        for child in children:
            code, out, said = ended(child)
            assert (code, said) == (0, "")
            assert out == console.splitlines()[-1] + "\n"


def told(net: Net, job: str) -> dict[str, Any]:
    """What the controller says of a job."""
    return dict(net.control.call("GET", f"/v1/jobs/{job}"))
