# SPDX-License-Identifier: Apache-2.0
"""What link ends, links and their captures are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

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
    """The node that the link end belongs to received the packet: at a switch's end it comes up."""
    DOWN = 2
    """That node sent it."""


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


class Namespace(NamedTuple):
    """A host's network namespace."""

    pid: int
    """Of a process in it."""
    inode: int


class LinkEnd(NamedTuple):
    """One end of a link of a network that runs."""

    name: str
    """s1-h1: at s1, towards h1."""
    link: str
    interface: str
    namespace: Namespace | None = None
    """Of the host whose end it is; None at a switch."""


def captures(folder: Path) -> list[Path]:
    """Return the captures in a folder, sorted; folders in it are none, whatever they are called."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and not path.is_dir())


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


def link_ends(links: Iterable[Sequence[Mapping[str, Any]]]) -> list[LinkEnd]:
    """Return both ends of each link, from its ends' node, port, interface, pid and netns.

    The last two are None at switches. Several links between the same two nodes are told apart by the port of
    the end that is named first: s1-s2-3 and s2-s1-3.
    """
    listed = list(links)
    many = Counter(frozenset(end["node"] for end in link) for link in listed)
    found = []
    for link in listed:
        port = f"-{link[0]['port']}" if many[frozenset(end["node"] for end in link)] > 1 else ""
        for end, other in (link, reversed(link)):
            name = f"{end['node']}-{other['node']}{port}"
            inside = None if end["pid"] is None else Namespace(end["pid"], end["netns"])
            found.append(LinkEnd(name, link_of(name), end["interface"], inside))
    return found


def end_words(ends: Iterable[LinkEnd]) -> list[str]:
    """Return the recorder's arguments for link ends."""
    found = []
    for end in ends:
        inside = "".join(f"={number}" for number in end.namespace or ())
        found += ["--end", f"{end.name}={end.interface}{inside}"]
    return found


def end_of(word: str) -> LinkEnd:
    """Return the link end that such an argument tells of."""
    name, interface, *inside = word.split("=")
    return LinkEnd(name, link_of(name), interface, Namespace(*map(int, inside)) if inside else None)
