# SPDX-License-Identifier: Apache-2.0
"""What links do to packets, and who does it: the kernel, or the switch at the end.

Rates are the kernel's. Delay is netem's where the kernel has it, else the embedded switch holds packets back
at its ports. Loss, duplicates and corruption are netem's where hosts and switches exchange single packets;
among super-packets netem would take dozens at once, so there the switch does it to each, by its fault table.
What comes from a switch to a switch is faulted where it arrives.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from topologies import shaping
from topologies.errors import NetworkError
from topologies.parts import LinkRecord
from topologies.record import NetRecord, stats_socket
from topologies.spec import End, Way
from topologies.targets import targets

if TYPE_CHECKING:
    from wire.control import ControlClient

_COMMAND_LIMIT_S = 20.0
_END = r"([a-z][a-z0-9]*)(?::(\d+))?"
_NAME = re.compile(f"{_END}-{_END}")
KERNEL, SWITCH = "netem", "the switch"


@dataclass(frozen=True)
class Direction:
    """One way of a link: from an end (on an interface) to another."""

    source: End
    target: End
    interface: str
    way: Way

    @property
    def name(self) -> str:
        """As people read it: s1 to s2."""
        return f"{self.source.node} to {self.target.node}"


def directions(link: LinkRecord) -> tuple[Direction, Direction]:
    """Return both ways of a link, that from a to b first."""
    return (
        Direction(link.a, link.b, link.a_interface, link.forth),
        Direction(link.b, link.a, link.b_interface, link.back),
    )


def delays_by(record: NetRecord) -> str | None:
    """Say who holds packets back in a network: KERNEL, SWITCH, or None for nobody."""
    if KERNEL in record.qdiscs:
        return KERNEL
    return SWITCH if targets()[record.target].holds_back else None


def faults_by(record: NetRecord) -> str:
    """Say who loses packets in a network, duplicates and corrupts them: KERNEL or SWITCH."""
    return KERNEL if KERNEL in record.qdiscs and not record.super_packets else SWITCH


def by_kernel(record: NetRecord, way: Way) -> Way:
    """Return the part of a way that is the kernel's."""
    if delays_by(record) != KERNEL:
        way = replace(way, delay_ms=0.0)
    return way if faults_by(record) == KERNEL else replace(way, loss=0.0, duplicate=0.0, corrupt=0.0)


def by_switch(record: NetRecord, way: Way) -> Way:
    """Return the part of a way that is the switch's."""
    theirs = by_kernel(record, way)
    return replace(
        way,
        rate_mbit=None,
        queue_bytes=None,
        delay_ms=way.delay_ms - theirs.delay_ms,
        loss=way.loss - theirs.loss,
        duplicate=way.duplicate - theirs.duplicate,
        corrupt=way.corrupt - theirs.corrupt,
    )


def check(record: NetRecord, links: Iterable[LinkRecord]) -> None:
    """Raise NetworkError for a link that asks for what neither the kernel nor the switch can do here."""
    for link in links:
        for each in directions(link):
            if each.way.delay_ms and delays_by(record) is None:
                raise NetworkError(
                    link.name,
                    "a delay needs a kernel with netem (modprobe sch_netem), or the embedded switch "
                    "(--switch embedded): this kernel has none, and bmv2 holds no packet back",
                )
            if each.way.rate_mbit is not None and not {"htb", "tbf"} & {*record.qdiscs}:
                raise NetworkError(
                    link.name,
                    "a rate needs a kernel with tbf or htb (modprobe sch_tbf), and this one has neither",
                )


def described(record: NetRecord, links: Iterable[LinkRecord]) -> list[str]:
    """Say in a sentence each who does what is asked of these links, of what is asked."""
    ways = [each.way for link in links for each in directions(link)]
    found = []
    if any(way.rate_mbit is not None for way in ways):
        here = [name for name in ("htb", "tbf") if name in record.qdiscs]
        found.append(f"rates: by the kernel ({' and '.join(here)})")
    if any(way.delay_ms for way in ways):
        found.append(f"delays: by {_who(delays_by(record))}")
    if any(way.loss or way.duplicate or way.corrupt for way in ways):
        found.append(f"loss, duplicates, corruption: by {_who(faults_by(record))}")
    return found


