# SPDX-License-Identifier: Apache-2.0
"""The turn in C: the same packets at the same times as the steps in Python, and who may interrupt it."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.jobs import Job, begin
from tests.worker.test_udp import UdpSwitch, join
from worker import NotInJobError, StalledError, driver
from worker.calls import DTYPES
from worker.engine import Engine
from worker.guard import Guard
from worker.kernels import NumpyKernels
from worker.native import NativeKernels
from worker.operation import Operation
from worker.turn import Why

CALL = st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(0, 64 * 40))


def values(seed: int, rank: int, size: int, dtype: str) -> Any:
    made = np.random.default_rng([seed, rank]).standard_normal(size) * 1000
    if dtype != "int32" and size > 100 and seed % 7 == 0:
        made[seed % size] = np.nan
    return made.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def numbers(structure: ctypes.Structure) -> dict[str, Any]:
    """All that it holds but addresses."""
    found: dict[str, Any] = {}
    for name, kind in ((field[0], field[1]) for field in structure._fields_):
        if kind is not ctypes.c_void_p:
            value = getattr(structure, name)
            found[name] = list(value) if isinstance(value, ctypes.Array) else value
    return found


def state(engine: Engine) -> dict[str, Any]:
    ring = engine._ring
    waiting = ring.offset >= engine._flow.first
    return {
        "flow": numbers(engine._flow),
        "timer": numbers(engine.timer),
        "recovery": numbers(engine._recovery),
        **{name: getattr(ring, name)[waiting].tolist() for name in ("deadline", "sent_at", "tries", "held")},
        "stats": {k: v for k, v in vars(engine.stats).items() if k != "round_trips"},
        "trips": engine.stats.round_trips._bins.tolist(),
    }


def alike(one: Any, other: Any) -> None:
    """Equal, NaN to NaN; sums of seconds may be rounded in another order."""
    if isinstance(one, dict):
        for name in one.keys() | other.keys():
            alike(one[name], other[name])
    elif isinstance(one, list):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    else:
        assert one == pytest.approx(other, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 3),
    window=st.integers(1, 40),
    calls=st.lists(CALL, min_size=1, max_size=4),
    loss=st.sampled_from([0.0, 0.0, 0.02, 0.2]),
    seed=st.integers(0, 2**32),
    g0=st.sampled_from([0, 2**32 - 30, 2**63 - 5]),
    data=st.data(),
)
def test_c_does_what_python_does(
    n: int, window: int, calls: list[Any], loss: float, seed: int, g0: int, data: Any
) -> None:
    """Each rank has a twin with the other kernels, which is told the same: the twins never differ."""
    lead = data.draw(st.integers(1, window))
    faults = {"loss": loss, "duplicate": loss, "reorder": loss, "seed": seed}
    job = Job(n, faults, timeout=1e9, window=window, lead=lead, g0=g0, kernels=NumpyKernels())
    native = NativeKernels()
    engines = [worker.engine for worker in job.workers]
    twins = [Engine(engine.membership, 1e9, kernels=native) for engine in engines]

    def start(of: list[Engine], now: float) -> list[list[Operation]]:
        return [
            [begin(one, values(seed + i, r, size, dtype), now=now) for i, (dtype, size) in enumerate(calls)]
            for r, one in enumerate(of)
        ]

    now = 1.0
    operations, twin_operations = start(engines, now), start(twins, now)
    in_c = 0
    while not all(operation.done for of_rank in operations for operation in of_rank):
        wake = [now + 1.0]
        for worker, engine, twin in zip(job.workers, engines, twins, strict=True):
            in_c += twin.usual() is not None
            packets = engine.poll(now)
            assert packets.tobytes() == twin.poll(now).tobytes()
            worker.transport.send(packets)
            results = worker.transport.receive(0)
            engine.on_results(results, now + 1e-6)
            twin.on_results(results, now + 1e-6)
            alike(state(engine), state(twin))
            assert engine.wake_at(now) == twin.wake_at(now)
            wake.append(engine.wake_at(now))
        now = max(now + 1e-5, min(wake) if not job.fabric.late else 0.0)
    for one, other in zip(chain(*operations), chain(*twin_operations), strict=True):
        assert other.done
        assert repr(other.error) == repr(one.error)
        assert [a.tobytes() for a in one._call.outs] == [a.tobytes() for a in other._call.outs]
    assert in_c


def test_another_call_is_told_at_every_rank() -> None:
    job = Job(2, kernels=NativeKernels())
    outcomes = job.all_reduce(np.zeros(64, np.int32), np.zeros(65, np.int32))
    assert [type(outcome).__name__ for outcome in outcomes] == ["MismatchError"] * 2


@pytest.fixture
def switch() -> Any:
    thread = UdpSwitch(64)
    thread.start()
    yield thread
    thread.stop()


def test_a_turn_gives_the_engine_back_when_it_is_asked(switch: UdpSwitch) -> None:
    """It waits for a peer that never comes, with no deadline of its own, and would for a minute."""
    worker, peer = join(switch, 2)
    turns: list[int] = []
    until = time.monotonic() + 60
    begun = threading.Event()
    with worker, peer:
        engine, guard, native = worker.engine, worker.changed, worker.transport.native
        assert native is not None
        native.wake = guard.wake

        def run() -> None:
            with guard:
                turn = engine.usual()
                assert turn is not None
                begun.set()
                turns.append(guard.lend(turn, native, until))

        with guard:
            begin(engine, np.arange(100, dtype=np.int32), now=time.monotonic())
            worker.transport.send(engine.poll(time.monotonic()))  # the whole window
            engine._ring.deadline[np.isfinite(engine._ring.deadline)] = 1e200
            engine._recovery.next_check = engine._flow.stall_at = 1e200
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        with guard:
            assert turns == [Why.TIME]
            assert time.monotonic() < until, "not by itself"
        thread.join(60)


def test_only_one_has_the_engine() -> None:
    """Threads that enter, wait and lend at random never meet, and everyone comes to his turn."""
    guard, inside, ends = Guard(), 0, threading.Event()
    entered = [0] * 4

    class Lent:
        wanted = 0

        def run(self, socket: None, until: float) -> int:
            nonlocal inside
            assert inside == 0
            inside += 1
            while not self.wanted and time.monotonic() < until:
                time.sleep(0)
            inside -= 1
            return 0

    def lend() -> None:
        while not ends.is_set():
            with guard:
                guard.let_in()
                turn: Any = Lent()
                guard.lend(turn, None, time.monotonic() + 0.02)  # type: ignore[arg-type]

    def enter(i: int) -> None:
        nonlocal inside
        while entered[i] < 50:
            with guard:
                assert inside == 0
                inside += 1
                inside -= 1
                if i % 2:
                    guard.wait(0.001)
                    assert inside == 0
                entered[i] += 1

    threads = [threading.Thread(target=enter, args=(i,)) for i in range(4)]
    driver = threading.Thread(target=lend)
    for thread in [driver, *threads]:
        thread.start()
    for thread in threads:
        thread.join(60)
    ends.set()
    driver.join(60)
    assert entered == [50] * 4


class InterruptError(Exception):
    """What a signal's handler raises, as Python's does KeyboardInterrupt."""


def interrupt(*_: object) -> None:
    raise InterruptError


def interrupted(step: Callable[[int], object], check: Callable[[], bool]) -> None:
    """Do it many times, with an interrupt at another moment each time."""
    cut_short = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(3000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + i % 15))
                step(i)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except InterruptError:
                cut_short += 1
            assert check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert cut_short


def test_an_interrupt_while_the_guard_is_lent_leaves_it_held_and_the_turn_ended() -> None:
    class Lent:
        wanted = 0

        def run(self, socket: None, until: float) -> int:
            return sum(range(50))

    def step(i: int) -> None:
        turn: Any = Lent()
        if i % 2:
            guard.lend(turn, None, 0.0)  # type: ignore[arg-type]
        else:
            guard.aside(sum, range(50))

    guard = Guard()
    guard.acquire()
    interrupted(step, lambda: guard._owned() and guard._turn is None)
    guard.release()
    assert not guard._owned(), "held once"


def test_an_interrupt_does_not_leave_the_guard_held() -> None:
    def step(i: int) -> None:
        with guard:
            if i % 2:
                guard.wait(0)

    guard = Guard()
    interrupted(step, lambda: not guard._owned())


def test_a_pump_that_fails_leaves_the_engine_to_others(switch: UdpSwitch, monkeypatch: Any) -> None:
    [worker] = join(switch, 1)
    with worker:
        x = np.arange(64 * 20, dtype=np.int32)
        handle = worker.all_reduce_async(x)
        with monkeypatch.context() as patch:
            patch.setattr(worker, "_turn", raise_os_error)
            with pytest.raises(OSError, match="too many"):
                worker.pump(threading.Event())
        np.testing.assert_array_equal(handle.result(60), x)


def raise_os_error(limit: float) -> bool:
    raise OSError("too many open files")


def test_a_handler_of_signals_may_close_the_worker_whose_turn_it_interrupts(switch: UdpSwitch) -> None:
    worker, peer = join(switch, 2)
    before = signal.signal(signal.SIGALRM, lambda *_: worker.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with peer, pytest.raises(NotInJobError):
            worker.all_reduce(np.zeros(10, np.int32))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_who_waits_for_another_handle_is_told(switch: UdpSwitch, monkeypatch: Any) -> None:
    """Not only when his own wait ends, which is an hour here."""
    monkeypatch.setattr(driver, "SLICE", 3600.0)
    worker, peer = join(switch, 2)
    x = np.arange(64, dtype=np.int32)
    first, second = worker.all_reduce_async(x), worker.all_reduce_async(x)
    drives = threading.Thread(target=second.wait)
    drives.start()
    while not worker._driving:
        time.sleep(0.001)
    waits = threading.Thread(target=first.wait)
    waits.start()
    while worker._waiting < 2:
        time.sleep(0.001)
    peer.all_reduce(x)
    waits.join(60)
    assert not waits.is_alive()
    assert not second.done
    peer.all_reduce(x)
    drives.join(60)
    for one in (worker, peer):
        one.close()


def test_who_looks_in_without_waiting_gets_on(switch: UdpSwitch) -> None:
    workers = join(switch, 2)
    x = np.arange(64 * 40, dtype=np.int32)
    handles = [worker.all_reduce_async(x) for worker in workers]
    limit = time.monotonic() + 60
    while not all(handle.done for handle in handles):
        for handle in handles:
            handle.wait(0)
        assert time.monotonic() < limit
    for worker, handle in zip(workers, handles, strict=True):
        np.testing.assert_array_equal(handle.result(), 2 * x)
        worker.close()


def test_what_the_kernel_does_not_take_is_sent_by_python(switch: UdpSwitch, monkeypatch: Any) -> None:
    """A socket that C cannot use: nothing is lost by that."""
    [worker] = join(switch, 1)
    with worker:
        native = worker.transport.native
        assert native is not None
        sent, fd, send = [], native.fd, worker.transport.send

        def in_python(packets: Any) -> None:
            sent.append(len(packets))
            native.fd = fd
            send(packets)

        monkeypatch.setattr(worker.transport, "send", in_python)
        native.fd = -1
        x = np.arange(64 * 20, dtype=np.int32)
        np.testing.assert_array_equal(worker.all_reduce(x), x)
        assert sent[0] == 2, "the first burst of the window of 8"
        assert worker.stats.packets_sent - worker.stats.retransmissions == 21


def test_what_the_kernel_did_not_take_is_no_retransmission() -> None:
    [worker] = Job(1).workers
    engine = worker.engine
    begin(engine, np.zeros(64 * 20, np.int32))
    first = engine.poll(0.0)
    assert len(first) == 2
    engine._left_over = [first]
    packets = engine.poll(engine.wake_at(1.0) + 1.0)
    assert packets["chunk"].tolist() == [0, 1, 0], "what was left over, and a probe"
    assert engine.stats.retransmissions == 1


def test_a_stalled_turn_ends(switch: UdpSwitch) -> None:
    sockets = join(switch, 2)
    with sockets[0] as worker, sockets[1], pytest.raises(StalledError):
        worker.all_reduce(np.zeros(10, np.int32), timeout=0.3)
