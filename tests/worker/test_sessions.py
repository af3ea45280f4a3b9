# SPDX-License-Identifier: Apache-2.0
"""Joined workers in threads: rendezvous, changes under running calls, losses, drains, barriers, ends.

The controller is an Office: the real decisions and the real switch, without HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switch.device import SwitchDevice
from tests.worker.jobs import Job as Plain
from tests.worker.office import JOB, Office, enlist, same
from wire.control import WITHDRAWN, RefusedError, UnreachableControllerError
from worker import (
    BarrierTimeoutError,
    JobDrainingError,
    JobRemovedError,
    MismatchError,
    NonFiniteError,
    NotInJobError,
    RendezvousTimeoutError,
    SessionEndedError,
    StalledError,
    TransportError,
    Worker,
    WorkerLostError,
)
from worker import session as session_module
from worker.session_errors import Lost

LIMIT = 60.0
"""Seconds after which a test has hung."""
ONES = np.ones(1000, np.int32)
Wrap = Callable[[Any], Any]


class Job:
    """An office and its workers; `close` ends all of them."""

    def __init__(
        self, device: SwitchDevice, n: int, wraps: Any = None, wrap: Wrap = same, **kwargs: Any
    ) -> None:
        self.office = Office(device, n, **kwargs)
        self._wrap = wrap
        self.pool = ThreadPoolExecutor(2 * n + 2)
        self.workers: list[Worker] = []
        wraps = wraps or {}
        joining = [self.pool.submit(enlist, self.office, r, wrap=wraps.get(r, wrap)) for r in range(n)]
        self.workers = [future.result(LIMIT) for future in joining]

    def call(self, rank: int, array: Any = ONES, **options: Any) -> Future[Any]:
        worker = self.workers[rank]
        return self.pool.submit(lambda: worker.all_reduce(array, **options))

    def reduce(self) -> None:
        """One all-reduce of all ranks, which must be right."""
        arrays = [np.arange(700, dtype=np.int32) + rank for rank in range(len(self.workers))]
        calls = [self.call(rank, array) for rank, array in enumerate(arrays)]
        for call in calls:
            np.testing.assert_array_equal(call.result(LIMIT), np.sum(arrays, axis=0))

    def sid(self, rank: int) -> str:
        return self.office.group.sessions[rank].sid

    def kill(self, rank: int) -> None:
        """Its session ends, and its process with it."""
        self.office.end(self.sid(rank), "it fell over", "SessionEndedError")
        self.workers[rank].close()

    def restart(self, rank: int) -> None:
        self.workers[rank] = enlist(self.office, rank, wrap=self._wrap)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the office or a worker to come to a state."""
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit
            time.sleep(0.005)

    def until_after(self, epoch: int) -> None:
        """Wait for a later epoch to begin."""
        self.until(lambda: self.office.group.epoch > epoch and self.office.group.running)

    def close(self) -> None:
        for call in [self.pool.submit(worker.close) for worker in self.workers]:
            call.result(LIMIT)


@pytest.fixture
def make_job(device: SwitchDevice) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(n: int, **kwargs: Any) -> Job:
        made.append(Job(device, n, **kwargs))
        return made[-1]

    yield make
    for job in made:
        job.close()
        job.pool.shutdown()
    left = [t.name for t in threading.enumerate() if t.name.startswith("p4reduce")]
    assert not left, "a closed worker has no threads"


MakeJob = Callable[..., Job]


def test_join_reduce_leave(make_job: MakeJob) -> None:
    job = make_job(3)
    assert [w.membership.rank for w in job.workers] == [0, 1, 2]
    job.reduce()
    floats = np.linspace(-1, 1, 500).astype(np.float32)
    for call in [job.call(rank, floats) for rank in range(3)]:
        np.testing.assert_allclose(call.result(LIMIT), 3 * floats, atol=1e-6)
    job.close()
    assert not job.office.sessions
    with pytest.raises(NotInJobError, match="was closed"):
        job.workers[0].all_reduce(ONES)


def test_rendezvous_names_the_missing_ranks_and_gives_the_rank_back(device: SwitchDevice) -> None:
    office = Office(device, 3)
    with pytest.raises(RendezvousTimeoutError, match=r"rank 1 \(host h2\), rank 2 \(host h3\)") as caught:
        enlist(office, 0, timeout=0.2)
    assert [tuple(who) for who in caught.value.missing] == [(1, "h2"), (2, "h3")]
    assert not office.sessions