def _who(who: str | None) -> str:
    return "the kernel (netem)" if who == KERNEL else "the switch at the link's end"


def find(record: NetRecord, name: str) -> LinkRecord:
    """Return the link of a name like s1-s2, either end first, with ports where there are several: s1:3-s2:1.

    Raises NetworkError that names the links there are.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise NetworkError(name, "a link is named by its ends, as h1-s1 or with ports s1:3-s2:1")
    first, second = (parts[1], parts[2]), (parts[3], parts[4])

    def at(end: End, wanted: tuple[str, str | None]) -> bool:
        return end.node == wanted[0] and wanted[1] in (None, str(end.port))

    found = [
        link
        for link in record.links
        if (at(link.a, first) and at(link.b, second)) or (at(link.a, second) and at(link.b, first))
    ]
    if not found:
        have = ", ".join(link.name for link in record.links if first[0] in (link.a.node, link.b.node))
        nodes = [*(host.name for host in record.hosts), *(switch.name for switch in record.switches)]
        unknown = [node for node, _ in (first, second) if node not in nodes]
        raise NetworkError(
            name,
            f"there is no node {unknown[0]} in network {record.name}"
            if unknown
            else f"there is no such link in network {record.name}; {first[0]} has {have}",
        )
    if len(found) > 1:
        each = ", ".join(f"{k.a.node}:{k.a.port}-{k.b.node}:{k.b.port}" for k in found)
        raise NetworkError(name, f"there are several: say which of {each}")
    return found[0]


# ---- the kernel's part
def _run(record: NetRecord, node: str, script: str) -> str:
    """Run shell commands where a node's interfaces are; return their output. NetworkError when one fails."""
    from topologies.processes import host_argv

    argv = ["sh", "-c", script]
    if node in {host.name for host in record.hosts}:
        argv = host_argv(record, node, argv)
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(node, f"{script}: {error}") from error
    if done.returncode != 0:
        raise NetworkError(node, f"{done.stderr.strip() or done.stdout.strip() or 'failed'} (from: {script})")
    return done.stdout


def shape(record: NetRecord, link: LinkRecord) -> None:
    """Let the kernel do its part of a link that runs, in place of what it did. Raises NetworkError."""
    hosts = {host.name for host in record.hosts}
    for each in directions(link):
        new = shaping.commands(
            each.interface,
            by_kernel(record, each.way),
            switch_end=each.source.node not in hosts,
            qdiscs=record.qdiscs,
        )
        old = f"tc qdisc del dev {each.interface} root 2>/dev/null; true"
        _run(record, each.source.node, " && ".join([f"{{ {old}; }}", *new]))


def set_state(record: NetRecord, link: LinkRecord, down: bool) -> None:
    """Take the ends of a link down that can be, or up again. Raises NetworkError.

    Of a host's link that is the host's end alone: the switch's then has no carrier. Ends of switches whose
    ports cannot go down become dormant (RFC 2863), and the switches drop what comes in there.
    """
    hosts = {host.name for host in record.hosts}
    ends = list(directions(link))
    if {link.a.node, link.b.node} & hosts:
        ends = [each for each in ends if each.source.node in hosts]
    dormant = _drops_when_down(record, link)
    for each in ends:
        words = ("state dormant" if down else "state up") if dormant else ("down" if down else "up")
        _run(record, each.source.node, f"ip link set {each.interface} {words}")


def _drops_when_down(record: NetRecord, link: LinkRecord) -> bool:
    between = not {link.a.node, link.b.node} & {host.name for host in record.hosts}
    return between and not targets()[record.target].ports_go_down


