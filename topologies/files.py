# SPDX-License-Identifier: Apache-2.0
"""Networks from files: ours in YAML, and the topology.json of p4lang's tutorials.

Everything that is wrong with a file is told with its line and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, IPv4Network, NetmaskValueError
from pathlib import Path

from yaml.nodes import MappingNode, Node, SequenceNode

from topologies import quantities
from topologies.errors import SpecError
from topologies.marked import MarkedFile, empty, kind
from topologies.spec import (
    PLAIN,
    SWITCHES,
    End,
    HostSpec,
    LinkSpec,
    NetworkSpec,
    SwitchSpec,
    Way,
    host_address,
    mac_of,
    switch_address,
    unreachable,
)
from wire.constants import CPU_PORT

SUFFIXES = (".yaml", ".yml", ".json")
_NETWORK = IPv4Network("10.0.0.0/16")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_Drawn = tuple[list[tuple[str, int | None]], Way, Way]
"""A link's two ends (node, and port if it is named), and its two ways."""
_LINK_WORDS = ("ends", *quantities.WAY, "from")


def load(path: Path) -> NetworkSpec:
    """Return the network that a file describes: topology.json of p4lang's tutorials, or YAML of ours.

    Raises SpecError with the line and what was expected there.
    """
    return _Reader(MarkedFile(path)).network(tutorial=path.suffix.lower() == ".json")


