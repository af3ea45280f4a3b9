# SPDX-License-Identifier: Apache-2.0
"""What programs ask of a network's controller; it is stood in for by a list of calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from topologies import jobs
from topologies.record import new_record
from topologies.spec import End, star
from wire.control import ControlClient, ControlError, UnreachableControllerError


class Fake:
    """Notes calls and answers from a table; raises what is no answer."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, str, Any]] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.calls.append((method, path, body))
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def client(self) -> ControlClient:
        return cast(ControlClient, self)


def test_a_job_is_there_while_the_block_lasts() -> None:
    fake = Fake(POST={"lead": 3})
    with jobs.job(fake.client, "one", ("h1", "h2"), slots=8) as told:
        assert told == {"lead": 3}
        assert fake.calls == [("POST", "/v1/jobs", {"name": "one", "workers": ["h1", "h2"], "slots": 8})]
    assert fake.calls[1:] == [("DELETE", "/v1/jobs/one", None)]


def test_the_first_error_is_told() -> None:
    gone = UnreachableControllerError("x", "gone")
    fake = Fake(DELETE=gone)
    with pytest.raises(ZeroDivisionError), jobs.job(fake.client, "one", ["h1"]):
        raise ZeroDivisionError
    assert fake.calls[-1][0] == "DELETE"
    with pytest.raises(ControlError, match="gone"), jobs.job(fake.client, "one", ["h1"]):
        pass
    fake = Fake(POST=gone)
    with pytest.raises(ControlError, match="gone"), jobs.job(fake.client, "one", ["h1"]):
        raise AssertionError("a job that was refused")
    assert len(fake.calls) == 1


def test_faults_of_hosts_ports_are_set_and_counted(tmp_path: Path) -> None:
    record = new_record("n", star(3), target="embedded", elements=64, slots=1, root=tmp_path)
    ends = jobs.switch_ends(record, ["h3", "h1"])
    assert ends == [End("s1", 3), End("s1", 1)]
    quiet: dict[str, Any] = {"faults_in": {}, "faults_out": {}}
    ports = {
        "1": {"faults_in": {"fault_dropped": [2, 200]}, "faults_out": {"fault_dropped": [3, 300]}},
        "2": {"faults_in": {"fault_dropped": [100, 1]}, "faults_out": {}},  # of no host that was named
        "3": quiet | {"faults_out": {"fault_corrupted": [7, 70]}},
    }
    fake = Fake(GET={"ports": ports})
    jobs.set_faults(fake.client, ends, drop=0.5, seed=9)
    assert [(path, b["port"], b["direction"], b["drop"], b["seed"]) for _, path, b in fake.calls] == [
        ("/v1/switches/s1/faults", port, way, 0.5, 9) for port in (3, 1) for way in ("in", "out")
    ]
    assert jobs.faulted(fake.client, ends) == {"dropped": 5, "corrupted": 7}
