# SPDX-License-Identifier: Apache-2.0
"""A picture of a network that runs: its nodes, its links with what passes over them, the trees of its jobs.

Hosts are at the bottom, above them the switches by their distance from hosts. A job's tree is drawn over the
links that its packets take.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.fabric import Cable, Dead, Fabric
from controller.terminal import rate_words
from topologies import links
from topologies.errors import NetworkError
from topologies.parts import LinkRecord
from topologies.quantities import words
from topologies.record import NetRecord

FORMATS = (".svg", ".png")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255")
"""Okabe and Ito's, which colour-blind people can tell apart, and two of Tol's."""
_APART = 0.07
"""Between the lines of two jobs on one link."""
_LABEL_BPS = 1000
"""Less than this is told of no link."""
_SHOWN_HOSTS = 24
"""With more hosts, these lose their addresses, and their links the figures."""
_BESIDE = 36
"""Points from the middle of a switch to the marks of the jobs that it sums for."""
_ALONG = (0.28, 0.46, 0.64, 0.2, 0.55, 0.37)
"""Where labels of links from one switch upwards stand, in turn, so that they keep apart."""


@dataclass(frozen=True)
class Load:
    """What passed over a link in a while: bit/s from a to b, and back."""

    forth: float = 0.0
    back: float = 0.0


@dataclass(frozen=True)
class Picture:
    """Where everything is, in units of one host's width."""

    places: dict[str, tuple[float, float]]
    jobs: dict[str, list[Cable]] = field(default_factory=dict)
    """By job: the links that its packets take."""
    sums: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By job: the switches that sum for it; True for the root of its tree."""


def _bytes(record: NetRecord, link: LinkRecord) -> tuple[int, int]:
    """Return the bytes that have passed from a to b, and back, as an end at a switch counts them."""
    here, there = links.directions(link)
    at_a = here.interface in record.root_interfaces()
    folder = Path("/sys/class/net", here.interface if at_a else there.interface, "statistics")
    try:
        sent, received = (int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
    except OSError:
        return 0, 0
    return (sent, received) if at_a else (received, sent)


def loads(record: NetRecord, seconds: float) -> dict[Cable, Load]:
    """Count for so long what passes over each link."""
    begun, before = time.monotonic(), [_bytes(record, link) for link in record.links]
    time.sleep(seconds)
    after, took = [_bytes(record, link) for link in record.links], time.monotonic() - begun
    return {
        cable(link): Load(*(8 * (new - old) / took for old, new in zip(first, last, strict=True)))
        for link, first, last in zip(record.links, before, after, strict=True)
    }


def cable(link: LinkRecord) -> Cable:
    """Return a link by its two ends."""
    return frozenset({(link.a.node, link.a.port), (link.b.node, link.b.port)})


def plan(record: NetRecord, jobs: Iterable[Mapping[str, Any]] = ()) -> Picture:
    """Place the nodes, and find the links of each job: `jobs` are as the controller tells of them."""
    down = frozenset(cable(link) for link in record.links if link.down)
    fabric = Fabric(record, Dead(cables=down))
    told = {job["name"]: job["tree"] for job in jobs}
    return Picture(
        _places(record),
        {name: _links_of(fabric, tree) for name, tree in told.items()},
        {name: {node["switch"]: node["parent"] is None for node in tree} for name, tree in told.items()},
    )


def _places(record: NetRecord) -> dict[str, tuple[float, float]]:
    hosts = [host.name for host in record.hosts]
    neighbours = {
        name: [end.node for end in record.peers(name).values()]
        for name in [*hosts, *(switch.name for switch in record.switches)]
    }
    levels = dict.fromkeys(hosts, 0)
    ring = hosts
    while ring:
        ring = list(dict.fromkeys(node for name in ring for node in neighbours[name] if node not in levels))
        levels |= {node: levels[_below(neighbours[node], levels)] + 1 for node in ring}
    # A switch that no host reaches is drawn beside the leaves.
    levels |= {name: 1 for name in neighbours if name not in levels}
    rows: dict[int, list[str]] = defaultdict(list)
    for name, level in levels.items():
        rows[level].append(name)
    order = [switch.name for switch in record.switches]
    rows[0].sort(key=lambda host: (order.index(neighbours[host][0]), hosts.index(host)))
    width = max(len(rows[0]), *(2 * len(row) for level, row in rows.items() if level))
    places: dict[str, tuple[float, float]] = {}
    for level, row in sorted(rows.items()):
        if level:
            middles = {
                name: [places[node][0] for node in neighbours[name] if levels[node] < level] for name in row
            }
            row.sort(key=lambda name: sum(middles[name]) / (len(middles[name]) or 1))
        step = width / len(row)
        places |= {name: ((number + 0.5) * step, 2.0 * level) for number, name in enumerate(row)}
    return places


def _below(nodes: Iterable[str], levels: Mapping[str, int]) -> str:
    return min((node for node in nodes if node in levels), key=lambda node: levels[node])


def _links_of(fabric: Fabric, tree: Iterable[Mapping[str, Any]]) -> list[Cable]:
    """Return the links between a job's hosts, its leaves and their parents."""
    found: dict[Cable, None] = {}
    for node in tree:
        ways = [(node["switch"], node["parent"])] if node["parent"] is not None else []
        for host in node["hosts"]:
            if host in fabric.home:
                home, port = fabric.home[host]
                found[frozenset({(home, port), (host, 0)})] = None
                ways.append((home, node["switch"]))
        for start, target in ways:
            at = start
            for hop in fabric.path(start, target):
                found[frozenset({(at, hop.port), (hop.node, hop.peer_port)})] = None
                at = hop.node
    return list(found)


