# SPDX-License-Identifier: Apache-2.0
"""The direct counter and meter of a TableEntry (spec 1.4, 9.1.7). The handle None is the default entry's."""

from __future__ import annotations

from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from switch.device import MeterRates, SwitchDevice
from switch.p4runtime import colors, rates
from switch.p4runtime.errors import invalid
from switch.p4runtime.p4info import Table


@dataclass(frozen=True)
class Resources:
    """What a client writes of them."""

    meter: MeterRates | None
    counter: tuple[int, int] | None
    """Packets and bytes, None to leave them."""
    restart: bool
    """Whether the meter's counters by color are to start over."""


RESET = Resources(None, (0, 0), restart=True)


def decode(table: Table, entry: p4runtime_pb2.TableEntry) -> Resources:
    """Check and return what an entry says of direct resources.

    Raises:
        RpcError: INVALID_ARGUMENT where the table has none such, or the values are none.
    """
    if table.meter is None and (entry.HasField("meter_config") or entry.HasField("meter_counter_data")):
        raise invalid(f"Table {table.name} has no direct meter")
    if table.counter is None and entry.HasField("counter_data"):
        raise invalid(f"Table {table.name} has no direct counter")
    colors.check(entry.meter_counter_data, table.name)
    data = entry.counter_data
    return Resources(
        rates.decode(entry.meter_config) if entry.HasField("meter_config") else None,
        (data.packet_count, data.byte_count) if entry.HasField("counter_data") else None,
        entry.HasField("meter_counter_data"),
    )


def write(device: SwitchDevice, table: Table, handle: int | None, wanted: Resources) -> None:
    """Set the direct resources; a meter that is not given is unconfigured from now on."""
    if table.meter is not None:
        device.direct_meter_set(table.name, handle, wanted.meter)
        if wanted.restart:
            device.direct_meter_colors(table.name, handle, colors.NONE)
    if table.counter is not None and wanted.counter is not None:
        device.direct_counter_write(table.name, handle, *wanted.counter)


def read(
    device: SwitchDevice,
    table: Table,
    handle: int | None,
    wanted: p4runtime_pb2.TableEntry,
    message: p4runtime_pb2.TableEntry,
) -> None:
    """Write into a message what the fields that are set in `wanted` ask for."""
    if wanted.HasField("counter_data") and table.counter is not None:
        packets, octets = device.direct_counter_read(table.name, handle)
        message.counter_data.packet_count, message.counter_data.byte_count = packets, octets
    if wanted.HasField("meter_config") and table.meter is not None:
        rates.fill(message.meter_config, device.direct_meter_get(table.name, handle))
    if wanted.HasField("meter_counter_data") and table.meter is not None:
        colors.fill(message.meter_counter_data, device.direct_meter_colors(table.name, handle))