def test_a_held_rank_is_refused(make_job: MakeJob) -> None:
    job = make_job(2)
    with pytest.raises(RefusedError, match="rank 1 is held"):
        enlist(job.office, 1)
    job.reduce()


def test_ports_of_a_former_life_are_bound_again(device: SwitchDevice, make_job: MakeJob) -> None:
    refused = set(range(20000, 20005))
    office = Office(device, 1)
    office.refuse = refused
    with enlist(office, 0) as worker:
        assert worker.membership.own_port not in refused
        office.refuse = {worker.membership.own_port + 1, worker.membership.own_port + 2}
        office.resize(4)
        with office.changed:
            assert office.changed.wait_for(lambda: office.group.epoch > 101 and office.group.running, LIMIT)
        np.testing.assert_array_equal(worker.all_reduce(ONES), ONES)
        assert worker.membership.own_port not in office.refuse


def test_too_many_refused_ports_end_the_join(device: SwitchDevice) -> None:
    office = Office(device, 1)
    office.refuse = set(range(65536))
    with pytest.raises(RefusedError, match="bind again"):
        enlist(office, 0)


def test_changes_of_window_under_running_calls(make_job: MakeJob) -> None:
    """Five changes, with losses, some with the switch's registers gone; every sum is right."""
    job = make_job(3, loss=0.02, duplicate=0.02, reorder=0.1, seed=1)
    stop = threading.Event()

    def loop(rank: int) -> int:
        rng = np.random.default_rng(7)
        count = 0
        while True:
            array = rng.integers(-1000, 1000, 64 * int(rng.integers(1, 40))).astype(np.int32)
            going_on = np.zeros(1, np.int32) if stop.is_set() else np.ones(1, np.int32)
            np.testing.assert_array_equal(job.workers[rank].all_reduce(array + rank), 3 * array + 3)
            array[:] = 77
            if job.workers[rank].all_reduce(going_on)[0] < 3:
                return count
            count += 1

    loops = [job.pool.submit(loop, rank) for rank in range(3)]
    for window, wipe in ((3, False), (8, True), (2, True), (5, False), (4, True)):
        epoch = job.office.group.epoch
        job.office.resize(7)  # and again at once, wherever that change has come to
        job.office.resize(window, wipe=wipe)
        job.until_after(epoch)
    stop.set()
    counts = {call.result(LIMIT) for call in loops}
    assert len(counts) == 1
    job.until(lambda: {w.membership.window for w in job.workers} == {4})


class Deaf:
    """A transport whose results are lost while `deaf` is set."""

    native = None

    def __init__(self, deaf: threading.Event) -> None:
        self.deaf = deaf
        self.heard = threading.Event()

    def __call__(self, transport: Any) -> Any:
        self._transport = transport
        return self

    def send(self, packets: Any) -> None:
        self._transport.send(packets)

    def receive(self, timeout: float) -> Any:
        packets = self._transport.receive(timeout)
        if self.deaf.is_set():
            if len(packets):
                self.heard.set()
            return packets[:0]
        return packets

    def close(self) -> None:
        self._transport.close()


def test_a_rank_between_calls_sends_again_what_others_need(make_job: MakeJob) -> None:
    """The switch forgets everything after rank 0 has its sum, and before rank 1 has."""
    deaf = Deaf(threading.Event())
    job = make_job(2, wraps={1: deaf})
    deaf.deaf.set()
    few = ONES[:9]  # one header packet and one of values: as many as a deaf rank sends
    late = job.call(1, few)
    np.testing.assert_array_equal(job.call(0, few).result(LIMIT), 2 * few)
    assert deaf.heard.wait(LIMIT)
    epoch = job.office.group.epoch
    job.office.resize(3, wipe=True)
    job.until_after(epoch)
    deaf.deaf.clear()
    np.testing.assert_array_equal(late.result(LIMIT), 2 * few)
    job.reduce()


class Failing:
    """A transport that cannot send while `broken` is set."""

    native = None

    def __init__(self) -> None:
        self.broken = threading.Event()

    def __call__(self, transport: Any) -> Any:
        self._transport = transport
        return self

    def send(self, packets: Any) -> None:
        if self.broken.is_set():
            raise TransportError("the link is down")
        self._transport.send(packets)

    def receive(self, timeout: float) -> Any:
        return self._transport.receive(timeout)

    def close(self) -> None:
        self._transport.close()


