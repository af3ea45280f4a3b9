# SPDX-License-Identifier: Apache-2.0
"""How many packets a second a switch takes: the embedded one in process and over veth pairs, and bmv2.

All run the same JSON with the same entries, put in over P4Runtime, and get the same packets. Each answer's
values are compared (in process those of a sample), and sums must also show in the switch's own counters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter, thread_time

import numpy as np
from numpy.typing import NDArray

from switch.device import SwitchDevice
from switch.p4runtime.dataplane import InlineDataplane
from switch.p4runtime.server import P4RuntimeServer
from switch.p4runtime.service import P4RuntimeService
from switch.super_packets import udp_missing
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import star
from topologies.targets import Bmv2Target, EmbeddedTarget, Target
from wire.constants import CPU_PORT, DROP_PORT
from wire.packet import Packets, frame_dtype

from . import names, veth
from .errors import RefusedError, WrongSumError
from .load import Stream, advance
from .traffic import Lane, Traffic
from .work import SLOTS, Check, Work

BATCHES = 16
"""Windows that are prepared together in process; even, so that slot and version repeat."""
WARM_UP_S = 0.05
TURN_S = 0.2
"""Of each switch in a round. Short, since the speed of a machine that others share changes by the second."""


@dataclass(frozen=True)
class Column:
    """A way to run a switch; it has `window` frames of each sender under way."""

    title: str
    network: str
    """What its switch's record is called among those of this process."""
    target: Target
    window: int
    over_veth: bool = True
    super_packets: bool = False


PEER = "bmv2"
# The windows with the best rates. bmv2's receive rings hold some 48 frames; super-packets want
# room for several, so that the sender prepares some while the switch works on others: 252 is four full ones.
COLUMNS = {
    "embedded": Column("embedded, in process", "process", EmbeddedTarget(), 128, over_veth=False),
    "embedded_super_packets": Column(
        "embedded, veth, super-packets", "super", EmbeddedTarget(), 252, super_packets=True
    ),
    "embedded_single_packets": Column("embedded, veth, single packets", "single", EmbeddedTarget(), 64),
    PEER: Column("bmv2, veth", "bmv2", Bmv2Target(), 16),
}


@dataclass(frozen=True)
class Rate:
    """What a switch took in one column."""

    column: str
    packets: int
    answers: int
    """Frames that left the switch: what was forwarded, or copies of results, one a worker and chunk."""
    seconds: float
    """Spent in the switch (in process), or from first frame to last answer (over veth)."""
    window: int
    resent: int = 0
    turns: tuple[float, ...] = ()
    """Packets a second in each turn; the turns of one number followed each other in all columns."""
    sender_idle: float | None = None
    """Share of the time in which the sender had nothing to do but wait for the switch."""
    switch_cpus: float | None = None
    """Processors that the switch kept busy on average, less than it wanted where others took them."""

    @property
    def packets_per_s(self) -> float:
        """Packets that the switch took in a second."""
        return self.packets / self.seconds

    @property
    def packets_per_cpu_s(self) -> float | None:
        """Packets for a second of a processor, which depends less on what else runs; None if unknown."""
        return self.packets / (self.seconds * self.switch_cpus) if self.switch_cpus else None


