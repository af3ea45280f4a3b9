# SPDX-License-Identifier: Apache-2.0
"""Which links of a network are down, by what the kernel says of their ends in the root namespace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from controller.fabric import Cable

if TYPE_CHECKING:  # topologies imports us
    from topologies.parts import LinkRecord
    from topologies.record import NetRecord

INTERFACES = Path("/sys/class/net")
DOWN = ("down", "lowerlayerdown", "notpresent", "dormant")
"""States of an interface (RFC 2863, as the kernel spells them) that carry nothing."""


def cut_cables(record: NetRecord, interfaces: Path = INTERFACES) -> frozenset[Cable]:
    """Return the links one of whose switch ends is down; ends that are not on this machine say nothing."""
    ports = {switch.name: switch.ports for switch in record.switches}
    return frozenset(
        frozenset({(link.a.node, link.a.port), (link.b.node, link.b.port)})
        for link in record.links
        if any(_is_down(interfaces / name) for name in _switch_ends(link, ports))
    )


def _switch_ends(link: LinkRecord, ports: dict[str, dict[int, str]]) -> list[str]:
    return [ports[end.node][end.port] for end in (link.a, link.b) if end.node in ports]


def _is_down(interface: Path) -> bool:
    try:
        return (interface / "operstate").read_text().strip() in DOWN
    except OSError:
        return False
