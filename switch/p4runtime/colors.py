# SPDX-License-Identifier: Apache-2.0
"""MeterCounterData: what a meter counted by color (spec 1.4, 9.4.3); simple_switch_grpc has none."""

from __future__ import annotations

from p4.v1 import p4runtime_pb2

from switch.device import Colors
from switch.p4runtime.errors import invalid

NONE = Colors((0, 0), (0, 0), (0, 0))


def check(data: p4runtime_pb2.MeterCounterData, what: str) -> None:
    """Refuse anything but zeroes: writing them starts the counters over (spec 9.1.7)."""
    counted = (data.green, data.yellow, data.red)
    if any(one.packet_count or one.byte_count for one in counted):
        raise invalid(f"{what}: counters by color can only be set to zero")


def fill(data: p4runtime_pb2.MeterCounterData, colors: Colors) -> None:
    """Write what was counted into a message."""
    for one, (packets, octets) in (
        (data.green, colors.green),
        (data.yellow, colors.yellow),
        (data.red, colors.red),
    ):
        one.packet_count, one.byte_count = packets, octets