class Measured(ABC):
    """A switch that packets can be sent to for a while, again and again."""

    def __init__(self, column: str, stream: Stream, check: Check) -> None:
        self.column = column
        self._stream = stream
        self._check = check
        self._turns: list[float] = []
        self.seconds = 0.0

    @abstractmethod
    def _sent(self) -> tuple[int, int, int]:
        """Chunks of each lane, answers, and frames that were sent again, so far."""

    @abstractmethod
    def _run(self, seconds: float) -> float:
        """Send for about this long; return the seconds it took."""

    def warm_up(self) -> None:
        """Run without counting."""
        self._run(WARM_UP_S)
        self._before = self._sent()

    def run(self, seconds: float) -> None:
        """Measure for `seconds` more, a turn. Raises WrongSumError, and BenchError over veth."""
        before = self._sent()[0]
        took = self._run(seconds)
        self._turns.append(len(self._stream.values) * (self._sent()[0] - before) / took)
        self.seconds += took

    def rate(self) -> Rate:
        """Return what was measured; RefusedError unless the switch did all of it by its own counters."""
        lanes = len(self._stream.values)
        chunks, answers, resent = self._sent()
        self._check(self.column, chunks, resent)
        if answers != lanes * chunks:
            raise RefusedError(self.column, f"{answers} answers came to {chunks} chunks of {lanes} senders")
        chunks, answers, resent = (
            now - before for now, before in zip((chunks, answers, resent), self._before, strict=True)
        )
        return Rate(
            *(self.column, lanes * chunks, answers, self.seconds, self._stream.window, resent),
            *(tuple(self._turns), *self._shares()),
        )

    def _shares(self) -> tuple[float | None, float | None]:
        """Return Rate's sender_idle and switch_cpus."""
        return None, None


def measure(
    switches: Sequence[Measured], seconds: float, progress: Sequence[Callable[[float], None]]
) -> list[Rate]:
    """Measure each switch for `seconds`, in rounds of short turns: all have theirs at nearly the same time.

    `progress` is told each one's share that is done. Raises RefusedError, WrongSumError, BenchError.
    """
    for switch in switches:
        switch.warm_up()
    rounds = ceil(seconds / TURN_S)
    for done in range(rounds):
        for switch, tell in zip(switches, progress, strict=True):
            switch.run(seconds / rounds)
            tell((done + 1) / rounds)
    return [switch.rate() for switch in switches]


def ratios(rates: Mapping[str, Rate]) -> dict[str, float]:
    """Return each column's rate as a multiple of bmv2's, the median over the rounds; {} without bmv2's."""
    if PEER not in rates:
        return {}
    base = rates[PEER].turns
    return {
        column: median(mine / peers for mine, peers in zip(rate.turns, base, strict=True))
        for column, rate in rates.items()
        if column != PEER
    }


def missing() -> dict[str, str]:
    """Say of each column that cannot be measured here why."""
    found = {}
    for name, column in COLUMNS.items():
        why = column.target.missing()
        if why is None and column.over_veth:
            why = veth.missing()
        if why is None and column.super_packets:
            why = udp_missing()
        if why is not None:
            found[name] = why
    return found


@contextmanager
def opened(column: str, work: Work) -> Iterator[Measured]:
    """Yield a switch that is ready for the work.

    Raises the errors of the switch (SwitchError), of the controller, of topologies, and BenchError.
    """
    chosen = COLUMNS[column]
    with ExitStack() as stack:
        if not chosen.over_veth:
            record, devices = stack.enter_context(_in_process(work))
            stream, check = work.set_up(stack, record, chosen.window)
            yield InProcess(column, stream, check, devices[-1])
            return
        record = stack.enter_context(
            veth.switch_on_veth(
                names.fresh(chosen.network),
                chosen.target,
                ports=work.ports,
                elements=work.elements,
                slots=SLOTS,
                super_packets=chosen.super_packets,
            )
        )
        stream, check = work.set_up(stack, record, chosen.window)
        frames = stream.frames(0, 1)[0]
        lanes = [
            Lane(veth.far_end(record, i + 1), frames[i], stream.wanted[i], answers)
            for i, answers in enumerate(stream.answers)
        ]
        traffic = stack.enter_context(Traffic(column, lanes, super_packets=chosen.super_packets))
        yield OverVeth(column, stream, check, traffic, record)


class OverVeth(Measured):
    """A switch process."""

    def __init__(
        self, column: str, stream: Stream, check: Check, traffic: Traffic, record: NetRecord
    ) -> None:
        super().__init__(column, stream, check)
        self._traffic = traffic
        self._record = record
        self._cpu_s = 0.0

    def _sent(self) -> tuple[int, int, int]:
        return self._traffic.chunks, self._traffic.answers, self._traffic.resent

    def _run(self, seconds: float) -> float:
        return self._traffic.run(seconds)

    def warm_up(self) -> None:
        """See Measured.warm_up."""
        super().warm_up()
        self._cpu_s = veth.cpu_seconds(self._record)
        self._idle_s = self._traffic.idle_s

    def _shares(self) -> tuple[float | None, float | None]:
        cpu_s = veth.cpu_seconds(self._record) - self._cpu_s
        return (self._traffic.idle_s - self._idle_s) / self.seconds, cpu_s / self.seconds


