# SPDX-License-Identifier: Apache-2.0
"""Changes of epoch with packets in flight: the engine and the compiled program, as in the model of epochs.

Packets of former epochs arrive at any time later. Every sum is compared with numpy's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.worker.jobs import begin
from tests.worker.world import Tensors, World, seats
from worker import MismatchError, ResumeError, StalledError
from worker.kernels import Kernels

BEGINNINGS = [0, 2**32 - 20, 2**31 - 10, 2**63 - 15, 2**64 - 2**20]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    windows = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    return {
        "seed": draw(st.integers(0, 2**32)),
        "n": draw(st.integers(1, 4)),
        "windows": windows,
        "lead": draw(st.sampled_from([1, min(windows)])),
        "g0": draw(st.sampled_from(BEGINNINGS)),
        "loss": draw(st.sampled_from([0.0, 0.1, 0.25])),
        "duplicate": draw(st.sampled_from([0.0, 0.2])),
        "most": draw(st.integers(1, 4)),
        "kinds": draw(st.lists(st.sampled_from(["resize", "wipe", "lose"]), min_size=4, max_size=4)),
    }


def run(device: SwitchDevice, case: dict[str, Any], kernels: Kernels) -> None:
    world = World(device, case["seed"], loss=case["loss"], duplicate=case["duplicate"], kernels=kernels)
    n: int = case["n"]
    first, *windows = case["windows"]
    tensors = Tensors(case["seed"], n, 6)
    world.start(3, tensors, n, 8, window=first, lead=case["lead"], g0=case["g0"], most=case["most"])
    for window, kind in zip(windows, case["kinds"], strict=False):
        before = world.steps + world.random.randrange(300)
        world.run(lambda before=before: world.steps >= before or world.finished)
        if kind == "lose":
            world.catch_up()
            world.lose(world.random.randrange(n), window)
        else:
            world.same_members(window, wipe=kind == "wipe")
    world.catch_up()
    world.run()
    for rank in world.ranks:
        assert rank.completed | rank.failed == set(range(8))


HELD_BACK_IN_A_WINDOW_OF_ONE = {
    "seed": 0,
    "n": 4,
    "windows": [2, 2, 2, 2, 4],
    "lead": 2,
    "g0": 0,
    "loss": 0.25,
    "duplicate": 0.0,
    "most": 1,
    "kinds": ["resize"] * 4,
}
"""A rank waited for a result with its window full, and the others for what it held back."""


@settings(max_examples=20, deadline=None)
@given(case=cases())
@example(case=HELD_BACK_IN_A_WINDOW_OF_ONE)
def test_sums_are_exact_over_changes_of_epoch(
    device: SwitchDevice, kernels: Kernels, case: dict[str, Any]
) -> None:
    run(device, case, kernels)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 4), window=st.integers(1, 6))
def test_a_second_tenant_on_the_same_slots(device: SwitchDevice, seed: int, n: int, window: int) -> None:
    """Its predecessor dies in mid-tensor, with packets under way, and has its slots and ranks' hosts."""
    world = World(device, seed, loss=0.1, duplicate=0.2)
    world.start(3, Tensors(seed, n, 9), n, 20, window=window, lead=1, g0=0)
    world.run(lambda: world.steps >= 200)
    world.jobs.remove_job(3)
    world.start(4, Tensors(seed + 1, n, 6), n, 4, window=window, lead=1, g0=world.random.randrange(40))
    world.run()


def test_a_rank_says_what_it_cannot_carry_on_with(device: SwitchDevice) -> None:
    world = World(device, 1, loss=0.0, duplicate=0.0)
    world.start(3, Tensors(1, 1, 6), 1, 9, window=4, lead=2, g0=100)
    world.run()
    engine, old = world.ranks[0].engine, world.ranks[0].member
    engine.stop("test")
    next_chunk = engine.next_chunk
    assert engine.first_missing == next_chunk > 120
    new = replace(old, epoch=old.epoch + 1)
    for g0, n, lead in (
        (100, 1, 2),
        (next_chunk - 9, 1, 2),
        (next_chunk + 1, 1, 2),
        (next_chunk, 2, 2),
        (next_chunk, 1, 1),
    ):
        with pytest.raises(ResumeError, match=r"rank 0 cannot carry on.*needs a change of members"):
            engine.resume(replace(new, g0=g0, n=n, lead=lead), 0.0)
        assert engine.membership is old
    engine.resume(replace(new, g0=next_chunk - 8), 0.0)


