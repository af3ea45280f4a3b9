# SPDX-License-Identifier: Apache-2.0
"""How many contributions a second a switch takes: the embedded one in process, bmv2 over veth pairs.

Both run the same program with the same entries, put in by the controller over P4Runtime, and both must have
absorbed or completed every contribution by their own counters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from controller.epochs import EpochStore
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.verdicts import JobVerdicts
from controller.setup import connect, job_controller, prepare, seat
from switch.device import SwitchDevice
from switch.p4runtime.dataplane import InlineDataplane
from switch.p4runtime.server import P4RuntimeServer
from switch.p4runtime.service import P4RuntimeService
from topologies import manager
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import star
from topologies.targets import Bmv2Target, EmbeddedTarget
from wire.constants import CPU_PORT, DROP_PORT
from wire.packet import Packets, frame_dtype
from wire.verdicts import Verdict

from .closed_loop import ClosedLoop
from .errors import RefusedError, WrongSumError
from .hosts import socket_in
from .load import Load, advance

NETWORK = "bench"
JOB = 0
WINDOW = 64
BATCHES = 16
"""Windows that are prepared together; even, so that slot and version repeat."""

Progress = Callable[[float], None]
"""Is told the share of the time that has passed, 0..1."""


@dataclass(frozen=True)
class Rate:
    """What one target took; packets are whole numbers, verified by the switch's counters."""

    target: str
    contributions: int
    results: int
    """Copies of results that left the switch, one a worker and chunk."""
    seconds: float
    """Spent in the switch (in process), or from first packet to last result (over veth)."""
    retransmissions: int = 0

    @property
    def contributions_per_s(self) -> float:
        """Contributions that the switch took in a second."""
        return self.contributions / self.seconds

    @property
    def results_per_s(self) -> float:
        """Results that the switch sent in a second."""
        return self.results / self.seconds


def measure_embedded(elements: int, workers: int, seconds: float, progress: Progress) -> Rate:
    """Measure the in-process switch for `seconds` of its own time; needs no root.

    Raises RefusedError, WrongSumError, the errors of the switch (SwitchError) and of the controller.
    """
    with (
        _in_process(elements, workers) as (record, device),
        connect(record, "s1") as client,
        _state() as state,
    ):
        ports = [40000 + rank for rank in range(workers)]
        jobs = job_controller(record, client, state)
        seats = [seat(record, host.name, port) for host, port in zip(record.hosts, ports, strict=True)]
        load = Load(jobs.add_job(JOB, seats, WINDOW))
        fed = _Fed(device, load, [s.port for s in seats])
        fed.cycle()
        warm = fed.results
        spent, cycles = 0.0, 0
        while spent < seconds:
            spent += fed.cycle()
            cycles += 1
            progress(spent / seconds)
        chunks = cycles * BATCHES * WINDOW
        rate = Rate("embedded", workers * chunks, fed.results - warm, spent)
        _check(rate.target, _counts(client, workers), workers, chunks + BATCHES * WINDOW, 0)
        if fed.results != workers * (chunks + BATCHES * WINDOW):
            raise RefusedError(rate.target, f"{fed.results} results left it for {chunks} chunks")
        return rate


