# SPDX-License-Identifier: Apache-2.0
"""Jobs over leaves and spines for real: exact whatever is lost, a spine dies, a cable is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.network.net import LIMIT_S, Net, Sums, load, wait_for
from tests.network.tensors import Call
from tests.network.test_all_reduce import BYTES, assert_exact
from topologies import jobs, manager
from topologies import record as records
from topologies.builders import leaf_spine
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.spec import End
from topologies.targets import Target

pytestmark = pytest.mark.root

HOSTS = ["h1", "h3", "h2", "h4"]
SPINES = ("s3", "s4")


@pytest.fixture(scope="module")
def racks(target: Target) -> Iterator[Net]:
    """Leaves s1 (h1, h2) and s2 (h3, h4) below s3 and s4."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        folder = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).strip(":"))
        name = f"test-{uuid.uuid4().hex[:8]}"
        record = stack.enter_context(
            manager.network(leaf_spine(2, 2, 2), name=name, target=target.name, elements=64)
        )
        yield Net(record, stack.enter_context(jobs.control_of(record)))


def ends(record: NetRecord, between: bool) -> list[End]:
    """Switch ports with switches behind them, or with hosts."""
    names = {switch.name for switch in record.switches}
    found = []
    for switch in record.switches:
        peers = record.peers(switch.name)
        found += [End(switch.name, port) for port, peer in peers.items() if (peer.node in names) == between]
    return found


def tree(net: Net, job: str) -> list[str]:
    """The switches that a job is summed at, its root first."""
    return [node["switch"] for node in net.control.call("GET", f"/v1/jobs/{job}")["tree"]]


def events(net: Net, **which: Any) -> list[str]:
    return [event["text"] for event in net.control.call("GET", "/v1/events", **which)]


def reduce(
    net: Net,
    calls: list[Call],
    folder: Path,
    happens: Callable[[], None] = lambda: None,
    name: str = "job",
    **wanted: Any,
) -> Sums:
    """Run a job of four ranks through all calls; something `happens` once a rank has ended its third."""
    results = [folder / f"{name}{rank}.npz" for rank in range(len(HOSTS))]
    told = [net.arguments(name, rank, calls, 7, path) for rank, path in enumerate(results)]
    stats: dict[int, dict[str, Any]] = {}
    with (
        jobs.job(net.control, name, HOSTS, **wanted),
        Ranks(net.record, HOSTS, "tests.network.rank", told) as ranks,
    ):
        for rank, message in ranks.heard(LIMIT_S):
            if message.get("done") == 2 and rank == 0:
                happens()
            stats[rank] = message.get("stats", {})
    return Sums([load(path) for path in results], [stats[rank] for rank in range(len(HOSTS))])


def calls_of(net: Net, number: int) -> list[Call]:
    return [Call("int32", BYTES[net.record.target] // 4)] * number


@pytest.mark.parametrize("shares", [{"drop": 0.02}, {"duplicate": 0.02, "corrupt": 0.02}])
def test_sums_are_exact_whatever_each_link_does(racks: Net, shares: dict[str, float], tmp_path: Path) -> None:
    calls = calls_of(racks, 2)
    between = ends(racks.record, True)
    everywhere = [*between, *ends(racks.record, False)]
    before = jobs.faulted(racks.control, between)
    try:
        jobs.set_faults(racks.control, everywhere, **shares, seed=11)
        sums = reduce(racks, calls, tmp_path)
    finally:
        jobs.set_faults(racks.control, everywhere)
    assert_exact(sums, calls, 7, racks.record.elements)
    more = jobs.faulted(racks.control, between) - before
    words = {"drop": "dropped", "duplicate": "duplicated", "corrupt": "corrupted"}
    assert all(more[words[what]] > 0 for what in shares), more


def test_a_leaf_is_left_out(racks: Net, tmp_path: Path) -> None:
    calls = [Call("int32", 10_000), Call("float32", 5000)]
    sums = reduce(racks, calls, tmp_path, switches=["s2", "s4"])
    assert_exact(sums, calls, 7, racks.record.elements)


def test_two_jobs_are_summed_at_two_spines(racks: Net, tmp_path: Path) -> None:
    calls = calls_of(racks, 2)
    with jobs.job(racks.control, "other", HOSTS):
        roots = [tree(racks, "other")[0]]
        sums = reduce(racks, calls, tmp_path, lambda: None, "second")
        assert_exact(sums, calls, 7, racks.record.elements)
        with jobs.job(racks.control, "third", HOSTS):
            roots.append(tree(racks, "third")[0])
    assert sorted(roots) == ["s3", "s4"]


def test_a_spine_that_dies_again_and_again_is_left(racks: Net, tmp_path: Path) -> None:
    """It is started anew each time; the job goes on at the other meanwhile."""
    calls = calls_of(racks, 12)
    died: list[str] = []

    def kill() -> None:
        spine = tree(racks, "job")[0]
        died.append(spine)
        deadline = time.monotonic() + LIMIT_S
        while tree(racks, "job")[0] == spine and time.monotonic() < deadline:
            process = records.load(racks.record.name).switch(spine).process
            if process is not None and process.alive():
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    sums = reduce(racks, calls, tmp_path, kill)
    assert_exact(sums, calls, 7, racks.record.elements)
    (spine,) = died
    other = next(name for name in SPINES if name != spine)
    told = events(racks, job="job")
    assert f"it is summed at {other}, s1, s2 from now on" in told
    wait_for("the spine", lambda: racks.control.call("GET", f"/v1/switches/{spine}")["in_line"])


def test_a_cable_is_cut_under_a_running_job(racks: Net, tmp_path: Path) -> None:
    calls = calls_of(racks, 12)
    cut: list[str] = []

    def down() -> None:
        spine = tree(racks, "job")[0]
        ports = racks.record.peers(spine).items()
        port = next(port for port, peer in ports if peer.node == "s1")
        cut.append(racks.record.switch(spine).ports[port])
        subprocess.run(["ip", "link", "set", cut[0], "down"], check=True)

    try:
        sums = reduce(racks, calls, tmp_path, down)
    finally:
        for interface in cut:
            subprocess.run(["ip", "link", "set", interface, "up"], check=True)
    assert_exact(sums, calls, 7, racks.record.elements)
    assert any(text.startswith("it is summed at") for text in events(racks, job="job"))
    wait_for("the cable", lambda: any(text.endswith("is back") and "link" in text for text in events(racks)))
