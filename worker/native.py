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

from .kernels import Exponents, Flags, Indexes, Kernels, NumpyKernels, Taken
from .ring import Ring

SOURCE = Path(__file__).with_name("kernel.c")
FLAGS = (*native.FLAGS, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""The last two let loops be vectorized, and change no result."""


class _Tensor(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("size", ctypes.c_uint64), ("elements", ctypes.c_uint64))


def _tensor(values: NDArray[Any], packets: Packets) -> Any:
    elements = packets.dtype["values"].shape[0]
    return ctypes.byref(_Tensor(_at(values), values.size, elements))


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

    def fill_heads(self, packets: Packets, kind: int, tensor: int, chunk: int) -> None:
        """See Kernels."""
        self._c.fill_heads(_at(packets), packets.itemsize, len(packets), kind, tensor, chunk & 0xFFFFFFFF)

    def fill_int32(self, values: NDArray[np.int32], first: int, packets: Packets) -> None:
        """See Kernels."""
        self._c.fill_int32(_tensor(values, packets), first, len(packets), _at(packets))

    def fill_exponents(
        self, values: NDArray[np.float32], first: int, packets: Packets, unsendable: Flags
    ) -> None:
        """See Kernels."""
        self._c.fill_exponents(_tensor(values, packets), first, len(packets), _at(packets), _in(unsendable))

    def fill_quantized(
        self,
        values: NDArray[np.float32],
        first: int,
        exponents: Exponents,
        unsendable: Flags,
        workers: int,
        packets: Packets,
    ) -> None:
        """See Kernels."""
        of = _tensor(values, packets)
        self._c.fill_quantized(
            of, first, len(packets), _in(exponents), _in(unsendable), workers, _at(packets)
        )

    def deliver_int32(
        self, values: NDArray[np.int32], packets: Packets, picked: Indexes, places: Indexes
    ) -> None:
        """See Kernels."""
        self._c.deliver_int32(_tensor(values, packets), _at(packets), _in(picked), _in(places), len(picked))

    def deliver_exponents(
        self, packets: Packets, picked: Indexes, places: Indexes, exponents: Exponents, unsendable: Flags
    ) -> None:
        """See Kernels."""
        self._c.deliver_exponents(
            *(_at(packets), packets.itemsize, _in(picked), _in(places), len(picked)),
            *(_in(exponents), _in(unsendable), len(exponents)),
        )

    def deliver_quantized(
        self,
        values: NDArray[np.float32],
        packets: Packets,
        picked: Indexes,
        places: Indexes,
        exponents: Exponents,
        divisor: int,
    ) -> None:
        """See Kernels."""
        self._c.deliver_quantized(
            _tensor(values, packets),
            *(_at(packets), _in(picked), _in(places), len(picked)),
            *(_in(exponents), divisor),
        )


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
        "fill_heads": [at, size, size, number, number, ctypes.c_uint32],
        "fill_int32": [at, size, size, at],
        "fill_exponents": [at, size, size, at, at],
        "fill_quantized": [at, size, size, at, at, number, at],
        "deliver_int32": [at, at, at, at, size],
        "deliver_exponents": [at, size, at, at, size, at, at, size],
        "deliver_quantized": [at, at, at, at, size, at, number],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, arguments
    return library
