# SPDX-License-Identifier: Apache-2.0
"""Changes of epoch with packets in flight: the engine and the compiled program, as in the model of epochs.

Packets of former epochs arrive at any time later. Every sum is compared with numpy's.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.worker.world import Tensors, World

BEGINNINGS = [0, 2**32 - 20, 2**31 - 10, 2**63 - 15, 2**64 - 2**20]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    windows = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    return {
        "seed": draw(st.integers(0, 2**32)),
        "n": draw(st.integers(1, 4)),
        "windows": windows,
        "lead": draw(st.integers(1, min(windows))),
        "g0": draw(st.sampled_from(BEGINNINGS)),
        "loss": draw(st.sampled_from([0.0, 0.1, 0.25])),
        "duplicate": draw(st.sampled_from([0.0, 0.2])),
        "kinds": draw(st.lists(st.sampled_from(["resize", "wipe", "lose"]), min_size=4, max_size=4)),
    }


def run(device: SwitchDevice, case: dict[str, Any]) -> None:
    world = World(device, case["seed"], loss=case["loss"], duplicate=case["duplicate"])
    n: int = case["n"]
    first, *windows = case["windows"]
    tensors = Tensors(case["seed"], n, 6)
    world.start(3, tensors, n, 8, window=first, lead=case["lead"], g0=case["g0"])
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


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_sums_are_exact_over_changes_of_epoch(device: SwitchDevice, case: dict[str, Any]) -> None:
    run(device, case)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(case=cases())
def test_sums_are_exact_over_changes_of_epoch_long(device: SwitchDevice, case: dict[str, Any]) -> None:
    run(device, case)
