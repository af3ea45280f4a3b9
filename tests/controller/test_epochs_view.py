# SPDX-License-Identifier: Apache-2.0
"""What /v1/epochs tells to those who capture packets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controller.office import Office
from tests.controller.served import Served
from topologies.spec import Way


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(1)
    try:
        yield made
    finally:
        made.close()


def test_each_member_is_told_with_its_address_port_bit_and_link(served: Served, tmp_path: Path) -> None:
    with Office(tmp_path, served) as office, office.client() as client:
        assert client.call("GET", "/v1/epochs") == []
        before = time.time_ns()
        members = office.add("one", [7001, 7002], slots=8, lead=2)
        (told,) = client.call("GET", "/v1/epochs")
        first = members[0].worker.membership
        assert (told["job"], told["job_name"], told["n"]) == (first.job, "one", 2)
        assert (told["epoch"], told["window"], told["lead"]) == (first.epoch, 8, 2)
        assert (told["elements"], told["g0"], told["t0"], told["ended"]) == (64, 0, 0, None)
        assert told["switches"] == [{"name": "s1", "ip": "10.0.255.1", "parent": None}]
        assert [
            (m["rank"], m["host"], m["ip"], m["udp_port"], m["bit"], m["link"]) for m in told["members"]
        ] == [
            (0, "h1", "10.0.0.1", 7001, 0, "h1-s1"),
            (1, "h2", "10.0.0.2", 7002, 1, "h2-s1"),
        ]
        assert before < told["began"] < time.time_ns()
        (switch,) = client.call("GET", "/v1/switches")
        assert switch["peers"] == {str(port): f"h{port}" for port in range(1, 6)}


def test_shaped_links_and_duplicating_fault_tables_are_told(served: Served, tmp_path: Path) -> None:
    with Office(tmp_path, served) as office, office.client() as client:
        office.add("one", [7003, 7004], slots=8)
        (told,) = client.call("GET", "/v1/epochs")
        assert [(m["up_mbit"], m["down_mbit"]) for m in told["members"]] == [(None, None)] * 2
        assert not told["duplicates"]
        first, *others = office.record.links
        replace(office.record, links=(replace(first, forth=Way(20.0), back=Way(30.0)), *others)).save()
        faults = {"port": 1, "direction": "in", "duplicate": 0.1}
        client.call("PUT", "/v1/switches/s1/faults", faults)
        (told,) = client.call("GET", "/v1/epochs")
        assert [(m["up_mbit"], m["down_mbit"]) for m in told["members"]] == [(20.0, 30.0), (None, None)]
        assert told["duplicates"]
        client.call("PUT", "/v1/switches/s1/faults", faults | {"duplicate": 0.0})
