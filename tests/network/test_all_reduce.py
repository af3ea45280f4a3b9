# SPDX-License-Identifier: Apache-2.0
"""All-reduce over real links, through a switch that loses, repeats and corrupts packets: always exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.network.net import Net, Sums
from tests.network.tensors import Call, tensor
from training.check import expected
from wire.verdicts import Verdict

pytestmark = pytest.mark.root

BYTES = {"embedded": 1 << 20, "bmv2": 1 << 16}
"""Of each tensor."""
HOSTS = ["h1", "h2", "h3", "h4"]


def assert_exact(sums: Sums, calls: list[Call], seed: int, elements: int) -> None:
    ranks = range(len(sums.results))
    for number, call in enumerate(calls):
        arrays = np.stack([tensor(seed, number, rank, call) for rank in ranks])
        if call.dtype == "int32":
            wanted = arrays.sum(axis=0, dtype=np.int32)
        else:
            _, wanted = expected(arrays, elements)
            scale = np.abs(arrays).max()
            assert np.abs(wanted - arrays.sum(axis=0, dtype=np.float64)).max() <= scale * len(ranks) * 1e-6
        for rank in ranks:
            got = sums.results[rank][number]
            assert got.dtype == wanted.dtype
            assert got.tobytes() == wanted.tobytes(), (call, rank)


@pytest.mark.parametrize("workers", [2, 4])
def test_sums_are_exact_though_packets_are_lost_each_way(net: Net, workers: int, tmp_path: Path) -> None:
    size = BYTES[net.record.target] // 4
    calls = [Call("float32", size), Call("int32", size)]
    before = (*net.injected(Verdict.FAULT_DROPPED), net.counted(Verdict.REPLAYED))
    with net.faults(drop=0.05, seed=1000 + workers):
        sums = net.reduce(HOSTS[:workers], calls, workers, tmp_path)
    assert_exact(sums, calls, workers, net.record.elements)
    after = (*net.injected(Verdict.FAULT_DROPPED), net.counted(Verdict.REPLAYED))
    lost_up, lost_down, replayed = (b - a for a, b in zip(before, after, strict=True))
    assert min(lost_up, lost_down, replayed) > 0
    # Whatever was lost was sent again.
    assert sum(stats["retransmissions"] for stats in sums.stats) >= lost_down
    assert all(stats["all_reduces"] == 2 for stats in sums.stats)


def test_sums_are_exact_though_packets_are_repeated_and_corrupted(net: Net, tmp_path: Path) -> None:
    size = BYTES[net.record.target] // 4
    calls = [Call("int32", size), Call("float32", size)]
    kinds = (Verdict.FAULT_DUPLICATED, Verdict.FAULT_CORRUPTED)
    before = [net.injected(kind) for kind in kinds]
    refused = net.counted(Verdict.BAD_UDP_CHECKSUM)
    with net.faults(duplicate=0.03, corrupt=0.03, seed=5):
        sums = net.reduce(HOSTS, calls, 5, tmp_path)
    assert_exact(sums, calls, 5, net.record.elements)
    injected = [
        (b_in - a_in, b_out - a_out)
        for (a_in, a_out), (b_in, b_out) in zip(before, map(net.injected, kinds), strict=True)
    ]
    assert min(map(min, injected)) > 0
    (_, (corrupted_up, _)) = injected
    # Frames of other kinds (ARP) count as faulted too, and have no value that could be flipped.
    assert 0 < net.counted(Verdict.BAD_UDP_CHECKSUM) - refused <= corrupted_up


def test_the_transport_that_scapy_drives(net: Net, tmp_path: Path) -> None:
    calls = [Call("int32", 1000)]
    sums = net.reduce(HOSTS[:2], calls, 9, tmp_path, scapy=True)
    assert_exact(sums, calls, 9, net.record.elements)
