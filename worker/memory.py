# SPDX-License-Identifier: Apache-2.0
"""Workers and a switch in one process: frames go into a callable, and links can lose, repeat and reorder.

`reduce_together` runs several workers in lock-step on a virtual clock: no threads, no sleeping, the same
every time. A MemoryTransport also serves workers in threads of their own.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wire.errors import P4ReduceError
from wire.membership import Membership
from wire.packet import Packets, build_frames, frame_dtype, frames_are_sound, frames_to_switch

from .calls import Call
from .operation import Operation
from .worker import Worker

Frames = list[tuple[int, bytes]]
"""Frames with the switch port that they enter or leave by."""
TICK = 1e-5
"""Seconds that the virtual clock goes on in a round of `reduce_together`."""
LONGEST_DELAY = 12
"""Rounds that a reordered frame is late by, at most."""


class MemoryFabric:
    """The links of one switch, given as `process`: frames in, frames out.

    Each frame on each link and in each direction is lost with probability `loss`, doubled with
    `duplicate`, and with `reorder` overtaken by frames sent up to LONGEST_DELAY calls later.
    `corrupt` flips one bit of a frame, which the receiver must notice. Everything follows from `seed`.
    """

    def __init__(
        self,
        process: Callable[[Frames], Frames],
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._process = process
        self._loss, self._duplicate, self._reorder, self._corrupt = loss, duplicate, reorder, corrupt
        self._random = random.Random(seed)
        self._late: list[tuple[int, int, bool, int, bytes]] = []  # due step, order, up, port, frame
        self._order = itertools.count()
        self._step = 0
        self._inboxes: dict[int, deque[bytes]] = {}
        self._changed = threading.Condition()
        self.clock = 0.0
        """Virtual seconds, for `reduce_together`."""

    def send(self, frames: Frames) -> None:
        """Carry frames to the switch and what it answers to the ports' inboxes."""
        with self._changed:
            self._step += 1
            self._deliver(self._faults(frames, up=True))
            self._changed.notify_all()

    def receive(self, port: int, timeout: float) -> list[bytes]:
        """Return the frames that came out of a port, waiting at most `timeout` seconds for a first one."""
        with self._changed:
            inbox = self._inboxes.setdefault(port, deque())
            self._step += 1
            self._release()
            if timeout > 0:
                self._changed.wait_for(lambda: bool(inbox), timeout)
            frames = list(inbox)
            inbox.clear()
            return frames

    @property
    def late(self) -> bool:
        """Whether reordered frames are still under way."""
        with self._changed:
            return bool(self._late)

    def _deliver(self, frames: Frames) -> None:
        for port, frame in self._faults(self._process(frames), up=False) if frames else []:
            self._inboxes.setdefault(port, deque()).append(frame)

    def _release(self) -> None:
        while self._late and self._late[0][0] <= self._step:
            _, _, up, port, frame = heapq.heappop(self._late)
            if up:
                self._deliver([(port, frame)])
            else:
                self._inboxes.setdefault(port, deque()).append(frame)

    def _faults(self, frames: Frames, *, up: bool) -> Frames:
        if not (self._loss or self._duplicate or self._reorder or self._corrupt):
            return frames
        draw = self._random
        out = []
        for port, frame in frames:
            copies = 0 if draw.random() < self._loss else 2 if draw.random() < self._duplicate else 1
            for _ in range(copies):
                sent = frame
                if draw.random() < self._corrupt:
                    flipped = bytearray(frame)
                    flipped[draw.randrange(34, len(frame))] ^= 1 << draw.randrange(8)
                    sent = bytes(flipped)
                if draw.random() < self._reorder:
                    due = self._step + draw.randint(1, LONGEST_DELAY)
                    heapq.heappush(self._late, (due, next(self._order), up, port, sent))
                else:
                    out.append((port, sent))
        return out


class MemoryTransport:
    """One worker's link to a fabric: builds and checks whole frames, as a host's kernel would."""

    native = None

    def __init__(self, membership: Membership, fabric: MemoryFabric, port: int) -> None:
        self._membership, self._fabric, self._port = membership, fabric, port
        self._dtype = frame_dtype(membership.elements)
        m = membership
        self._expected = build_frames(
            np.zeros(1, self._dtype)["payload"],
            eth_src=m.switch_mac,
            eth_dst=m.own_mac,
            ip_src=m.switch_ip,
            ip_dst=m.own_ip,
            udp_src=m.port,
            udp_dst=m.own_port,
        )

    def send(self, packets: Packets) -> None:
        """Send payloads through the fabric; see Transport."""
        frames = frames_to_switch(packets, self._membership)
        raw, size = frames.tobytes(), self._dtype.itemsize
        self._fabric.send([(self._port, raw[i : i + size]) for i in range(0, len(raw), size)])

    def receive(self, timeout: float) -> Packets:
        """Return results for this worker's address and port whose checksums are right; see Transport."""
        size = self._dtype.itemsize
        raw = [f for f in self._fabric.receive(self._port, timeout) if len(f) == size]
        frames = np.frombuffer(b"".join(raw), self._dtype)
        if not raw:
            return frames["payload"]
        mine = frames_are_sound(frames)
        for field in (
            "eth_dst",
            "eth_type",
            "ip_src",
            "ip_dst",
            "ip_protocol",
            "udp_src",
            "udp_dst",
            "udp_length",
        ):
            same = frames[field] == self._expected[field]
            mine &= same.all(axis=1) if same.ndim == 2 else same
        return np.ascontiguousarray(frames["payload"][mine])

    def close(self) -> None:
        """Do nothing: the fabric belongs to whoever made it."""


def reduce_together(
    fabric: MemoryFabric,
    workers: Sequence[Worker],
    arrays: Sequence[ArrayLike],
    op: str = "sum",
    *,
    outs: Sequence[NDArray[Any] | None] | None = None,
    cast: bool = False,
) -> list[NDArray[Any] | P4ReduceError]:
    """Run one all-reduce of several workers of a fabric in one thread and on the fabric's virtual clock.

    `outs` are each worker's `out`. Returns what each worker's all_reduce would have returned or raised.
    When nothing is under way the clock leaps to the next deadline, so a time-out of 30 s costs no time.
    """
    outcomes: list[NDArray[Any] | P4ReduceError | None] = [None] * len(workers)
    operations: dict[int, Operation] = {}
    now = fabric.clock
    for i, (worker, array) in enumerate(zip(workers, arrays, strict=True)):
        try:
            call = Call([array], op, [outs[i] if outs is not None else None], cast)
            operations[i] = worker.engine.begin(call, now)
        except P4ReduceError as error:
            outcomes[i] = error
    while operations:
        moved = False
        wake = float("inf")
        for i, operation in list(operations.items()):
            engine, transport = workers[i].engine, workers[i].transport
            burst = engine.poll(now)
            if len(burst):
                transport.send(burst)
            results = transport.receive(0)
            engine.on_results(results, now)
            moved = moved or bool(len(burst) or len(results))
            if operation.done:
                del operations[i]
                try:
                    outcomes[i] = operation.result()[0]
                except P4ReduceError as error:
                    outcomes[i] = error
            else:
                wake = min(wake, engine.wake_at(now))
        now = now + TICK if moved or fabric.late else max(now + TICK, wake)
    fabric.clock = now
    return [outcome for outcome in outcomes if outcome is not None]