def is_up(record: NetRecord, link: LinkRecord) -> bool:
    """Say whether a link carries packets now, as its end at a switch tells."""
    interfaces = {*record.root_interfaces()}
    here = next(each.interface for each in directions(link) if each.interface in interfaces)
    try:
        return Path("/sys/class/net", here, "operstate").read_text().strip() == "up"
    except OSError:
        return False


# ---- the switch's part
@dataclass(frozen=True)
class AtPort:
    """What a switch does at a port, seen from it: `in` what comes in there, `out` what leaves."""

    switch: str
    port: int
    direction: str
    way: Way


def _at_ports(record: NetRecord, link: LinkRecord) -> Iterator[tuple[AtPort, AtPort]]:
    """Yield, for each way of a link, who faults it and who delays it."""
    hosts = {host.name for host in record.hosts}
    dropped = link.down and _drops_when_down(record, link)
    for each in directions(link):
        way = by_switch(record, each.way)
        way = replace(way, loss=1.0) if dropped else way
        leaves = AtPort(each.source.node, each.source.port, "out", way)
        arrives = AtPort(each.target.node, each.target.port, "in", way)
        yield (
            leaves if each.target.node in hosts else arrives,
            arrives if each.source.node in hosts else leaves,
        )


def seed_of(place: AtPort) -> int:
    """Return the seed of a place's faults: its own, and the same in every run."""
    return zlib.crc32(f"{place.switch}/{place.port}/{place.direction}".encode())


def set_faults(control: ControlClient, record: NetRecord, link: LinkRecord) -> None:
    """Let the switches do what they should lose, duplicate and corrupt of a link. Raises ControlError."""
    for place, _ in _at_ports(record, link):
        way = place.way
        body = {
            "port": place.port,
            "direction": place.direction,
            "drop": way.loss,
            "duplicate": way.duplicate,
            "corrupt": way.corrupt,
            "seed": seed_of(place),
        }
        control.call("PUT", f"/v1/switches/{place.switch}/faults", body)


def set_delays(record: NetRecord, link: LinkRecord) -> None:
    """Let the switches hold back what they should of a link. Raises StatsSocketError."""
    if delays_by(record) != SWITCH:
        return
    from switch.delay import set_delay

    for _, place in _at_ports(record, link):
        socket = stats_socket(record.directory, record.switch(place.switch).device_id)
        set_delay(socket, place.port, place.way.delay_ms / 1000, "in" if place.direction == "in" else "out")


def apply(record: NetRecord, old: LinkRecord, new: LinkRecord) -> None:
    """Make a link that runs as `old` says do as `new` says: what differs, and nothing else.

    Raises NetworkError, ControlError, StatsSocketError.
    """
    pairs = list(zip(directions(old), directions(new), strict=True))
    if any(by_kernel(record, a.way) != by_kernel(record, b.way) for a, b in pairs):
        shape(record, new)
    ours = [(by_switch(record, a.way), by_switch(record, b.way)) for a, b in pairs]
    if any(a.delay_ms != b.delay_ms for a, b in ours):
        set_delays(record, new)
    drops = old.down != new.down and _drops_when_down(record, new)
    if drops or any(replace(a, delay_ms=0.0) != replace(b, delay_ms=0.0) for a, b in ours):
        from topologies.jobs import control_of

        with control_of(record) as control:
            set_faults(control, record, new)
    if old.down != new.down:
        set_state(record, new, new.down)


def faulted(record: NetRecord, link: LinkRecord) -> bool:
    """Say whether the switch loses, duplicates or corrupts packets of a link."""
    ways = [by_switch(record, each.way) for each in directions(link)]
    return any(way.loss or way.duplicate or way.corrupt for way in ways)


def delay_flags(record: NetRecord, switch: str) -> list[str]:
    """Return the flags with which a switch starts that holds packets back from the beginning."""
    if delays_by(record) != SWITCH:
        return []
    return [
        word
        for link in record.links
        for _, place in _at_ports(record, link)
        if place.switch == switch and place.way.delay_ms
        for word in ("--delay", f"{place.port}:{place.direction}:{place.way.delay_ms / 1000:.9g}")
    ]
