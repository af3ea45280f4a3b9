# SPDX-License-Identifier: Apache-2.0
"""Counter, register and meter arrays of a device: names and indexes are checked here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from switch import ir
from switch.emit_code import Layout
from switch.errors import BadIndex, NoSuchObject
from switch.library import words
from switch.tables import colors_call, meter_call, u64
from switch.values import Colors, MeterRates


class Arrays:
    """Indirect counters, registers and meters."""

    def __init__(
        self, program: ir.Program, lib: ctypes.CDLL, handle: Callable[[], int], lock: threading.RLock
    ) -> None:
        """`lock` is held while a device is used: it may be closed else."""
        self._program = program
        self._lib = lib
        self._sw = handle
        self._lock = lock
        self._layout = Layout(program)

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """(packets, bytes) of one counter."""
        c = self._counter(name, index)
        out = words([0, 0])
        with self._lock:
            self._lib.sw_counter_access(self._sw(), c.id, index, 1, out, 0)
        return out[0], out[1]

    def counter_read_all(self, name: str) -> NDArray[np.uint64]:
        """uint64[size, 2]: packets and bytes of the whole array."""
        c = self._counter(name, None)
        out = np.zeros((c.size, 2), np.uint64)
        if c.size:
            with self._lock:
                self._lib.sw_counter_access(self._sw(), c.id, 0, c.size, out.ctypes.data, 0)
        return out

    def counter_write(self, name: str, index: int, packets: int, octets: int) -> None:
        """Set one counter. Raises BadIndex for values that are not in 0..2^64-1."""
        c = self._counter(name, index)
        with self._lock:
            self._lib.sw_counter_access(self._sw(), c.id, index, 1, words([u64(packets), u64(octets)]), 1)

    def register_read(self, name: str, index: int) -> int:
        """One element."""
        return self.register_read_range(name, index, 1)[0]

    def register_read_range(self, name: str, start: int, count: int) -> list[int]:
        """`count` elements from `start`."""
        group, lane, element = self._register(name, start, count)
        data = ctypes.create_string_buffer(max(element * count, 1))
        with self._lock:
            self._lib.sw_register_access(self._sw(), group, lane, start, count, data, 0)
        raw = data.raw
        return [int.from_bytes(raw[i * element : (i + 1) * element], "little") for i in range(count)]

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set one element. Raises BadIndex for a value that does not fit."""
        group, lane, element = self._register(name, index, 1)
        width = self._program.registers[name].width
        if not 0 <= value < 1 << width:
            raise BadIndex(f"register {name!r} holds {width} bits, {value} does not fit")
        with self._lock:
            self._lib.sw_register_access(
                self._sw(), group, lane, index, 1, value.to_bytes(element, "little"), 1
            )

    def meter_get(self, name: str, index: int) -> MeterRates | None:
        """The rates of one meter cell, None where unconfigured (always green)."""
        m = self._meter(name, index)
        with self._lock:
            return meter_call(self._sw(), self._lib.sw_meter_access, (m.id, index), None, read=True)

    def meter_set(self, name: str, index: int, rates: MeterRates | None) -> None:
        """Configure one meter cell; None makes it unconfigured."""
        m = self._meter(name, index)
        with self._lock:
            meter_call(self._sw(), self._lib.sw_meter_access, (m.id, index), rates, read=False)

    def meter_colors(self, name: str, index: int, write: Colors | None) -> Colors:
        """Read, or write, what one meter cell counted by color."""
        m = self._meter(name, index)
        with self._lock:
            return colors_call(self._sw(), self._lib.sw_meter_colors, (m.id, index), write)

    def _counter(self, name: str, index: int | None) -> ir.CounterArray:
        c = self._program.counters.get(name)
        if c is None or c.direct:
            raise NoSuchObject(f"no counter array {name!r}: there are {_list(self._program.counters)}")
        _in_range("counter", name, 0 if index is None and c.size else index or 0, max(c.size, 1))
        if index is not None:
            _in_range("counter", name, index, c.size)
        return c

    def _meter(self, name: str, index: int) -> ir.MeterArray:
        m = self._program.meters.get(name)
        if m is None or m.direct:
            raise NoSuchObject(f"no meter array {name!r}: there are {_list(self._program.meters)}")
        _in_range("meter", name, index, m.size)
        return m

    def _register(self, name: str, start: int, count: int) -> tuple[int, int, int]:
        r = self._program.registers.get(name)
        if r is None:
            raise NoSuchObject(f"no register array {name!r}: there are {_list(self._program.registers)}")
        if count < 1:
            raise BadIndex(f"register {name!r}: {count} elements")
        _in_range("register", name, start, r.size)
        _in_range("register", name, start + count - 1, r.size)
        group, lane = self._layout.register_place[name]
        return group, lane, self._layout.groups[group][1]


def _in_range(what: str, name: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise BadIndex(f"{what} {name!r} has {size} elements, there is no number {index}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
