# SPDX-License-Identifier: Apache-2.0
"""The decoder in C (decode.c), compiled when first needed; numpy does the work where there is no compiler."""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wire import native

from .reference import NumpyDecoder
from .structs import RECORD, ROW, Bytes, Damage, Decoder, Found, Rows, State

SOURCE = Path(__file__).with_name("decode.c")


class NativeDecoder:
    """See Decoder. Raises wire.native.BuildError where the C code cannot be compiled or loaded."""

    name = "C"

    def __init__(self) -> None:
        c = native.load(native.library("traces", "the decoder of captures", [SOURCE]))
        pointer, number, of = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER
        ends = (pointer, number, of(number), of(ctypes.c_int))
        c.scan_pcap.argtypes = [pointer, number, of(number), ctypes.c_int, number, *ends]
        c.scan_pcapng.argtypes = [pointer, number, of(number), ctypes.c_int, pointer, number, *ends]
        c.decode.argtypes = [pointer, pointer, number, pointer, ctypes.c_int, pointer]
        c.decode.restype = None
        self._c = c

    def scan_pcap(self, bytes_: Bytes, at: int, big: bool, tick: int, room: int) -> Found:
        """See Decoder."""
        out, here, found, damage = np.empty(room, RECORD), *_counts()
        state = self._c.scan_pcap(
            bytes_.ctypes.data,
            len(bytes_),
            _at(here, at),
            big,
            tick,
            out.ctypes.data,
            room,
            ctypes.byref(found),
            ctypes.byref(damage),
        )
        return _found(state, out, here, found, damage)

    def scan_pcapng(self, bytes_: Bytes, at: int, big: bool, interfaces: Rows, room: int) -> Found:
        """See Decoder."""
        out, here, found, damage = np.empty(room, RECORD), *_counts()
        state = self._c.scan_pcapng(
            bytes_.ctypes.data,
            len(bytes_),
            _at(here, at),
            big,
            interfaces.ctypes.data,
            len(interfaces),
            out.ctypes.data,
            room,
            ctypes.byref(found),
            ctypes.byref(damage),
        )
        return _found(state, out, here, found, damage)

    def decode(self, bytes_: Bytes, records: Rows, ethernet: NDArray[np.bool_], format_: int) -> Rows:
        """See Decoder."""
        records, flags = np.ascontiguousarray(records), ethernet.astype(np.uint8)
        out = np.empty(len(records), ROW)
        self._c.decode(
            bytes_.ctypes.data, records.ctypes.data, len(records), flags.ctypes.data, format_, out.ctypes.data
        )
        return out


def _counts() -> tuple[ctypes.c_int64, ctypes.c_int64, ctypes.c_int]:
    return ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int()


def _at(here: ctypes.c_int64, at: int) -> object:
    here.value = at
    return ctypes.byref(here)


def _found(state: int, out: Rows, here: ctypes.c_int64, found: ctypes.c_int64, damage: ctypes.c_int) -> Found:
    which = Damage(damage.value) if damage.value else None
    return Found(State(state), out[: found.value], here.value, which)


@cache
def best_decoder() -> Decoder:
    """Return the decoder in C, else numpy's with a warning that says why."""
    try:
        return NativeDecoder()
    except native.BuildError as error:
        warnings.warn(f"captures are read many times slower, by numpy: {error}", RuntimeWarning, stacklevel=2)
        return NumpyDecoder()