def check_place(out: Path) -> None:
    """Raise NetworkError for a file that can be no picture by its name, or has no folder to be in."""
    if out.suffix.lower() not in FORMATS:
        raise NetworkError(str(out), f"a picture's name ends in {' or '.join(FORMATS)}")
    # Path's own is_dir() raises for a name that is too long.
    if os.path.isdir(out) or not os.path.isdir(out.parent):
        raise NetworkError(
            str(out), "is a folder" if os.path.isdir(out) else f"there is no folder {out.parent}"
        )


def draw(record: NetRecord, picture: Picture, load: Mapping[Cable, Load], out: Path) -> None:
    """Write the picture to an SVG or PNG file, by its name. NetworkError when that cannot be done."""
    check_place(out)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NetworkError(
            str(out), "pictures need matplotlib: .venv/bin/pip install -e '.[plots]'"
        ) from None

    places = picture.places
    width = max(x for x, _ in places.values()) + 1
    top = max(y for _, y in places.values())
    figure = Figure(figsize=(max(6.0, min(24.0, 0.75 * width)), 2.2 + 1.1 * top), layout="tight")
    axes = figure.add_subplot()
    axes.set_axis_off()
    for link in record.links:
        _draw_link(axes, record, link, picture, load.get(cable(link), Load()))
    small = len(record.hosts) > _SHOWN_HOSTS
    for host in record.hosts:
        text = host.name if small else f"{host.name}\n{host.ip}"
        _draw_node(axes, places[host.name], text, "#f0f0f0", 5 if small else 7)
    for switch in record.switches:
        _draw_node(axes, places[switch.name], f"{switch.name}\n{switch.ip}", "#ffe9a8", 8)
    for number, name in enumerate(picture.jobs):
        for name_of_switch, root in picture.sums.get(name, {}).items():
            axes.annotate(
                "■" if root else "●",
                places[name_of_switch],
                (_BESIDE, 8 - 9 * number),
                textcoords="offset points",
                color=_COLOURS[number % len(_COLOURS)],
                fontsize=9 if root else 7,
                ha="center",
                va="center",
                zorder=6,
            )
        axes.plot([], [], color=_COLOURS[number % len(_COLOURS)], linewidth=2.5, label=f"job {name}")
    if picture.jobs:
        axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.set_title(f"{record.name}: {record.topology}, {record.target}", fontsize=10)
    axes.margins(0.04, 0.08)
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise NetworkError(str(out), f"cannot be written: {error.strerror}") from None


def _draw_node(axes: Any, place: tuple[float, float], text: str, colour: str, size: float) -> None:
    box = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "#555555", "linewidth": 0.8}
    axes.text(*place, text, ha="center", va="center", fontsize=size, bbox=box, zorder=5)


def _draw_link(axes: Any, record: NetRecord, link: LinkRecord, picture: Picture, load: Load) -> None:
    (xa, ya), (xb, yb) = picture.places[link.a.node], picture.places[link.b.node]
    between = not {link.a.node, link.b.node} & {host.name for host in record.hosts}
    bent = ya == yb  # else it would run through what stands between
    busy = max(load.forth, load.back)
    # 1 Mbit/s is thin, 10 Gbit/s thick.
    width = 1.0 + min(4.0, max(0.0, len(f"{busy:.0f}") - 6.0))
    gone = link.down
    style = {"color": "#cc0000" if gone else "#aaaaaa", "linewidth": width, "linestyle": ":" if gone else "-"}
    _line(axes, (xa, ya), (xb, yb), 0.0, bent, style, 1)
    here = [number for number, found in enumerate(picture.jobs.values()) if cable(link) in found]
    for place, number in enumerate(here):
        aside = (place - (len(here) - 1) / 2) * _APART
        colour = {"color": _COLOURS[number % len(_COLOURS)], "linewidth": 2.0}
        _line(axes, (xa, ya), (xb, yb), aside, bent, colour, 2)
    told = (
        _label(load, ya < yb) if busy >= _LABEL_BPS and (between or len(record.hosts) <= _SHOWN_HOSTS) else []
    )
    does = {words(way) for way in (link.forth, link.back)} - {"plain"}
    told += [" / ".join(sorted(does))] if between and does else []
    told += ["down"] if gone else []
    if told:
        lower = link.a if (ya, xa) <= (yb, xb) else link.b
        (x0, y0), (x1, y1) = sorted(((xa, ya), (xb, yb)), key=lambda place: (place[1], place[0]))
        share = _ALONG[lower.port % len(_ALONG)] if between else 0.22
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.text(
            (x0 + x1) / 2 if bent else x0 + share * (x1 - x0),
            y0 - 0.5 if bent else y0 + share * (y1 - y0),
            "\n".join(told),
            fontsize=5.5,
            ha="center",
            va="center",
            bbox=box,
            zorder=4,
        )


def _label(load: Load, a_is_below: bool) -> list[str]:
    up, down = (load.forth, load.back) if a_is_below else (load.back, load.forth)
    return [f"↑ {rate_words(_three(up))}", f"↓ {rate_words(_three(down))}"]


def _three(bps: float) -> int:
    """Return a rate with three digits that count."""
    return int(float(f"{bps:.3g}"))


def _line(
    axes: Any,
    a: tuple[float, float],
    b: tuple[float, float],
    aside: float,
    bent: bool,
    style: Mapping[str, Any],
    order: int,
) -> None:
    xs, ys = [a[0] + aside, b[0] + aside], [a[1], b[1]]
    if bent:
        xs = [a[0], (3 * a[0] + b[0]) / 4, (a[0] + 3 * b[0]) / 4, b[0]]
        ys = [a[1], a[1] - 0.5 + aside, a[1] - 0.5 + aside, b[1]]
    axes.plot(xs, ys, zorder=order, solid_capstyle="round", **style)
