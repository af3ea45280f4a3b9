# SPDX-License-Identifier: Apache-2.0
"""Packets through a device in batches: lists of bytes, or numpy arrays."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switch.errors import DeviceError
from switch.library import Result

_NOTHING = ctypes.c_char * 0
SLACK = 4096
"""Bytes after the last row: the program writes a packet in place only where its longest would fit."""
BEYOND_ROW = 2
"""SW_BEYOND_ROW: nothing was processed."""
Rows = tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.uint8]]
"""Ports, lengths, and packets as rows."""


class Batches:
    """Runs batches through one device, one at a time: they share the memory for what leaves."""

    def __init__(self, lib: ctypes.CDLL, handle: Callable[[], int], tick: Callable[[], None]) -> None:
        """`tick` is called before each batch, to set the device's clock."""
        self._lib = lib
        self._handle = handle
        self._tick = tick
        self._result = Result()
        self._rows, self._stride = 0, 0
        """What the last batch needed: the next one is expected to need as much."""
        self.lock = threading.Lock()
        """Held while a batch runs."""

    def packets(self, packets: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """See SwitchDevice.process."""
        items = list(packets)
        n = len(items)
        ports = (ctypes.c_uint32 * max(n, 1))(*(p for p, _ in items))
        lengths = (ctypes.c_uint32 * max(n, 1))(*(len(d) for _, d in items))
        data = b"".join(d for _, d in items)
        out: list[tuple[int, bytes]] = []
        with self.lock:
            self._tick()
            self._give(None, 0)
            self._lib.sw_run_packets(self._handle(), n, ports, lengths, data, ctypes.byref(self._result))
            r = self._checked()
            blob = ctypes.string_at(r.data, r.bytes) if r.bytes else b""
            at = 0
            for i in range(r.n):
                size = r.lengths[i]
                out.append((r.ports[i], blob[at : at + size]))
                at += size
        return out

    def rows(self, ports: NDArray[np.uint16], lengths: NDArray[np.uint32], data: NDArray[np.uint8]) -> Rows:
        """See SwitchDevice.process_batch."""
        ports = np.ascontiguousarray(ports, dtype=np.uint16)
        lengths = np.ascontiguousarray(lengths, dtype=np.uint32)
        data = np.ascontiguousarray(data, dtype=np.uint8)
        n = len(ports)
        if ports.ndim != 1 or lengths.shape != (n,) or data.ndim != 2 or data.shape[0] != n:
            raise ValueError(
                f"expected n ports, n lengths and n rows: {ports.shape} {lengths.shape} {data.shape}"
            )
        with self.lock:
            self._tick()
            r = self._result
            rows, stride = max(self._rows, n), max(self._stride, data.shape[1])
            # Many short rows after a few long ones would else get room for many long ones.
            rows = min(rows, 2 * max(self._rows * self._stride, data.size) // max(stride, 1) + 1)
            out = np.empty(rows * stride + SLACK, np.uint8)
            self._give(out, stride)
            self._lib.sw_run_rows(
                self._handle(), n, _address(ports), _address(lengths), _address(data), data.shape[1],
                ctypes.byref(r),
            )  # fmt: skip
            if r.failed == BEYOND_ROW:
                raise ValueError(f"a length of {int(lengths.max())} in rows of {data.shape[1]} bytes")
            self._checked()
            self._rows, self._stride = r.n, r.longest
            out_ports, out_lengths = np.empty(r.n, np.uint16), np.empty(r.n, np.uint32)
            self._lib.sw_result_heads(ctypes.byref(r), _address(out_ports), _address(out_lengths))
            if r.in_rows == r.n:
                return out_ports, out_lengths, out[: r.n * stride].reshape(r.n, stride)[:, : r.longest]
            whole = np.empty((r.n, r.longest), np.uint8)
            self._lib.sw_result_rows(ctypes.byref(r), _address(whole), r.longest)
        return out_ports, out_lengths, whole

    def _give(self, rows: NDArray[np.uint8] | None, stride: int) -> None:
        """Let the next batch put what leaves into rows, or into memory of its own."""
        r = self._result
        r.rows, r.rows_bytes = (None, 0) if rows is None else (_address(rows), len(rows))
        r.stride = stride

    def _checked(self) -> Result:
        if self._result.failed:
            raise DeviceError("no memory for the packets that leave: process fewer at a time")
        return self._result

    def free(self) -> None:
        """Free the memory for what leaves. The lock must be held."""
        self._lib.sw_result_free(ctypes.byref(self._result))


def _address(array: NDArray[Any]) -> int:
    """Where a contiguous array lies; a writable one in a third of the time that `array.ctypes.data` takes."""
    if array.flags.writeable:
        # numpy's stubs tell of buffers only from Python 3.12 on
        return ctypes.addressof(_NOTHING.from_buffer(array))  # type: ignore[arg-type]
    return int(array.ctypes.data)
