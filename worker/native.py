# SPDX-License-Identifier: Apache-2.0
"""The kernels in C (kernel.c), compiled when first needed; numpy does the work where there is no compiler."""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire import native
from wire.packet import Packets

from .kernels import Indexes, Kernels, NumpyKernels, Stream, Taken, Tensors
from .ring import Ring

SOURCE = Path(__file__).with_name("kernel.c")
FLAGS = (*native.FLAGS, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""The last two let loops be vectorized, and change no result."""


class _Tensors(ctypes.Structure):
    _fields_ = (("segments", ctypes.c_void_p), ("count", ctypes.c_uint64))


def _tensors(tensors: Tensors) -> _Tensors:
    return _Tensors(_at(tensors.segments), len(tensors.segments))


class _Stream(ctypes.Structure):
    """struct stream of kernel.c."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("elements", "headers", "ahead", "chunks")),
        *((name, ctypes.c_void_p) for name in ("exponents", "unsendable", "own_unsendable")),
        *((name, ctypes.c_uint32) for name in ("chunk", "workers", "divisor", "is_float", "kind", "tensor")),
    )


class _Compiled:
    """A stream in C's words; the tensors last used are kept in them, too."""

    def __init__(self, s: Stream) -> None:
        self.stream = _Stream(
            *(s.elements, s.headers, s.ahead, s.chunks),
            *(_at(s.exponents), _at(s.unsendable), _at(s.own_unsendable)),
            *(s.chunk, s.workers, s.divisor, s.is_float, s.kind, s.tensor),
        )
        self.at = ctypes.addressof(self.stream)
        self._source: tuple[Tensors | None, _Tensors] = (None, _Tensors())
        self._target: tuple[Tensors | None, _Tensors] = self._source

    def source(self, tensors: Tensors) -> Any:
        """Return a reference to a struct tensors, valid until the next call."""
        if self._source[0] is not tensors:
            self._source = (tensors, _tensors(tensors))
        return ctypes.byref(self._source[1])

    def target(self, tensors: Tensors) -> Any:
        """As `source`."""
        if self._target[0] is not tensors:
            self._target = (tensors, _tensors(tensors))
        return ctypes.byref(self._target[1])


class _Taken(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "strays", "in_order", "highest", "first")),
        ("sent_at", ctypes.c_double),
    )


_Anything = ctypes.c_char * 0


def _at(array: NDArray[Any]) -> int:
    return array.ctypes.data


def _in(array: Any) -> Any:
    """Return what _at does of our own plain arrays, in a third of the time: it must be writable."""
    return _Anything.from_buffer(array)


class NativeKernels:
    """See Kernels. Raises wire.native.BuildError where the C code cannot be compiled or loaded."""

    name = "C"

    def __init__(self) -> None:
        self._c = _declare(
            native.load(native.library("worker", "the worker's kernels", [SOURCE], flags=FLAGS))
        )

    def take(self, ring: Ring, packets: Packets, highest: int, first: int, end: int) -> Taken:
        """See Kernels."""
        found = np.empty((2, len(packets)), np.int64)
        taken = _Taken(highest=highest, first=first)
        self._c.take(
            *ring.addresses,
            *(ring.window, packets.itemsize, ring.result_kind, ring.base),
            *(_at(packets), len(packets), end, _in(found), ctypes.byref(taken)),
        )
        picked, offsets = found[:, : taken.count]
        sent_at = taken.sent_at if taken.in_order else None
        return Taken(picked, offsets, taken.strays, sent_at, taken.highest, taken.first)

    def fill(self, stream: Stream, source: Tensors, packets: Packets, position: int) -> None:
        """See Kernels."""
        of = _compiled(stream)
        self._c.fill(of.at, of.source(source), _in(packets), position, len(packets))

    def deliver(
        self, stream: Stream, target: Tensors, packets: Packets, picked: Indexes, positions: Indexes
    ) -> None:
        """See Kernels."""
        of = _compiled(stream)
        self._c.deliver(of.at, of.target(target), _at(packets), _in(picked), _in(positions), len(picked))


def _compiled(stream: Stream) -> _Compiled:
    if stream.compiled is None:
        stream.compiled = _Compiled(stream)
    compiled: _Compiled = stream.compiled
    return compiled


def best_kernels() -> Kernels:
    """Return the C kernels, or numpy's with a warning where they cannot be compiled."""
    try:
        return NativeKernels()
    except native.BuildError as error:
        warnings.warn(f"numpy sums, several times slower than C: {error}", RuntimeWarning, stacklevel=2)
        return NumpyKernels()


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    at, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
    signatures: dict[str, list[Any]] = {
        "take": [*([at] * 5), size, size, number, size, at, size, ctypes.c_int64, at, at],
        "fill": [at, at, at, ctypes.c_uint64, size],
        "deliver": [at, at, at, at, at, size],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, arguments
    return library