def test_what_cannot_be_sent_again_is_a_loss_to_the_others(make_job: MakeJob) -> None:
    deaf, failing = Deaf(threading.Event()), Failing()
    job = make_job(2, wraps={0: failing, 1: deaf})
    deaf.deaf.set()
    few = ONES[:9]
    late = job.call(1, few)
    np.testing.assert_array_equal(job.call(0, few).result(LIMIT), 2 * few)
    failing.broken.set()
    job.office.resize(3, wipe=True)
    with pytest.raises(WorkerLostError, match=r"rank 0 on h1 \(TransportError: the link is down\)"):
        late.result(LIMIT)
    failing.broken.clear()
    deaf.deaf.clear()
    job.reduce()


def test_a_worker_that_cannot_carry_on_asks_for_new_members() -> None:
    plain = Plain(1)
    [worker] = plain.workers
    with worker.changed:
        worker.stop("test")
        worker.resume(replace(plain.members[0], epoch=9, g0=5), worker.transport)
    assert worker.quit is not None
    assert "cannot carry on: the epoch begins at chunk 5" in worker.quit
    with pytest.raises(NotInJobError, match="cannot carry on"):
        worker.all_reduce(ONES)
    plain.new_epoch()
    assert worker.quit is None


def test_a_lost_worker_is_named_to_every_survivor_once_and_may_return(make_job: MakeJob) -> None:
    job = make_job(3)
    job.reduce()
    begun = job.call(0)
    job.until(lambda: job.workers[0].engine.begun == 2)
    job.kill(1)
    for call in (begun, job.call(2)):  # one that ran, one that had not begun
        with pytest.raises(WorkerLostError, match=r"lost rank 1 on h2 \(it fell over\)") as caught:
            call.result(LIMIT)
        assert [tuple(who) for who in caught.value.lost] == [(1, "h2", "it fell over")]
        assert caught.value.job == JOB
    waiting = [job.call(0), job.call(2)]
    job.restart(1)
    back = job.call(1)
    for call in [*waiting, back]:
        np.testing.assert_array_equal(call.result(LIMIT), 3 * ONES)
    job.reduce()
    assert {w.membership.t0 for w in job.workers} == {2}


def test_who_was_taken_out_of_the_job_is_not_awaited() -> None:
    gone, dead = Lost(2, "h3", WITHDRAWN), Lost(1, "h2", "it fell over")
    assert str(WorkerLostError("demo", [gone], "its workers become h1, h2")) == (
        "job demo: its members change (its workers become h1, h2); this call cannot complete at any rank. "
        "The next call waits for the new members and then works."
    )
    assert str(WorkerLostError("demo", [gone, dead], "its workers become h1, h2")) == (
        "job demo: lost rank 1 on h2 (it fell over); this call cannot complete at any rank. "
        "Start these workers again; the next call waits for them and then works."
    )


def test_what_one_survivor_has_the_others_fetch(make_job: MakeJob) -> None:
    """Rank 2 dies after rank 0 has its sum and before rank 1 has: rank 1 gets it, and nobody fails."""
    deaf = Deaf(threading.Event())
    job = make_job(3, wraps={1: deaf})
    deaf.deaf.set()
    small = [job.call(rank, np.full(3, rank, np.int32)) for rank in range(3)]
    for rank in (0, 2):
        np.testing.assert_array_equal(small[rank].result(LIMIT), np.full(3, 3, np.int32))
    assert deaf.heard.wait(LIMIT)
    job.kill(2)
    job.until(lambda: job.workers[1].engine.stopped)
    deaf.deaf.clear()
    np.testing.assert_array_equal(small[1].result(LIMIT), np.full(3, 3, np.int32))
    job.restart(2)
    job.reduce()


def test_a_worker_that_says_nothing_is_lost_by_its_lease(make_job: MakeJob) -> None:
    job = make_job(2, lease=1.5)
    session: Any = job.workers[1]._session
    session._closing.set()  # as if its process were gone
    with pytest.raises(WorkerLostError, match=r"rank 1 on h2 \(it said nothing for 1.5 s\)"):
        job.call(0).result(LIMIT)


def test_a_call_that_waits_in_vain_for_a_new_epoch_says_who_is_missing(make_job: MakeJob) -> None:
    job = make_job(2)
    job.kill(1)
    job.until(lambda: job.workers[0].engine.left is not None)
    with pytest.raises(RendezvousTimeoutError, match=r"after 0.5 s; missing: rank 1 \(host h2\)"):
        job.call(0, timeout=0.5).result(LIMIT)


