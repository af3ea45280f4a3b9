# SPDX-License-Identifier: Apache-2.0
"""Over changes of epoch, too, the turn in C does what the steps in Python do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from switch.device import SwitchDevice
from tests.worker import world
from tests.worker.test_epochs import cases, run
from tests.worker.test_turn import alike, state
from wire.membership import Membership
from wire.packet import Packets
from worker.calls import Call
from worker.engine import Engine
from worker.errors import WorkerError
from worker.kernels import Kernels, NumpyKernels
from worker.native import NativeKernels
from worker.operation import Operation


class Twins(Engine):
    """An engine in Python, and its twin that may use C and is told the same: they never differ."""

    native = NativeKernels()
    in_c = 0

    def __init__(self, membership: Membership, timeout: float, kernels: Kernels) -> None:
        super().__init__(membership, timeout, kernels=NumpyKernels())
        self.twin = Engine(membership, timeout, kernels=self.native)
        self.pairs: list[tuple[Operation, Operation]] = []

    def begin(self, call: Call, now: float, *, timeout: float | None = None) -> Operation:
        copies = [source.copy() for source in call.sources]
        operation = super().begin(call, now, timeout=timeout)
        other = self.twin.begin(Call(copies, call.op, [None] * len(copies), True), now, timeout=timeout)
        self.pairs.append((operation, other))
        return operation

    def poll(self, now: float) -> Packets:
        Twins.in_c += self.twin.usual() is not None
        packets = super().poll(now)
        assert packets.tobytes() == self.twin.poll(now).tobytes()
        self.compare(now)
        return packets

    def on_results(self, packets: Packets, now: float) -> None:
        super().on_results(packets, now)
        self.twin.on_results(packets, now)
        self.compare(now)

    def stop(self, why: str) -> None:
        super().stop(why)
        self.twin.stop(why)

    def fetch(self, chunks: Iterable[tuple[int, int]], now: float) -> None:
        super().fetch(chunks, now)
        self.twin.fetch(chunks, now)
        self.compare(now)

    def resume(self, membership: Membership, now: float) -> None:
        super().resume(membership, now)
        self.twin.resume(membership, now)
        self.compare(now)

    def leave(self, reason: str, error: WorkerError | None = None) -> None:
        super().leave(reason, error)
        self.twin.leave(reason, error)

    def compare(self, now: float) -> None:
        alike(state(self), state(self.twin))
        for name in ("begun", "outstanding", "next_chunk", "first_missing", "fetched", "failure", "lull"):
            assert getattr(self, name) == getattr(self.twin, name), name
        assert self.missing() == self.twin.missing()
        assert self.results_above() == self.twin.results_above()
        assert self.wake_at(now) == self.twin.wake_at(now)
        for one, other in self.pairs:
            assert (one.done, one.lacking) == (other.done, other.lacking)
            if one.done and one.error is None:
                for a, b in zip(one._call.outs, other._call.outs, strict=True):
                    np.testing.assert_array_equal(a, b)
        self.pairs = [pair for pair in self.pairs if not pair[0].done]


def test_c_does_what_python_does_over_changes_of_epoch(
    device: SwitchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "Engine", Twins)

    @settings(max_examples=12, deadline=None)
    @given(case=cases())
    def check(case: dict[str, Any]) -> None:
        run(device, case, NumpyKernels())

    check()
    assert Twins.in_c