def test_a_known_result_does_not_count_for_the_send_rule(device: SwitchDevice) -> None:
    world = World(device, 1, loss=0.0, duplicate=0.0)
    tensors = Tensors(1, 1, 6)
    world.start(3, tensors, 1, 9, window=8, lead=4, g0=0)
    world.run()
    [rank] = world.ranks
    rank.engine.stop("test")
    g0 = rank.engine.first_missing - 7
    [member] = world.jobs.new_epoch(3, seats([world.ports.take()]), g0=g0, t0=0, window=4)
    rank.resume(member)
    world.up.clear()
    rank.poll()
    assert len(world.up) == 4
    first, *others = world.switch.process(world.up)
    world.up.clear()
    for _port, frame in others:
        rank.arrive(frame)
    assert rank.engine.first_missing == g0 + 7, "all results are known"
    sent = set(rank.transport.sent)
    rank.poll()
    assert rank.transport.sent == sent, "and that of g0 has not come in this epoch: nothing new is sent"
    world.up.clear()
    rank.arrive(first[1])
    rank.poll()
    assert len(world.up) == 3
    assert rank.engine.outstanding
    for _port, frame in world.switch.process(world.up):
        rank.arrive(frame)
    assert not rank.engine.outstanding


def test_a_call_begins_while_packets_of_the_last_are_sent_again(device: SwitchDevice) -> None:
    world = World(device, 1, loss=0.0, duplicate=0.0)
    world.start(3, Tensors(1, 1, 9), 1, 9, window=8, lead=4, g0=0)
    [rank] = world.ranks
    world.run(lambda: rank.number == 3)
    rank.engine.stop("test")
    first, next_chunk = rank.engine.first_missing - 7, rank.engine.next_chunk
    [member] = world.jobs.new_epoch(3, seats([world.ports.take()]), g0=first, t0=0, window=4)
    rank.resume(member)
    rank.begin()
    assert rank.engine.next_chunk == next_chunk
    world.run()


def test_a_stopped_engine_sends_and_takes_in_nothing(device: SwitchDevice) -> None:
    world = World(device, 1, loss=0.0, duplicate=0.0)
    world.start(3, Tensors(2, 1, 6), 1, 9, window=4, lead=4, g0=0)
    [rank] = world.ranks
    rank.begin()
    rank.poll()
    results = world.switch.process(world.up)
    rank.engine.stop("a resize")
    assert not rank.engine.outstanding
    for _port, frame in results:
        rank.arrive(frame)
    assert (rank.engine.first_missing, rank.engine.next_chunk, rank.engine.results_above()) == (0, 4, [])
    assert rank.engine.missing() == [0, 1, 2, 3]
    rank.engine.fetch([(0, 0), (2, 2), (7, 2**64)], world.now)
    for _port, frame in results:
        rank.arrive(frame)
    # 1 and 3 have results by now, which nobody was told of: they do not count.
    assert rank.engine.fetched
    assert (rank.engine.first_missing, rank.engine.results_above()) == (1, [(2, 2)])
    world.now = 100.0
    assert len(rank.engine.poll(world.now)) == 0
    with pytest.raises(RuntimeError, match="is stopped"):
        rank.begin()
    world.now = 2e9
    assert len(rank.engine.poll(world.now)) == 0
    with pytest.raises(StalledError, match=r"the job is stopped \(a resize\)"):
        rank.calls[0].operation.result()


def test_a_mismatch_is_fetched_from_the_old_epoch(device: SwitchDevice) -> None:
    """Rank 0 knows of it and has ended its call; rank 1 lacks the header, and must see it itself."""
    world = World(device, 1, loss=0.0, duplicate=0.0)
    world.start(3, Tensors(1, 2, 6), 2, 9, window=4, lead=2, g0=2**32 - 1)
    a, b = world.ranks
    one = begin(a.engine, np.zeros(64 * 9, np.int32))
    other = begin(b.engine, np.zeros(64 * 9, np.float32))
    a.poll()
    b.poll()
    for port, frame in world.switch.process(world.up):
        if port == 1:
            a.arrive(frame)
    with pytest.raises(MismatchError):
        one.result()
    for rank in (a, b):
        rank.engine.stop("rank 0: mismatch")
    assert a.engine.first_missing == 2**32
    assert b.engine.first_missing == 2**32 - 1
    b.engine.fetch([(2**32 - 1, 2**32 - 1)], world.now)
    world.up.clear()
    b.poll()
    assert len(world.up) == 1
    for _, frame in world.switch.process(world.up):
        b.arrive(frame)
    assert b.engine.fetched
    with pytest.raises(MismatchError):
        other.result()


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(case=cases())
def test_sums_are_exact_over_changes_of_epoch_long(
    device: SwitchDevice, kernels: Kernels, case: dict[str, Any]
) -> None:
    run(device, case, kernels)