def test_mismatch_is_an_error_at_all_ranks_and_the_next_call_works(make_job: MakeJob) -> None:
    job = make_job(3, loss=0.05, seed=3)
    for array in (ONES, np.zeros(64 * 50, np.float32)):
        calls = [job.call(0, ONES[:5]), job.call(1, array), job.call(2, ONES[:5])]
        for call in calls:
            with pytest.raises(MismatchError) as caught:
                call.result(LIMIT)
            assert caught.value.ranks == [1]
        job.reduce()


def test_a_time_out_is_a_loss_to_the_others_and_all_go_on(make_job: MakeJob) -> None:
    job = make_job(2)
    with pytest.raises(StalledError):
        job.call(0, timeout=0.5).result(LIMIT)
    with pytest.raises(WorkerLostError, match=r"rank 0 on h1 \(timed out after 0.5 s"):
        job.call(1).result(LIMIT)
    job.reduce()


def test_a_time_out_says_which_chunks_and_whose_are_missing(make_job: MakeJob) -> None:
    job = make_job(3)
    few = np.ones(64 * 3, np.int32)  # and a header packet: two fit the congestion window
    calls = [job.call(rank, few, timeout=1.0) for rank in (0, 2)]
    job.until(lambda: any(call.done() for call in calls))
    first = next(call for call in calls if call.done())
    with pytest.raises(StalledError) as caught:
        first.result(LIMIT)
    told, own = caught.value, 2 * calls.index(first)
    assert told.lacking == {chunk: [(1, "h2")] for chunk in range(2)}
    assert "The switch has nothing of rank 1 (host h2) for chunks 0 to 1. " in str(told)
    with pytest.raises((WorkerLostError, StalledError), match=r"rank 1 \(host h2\)") as other:
        calls[1 - calls.index(first)].result(LIMIT)
    if isinstance(other.value, WorkerLostError):
        [lost] = other.value.lost
        assert (lost.rank, lost.host) == (own, f"h{own + 1}")
        assert lost.why == "timed out after 1 s without a result, waiting for rank 1 (host h2)"
    with pytest.raises(WorkerLostError):
        job.call(1, few).result(LIMIT)
    job.reduce()


def test_a_time_out_for_results_that_do_not_come_says_that_the_switch_has_them(make_job: MakeJob) -> None:
    deaf = Deaf(threading.Event())
    job = make_job(2, wraps={1: deaf})
    deaf.deaf.set()
    few = ONES[:9]
    late = job.call(1, few, timeout=0.5)
    np.testing.assert_array_equal(job.call(0, few).result(LIMIT), 2 * few)
    with pytest.raises(StalledError, match="The switch has the result of chunks 0 to 1, and it did not come"):
        late.result(LIMIT)


def test_a_time_out_with_nothing_sent_asks_nobody(make_job: MakeJob) -> None:
    [worker] = make_job(1).workers
    told = StalledError(2.0, 7, 0, 3, 9, "10.0.255.1:48640", 0)
    session: Any = worker._session
    session.look(told)
    assert told.lacking == {}
    assert "is not known: each chunk that it has sent has its result. " in str(told)


def test_a_time_out_without_a_controller_says_that_it_could_not_ask(make_job: MakeJob) -> None:
    job = make_job(2)
    job.office.go_away(True)
    with pytest.raises(StalledError, match="missing is not known: no controller answers at office") as caught:
        job.call(0, timeout=0.5).result(LIMIT)
    assert caught.value.lacking == {}
    job.office.go_away(False)


class Interrupting:
    """A transport in which a Ctrl-C arrives at a given receive."""

    native = None

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, transport: Any) -> Any:
        self._transport = transport
        return self

    def send(self, packets: Any) -> None:
        self._transport.send(packets)

    def receive(self, timeout: float) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self._transport.receive(timeout)

    def close(self) -> None:
        self._transport.close()


def test_an_interrupt_is_a_loss_to_the_others_and_all_go_on(make_job: MakeJob) -> None:
    job = make_job(2, wraps={0: Interrupting(3)})
    big = np.zeros(64 * 100, np.int32)
    calls = [job.call(rank, big) for rank in range(2)]
    with pytest.raises(KeyboardInterrupt):
        calls[0].result(LIMIT)
    with pytest.raises(WorkerLostError, match=r"rank 0 on h1 \(interrupted\)"):
        calls[1].result(LIMIT)
    job.reduce()


