# SPDX-License-Identifier: Apache-2.0
"""How many contributions a second a switch takes: the embedded one in process, bmv2 over veth pairs.

Both run the same program with the same entries, put in by the controller over P4Runtime, and both must have
absorbed or completed every contribution by their own counters.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from wire.membership import Membership
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
"""Windows that are prepared together in process; even, so that slot and version repeat."""

RUN = 8
"""Windows of one run over veth."""
TURN_S = 0.5


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


class Measured(ABC):
    """A switch with a job on it, that contributions can be sent to for a while, again and again."""

    def __init__(self, target: str, client: SwitchClient, load: Load) -> None:
        self._target = target
        self._client = client
        self._workers = len(load.members)
        self._program = Program(client.p4info)
        self.seconds = 0.0

    @property
    @abstractmethod
    def _sent(self) -> tuple[int, int, int]:
        """Chunks, results and retransmissions so far."""

    @abstractmethod
    def _step(self) -> float:
        """Have some windows summed; return the seconds it took."""

    def warm_up(self) -> None:
        """Run once without counting."""
        self._step()
        self._before = self._sent

    def run(self, seconds: float) -> None:
        """Go on until `seconds` more have been measured. Raises WrongSumError, and BenchError over veth."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += self._step()

    def rate(self) -> Rate:
        """Return what was measured; RefusedError unless the switch's counters show that all was summed."""
        counted = self._program.verdicts.of_jobs(self._client, {JOB: self._workers})[JOB]
        chunks, results, retransmissions = self._sent
        check(self._target, counted, self._workers, chunks, retransmissions)
        if results != self._workers * chunks:
            raise RefusedError(self._target, f"{results} results came of {chunks} chunks")
        chunks, results, retransmissions = (
            now - before for now, before in zip(self._sent, self._before, strict=True)
        )
        return Rate(self._target, self._workers * chunks, results, self.seconds, retransmissions)


def measure(
    switches: Sequence[Measured], seconds: float, progress: Sequence[Callable[[float], None]]
) -> list[Rate]:
    """Measure each switch for `seconds`, in turns: a machine that is busy with else is so for all of them.

    `progress` is told each one's share that is done. Raises RefusedError, WrongSumError, BenchError.
    """
    for switch in switches:
        switch.warm_up()
    while any(switch.seconds < seconds for switch in switches):
        for switch, tell in zip(switches, progress, strict=True):
            if switch.seconds < seconds:
                switch.run(min(TURN_S, seconds - switch.seconds))
                tell(switch.seconds / seconds)
    return [switch.rate() for switch in switches]


@contextmanager
def embedded(elements: int, workers: int) -> Iterator[Measured]:
    """Yield an embedded switch in this process; needs no root.

    Raises the errors of the switch (SwitchError), of the controller, and FormError.
    """
    with ExitStack() as stack:
        record, device = stack.enter_context(_in_process(elements, workers))
        ports = [40000 + rank for rank in range(workers)]
        client, members = _join(stack, record, ports)
        load = Load(members)
        yield _InProcess(client, load, device, [seat(record, h.name, 0).port for h in record.hosts])


@contextmanager
def bmv2(elements: int, workers: int, say: Callable[[str], None]) -> Iterator[Measured]:
    """Yield simple_switch_grpc in a star of its own, each worker with a window of WINDOW chunks under way.

    Raises as topologies.manager.up, and the errors of the controller.
    """
    with ExitStack() as stack:
        record = stack.enter_context(
            manager.network(star(workers), name=NETWORK, target="bmv2", elements=elements, say=say)
        )
        socks = [stack.enter_context(socket_in(record, host.name)) for host in record.hosts]
        client, members = _join(stack, record, [sock.getsockname()[1] for sock in socks])
        for member, sock in zip(members, socks, strict=True):
            sock.connect((member.switch_ip, member.port))
        yield _OverVeth(client, ClosedLoop(record.target, Load(members), socks))


def _join(
    stack: ExitStack, record: NetRecord, udp_ports: Sequence[int]
) -> tuple[SwitchClient, list[Membership]]:
    """Put a job of all hosts on the switch; the client of it is closed with the stack."""
    client = stack.enter_context(connect(record, record.switches[0].name))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-"))
    jobs = job_controller(record, client, EpochStore(Path(folder, "epochs.json")))
    seats = [seat(record, host.name, port) for host, port in zip(record.hosts, udp_ports, strict=True)]
    return client, jobs.add_job(JOB, seats, WINDOW)


class _OverVeth(Measured):
    """A switch process."""

    def __init__(self, client: SwitchClient, loop: ClosedLoop) -> None:
        super().__init__(loop.target, client, loop.load)
        self._loop = loop

    @property
    def _sent(self) -> tuple[int, int, int]:
        return self._loop.chunks, self._loop.results, self._loop.retransmissions

    def _step(self) -> float:
        return self._loop.run(RUN)


class _InProcess(Measured):
    """The in-process switch, fed with prepared batches of one window of all workers each."""

    def __init__(self, client: SwitchClient, load: Load, device: SwitchDevice, ports: Sequence[int]) -> None:
        super().__init__("embedded", client, load)
        self._device = device
        self._load = load
        self._frames: Packets = load.frames(0, BATCHES)
        per_batch = len(ports) * load.window
        self._ports: NDArray[np.uint16] = np.repeat(np.array(ports, np.uint16), load.window)
        size = frame_dtype(load.elements).itemsize
        self._lengths = np.full(per_batch, size, np.uint32)
        self._raw = [batch.reshape(-1).view(np.uint8).reshape(per_batch, size) for batch in self._frames]
        self._chunks = self._results = 0

    @property
    def _sent(self) -> tuple[int, int, int]:
        return self._chunks, self._results, 0

    def _step(self) -> float:
        device, ports, lengths, left = self._device, self._ports, self._lengths, 0
        start = perf_counter()
        for raw in self._raw:
            out_ports, _, out = device.process_batch(ports, lengths, raw)
            left += len(out_ports)
        seconds = perf_counter() - start
        self._chunks += BATCHES * self._load.window
        self._results += left
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
            raise WrongSumError(self._target, f"the result of chunk {chunk} is not the workers' sum")


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


def check(target: str, counted: JobVerdicts, workers: int, chunks: int, retransmissions: int) -> None:
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
