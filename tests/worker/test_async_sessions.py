# SPDX-License-Identifier: Apache-2.0
"""Several all-reduces of joined workers under way: the background carries them on, over changes of epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from tests.worker.loopback import Loopback
from tests.worker.test_sessions import LIMIT, MakeJob
from tests.worker.test_sessions import make_job as make_any_job
from worker import JobDrainingError, WorkerLostError

__all__ = ["make_any_job"]
ARRAYS = [np.arange(64 * 9 * i, dtype=np.int32) for i in range(1, 5)]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    thread = Loopback()
    yield thread
    thread.stop()


@pytest.fixture(params=["in Python", "in C"])
def make_job(request: pytest.FixtureRequest, loopback: Loopback, make_any_job: MakeJob) -> MakeJob:
    """A turn in C needs a socket."""
    return partial(make_any_job, wrap=loopback) if request.param == "in C" else make_any_job


def test_the_background_carries_on_what_nobody_waits_for(make_job: MakeJob) -> None:
    job = make_job(2)
    handles = [[worker.all_reduce_async(array) for array in ARRAYS] for worker in job.workers]
    job.until(lambda: all(handle.done for of_rank in handles for handle in of_rank))
    for of_rank in handles:
        for handle, array in zip(of_rank, ARRAYS, strict=True):
            np.testing.assert_array_equal(handle.result(), 2 * array)
    job.reduce()


def test_changes_of_window_under_several(make_job: MakeJob) -> None:
    job = make_job(3)
    epoch = job.office.group.epoch
    handles = [[worker.all_reduce_async(array) for array in ARRAYS] for worker in job.workers[:2]]
    job.office.resize(3, wipe=True)
    job.until_after(epoch)
    handles.append([job.workers[2].all_reduce_async(array) for array in ARRAYS])
    epoch = job.office.group.epoch
    job.office.resize(7, wipe=True)
    for of_rank in handles:
        for handle, array in zip(of_rank, ARRAYS, strict=True):
            np.testing.assert_array_equal(handle.result(LIMIT), 3 * array)
    job.until_after(epoch)
    job.reduce()


def test_a_lost_worker_fails_all_that_were_begun(make_job: MakeJob) -> None:
    """Rank 1 had begun one of four: its next three calls fail at once, and then all are in step."""
    job = make_job(3)
    handles = [job.workers[0].all_reduce_async(array) for array in ARRAYS]
    one = job.workers[1].all_reduce_async(ARRAYS[0])
    job.kill(2)
    for handle in (*handles, one):
        with pytest.raises(WorkerLostError, match="rank 2"):
            handle.result(LIMIT)
    for array in ARRAYS[1:]:
        with pytest.raises(WorkerLostError, match="rank 2"):
            job.workers[1].all_reduce(array)
    job.restart(2)
    job.reduce()


def test_a_lost_worker_fails_a_list_once(make_job: MakeJob) -> None:
    """A list of three types is three all-reduces and one call, and an empty one is none."""
    job = make_job(3)
    mixed = [np.zeros(9, dtype) for dtype in (np.int32, np.float32, np.int32)]
    handle = job.workers[0].all_reduce_async(mixed)
    job.kill(2)
    with pytest.raises(WorkerLostError, match="rank 2"):
        handle.result(LIMIT)
    with pytest.raises(WorkerLostError, match="rank 2"):
        job.workers[1].all_reduce(mixed)
    job.restart(2)
    assert job.workers[1].all_reduce([]) == []
    job.reduce()


def test_close_waits_for_what_is_under_way(make_job: MakeJob) -> None:
    job = make_job(2, loss=0.05)
    handles = [[worker.all_reduce_async(array) for array in ARRAYS] for worker in job.workers]
    job.workers[0].close()
    for of_rank in handles:
        for handle, array in zip(of_rank, ARRAYS, strict=True):
            np.testing.assert_array_equal(handle.result(LIMIT), 2 * array)


def test_drain_completes_all_that_were_begun(make_job: MakeJob) -> None:
    job = make_job(2, lease=6.0)
    early = [job.workers[0].all_reduce_async(array) for array in ARRAYS]
    job.until(lambda: job.office.group.sessions[0].status.begun == len(ARRAYS))
    job.office.drain()
    late = [job.workers[1].all_reduce_async(array) for array in ARRAYS]
    for handles in (early, late):
        for handle, array in zip(handles, ARRAYS, strict=True):
            np.testing.assert_array_equal(handle.result(LIMIT), 2 * array)
    job.until(lambda: not job.office.sessions)
    for worker in job.workers:
        with pytest.raises(JobDrainingError, match="ends after 4 all-reduces"):
            worker.all_reduce(ARRAYS[0])
