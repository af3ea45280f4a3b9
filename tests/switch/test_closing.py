# SPDX-License-Identifier: Apache-2.0
"""Who uses a device holds its lock: another thread may close it, and its memory is free then."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from p4.v1 import p4runtime_pb2

from p4src.forms import form
from switch import ir
from switch.device import SwitchDevice
from switch.messages import Messages
from switch.p4runtime.digests import QUEUE, Digests
from switch.p4runtime.p4info import Digest
from switch.values import Digest as Sample
from switch.values import MeterRates


class Guarded:
    """A library whose functions may be called only by who holds the device's lock."""

    def __init__(self, device: SwitchDevice, lib: ctypes.CDLL, called: set[str]) -> None:
        self._device, self._lib, self._called = device, lib, called

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._lib, name)

        def checked(*args: Any) -> Any:
            lock: Any = self._device._lock
            assert lock._is_owned() or self._device._batches.lock.locked(), f"{name} without the lock"
            self._called.add(name)
            return call(*args)

        return checked


def test_every_call_holds_the_lock() -> None:
    called: set[str] = set()
    with SwitchDevice.load(form(64, 1024).json_path.read_bytes()) as device:
        program = device.program
        for part in vars(device).values():
            if isinstance(getattr(part, "_lib", None), ctypes.CDLL):
                part._lib = Guarded(device, part._lib, called)
        device._lib = cast(Any, Guarded(device, device._lib, called))
        device.process([(1, bytes(64))])
        device.log()
        device.digests()
        device.stats()
        for name, counter in program.counters.items():
            if not counter.direct:
                device.counter_write(name, 0, 1, 64)
                assert device.counter_read(name, 0) == (1, 64)
                assert device.counter_read_all(name)[0].tolist() == [1, 64]
        for name in program.registers:
            device.register_write(name, 0, 1)
            assert device.register_read(name, 0) == 1
        for name, meter in program.meters.items():
            if not meter.direct:
                device.meter_set(name, 0, MeterRates(1.0, 1, 2.0, 2))
                device.meter_get(name, 0)
                device.meter_colors(name, 0)
        device.reset()
    assert {"sw_log_take", "sw_digest_take", "sw_stats_read", "sw_counter_access"} <= called
    assert {"sw_register_access", "sw_meter_access", "sw_meter_colors", "sw_run_packets"} <= called


class Endless:
    """Packets that bring more as fast as it is read."""

    def __init__(self) -> None:
        self.taken = 0

    def digests(self, limit: int) -> list[Sample]:
        self.taken += limit
        assert self.taken <= QUEUE, "without a limit it would never end"
        return [Sample("d", (i,)) for i in range(limit)]

    def sw_log_take(self, handle: int, line: Any) -> int:
        self.taken += 1
        assert self.taken <= 256, "without a limit it would never end"
        return 1


@pytest.mark.parametrize("most", [1, 0])
def test_one_look_at_digests_ends(most: int) -> None:
    wanted = Digest(1, "d", None, ("bitstring",))
    view, device = SimpleNamespace(digest=lambda number: wanted), Endless()
    digests = Digests(cast(Any, view), cast(Any, device))
    config = p4runtime_pb2.DigestEntry.Config(max_list_size=most, max_timeout_ns=0 if most else 10**9)
    digests.write(p4runtime_pb2.Update.INSERT, p4runtime_pb2.DigestEntry(digest_id=1, config=config))
    assert device.taken == QUEUE, "what nobody wanted"
    device.taken = 0
    lists, _ = digests.poll(1)
    assert sum(len(one.data) for one in lists) == QUEUE


def test_one_look_at_the_log_ends() -> None:
    device = Endless()
    empty = cast(ir.Program, SimpleNamespace(digests={}))
    assert len(Messages(empty, cast(Any, device), lambda: 1, threading.RLock()).log()) == 256
