# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce`: options, what it reports, what it verifies, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench import allreduce, cli
from bench.allreduce import Cell
from bench.rank import data, is_sum
from controller.cli import app
from topologies import jobs, manager
from topologies import record as records
from topologies.spec import star
from topologies.targets import Target

TINY = ["bench", "allreduce", "--elements", "64", "--size", "2KiB"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def cell(target: str = "embedded", seconds: tuple[float, ...] = (0.5, 0.2, 0.3)) -> Cell:
    return Cell(target, "int32", 2, 64, 1_000_000, seconds, 50, 1)


def test_goodput_is_that_of_the_median() -> None:
    assert cell().median == 0.3
    assert cell().mbit_per_s == pytest.approx(8 * 1_000_000 / 0.3 / 1e6)
    assert cell().melements_per_s == pytest.approx(250_000 / 0.3 / 1e6)


def test_ratios_compare_with_the_peer_of_the_same_run() -> None:
    slow = cell("bmv2", (3.0,))
    assert allreduce.ratios([cell(), slow], "bmv2") == {"embedded": {"int32": pytest.approx(10)}}
    assert allreduce.ratios([cell()], "bmv2") == {}


@pytest.mark.parametrize("n", [1, 3])
def test_only_numpys_sum_is_accepted(n: int) -> None:
    exact = np.sum([data("int32", rank, 100).astype(object) for rank in range(n)], axis=0)
    wrapped = ((exact + 2**31) % 2**32 - 2**31).astype(np.int32)
    assert is_sum(wrapped, "int32", n)
    wrapped[99] ^= 1
    assert not is_sum(wrapped, "int32", n)
    floats = np.sum([data("float32", rank, 100).astype(np.float64) for rank in range(n)], axis=0)
    assert is_sum(floats.astype(np.float32), "float32", n)
    floats[99] += 1e-5
    assert not is_sum(floats.astype(np.float32), "float32", n)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4", 4), ("65536", 65536), ("256KiB", 262144), ("4MiB", 4 << 20), ("1 GiB", 1 << 30)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert cli._bytes(text) == nbytes
    assert cli._bytes(cli._size(nbytes)) == nbytes


@pytest.mark.parametrize(
    "options",
    [
        ["--size", "0"],
        ["--size", "6"],
        ["--size", "4MB"],
        ["--size", "much"],
        ["--dtype", "float64"],
        ["--dtype", "int32,int32"],
        ["--workers", "0"],
        ["--workers", "65"],
    ],
    ids=" ".join,
)
def test_bad_options_are_usage_errors(options: list[str]) -> None:
    assert invoke("bench", "allreduce", *options).exit_code == 2


@pytest.mark.root
def test_it_measures_each_target_and_leaves_nothing(target: Target) -> None:
    done = invoke(*TINY, "--workers", "2", "--switch", target.name, "--json")
    tree = json.loads(done.stdout)
    assert tree.keys() == {"cells", "absent", "ratios"}
    assert [(c["target"], c["dtype"]) for c in tree["cells"]] == [
        (target.name, "float32"),
        (target.name, "int32"),
    ]
    for measured in tree["cells"]:
        assert measured.keys() == {
            *("target", "dtype", "workers", "elements", "bytes", "seconds"),
            *("mbit_per_s", "melements_per_s", "packets", "retransmissions"),
        }
        assert (measured["workers"], measured["elements"], measured["bytes"]) == (2, 64, 2048)
        assert measured["seconds"].keys() == {"median", "min", "max"}
    # 2 ranks, 5 times: a header packet, 8 chunks, and for floats 8 exponents ahead of them.
    plain = [c["packets"] - c["retransmissions"] for c in tree["cells"]]
    assert plain == [2 * 5 * (1 + 8 + 8), 2 * 5 * (1 + 8)]
    assert "bench" not in records.names()


@pytest.mark.root
def test_a_running_network_is_used_and_stays(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bench-{os.getpid()}"
    with manager.network(star(3), name=name, target=target.name, elements=64) as record:
        # The switch runs: its program need not be found again.
        monkeypatch.setattr(type(target), "missing", lambda _: "absent")
        # Twice: the job is gone after the first.
        for workers in ([], ["--workers", "2"]):
            done = invoke(*TINY, "--net", name, "--dtype", "int32", *workers)
            assert done.exit_code == 0
            assert f"{2 if workers else 3} workers, 64 values a packet" in done.stdout
            assert f"network {name}, {target.name}: starting {2 if workers else 3} workers" in done.stderr
            assert "faults" not in done.stderr
        with jobs.control_of(record) as control:
            jobs.set_faults(control, jobs.switch_ends(record, ["h1"]), drop=0.3)
        done = invoke(*TINY, "--net", name, "--dtype", "int32")
        counts = re.search(rf"network {name} has faults set: (\d+) dropped packets meanwhile\n", done.stderr)
        assert counts is not None
        assert int(counts[1]) > 0
        for options in (["--elements", "256"], ["--switch", "tofino"], ["--workers", "4"]):
            assert invoke("bench", "allreduce", "--net", name, *options).exit_code == 2
        assert records.load(name).dead() == []
        assert records.load(name) == record
