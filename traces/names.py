# SPDX-License-Identifier: Apache-2.0
"""What link ends, links and their captures are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".pcap", ".pcapng", ".pcap.gz", ".pcapng.gz")
MEMBERSHIPS = "memberships.json"
"""In a folder of captures."""
DESCRIPTION = "link end "
"""Before the end's name in the description of a capture's interface."""
_NODE = r"[a-z][a-z0-9]{0,4}"
_END = re.compile(rf"({_NODE})-({_NODE})(?:-([0-9]+))?")
_FILE = re.compile(rf"({_NODE}-{_NODE}(?:-[0-9]+)?)(?:\.[0-9]+)*\.pcap(?:ng)?(?:\.gz)?")
_WAY = re.compile(r"(.+)_(in|out)(?:\.[0-9]+)*\.pcap(?:ng)?(?:\.gz)?")


class Direction(IntEnum):
    """Which way a packet went at the link end that captured it."""

    UNKNOWN = 0
    UP = 1
    """Towards the switch that the link end belongs to: it received the packet."""
    DOWN = 2
    """From that switch: it sent the packet."""


class Source(NamedTuple):
    """Where packets were captured: one interface of one file."""

    path: Path
    end: str
    """The link end, as s1-h1: at s1, towards h1. In files of others the interface's or file's name."""
    node: str
    """Who the end belongs to, "" where unknown."""
    link: str
    """The link's name, the same at both of its ends: h1-s1. For files of others as `end`."""
    direction: Direction = Direction.UNKNOWN
    """Of all its packets, where the file's name says so (NAME_in.pcap, NAME_out.pcap)."""


def captures(folder: Path) -> list[Path]:
    """Return the captures in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def link_of(end: str) -> str:
    """Return the name of the link that an end, s1-h1, is one of: h1-s1."""
    one, other, *port = end.split("-")
    return "-".join([*sorted((one, other)), *port])


def source(path: Path, name: str = "", description: str = "") -> Source:
    """Return where the packets of a file's interface were captured, as far as it says."""
    told = description.removeprefix(DESCRIPTION) if description.startswith(DESCRIPTION) else ""
    by_file = _FILE.fullmatch(path.name)
    end = _END.fullmatch(told) or (_END.fullmatch(by_file[1]) if by_file else None)
    if end is not None:
        return Source(path, end[0], end[1], link_of(end[0]))
    way = _WAY.fullmatch(path.name)
    if way is not None:
        direction = Direction.UP if way[2] == "in" else Direction.DOWN
        return Source(path, way[1], "", way[1], direction)
    stem = re.sub(r"\.pcap(ng)?(\.gz)?$", "", path.name)
    return Source(path, name or stem, "", name or stem)


def link_ends(ports: Iterable[tuple[str, int, str, str]]) -> dict[str, tuple[str, str]]:
    """Return (end, interface) of each link by its name, from switches' (name, port, peer, interface).

    Of a link between two switches the first end is taken: both see the same packets. Several links between
    the same two nodes are told apart by that end's port: s1-s2-3.
    """
    found: dict[str, tuple[str, str]] = {}
    taken: set[tuple[str, str]] = set()
    listed = list(ports)
    many = Counter((switch, peer) for switch, _, peer, _ in listed)
    for switch, port, peer, interface in listed:
        if (peer, switch) in taken:
            continue
        taken.add((switch, peer))
        end = f"{switch}-{peer}" if many[switch, peer] == 1 else f"{switch}-{peer}-{port}"
        found[link_of(end)] = (end, interface)
    return found
