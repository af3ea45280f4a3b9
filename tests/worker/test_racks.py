# SPDX-License-Identifier: Apache-2.0
"""Sums over trees of switches, whatever becomes of packets, switches and cables: compared with numpy's.

Trees of one to three levels, uneven racks, switches that are left out and route; every link loses, repeats
and reorders; epochs change while packets are under way, with the window, the members, or the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4src.forms import form
from switch.build import build
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.dataplane.wired import network
from tests.worker.racks import RackWorld
from tests.worker.world import Tensors
from topologies.record import NetRecord
from wire.constants import CPU_PORT, FEW_SLOTS

MOST_SWITCHES = 9
KINDS = ["resize", "kill", "cut", "wipe", "mend", "lose"]


@pytest.fixture(scope="module")
def devices() -> Iterator[list[SwitchDevice]]:
    program = load_program(form(64, FEW_SLOTS).json_path.read_text())
    library = build(emit_program(program))
    with ExitStack() as stack:
        one = [SwitchDevice(program, library, cpu_port=CPU_PORT) for _ in range(MOST_SWITCHES)]
        yield [stack.enter_context(device) for device in one]


@st.composite
def networks(draw: Any) -> NetRecord:
    """Racks of one to three hosts under nothing, under spines, or under a level that is under roots."""
    levels = draw(st.sampled_from([1, 2, 2, 3, 3]))
    if levels == 1:
        return network([draw(st.integers(1, 4))], [], 1)
    leaves, spines = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    racks = draw(st.lists(st.integers(1, 4), min_size=leaves, max_size=leaves))
    middle = range(leaves + 1, leaves + spines + 1)
    cables = [(leaf, above) for leaf in range(1, leaves + 1) for above in middle]
    if levels == 2:
        return network(racks, cables, leaves + spines)
    kept = draw(st.sets(st.sampled_from(cables)))
    kept |= {(leaf, middle[leaf % spines]) for leaf in range(1, leaves + 1)}
    roots = range(middle[-1] + 1, middle[-1] + 1 + draw(st.integers(1, 2)))
    return network(racks, [*sorted(kept), *((a, b) for a in middle for b in roots)], roots[-1])


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    record = draw(networks())
    names = [host.name for host in record.hosts]
    windows = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    return {
        "record": record,
        "hosts": draw(st.permutations(names))[: draw(st.integers(min(4, len(names)), 6))],
        "seed": draw(st.integers(0, 2**32)),
        "windows": windows,
        "lead": draw(st.sampled_from([1, min(windows)])),
        "g0": draw(st.sampled_from([0, 2**32 - 20, 2**31 - 10])),
        "loss": draw(st.sampled_from([0.0, 0.05, 0.15])),
        "duplicate": draw(st.sampled_from([0.0, 0.2])),
        "late": draw(st.sampled_from([0.0, 0.05])),
        "most": draw(st.integers(1, 3)),
        "kinds": draw(st.lists(st.sampled_from(KINDS), min_size=3, max_size=3)),
    }


def run(devices: list[SwitchDevice], case: dict[str, Any], calls: int = 12) -> RackWorld:
    world = RackWorld(
        case["record"],
        devices,
        list(case["hosts"]),
        case["seed"],
        loss=case["loss"],
        duplicate=case["duplicate"],
        late=case["late"],
    )
    n = len(case["hosts"])
    first, *windows = case["windows"]
    tensors = Tensors(case["seed"], n, 8)
    world.start(3, tensors, n, calls, window=first, lead=case["lead"], g0=case["g0"], most=case["most"])
    for window, kind in zip(windows, case["kinds"], strict=False):
        until = world.steps + world.random.randrange(1500)
        world.run(lambda until=until: world.steps >= until or world.finished)
        if kind == "lose":
            world.catch_up()
            world.lose(world.random.randrange(n), window)
        else:
            world.happen(kind)
            world.same_members(window, wipe=False)
    world.catch_up()
    world.run()
    for rank in world.ranks:
        assert rank.completed | rank.failed == set(range(calls))
    return world


@given(case=cases())
@settings(max_examples=15)
def test_sums_are_numpy_s_on_every_tree(devices: list[SwitchDevice], case: dict[str, Any]) -> None:
    run(devices, case)


@pytest.mark.slow
@given(case=cases())
@settings(max_examples=200)
def test_sums_are_numpy_s_on_many_trees(devices: list[SwitchDevice], case: dict[str, Any]) -> None:
    run(devices, case)