def measure_bmv2(
    elements: int, workers: int, seconds: float, progress: Progress, say: Callable[[str], None]
) -> Rate:
    """Measure simple_switch_grpc in a star of its own, each worker with a window of WINDOW chunks under way.

    Raises RefusedError, WrongSumError, BenchError, and as topologies.manager.up.
    """
    with ExitStack() as stack:
        record = stack.enter_context(
            manager.network(star(workers), name=NETWORK, target="bmv2", elements=elements, say=say)
        )
        state = stack.enter_context(_state())
        client = stack.enter_context(connect(record, record.switches[0].name))
        jobs = job_controller(record, client, state)
        socks = [stack.enter_context(socket_in(record, host.name)) for host in record.hosts]
        ports = [sock.getsockname()[1] for sock in socks]
        seats = [seat(record, host.name, port) for host, port in zip(record.hosts, ports, strict=True)]
        members = jobs.add_job(JOB, seats, WINDOW)
        for member, sock in zip(members, socks, strict=True):
            sock.connect((member.switch_ip, member.port))
        loop = ClosedLoop(record.target, Load(members), socks)
        loop.run(2)
        warm = (loop.chunks, loop.results, loop.retransmissions)
        spent = 0.0
        while spent < seconds:
            spent += loop.run(BATCHES // 2)
            progress(spent / seconds)
        _check(record.target, _counts(client, workers), workers, loop.chunks, loop.retransmissions)
        chunks = loop.chunks - warm[0]
        return Rate(
            record.target, workers * chunks, loop.results - warm[1], spent, loop.retransmissions - warm[2]
        )


class _Fed:
    """The in-process switch, fed with prepared batches of one window of all workers each."""

    def __init__(self, device: SwitchDevice, load: Load, ports: list[int]) -> None:
        self._device = device
        self._load = load
        self._frames: Packets = load.frames(0, BATCHES)
        per_batch = len(ports) * load.window
        self._ports: NDArray[np.uint16] = np.repeat(np.array(ports, np.uint16), load.window)
        size = frame_dtype(load.elements).itemsize
        self._lengths = np.full(per_batch, size, np.uint32)
        self._raw = [batch.reshape(-1).view(np.uint8).reshape(per_batch, size) for batch in self._frames]
        self.results = 0

    def cycle(self) -> float:
        """Run every batch once; return the seconds spent in the switch. The sums are checked afterwards."""
        device, ports, lengths, left = self._device, self._ports, self._lengths, 0
        start = perf_counter()
        for raw in self._raw:
            out_ports, _, out = device.process_batch(ports, lengths, raw)
            left += len(out_ports)
        seconds = perf_counter() - start
        self.results += left
        self._verify(out)
        advance(self._frames, BATCHES * self._load.window)
        return seconds

    def _verify(self, out: NDArray[np.uint8]) -> None:
        """Compare the last batch's results with the workers' sums."""
        dtype = frame_dtype(self._load.elements)
        frames = np.ascontiguousarray(out[:, : dtype.itemsize]).reshape(-1).view(dtype)
        payload = frames["payload"]
        wanted = self._load.sums[payload["chunk"].astype(np.int64) % self._load.window]
        wrong = np.flatnonzero((payload["values"] != wanted).any(axis=1))
        if len(wrong):
            chunk = payload["chunk"][wrong[0]]
            raise WrongSumError("embedded", f"the result of chunk {chunk} is not the workers' sum")


@contextmanager
def _in_process(elements: int, workers: int) -> Iterator[tuple[NetRecord, SwitchDevice]]:
    """Serve an embedded switch of this process over P4Runtime, set up for a star; yield its record and it."""
    devices: list[SwitchDevice] = []

    def load(program: bytes) -> SwitchDevice:
        devices.append(SwitchDevice.load(program, cpu_port=CPU_PORT, drop_port=DROP_PORT))
        return devices[-1]

    record = new_record(
        NETWORK, star(workers), target="embedded", elements=elements, slots=EmbeddedTarget.default_slots
    )
    dataplane = InlineDataplane(CPU_PORT)
    server = P4RuntimeServer(P4RuntimeService(record.switches[0].device_id, load, dataplane), "127.0.0.1:0")
    server.start()
    try:
        record = with_switch(record, record.switches[0].name, grpc=f"127.0.0.1:{server.port}")
        prepare(record)
        yield record, devices[-1]
    finally:
        server.stop()
        dataplane.close()


@contextmanager
def _state() -> Iterator[EpochStore]:
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
        yield EpochStore(Path(folder, "epochs.json"))


def _counts(client: SwitchClient, workers: int) -> JobVerdicts:
    return Program(client.p4info).verdicts.of_jobs(client, {JOB: workers})[JOB]


def _check(target: str, counted: JobVerdicts, workers: int, chunks: int, retransmissions: int) -> None:
    """Raise RefusedError unless every chunk had one contribution of each worker and was completed once.

    Only as many others as there were retransmissions may have come, as duplicates or for a replay.
    """
    totals: dict[Verdict, int] = {}
    for counts in (*counted.workers.values(), counted.others):
        for verdict, (packets, _) in counts.items():
            totals[verdict] = totals.get(verdict, 0) + packets
    absorbed, completed = totals.pop(Verdict.ABSORBED, 0), totals.pop(Verdict.COMPLETED, 0)
    repeated = sum(totals.pop(v, 0) for v in (Verdict.REPLAYED, Verdict.DUPLICATE, Verdict.STALE))
    if (
        (absorbed, completed) != ((workers - 1) * chunks, chunks)
        or repeated > retransmissions
        or any(totals.values())
    ):
        others = ", ".join(f"{n} {v.name.lower()}" for v, n in totals.items() if n) or "no refusals"
        raise RefusedError(
            target,
            f"of {workers * chunks} contributions its counters show {absorbed} absorbed and {completed} "
            f"completed ({chunks} chunks), {repeated} repeated ({retransmissions} sent again) and {others}: "
            "this is no rate of sums",
        )


def bmv2_missing() -> str | None:
    """Say why bmv2 cannot be measured here, None when it can."""
    return Bmv2Target().missing()
