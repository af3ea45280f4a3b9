# SPDX-License-Identifier: Apache-2.0
"""Correct runs, however bad their links, have no violations."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.traces.captures import Capture
from tests.traces.worlds import CapturedWorld
from tests.worker.world import Tensors
from traces.verify import verify
from traces.verify_findings import Findings


def checked(capture: Capture, **kwargs: Any) -> Findings:
    duplicates = kwargs.pop("duplicates", False)
    with tempfile.TemporaryDirectory() as folder:
        return verify([capture.write(Path(folder), **kwargs)], duplicates=duplicates)


@st.composite
def runs(draw: Any) -> dict[str, Any]:
    windows = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    share = st.sampled_from([0.0, 0.1, 0.25])
    return {
        "seed": draw(st.integers(0, 2**32)),
        "n": draw(st.integers(1, 4)),
        "windows": windows,
        "g0": draw(st.sampled_from([0, 2**32 - 20, 2**31 - 10, 2**64 - 2**20])),
        "loss": draw(share),
        "duplicate": draw(share),
        "double": draw(share),
        "corrupt": draw(st.sampled_from([0.0, 0.05])),
        "kinds": draw(st.lists(st.sampled_from(["resize", "wipe", "lose"]), min_size=3, max_size=3)),
    }


def run(device: SwitchDevice, case: dict[str, Any]) -> Capture:
    faults = {name: case[name] for name in ("loss", "duplicate", "double", "corrupt")}
    world = CapturedWorld(device, case["seed"], **faults)
    first, *windows = case["windows"]
    world.start(3, Tensors(case["seed"], case["n"], 6), case["n"], 5, window=first, lead=1, g0=case["g0"])
    for window, kind in zip(windows, case["kinds"], strict=False):
        before = world.steps + world.random.randrange(300)
        world.run(lambda before=before: world.steps >= before or world.finished)
        if kind == "lose":
            world.catch_up()
            world.lose(world.random.randrange(case["n"]), window)
        else:
            world.same_members(window, wipe=kind == "wipe")
    world.catch_up()
    world.run()
    return world.capture


@settings(max_examples=5, deadline=None)
@given(case=runs())
def test_the_switches_own_captures_conform(device: SwitchDevice, case: dict[str, Any]) -> None:
    capture = run(device, case)
    with tempfile.TemporaryDirectory() as folder:
        found = verify([capture.write_ways(Path(folder))], duplicates=case["double"] > 0)
    assert not found.total, "\n".join(map(str, found.violations[:5]))
    assert found.checked["the send rule"]


@settings(max_examples=15, deadline=None)
@given(
    case=runs(),
    ends=st.sampled_from(["hosts", "switch", "all"]),
    told=st.booleans(),
    begins=st.sampled_from(["before", "later", "each when it likes"]),
)
def test_correct_runs_conform(
    device: SwitchDevice, case: dict[str, Any], ends: str, told: bool, begins: str
) -> None:
    capture = run(device, case)
    draw = random.Random(case["seed"])
    last = capture.packets[-1].time
    if begins != "before":
        at = draw.randrange(last)
        every = sorted({packet.end for packet in capture.packets})
        capture.since = {end: at if begins == "later" else draw.randrange(last) for end in every}
    wanted = {"hosts": "h", "switch": "s", "all": ""}[ends]
    chosen = sorted({p.end for p in capture.packets if p.end.startswith(wanted)})
    found = checked(capture, ends=chosen, memberships=told, duplicates=case["double"] > 0)
    assert not found.total, "\n".join(map(str, found.violations[:5]))
    assert found.checked["contributions"] or begins != "before"
