# SPDX-License-Identifier: Apache-2.0
"""MeterEntry and DirectMeterEntry (spec 1.4, 9.4): two rates, three colors; unconfigured is always green."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import colors, rates
from switch.p4runtime.indices import indices
from switch.p4runtime.p4info import P4InfoView
from switch.p4runtime.tables import Tables


class Meters:
    """The meters of one loaded program."""

    def __init__(self, view: P4InfoView, device: SwitchDevice, tables: Tables) -> None:
        self._view = view
        self._device = device
        self._tables = tables

    def modify(self, entry: p4runtime_pb2.MeterEntry) -> None:
        """Configure one cell, or all without an index; without config they become unconfigured."""
        array = self._view.meter(entry.meter_id)
        colors.check(entry.counter_data, array.name)
        wanted = rates.decode(entry.config) if entry.HasField("config") else None
        for index in indices(array, entry):
            self._device.meter_set(array.name, index, wanted)
            if entry.HasField("counter_data"):
                self._device.meter_colors(array.name, index, colors.NONE)

    def read(self, wanted: p4runtime_pb2.MeterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one cell, an array, or all arrays."""
        arrays = [self._view.meter(wanted.meter_id)] if wanted.meter_id else list(self._view.meters.values())
        for array in arrays:
            for index in indices(array, wanted):
                entity = p4runtime_pb2.Entity()
                entity.meter_entry.meter_id, entity.meter_entry.index.index = array.id, index
                rates.fill(entity.meter_entry.config, self._device.meter_get(array.name, index))
                if wanted.HasField("counter_data"):
                    colors.fill(entity.meter_entry.counter_data, self._device.meter_colors(array.name, index))
                yield entity

    def modify_direct(self, entry: p4runtime_pb2.DirectMeterEntry) -> None:
        """Configure an entry's meter; without config it becomes unconfigured."""
        table, handle = self._tables.locate(entry.table_entry, "meter")
        colors.check(entry.counter_data, table.name)
        if entry.HasField("counter_data"):
            self._device.direct_meter_colors(table.name, handle, colors.NONE)
        self._device.direct_meter_set(
            table.name, handle, rates.decode(entry.config) if entry.HasField("config") else None
        )

    def read_direct(self, wanted: p4runtime_pb2.DirectMeterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield the meter of one entry, of all entries of a table, or of all tables."""
        for table, handle, key in self._tables.select(wanted.table_entry, "meter"):
            entity = p4runtime_pb2.Entity()
            entity.direct_meter_entry.table_entry.CopyFrom(key)
            rates.fill(entity.direct_meter_entry.config, self._device.direct_meter_get(table.name, handle))
            if wanted.HasField("counter_data"):
                counted = self._device.direct_meter_colors(table.name, handle)
                colors.fill(entity.direct_meter_entry.counter_data, counted)
            yield entity
