# SPDX-License-Identifier: Apache-2.0
"""CounterEntry and DirectCounterEntry (spec 1.4, 9.3). As in bmv2, all count both packets and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import packed
from switch.p4runtime.indices import indices
from switch.p4runtime.p4info import P4InfoView
from switch.p4runtime.tables import Tables


class Counters:
    """The counters of one loaded program."""

    def __init__(self, view: P4InfoView, device: SwitchDevice, tables: Tables) -> None:
        self._view = view
        self._device = device
        self._tables = tables

    def modify(self, entry: p4runtime_pb2.CounterEntry) -> None:
        """Set one cell, or all without an index; without data nothing changes."""
        array = self._view.counter(entry.counter_id)
        cells = indices(array, entry)
        if entry.HasField("data"):
            for index in cells:
                self._device.counter_write(array.name, index, entry.data.packet_count, entry.data.byte_count)

    def read(self, wanted: p4runtime_pb2.CounterEntry) -> Iterator[bytes]:
        """Yield one cell, an array, or all arrays, as `packed.cells` does."""
        arrays = (
            [self._view.counter(wanted.counter_id)]
            if wanted.counter_id
            else list(self._view.counters.values())
        )
        for array in arrays:
            cells = indices(array, wanted)
            if len(cells) == 1:
                values = [self._device.counter_read(array.name, cells[0])]
            else:
                values = self._device.counter_read_all(array.name).tolist()
            data = (packed.numeric(1, octets) + packed.numeric(2, packets) for packets, octets in values)
            yield from packed.cells("counter_entry", array.id, zip(cells, data, strict=True))

    def counted(self) -> Iterator[p4runtime_pb2.Entity]:
        """Yield all cells that are not 0."""
        for array in self._view.counters.values():
            values = self._device.counter_read_all(array.name)
            for index in np.flatnonzero(values.any(axis=1)).tolist():
                entity = p4runtime_pb2.Entity()
                counter = entity.counter_entry
                counter.counter_id, counter.index.index = array.id, index
                counter.data.packet_count, counter.data.byte_count = values[index].tolist()
                yield entity

    def modify_direct(self, entry: p4runtime_pb2.DirectCounterEntry) -> None:
        """Set an entry's counter; without data nothing changes."""
        table, handle = self._tables.locate(entry.table_entry, "counter")
        if entry.HasField("data"):
            self._device.direct_counter_write(
                table.name, handle, entry.data.packet_count, entry.data.byte_count
            )

    def read_direct(self, wanted: p4runtime_pb2.DirectCounterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield the counter of one entry, of all entries of a table, or of all tables."""
        for table, handle, key in self._tables.select(wanted.table_entry, "counter"):
            entity = p4runtime_pb2.Entity()
            entity.direct_counter_entry.table_entry.CopyFrom(key)
            data = entity.direct_counter_entry.data
            data.packet_count, data.byte_count = self._device.direct_counter_read(table.name, handle)
            yield entity
