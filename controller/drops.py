# SPDX-License-Identifier: Apache-2.0
"""What the ports of a switch process lost themselves, before or behind the program.

The embedded switch tells on its stats socket. Of another switch there is what the kernel counted at the
interfaces: packets that reached no queue of the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from switch.errors import SwitchError
from switch.stats_socket import read_stats
from topologies.record import NetRecord, stats_socket

LOSSES = ("rx_dropped", "rx_errors", "tx_dropped", "tx_errors")
INTERFACES = Path("/sys/class/net")


def of_ports(record: NetRecord, switch: str) -> dict[int, dict[str, int]]:
    """Return packets lost by port and kind (LOSSES), as far as anything is known of them; blocking."""
    ports = record.switch(switch).ports
    path = stats_socket(record.directory, record.switch(switch).device_id)
    if path.exists():
        try:
            told: dict[str, Any] = read_stats(path)["ports"]
            return {port: {kind: int(told[str(port)][kind]) for kind in LOSSES} for port in ports}
        except (SwitchError, KeyError, TypeError, ValueError):  # it is starting or ending
            return {}
    found = {port: _of_interface(interface) for port, interface in ports.items()}
    return {port: losses for port, losses in found.items() if losses}


def _of_interface(interface: str) -> dict[str, int]:
    folder = INTERFACES / interface / "statistics"
    try:
        return {kind: int((folder / kind).read_text()) for kind in LOSSES}
    except (OSError, ValueError):
        return {}
