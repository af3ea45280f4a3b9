# SPDX-License-Identifier: Apache-2.0
"""What a switch process lost: from its stats socket, else from the kernel's counts of its interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller import drops
from switch.stats_socket import StatsSocket
from topologies.record import NetRecord, new_record, stats_socket
from topologies.spec import star


@pytest.fixture
def record(tmp_path: Path) -> NetRecord:
    made = new_record(
        "t", star(2), target="bmv2", elements=64, slots=1024, root=tmp_path, interfaces=tmp_path
    )
    made.directory.mkdir()
    return made


def test_the_stats_socket_tells(record: NetRecord) -> None:
    ports = {port: dict.fromkeys(drops.LOSSES, 0) | {"rx_packets": 7} for port in (1, 2)}
    ports[2]["tx_dropped"] = 5
    told: dict[str, Any] = {"device_id": 1, "ports": ports}
    serving = StatsSocket(stats_socket(record.directory, 1), lambda: told, lambda asked: None)
    try:
        none = {"rx_dropped": 0, "rx_errors": 0, "tx_dropped": 0, "tx_errors": 0}
        assert drops.of_ports(record, "s1") == {1: none, 2: none | {"tx_dropped": 5}}
        told["ports"] = {}
        assert drops.of_ports(record, "s1") == {}
    finally:
        serving.stop()


def test_else_the_kernel_does(record: NetRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drops, "INTERFACES", tmp_path / "net")
    assert drops.of_ports(record, "s1") == {}  # the interfaces are gone
    folder = tmp_path / "net" / record.switch("s1").ports[2] / "statistics"
    folder.mkdir(parents=True)
    for number, kind in enumerate(drops.LOSSES):
        (folder / kind).write_text(f"{number}\n")
    assert drops.of_ports(record, "s1") == {2: dict(zip(drops.LOSSES, range(4), strict=True))}
