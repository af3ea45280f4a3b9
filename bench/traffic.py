# SPDX-License-Identifier: Apache-2.0
"""The sender and receiver in C (traffic.c): a closed loop over the interfaces at a switch's ports."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire import native
from wire.packet import Packets

from .errors import BenchError, WrongSumError

SOURCE = Path(__file__).with_name("traffic.c")
SILENCE_LIMIT_S = 10
"""As in traffic.c."""


@dataclass(frozen=True)
class Lane:
    """What goes in at a port of the switch, and what has to come out there."""

    interface: str
    """The other end of the port's cable."""
    frames: Packets
    """`frame_dtype`, one window of them; the answer to chunk g is that to frames[g mod W]."""
    wanted: NDArray[np.int32]
    """(W, elements): the values of the answers that come here."""
    answers: int
    """The lane whose chunks they answer."""


class _Counts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("chunks", "answers", "resent", "repeated", "strangers")),
        ("trouble", ctypes.c_uint64),
        ("elapsed_ns", ctypes.c_int64),
        ("idle_ns", ctypes.c_int64),
    ]


class Traffic:
    """Lanes that run together. Close it, or use it as a context manager."""

    def __init__(self, target: str, lanes: Sequence[Lane], *, super_packets: bool) -> None:
        """Open the lanes' sockets; needs root. `target` is what errors call the switch.

        Raises BenchError for a socket that cannot be opened, BuildError where cc fails.
        """
        self._target = target
        self._c = _declare(native.load(native.library("traffic", "the bench's sender", [SOURCE])))
        first = lanes[0].frames
        payload = first.dtype["payload"].itemsize
        self._traffic: int | None = self._c.traffic_new(len(lanes), len(first), payload, super_packets)
        if not self._traffic:
            raise BenchError(target, "no memory for the sender: take fewer workers")
        self._counts = _Counts()
        self.seconds = 0.0
        """Of all runs, each from its first frame to its last answer."""
        self.idle_s = 0.0
        """Of these the sender had nothing to send and nothing to take."""
        try:
            for number, lane in enumerate(lanes):
                self._add(number, lane)
        except BaseException:
            self.close()
            raise

    def _add(self, number: int, lane: Lane) -> None:
        frames, wanted = lane.frames.tobytes(), lane.wanted.astype(">i4").tobytes()
        status = self._c.traffic_lane(
            self._traffic, number, lane.interface.encode(), frames, wanted, lane.answers
        )
        if status:
            why = os.strerror(-status)
            raise BenchError(self._target, f"no packet socket on {lane.interface}: {why}; run with sudo")

    @property
    def chunks(self) -> int:
        """Chunks of each lane that were sent and answered so far."""
        return int(self._counts.chunks)

    @property
    def answers(self) -> int:
        """Frames that came back so far, each the first of its chunk and lane, all with the right values."""
        return int(self._counts.answers)

    @property
    def resent(self) -> int:
        """Frames that were sent again, since no answer came, so far."""
        return int(self._counts.resent)

    def run(self, seconds: float) -> float:
        """Send for this long, wait until all is answered; return the seconds it took.

        Raises WrongSumError, and BenchError when nothing comes back for SILENCE_LIMIT_S.
        """
        took, left, status = 0.0, seconds, -errno.EINTR
        while status == -errno.EINTR:  # the signal's handler has run; it may have raised
            status = self._c.traffic_run(self._traffic, int(1e9 * left), ctypes.byref(self._counts))
            took += 1e-9 * self._counts.elapsed_ns
            self.idle_s += 1e-9 * self._counts.idle_ns
            left = 0.0
        self.seconds += took
        if status:
            raise self._error(-status)
        return took

    def _error(self, number: int) -> BenchError:
        chunk = self._counts.trouble
        if number == errno.EBADMSG:
            return WrongSumError(self._target, f"the answer to chunk {chunk} has other values than it must")
        if number == errno.ETIME:
            others = f", {self._counts.strangers} other frames came" if self._counts.strangers else ""
            return BenchError(
                self._target,
                f"nothing came back for {SILENCE_LIMIT_S} s (chunk {chunk} is missing{others}); "
                "look into the switch's log",
            )
        return BenchError(self._target, f"a packet socket failed: {os.strerror(number)}")

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        if self._traffic:
            self._c.traffic_free(self._traffic)
            self._traffic = None

    def __enter__(self) -> Traffic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, text = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "traffic_new": (pointer, [number, number, number, ctypes.c_int]),
        "traffic_free": (None, [pointer]),
        "traffic_lane": (ctypes.c_int, [pointer, number, text, text, text, number]),
        "traffic_run": (ctypes.c_int, [pointer, ctypes.c_int64, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
