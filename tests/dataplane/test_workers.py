# SPDX-License-Identifier: Apache-2.0
"""Workers through the compiled program under loss, duplication, reordering and corruption; and the program
beside the reference switch, frame by frame."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.dataplane.device_switch import DeviceSwitch
from tests.reference.slot_switch import SlotSwitch
from tests.worker.jobs import SWITCH_IP, SWITCH_MAC, Job, begin, memberships
from tests.worker.test_engine import check, jobs, random_arrays, run_job
from wire.packet import build_frames, payload_dtype
from wire.verdicts import Verdict

Loaded = tuple[SwitchDevice, int]


@settings(max_examples=50)
@given(case=jobs())
def test_sums_are_exact_under_faults(device: Loaded, case: dict[str, Any]) -> None:
    loaded, elements = device
    run_job(case, elements, DeviceSwitch(loaded, SWITCH_IP))


@pytest.mark.slow
@settings(max_examples=500)
@given(case=jobs())
def test_sums_are_exact_under_faults_long(device: Loaded, case: dict[str, Any]) -> None:
    loaded, elements = device
    run_job(case, elements, DeviceSwitch(loaded, SWITCH_IP))


@pytest.mark.parametrize("n", [1, 2, 4, 32, 64])
def test_many_ranks(device: Loaded, n: int) -> None:
    loaded, elements = device
    faults = {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02, "seed": n}
    job = Job(n, faults, switch=DeviceSwitch(loaded, SWITCH_IP), elements=elements, window=8, lead=2)
    for dtype in (np.int32, np.float32):
        arrays = random_arrays(np.random.default_rng(n), n, dtype, 3 * elements + 5)
        check(arrays, job.all_reduce(*arrays), elements)


def test_epochs_on_used_slots(device: Loaded) -> None:
    """A job given up in the middle of a tensor, and again from another chunk, on the same slots."""
    loaded, elements = device
    job = Job(
        3, {"loss": 0.1, "reorder": 0.3, "seed": 1}, switch=DeviceSwitch(loaded, SWITCH_IP), elements=elements
    )
    rng = np.random.default_rng(1)
    for epoch in range(5):
        arrays = random_arrays(rng, 3, np.int32, 20 * elements)
        check(arrays, job.all_reduce(*arrays), elements)
        begin(job.workers[0].engine, arrays[0], now=job.fabric.clock)
        job.workers[0].transport.send(job.workers[0].engine.poll(job.fabric.clock))
        job.new_epoch(g0=int(rng.integers(0, 2**33)), t0=epoch, window=int(rng.integers(1, 9)), lead=1)


def frames_of_all_kinds(rng: random.Random, elements: int, count: int) -> list[tuple[int, bytes]]:
    """Contributions of three workers near a tag wrap; among them old, wrong and damaged ones."""
    members = memberships(3, window=4, elements=elements, lead=1)
    out = []
    head = 2**32 - 12
    for _ in range(count):
        head += rng.random() < 0.3
        m = rng.choice(members)
        chunk = head + rng.randint(-10, 3) if rng.random() < 0.9 else rng.randrange(2**32)
        payload = np.zeros(1, payload_dtype(elements))
        size = {64: 1, 256: 3}[elements]
        payload["kind"] = rng.choice([1 << 4 | size] * 30 + [2 << 4 | size, 1 << 4 | 2, 1 << 4 | 8 | size])
        payload["tensor"] = rng.randrange(256)
        payload["chunk"] = chunk % 2**32
        slot = chunk % 4 if rng.random() < 0.95 else rng.randrange(2**15)
        payload["place"] = slot | (chunk // 4 % 2) << 15
        payload["e0"], payload["e1"] = rng.randint(-128, 127), rng.randint(-128, 127)
        payload["values"] = [rng.randint(-(2**31), 2**31 - 1) for _ in range(elements)]
        frame = build_frames(
            payload,
            eth_src=m.own_mac,
            eth_dst=m.switch_mac,
            ip_src=m.own_ip,
            ip_dst=m.switch_ip,
            udp_src=m.own_port,
            udp_dst=rng.choice([m.port] * 30 + [0xBE44, 1000]),
        ).tobytes()
        kind = rng.random()
        if kind < 0.08:
            flipped = bytearray(frame)
            flipped[rng.randrange(14, len(frame))] ^= 1 << rng.randrange(8)
            frame = bytes(flipped)
        elif kind < 0.1:
            frame = frame[: rng.randrange(34, len(frame))]
        elif kind < 0.12:
            frame += b"\0" * rng.randint(1, 4)
        port = m.rank + 1 if rng.random() < 0.97 else rng.randint(1, 5)
        out.append((port, frame))
    return out


@settings(max_examples=25)
@given(seed=st.integers(0, 2**64))
def test_the_program_does_what_the_reference_does(device: Loaded, seed: int) -> None:
    loaded, elements = device
    program = DeviceSwitch(loaded, SWITCH_IP)
    reference = SlotSwitch(elements, SWITCH_IP, SWITCH_MAC)
    members = memberships(3, window=4, elements=elements, lead=1)
    for switch in (program, reference):
        switch.add_job(members, [1, 2, 3])  # type: ignore[attr-defined]
    for port, frame in frames_of_all_kinds(random.Random(seed), elements, 100):
        _verdict, expected = reference.handle(port, frame)
        got = program.process([(port, frame)])
        assert sorted(got) == sorted(expected)
    # The reference routes nothing and guards no source: what is left to routing has one name there.
    merged = {Verdict.SPOOFED_SOURCE: Verdict.NO_ROUTE, Verdict.NOT_FOR_SWITCH: Verdict.NO_ROUTE}
    for port in range(1, 6):
        counted: dict[Verdict, int] = {}
        wanted: dict[Verdict, int] = {}
        for verdict, n in program.counts(port).items():
            counted[merged.get(verdict, verdict)] = counted.get(merged.get(verdict, verdict), 0) + n
        for (at, verdict), n in reference.counts.items():
            if at == port:
                wanted[merged.get(verdict, verdict)] = wanted.get(merged.get(verdict, verdict), 0) + n
        assert counted == wanted
