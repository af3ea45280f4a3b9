# SPDX-License-Identifier: Apache-2.0
"""The kernels in C (kernel.c, turn.c), compiled when first needed; numpy works where there is no compiler."""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from wire import native
from wire.constants import ELEMENT_CHOICES
from wire.packet import Packets

from . import pace, stats, timer
from .calls import CALL_VALUES, DTYPES
from .flow import Flow
from .kernels import Indexes, Kernels, NumpyKernels, Stream, Taken, Tensors, address
from .recovery import Recovery
from .ring import Ring
from .timer import RetransmissionTimer
from .turn import Turn

FOLDER = Path(__file__).parent
SOURCES = [FOLDER / "kernel.c", FOLDER / "turn.c"]
NUMBERS = {
    **{name: getattr(timer, name) for name in ("SAMPLES", "CAP", "FLOOR", "MOST_BACKOFF")},
    **{name: getattr(stats, name) for name in ("SHORTEST", "BINS_AN_OCTAVE", "OCTAVES")},
    **{name: getattr(pace, name) for name in ("BURST", "STEP", "LULL", "LEAST_LULL", "SHARE")},
    **{f"DTYPE_{name.upper()}": code for name, code in DTYPES.items()},
    "CALL_VALUES": CALL_VALUES,
    "MOST_ELEMENTS": max(ELEMENT_CHOICES),
}
"""What C takes from Python's modules."""
FLAGS = (
    *(*native.FLAGS, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *(f"-D{name}={value!r}" for name, value in NUMBERS.items()),
)
"""-fno-… let loops be vectorized, and change no result."""


class _Taken(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "strays", "in_order", "highest", "reached", "first")),
        ("sent_at", ctypes.c_double),
    )


class NativeKernels:
    """See Kernels. Raises wire.native.BuildError where the C code cannot be compiled or loaded."""

    name = "C"

    def __init__(self) -> None:
        path = native.library("worker", "the worker's kernels", SOURCES, flags=FLAGS, include=FOLDER)
        self._c = _declare(native.load(path))

    def take(self, ring: Ring, packets: Packets, highest: int, first: int, end: int) -> Taken:
        """See Kernels."""
        found = np.empty((2, len(packets)), np.int64)
        taken = _Taken(highest=highest, reached=highest, first=first)
        self._c.take(
            *(ctypes.byref(ring), packets.ctypes.data, len(packets), end),
            *(address(found), ctypes.byref(taken)),
        )
        picked, offsets = found[:, : taken.count]
        sent_at = taken.sent_at if taken.in_order else None
        return Taken(picked, offsets, taken.strays, sent_at, taken.reached, taken.first)

    def fill(self, stream: Stream, source: Tensors, packets: Packets, position: int) -> None:
        """See Kernels."""
        self._c.fill(ctypes.byref(stream), ctypes.byref(source), address(packets), position, len(packets))

    def deliver(
        self, stream: Stream, target: Tensors, packets: Packets, picked: Indexes, positions: Indexes
    ) -> None:
        """See Kernels."""
        self._c.deliver(
            *(ctypes.byref(stream), ctypes.byref(target), packets.ctypes.data),
            *(picked.ctypes.data, positions.ctypes.data, len(picked)),
        )

    def turn(self, ring: Ring, timer: RetransmissionTimer, recovery: Recovery, flow: Flow) -> Turn:
        """See Kernels."""
        return Turn(self._c, ring, timer, recovery, flow)


def best_kernels() -> Kernels:
    """Return the C kernels, or numpy's with a warning where they cannot be compiled."""
    try:
        return NativeKernels()
    except native.BuildError as error:
        warnings.warn(f"numpy sums, several times slower than C: {error}", RuntimeWarning, stacklevel=2)
        return NumpyKernels()


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    at, size, double = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "take": (None, [at, at, size, ctypes.c_int64, at, at]),
        "fill": (None, [at, at, at, ctypes.c_uint64, size]),
        "deliver": (None, [at, at, at, at, at, size]),
        "turn_poll": (ctypes.c_int, [at, double]),
        "turn_results": (ctypes.c_int, [at, at, size, double]),
        "turn": (ctypes.c_int, [at, at, double]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