class _Reader:
    """Makes a network of a file."""

    def __init__(self, file: MarkedFile) -> None:
        self._file = file
        self._hosts: dict[str, HostSpec] = {}
        self._switches: dict[str, SwitchSpec] = {}
        self._taken: dict[End, int] = {}
        """The line of the link that has an end."""

    def network(self, tutorial: bool) -> NetworkSpec:
        """Return it; `tutorial` tells which of the two formats."""
        file = self._file
        parts = file.pairs(file.root, "a topology", ("hosts", "switches", "links"))
        for name in ("hosts", "switches", "links"):
            if name not in parts:
                file.fail(file.root, f"a topology has hosts, switches and links, and there are no {name}")
        self._read_switches(file.names(parts["switches"][1], "switches"), tutorial)
        self._read_hosts(file.names(parts["hosts"][1], "hosts"), tutorial)
        nodes = file.items(parts["links"][1], "links")
        drawn = [self._tutorial_link(node) if tutorial else self._link(node) for node in nodes]
        links = list(self._numbered(drawn, nodes))
        linked = {end.node for link in links for end in (link.a, link.b)}
        for name, (at, _) in file.names(parts["hosts"][1], "hosts").items():
            if name not in linked:
                file.fail(at, f"{name} has no link: add one to links, [{name}, {next(iter(self._switches))}]")
        apart = unreachable([*self._switches, *self._hosts], links)
        if apart is not None:
            first, (at, _) = next(iter(self._switches)), file.names(parts["switches"][1], "switches")[apart]
            file.fail(at, f"no links lead from {first} to {apart}: add one to links, [{first}, {apart}]")
        topology = re.sub(r"[^a-z0-9_-]+", "-", file.path.stem.lower()).strip("-_")[:31] or "file"
        try:
            return NetworkSpec(
                topology, tuple(self._hosts.values()), tuple(self._switches.values()), tuple(links)
            )
        except SpecError as error:
            raise SpecError(str(file.path), str(error)) from None

    # ---- nodes
    def _read_switches(self, names: dict[str, tuple[Node, Node | None]], tutorial: bool) -> None:
        file = self._file
        if not names:
            file.fail(file.root, "there are no switches: name one at least, as s1")
        ids: dict[int, str] = {}
        wanted: dict[str, int] = {}
        for name, (_, told) in names.items():
            # A tutorial's switch tells of its program and its entries, which are our controller's here.
            if tutorial or told is None or empty(told):
                continue
            given = file.pairs(told, f"switch {name}", ("id",))
            if "id" in given:
                wanted[name] = self._number(given["id"][1], f"the id of {name}", 254)
        free = iter(n for n in range(1, 256) if n not in {*wanted.values()})
        for name, (at, _) in names.items():
            number = wanted.get(name) or next(free)
            if number in ids:
                file.fail(at, f"{name} has the id {number}, and so has {ids[number]}")
            if number > 254:
                file.fail(at, "a network has at most 254 switches")
            ids[number] = name
            ip = switch_address(number)
            self._switches[name] = SwitchSpec(name, number, ip, mac_of(1, ip))

    def _read_hosts(self, names: dict[str, tuple[Node, Node | None]], tutorial: bool) -> None:
        file = self._file
        if not names:
            file.fail(file.root, "there are no hosts: name one at least, as h1")
        given: dict[str, tuple[str | None, str | None]] = {}
        lines: dict[str, str] = {}
        for name, (at, told) in names.items():
            if name in self._switches:
                file.fail(at, f"{name} is a switch already")
            ip = mac = None
            if told is not None and not empty(told):
                # A tutorial's host has commands beside: they set routes, which these hosts do not need.
                words = ("ip", "mac", "commands") if tutorial else ("ip", "mac")
                pairs = file.pairs(told, f"host {name}", words)
                if "ip" in pairs:
                    ip = self._ip(pairs["ip"][1], name, tutorial)
                if "mac" in pairs:
                    mac = self._mac(pairs["mac"][1], name)
                for what, value, key in (("address", ip, "ip"), ("MAC address", mac, "mac")):
                    if value in lines:
                        file.fail(pairs[key][1], f"{name} has the {what} {value}, and so has {lines[value]}")
                    if value is not None:
                        lines[value] = name
            given[name] = ip, mac
        free = iter(
            address
            for number in range(254 * 255)
            if (address := host_address(number // 254, number % 254 + 1)) not in lines
        )
        for name, (ip, mac) in given.items():
            address = ip or next(free)
            self._hosts[name] = HostSpec(name, address, mac or mac_of(0, address))

    def _ip(self, node: Node, host: str, tutorial: bool) -> str | None:
        """Return a host's address; None for a tutorial's that is not of our network, to be chosen."""
        text = self._file.text(node, f"the ip of {host}")
        try:
            # A tutorial's has the length of its prefix, which is another here.
            ip = IPv4Interface(text).ip if tutorial else IPv4Address(text)
        except (AddressValueError, NetmaskValueError):
            self._file.fail(node, f"the ip of {host} is {text!r}, which is no IPv4 address: 10.0.0.1")
        fits = ip in _NETWORK and ip not in IPv4Network(SWITCHES) and ip.packed[3] not in (0, 255)
        if not fits and not tutorial:
            self._file.fail(
                node, f"the ip of {host} is {ip}: hosts have one of {_NETWORK}, and not of {SWITCHES}"
            )
        return str(ip) if fits else None

    def _mac(self, node: Node, host: str) -> str:
        text = self._file.text(node, f"the mac of {host}").lower()
        if not _MAC.fullmatch(text) or int(text[:2], 16) & 1 or not text.strip("0:"):
            self._file.fail(node, f"the mac of {host} is {text!r}: expected six bytes, 02:00:00:00:00:01")
        return text

    def _number(self, node: Node, what: str, most: int) -> int:
        text = self._file.text(node, what)
        if not re.fullmatch(r"\d{1,4}", text) or not 1 <= int(text) <= most:
            self._file.fail(node, f"{what} is {text!r}: expected a number from 1 to {most}")
        return int(text)

    # ---- links
    def _end(self, node: Node, pattern: str, example: str) -> tuple[str, int | None]:
        """Return (node, port or None) of a link's end."""
        text = self._file.text(node, "an end of a link")
        found = re.fullmatch(pattern, text)
        if found is None:
            self._file.fail(node, f"{text!r} is no end of a link: expected {example}")
        name, port = found[1], found[2]
        if name not in self._hosts and name not in self._switches:
            self._file.fail(node, f"a link ends at {name}, which is neither among hosts nor switches")
        if port is None:
            return name, 0 if name in self._hosts else None
        if name in self._hosts and int(port) != 0:
            self._file.fail(node, f"{name} is a host: its one port is 0, not {port}")
        if name in self._switches and not 1 <= int(port) < CPU_PORT:
            self._file.fail(node, f"a switch's ports are 1 to {CPU_PORT - 1}, not {port}")
        return name, int(port)

    def _ends(
        self, nodes: list[Node], whole: Node, pattern: str, example: str
    ) -> list[tuple[str, int | None]]:
        if len(nodes) != 2:
            self._file.fail(whole, f"a link has two ends, {example}; this has {len(nodes)}")
        ends = [self._end(node, pattern, example) for node in nodes]
        if ends[0][0] == ends[1][0]:
            self._file.fail(whole, f"a link joins two nodes, and both ends are at {ends[0][0]}")
        if all(name in self._hosts for name, _ in ends):
            self._file.fail(whole, f"{ends[0][0]} and {ends[1][0]} are hosts: a host hangs on a switch")
        return ends

    def _link(self, node: Node) -> _Drawn:
        """Read [h1, s1], or a mapping with `ends` and what the link does."""
        file, pattern = self._file, r"([A-Za-z]\w*)(?::(\d{1,4}))?"
        if isinstance(node, SequenceNode):
            return self._ends(node.value, node, pattern, "[h1, s1] or [s1:3, s2:1]"), PLAIN, PLAIN
        if not isinstance(node, MappingNode):
            file.fail(node, f"a link is [h1, s1] or a mapping with ends: [h1, s1], not {kind(node)}")
        pairs = file.pairs(node, "a link", _LINK_WORDS)
        if "ends" not in pairs:
            file.fail(node, "a link has ends: [s1, s2]")
        ends = self._ends(
            file.items(pairs["ends"][1], "ends"), pairs["ends"][1], pattern, "[h1, s1] or [s1:3, s2:1]"
        )
        both = self._way(PLAIN, {word: pair for word, pair in pairs.items() if word in quantities.WAY})
        ways = [both, both]
        names = [name for name, _ in ends]
        if "from" in pairs:
            asked = file.pairs(pairs["from"][1], "from", tuple(names))
            for name, (_, told) in asked.items():
                own = file.pairs(told, f"from {name}", tuple(quantities.WAY))
                ways[names.index(name)] = self._way(both, own)
        for way in ways:
            if (problem := way.problem()) is not None:
                file.fail(node, f"{names[0]}-{names[1]}: {problem}")
        return ends, ways[0], ways[1]

    def _way(self, way: Way, pairs: dict[str, tuple[Node, Node]]) -> Way:
        for word, (_, value) in pairs.items():
            found = self._file.read(value, word, lambda text, w=way, k=word: quantities.with_word(w, k, text))  # type: ignore[misc]
            assert isinstance(found, Way)
            way = found
        return way

    def _tutorial_link(self, node: Node) -> _Drawn:
        """Read ["h1", "s1-p1", latency, bandwidth]: the latency "5ms" or in ms, the bandwidth in Mbit/s."""
        file = self._file
        items = file.items(node, "a link")
        if len(items) > 4:
            file.fail(node, f"a link is two ends, a latency and a bandwidth; this has {len(items)} items")
        ends = self._ends(items[:2], node, r"([A-Za-z]\w*)(?:-p(\d{1,4}))?", '["h1", "s1-p1"]')
        way = PLAIN
        for word, unit, item in zip(("delay", "rate"), ("ms", "mbit"), items[2:], strict=False):
            if empty(item):
                continue
            text = file.text(item, "a latency" if word == "delay" else "a bandwidth")
            if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
                if float(text) == 0:
                    continue
                text += unit
            try:
                way = quantities.with_word(way, word, text)
            except SpecError as error:
                file.fail(item, f"{word} {error}")
        if (problem := way.problem()) is not None:
            file.fail(node, f"{ends[0][0]}-{ends[1][0]}: {problem}")
        return ends, way, way

    def _numbered(self, links: list[_Drawn], nodes: list[Node]) -> Iterator[LinkSpec]:
        """Give ports to the ends that have none: in the order of the links, the lowest that nobody names."""
        named = {(name, port) for ends, _, _ in links for name, port in ends if port is not None}
        for (ends, forth, back), node in zip(links, nodes, strict=True):
            found = []
            for name, port in ends:
                if port is None:
                    port = next(p for p in range(1, CPU_PORT + 1) if (name, p) not in named)
                    named.add((name, port))
                    if port == CPU_PORT:
                        self._file.fail(node, f"{name} has more than {CPU_PORT - 1} links")
                end, line = End(name, port), node.start_mark.line + 1
                if end in self._taken:
                    place = f"{name}'s one link" if name in self._hosts else f"port {port} of {name}"
                    self._file.fail(node, f"{place} is taken by the link of line {self._taken[end]}")
                self._taken[end] = line
                found.append(end)
            yield LinkSpec(found[0], found[1], forth, back)