class InProcess(Measured):
    """The in-process switch, fed with prepared batches of one window of all senders each."""

    def __init__(self, column: str, stream: Stream, check: Check, device: SwitchDevice) -> None:
        super().__init__(column, stream, check)
        self._device = device
        self._frames: Packets = stream.frames(0, BATCHES)
        lanes = len(stream.values)
        per_batch = lanes * stream.window
        self._ports: NDArray[np.uint16] = np.repeat(np.arange(1, lanes + 1, dtype=np.uint16), stream.window)
        size = frame_dtype(stream.elements).itemsize
        self._lengths = np.full(per_batch, size, np.uint32)
        self._raw = [batch.reshape(-1).view(np.uint8).reshape(per_batch, size) for batch in self._frames]
        self._chunks = self._answers = 0
        self._cpu_s = 0.0

    def warm_up(self) -> None:
        """See Measured.warm_up."""
        super().warm_up()
        self._cpu_s = 0.0

    def _shares(self) -> tuple[float | None, float | None]:
        return None, self._cpu_s / self.seconds

    def _sent(self) -> tuple[int, int, int]:
        return self._chunks, self._answers, 0

    def _run(self, seconds: float) -> float:
        spent = 0.0
        while True:
            spent += self._cycle()
            if spent >= seconds:
                return spent

    def _cycle(self) -> float:
        device, ports, lengths, left = self._device, self._ports, self._lengths, 0
        start, cpu_start = perf_counter(), thread_time()
        for raw in self._raw:
            out_ports, _, out = device.process_batch(ports, lengths, raw)
            left += len(out_ports)
        seconds = perf_counter() - start
        self._cpu_s += thread_time() - cpu_start
        self._chunks += BATCHES * self._stream.window
        self._answers += left
        self._verify(out_ports, out)
        advance(self._frames, BATCHES * self._stream.window)
        return seconds

    def _verify(self, ports: NDArray[np.uint16], out: NDArray[np.uint8]) -> None:
        """Compare the last batch's answers with what they must be."""
        dtype = frame_dtype(self._stream.elements)
        frames = np.ascontiguousarray(out[:, : dtype.itemsize]).reshape(-1).view(dtype)
        payload = frames["payload"]
        wanted = self._stream.wanted[
            ports.astype(np.int64) - 1, payload["chunk"].astype(np.int64) % self._stream.window
        ]
        wrong = np.flatnonzero((payload["values"] != wanted).any(axis=1))
        if len(wrong):
            chunk = payload["chunk"][wrong[0]]
            raise WrongSumError(self.column, f"the answer to chunk {chunk} has other values than it must")


@contextmanager
def _in_process(work: Work) -> Iterator[tuple[NetRecord, list[SwitchDevice]]]:
    """Serve an embedded switch of this process over P4Runtime; yield the record of a star and its devices."""
    devices: list[SwitchDevice] = []

    def load(program: bytes) -> SwitchDevice:
        devices.append(SwitchDevice.load(program, cpu_port=CPU_PORT, drop_port=DROP_PORT))
        return devices[-1]

    record = new_record("process", star(work.ports), target="embedded", elements=work.elements, slots=SLOTS)
    dataplane = InlineDataplane(CPU_PORT)
    server = P4RuntimeServer(P4RuntimeService(record.switches[0].device_id, load, dataplane), "127.0.0.1:0")
    server.start()
    try:
        yield with_switch(record, record.switches[0].name, grpc=f"127.0.0.1:{server.port}"), devices
    finally:
        server.stop()
        dataplane.close()
