# SPDX-License-Identifier: Apache-2.0
"""join over HTTP on a Unix socket and UDP over loopback: a controller that answers as the API says."""

from __future__ import annotations

import gc
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.api import Answer, Api, refused, serving
from tests.worker.test_udp import LOOPBACK
from wire.control import RefusedError, UnreachableControllerError
from worker import (
    Absent,
    BeyondRankError,
    JobDrainingError,
    NoSuchJobError,
    RankTakenError,
    RendezvousTimeoutError,
    SessionEndedError,
    StalledError,
    WrongHostError,
    control,
    join,
)
from worker import session as session_module


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path / "controller.sock") as server:
        yield server


def test_join_reduce_barrier_leave(api: Api, tmp_path: Path) -> None:
    api.refusals = [refused(409, "BindAgainError", "bind again")] * 2
    array = np.arange(1000, dtype=np.int32)
    with join("demo", 0, address=tmp_path / "controller.sock", timeout=60) as worker:
        np.testing.assert_array_equal(worker.all_reduce(array), array)
        worker.barrier(5)
    opened = [body for method, path, body in api.calls if path.endswith("/ranks/0")]
    assert len({body["udp_port"] for body in opened}) == 3
    assert opened[0]["ip"] == LOOPBACK
    last = api.calls.index(("DELETE", "/v1/sessions/s1", None))
    said = [body for _, path, body in api.calls[:last] if path.endswith("/sync")]
    # What the last status says is what the controller goes by when others still miss results.
    assert (said[-1]["begun"], said[-1]["next_chunk"], said[-1]["first_missing"]) == (1, 17, 17)
    assert set(said[0]) == {
        *("epoch", "begun", "next_chunk", "first_missing", "stopped", "udp_port", "have", "fetched"),
        *("failed", "left", "missing", "wait"),
    }
    [barrier] = [body for _, path, body in api.calls if path.endswith("/barrier")]
    assert barrier["number"] == (worker.membership.epoch << 20) + 1


@pytest.mark.parametrize(
    ("answer", "rank", "error", "text"),
    [
        (refused(404, "NoSuchJobError", "there is no job demo"), 0, NoSuchJobError, "there is no job demo"),
        ((200, Api.described()), 1, BeyondRankError, "has no rank 1: its ranks are 0 to 0"),
        ((200, Api.described("192.0.2.7")), 0, WrongHostError, r"belongs to host h1 \(192.0.2.7\)"),
        ((200, Api.described(status="draining")), 0, JobDrainingError, "takes no new workers"),
        (refused(500, "", "broken"), 0, RefusedError, "broken"),
    ],
)
def test_what_refuses_a_join(
    api: Api, tmp_path: Path, answer: Answer, rank: int, error: Any, text: str
) -> None:
    api.job = answer
    with pytest.raises(error, match=text) as caught:
        join("demo", rank, address=tmp_path / "controller.sock")
    assert "\nTraceback" not in "".join(traceback.format_exception(caught.value)), "one error says it all"


def test_a_call_that_times_out_asks_who_is_missing(api: Api, tmp_path: Path) -> None:
    api.chunks = (
        200,
        [
            {"chunk": 0, "missing": [{"rank": 3, "host": "h9"}]},
            {"chunk": 1, "missing": []},
        ],
    )
    address = tmp_path / "controller.sock"
    with join("demo", 0, address=address, timeout=60, call_timeout=0.3) as worker:
        api.udp.drop_next = 1 << 30
        with pytest.raises(StalledError) as caught:
            worker.all_reduce(np.ones(1000, np.int32))
    assert caught.value.lacking == {0: [Absent(3, "h9")], 1: []}
    assert caught.value.unasked is None
    assert (
        "The switch has nothing of rank 3 (host h9) for chunk 0. "
        "The switch has the result of chunk 1, and it did not come here. "
    ) in str(caught.value)
    [(method, path, _)] = [call for call in api.calls if "chunks" in call[1]]
    assert (method, path) == ("GET", "/v1/jobs/demo/chunks?chunk=0&chunk=1")


@pytest.mark.parametrize("how", ["refuses", "is slow"])
def test_a_call_that_times_out_says_that_the_controller_did_not_answer(
    api: Api, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LOOK_SECONDS", 0.2)
    api.chunks = refused(503, "NotReadyError", "job demo is between two epochs")
    if how == "is slow":
        api.slow.clear()
    address = tmp_path / "controller.sock"
    with join("demo", 0, address=address, timeout=60, call_timeout=0.3) as worker:
        api.udp.drop_next = 1 << 30
        with pytest.raises(StalledError) as caught:
            worker.all_reduce(np.ones(1000, np.int32))
        api.slow.set()
    wanted = {"refuses": "job demo is between two epochs", "is slow": "waited 0.2 s for the controller at "}
    assert f"Which workers are missing is not known: {wanted[how]}" in str(caught.value)


def test_a_held_rank(api: Api, tmp_path: Path) -> None:
    api.refusals = [refused(409, "RankTakenError", "rank 0 of job demo is held by a worker on h1")]
    with pytest.raises(RankTakenError, match="held by a worker on h1"):
        join("demo", 0, address=tmp_path / "controller.sock")


def test_nobody_else_comes(api: Api, tmp_path: Path) -> None:
    api.told = [{"do": "nothing"}] * 10000
    with pytest.raises(RendezvousTimeoutError, match=r"missing: rank 0 \(host h1\)"):
        join("demo", 0, address=tmp_path / "controller.sock", timeout=0.2)
    assert api.calls[-1][:2] == ("DELETE", "/v1/sessions/s1")


def test_nobody_at_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RESTART_SECONDS", 0.2)
    with pytest.raises(UnreachableControllerError):
        join("demo", 0, address=tmp_path / "controller.sock")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "dead.sock"))
    left.close()
    with pytest.raises(UnreachableControllerError):
        join("demo", 0, address=tmp_path / "dead.sock")
    gc.collect()  # no socket is left open


def test_an_instruction_that_makes_no_sense_ends_the_session(api: Api, tmp_path: Path) -> None:
    with join("demo", 0, address=tmp_path / "controller.sock", timeout=60) as worker:
        api.told = [{"do": "go", "resume": False, "membership": {"rank": "none"}}]
        with worker.changed:
            assert worker.changed.wait_for(lambda: worker.over, 60)
        with pytest.raises(SessionEndedError, match="Error"):
            worker.all_reduce(np.zeros(1, np.int32))