def test_values_that_cannot_be_sent_need_no_new_epoch(make_job: MakeJob) -> None:
    job = make_job(2)
    bad = np.array([1, np.nan], np.float32)
    for call in [job.call(0, bad), job.call(1, np.ones(2, np.float32))]:
        with pytest.raises(NonFiniteError):
            call.result(LIMIT)
    changes = job.office.group.changes
    job.reduce()
    assert job.office.group.changes == changes


def test_drain_completes_what_began_and_refuses_the_rest(make_job: MakeJob) -> None:
    job = make_job(2, lease=6.0)  # a drained worker asks three times a lease
    job.reduce()
    early = job.call(0)
    job.until(lambda: job.office.group.sessions[0].status.begun == 2)
    job.office.drain()
    np.testing.assert_array_equal(job.call(1).result(LIMIT), 2 * ONES)
    np.testing.assert_array_equal(early.result(LIMIT), 2 * ONES)
    job.until(lambda: not job.office.sessions)
    for rank in range(2):
        with pytest.raises(JobDrainingError, match="ends after 2 all-reduces"):
            job.call(rank).result(LIMIT)


def test_a_removed_job_ends_every_call(make_job: MakeJob) -> None:
    job = make_job(2)
    running = job.call(0)
    job.office.remove()
    with pytest.raises(JobRemovedError, match="job demo was removed"):
        running.result(LIMIT)
    for rank in range(2):
        with pytest.raises(JobRemovedError, match="job demo was removed"):
            job.call(rank).result(LIMIT)
    with pytest.raises(JobRemovedError):
        job.workers[1].barrier(1.0)


def test_an_ended_session_says_why(make_job: MakeJob) -> None:
    job = make_job(1)
    job.office.end(job.sid(0), "the operator said so", "LeaseExpiredError")
    job.until(lambda: job.workers[0].over)
    with pytest.raises(SessionEndedError, match="the operator said so"):
        job.call(0).result(LIMIT)


def test_barrier(make_job: MakeJob) -> None:
    job = make_job(3)
    for _ in range(2):
        passed = [job.pool.submit(worker.barrier, LIMIT) for worker in job.workers]
        for call in passed:
            call.result(LIMIT)
    first = job.pool.submit(job.workers[0].barrier, LIMIT)
    second = job.pool.submit(job.workers[1].barrier, 0.2)
    with pytest.raises(BarrierTimeoutError, match=r"in 0.2 s; missing: .*rank 2 \(host h3\)"):
        second.result(LIMIT)
    # The time-out did not count: rank 1 has to come again, and may.
    rest = [job.pool.submit(job.workers[rank].barrier, LIMIT) for rank in (1, 2)]
    for call in [first, *rest]:
        call.result(LIMIT)
    waiting = job.pool.submit(job.workers[0].barrier, LIMIT)
    job.until(lambda: job.office._barriers[0] > job.office._barriers[1])
    job.kill(2)
    with pytest.raises(WorkerLostError, match="rank 2 on h3"):
        waiting.result(LIMIT)
    job.restart(2)
    for call in [job.pool.submit(worker.barrier, LIMIT) for worker in job.workers]:
        call.result(LIMIT)


def test_a_worker_without_a_controller_has_no_barrier() -> None:
    with pytest.raises(NotInJobError, match="no barriers"):
        Plain(1).workers[0].barrier()


def test_without_a_controller_the_data_path_goes_on(make_job: MakeJob) -> None:
    job = make_job(2)
    job.office.go_away(True)
    for _ in range(20):
        job.reduce()
    job.office.go_away(False)
    epoch = job.office.group.epoch
    job.office.resize(3)
    job.until(lambda: job.workers[0].engine.stopped or job.office.group.epoch > epoch)
    job.office.go_away(True)  # wherever that change has come to
    call = job.call(0)
    job.office.go_away(False)
    np.testing.assert_array_equal(job.call(1).result(LIMIT), 2 * ONES)
    np.testing.assert_array_equal(call.result(LIMIT), 2 * ONES)
    job.until_after(epoch)
    job.reduce()


def test_a_controller_that_stays_away_ends_the_session(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CONTROLLER_LIMIT", 0.3)
    job = make_job(1)
    job.office.go_away(True)
    job.until(lambda: job.workers[0].over)
    with pytest.raises(SessionEndedError, match="has not answered for"):
        job.call(0).result(LIMIT)


def test_no_controller_at_the_rendezvous(device: SwitchDevice) -> None:
    office = Office(device, 1)
    office.go_away(True)
    with pytest.raises(UnreachableControllerError):
        enlist(office, 0)
