# SPDX-License-Identifier: Apache-2.0
"""The record of a network that runs: /run/p4reduce/NAME/net.json, readable by root alone.

It is written before anything is built and names all that will be, so that a network whose daemon died
can still be taken down by its record, touching nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from topologies.errors import RecordError
from topologies.identity import Process
from topologies.parts import HostRecord, LinkRecord, SwitchRecord
from topologies.spec import End, HostSpec, NetworkSpec, SwitchSpec, Way
from wire.constants import NET_VARIABLE, RUN_ROOT
from wire.hints import command

RECORD_VERSION = 4
NET_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
CONTROLLER = "its controller"
"""Of a network's processes; see NetRecord.dead."""
CONTROLLER_LOG = "controller.log"
"""In a network's folder."""
RECORDER = "its recorder"
RECORDER_LOG = "recorder.log"


def switch_part(name: str) -> str:
    """Return a switch's process in the words of NetRecord.dead."""
    return f"switch {name}"


def stats_socket(directory: Path, device_id: int) -> Path:
    """Return where a switch that can tells what its ports lost; `directory` is its network's."""
    return directory / f"s{device_id}.stats"


@dataclass(frozen=True)
class NetRecord:
    """All that is known of a network. `state` is starting, up or stopping, `owner` the process behind it."""

    name: str
    topology: str
    target: str
    elements: int
    slots: int
    window: int
    """Slots of a job's pool that suit the target's queues."""
    replicas: int
    """Multicast copies, over all groups, that a switch can hold."""
    token: str
    owner: Process
    hosts: tuple[HostRecord, ...]
    switches: tuple[SwitchRecord, ...]
    links: tuple[LinkRecord, ...]
    state: str = "starting"
    pcap: str | None = None
    super_packets: bool = False
    """Whether hosts and switches hand each other super-packets and leave checksums to each other."""
    controller: Process | None = None
    recorder: Process | None = None
    """What captures its links into `pcap`."""
    listen: str | None = None
    """HOST:PORT where its controller serves on TCP too, None for nowhere."""
    lease: float | None = None
    """Seconds after which the controller takes a silent worker for lost; None for its default."""
    qdiscs: tuple[str, ...] = ()
    """Queueing disciplines that the kernel has, of shaping.QDISCS."""
    given_up: tuple[str, ...] = ()
    """Processes, in the words of `dead`, that ended too often to be started again."""
    version: int = RECORD_VERSION
    root: Path = field(default=RUN_ROOT, compare=False)

    @property
    def directory(self) -> Path:
        """The folder with the record, the logs, and what is the controller's."""
        return self.root / self.name

    def host(self, name: str) -> HostRecord:
        """Return the host of that name; RecordError names those that exist."""
        for host in self.hosts:
            if host.name == name:
                return host
        have = ", ".join(host.name for host in self.hosts)
        raise RecordError(self.name, f"network {self.name} has no host {name}; it has {have}")

    def switch(self, name: str) -> SwitchRecord:
        """Return the switch of that name; RecordError names those that exist."""
        for switch in self.switches:
            if switch.name == name:
                return switch
        have = ", ".join(switch.name for switch in self.switches)
        raise RecordError(self.name, f"network {self.name} has no switch {name}; it has {have}")

    def peers(self, node: str) -> dict[int, End]:
        """Return what is at the other end of each port of a node, by port."""
        found: dict[int, End] = {}
        for link in self.links:
            if link.a.node == node:
                found[link.a.port] = link.b
            if link.b.node == node:
                found[link.b.port] = link.a
        return dict(sorted(found.items()))

    def root_interfaces(self) -> list[str]:
        """Return the names of the interfaces that this network has in the root namespace."""
        return [interface for switch in self.switches for interface in switch.ports.values()]

    def dead(self) -> list[str]:
        """Name the processes of a network that is up which have ended for good ([] when none has)."""
        restarting = self.restarting()
        return [what for what in self._ended() if what not in restarting]

    def restarting(self) -> list[str]:
        """Name the processes that have ended and that the network's daemon is about to start again."""
        if not self.owner.alive():
            return []
        kept = [CONTROLLER, RECORDER, *(switch_part(switch.name) for switch in self.switches)]
        return [what for what in self._ended() if what in kept and what not in self.given_up]

    def _ended(self) -> list[str]:
        parts: list[tuple[str, Process | None]] = [("its daemon", self.owner)]
        if self.state == "up":
            parts.append((CONTROLLER, self.controller))
            parts += [(RECORDER, self.recorder)] if self.pcap is not None else []
            parts += [(switch_part(switch.name), switch.process) for switch in self.switches]
            parts += [(f"host {host.name}", host.process) for host in self.hosts]
        return [what for what, process in parts if process is None or not process.alive()]

    def save(self) -> None:
        """Write the record in one step: a reader sees the old one or the new one, never a part."""
        draft = self.directory / ".net.json"
        try:
            draft.write_text(self.to_json())
            draft.replace(self.directory / "net.json")
        except OSError as error:
            raise RecordError(self.name, _unwritten(self.directory, error)) from error

    def claim(self) -> None:
        """Take the network's name: make its folder with the record in it; RecordError when it is taken."""
        draft = self.root / f".{self.name}.{os.getpid()}"
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            draft.mkdir(mode=0o700, exist_ok=True)
            (draft / "net.json").write_text(self.to_json())
            self._take(draft)
        except OSError as error:
            raise RecordError(self.name, _unwritten(self.directory, error)) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # also what an interrupt left of it

    def _take(self, draft: Path) -> None:
        try:
            draft.rename(self.directory)
        except OSError as error:
            if not self.directory.exists():
                raise
            if not (self.directory / "net.json").exists():
                raise RecordError(
                    self.name, f"{self.directory} is in the way and is no network's record: remove it"
                ) from error
            down = command(f"net down --net {self.name}")
            raise RecordError(
                self.name,
                f"network {self.name} is already up: take it down ({down}); "
                "net up and train can also take another --name",
            ) from error

    def to_json(self) -> str:
        """Return the record as JSON text."""
        tree = asdict(self)
        del tree["root"]
        return json.dumps(tree, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, root: Path = RUN_ROOT) -> NetRecord:
        """Return the record in a JSON text; KeyError, TypeError or ValueError for another text."""
        tree: dict[str, Any] = json.loads(text)
        if tree["version"] != RECORD_VERSION:
            raise ValueError(f"record version {tree['version']}, not {RECORD_VERSION}")

        def process(value: dict[str, int] | None) -> Process | None:
            return None if value is None else Process(**value)

        return cls(
            **{
                **tree,
                "owner": Process(**tree["owner"]),
                "controller": process(tree["controller"]),
                "recorder": process(tree.get("recorder")),
                "given_up": tuple(tree["given_up"]),
                "qdiscs": tuple(tree["qdiscs"]),
                "hosts": tuple(HostRecord(**{**h, "process": process(h["process"])}) for h in tree["hosts"]),
                "switches": tuple(
                    SwitchRecord(
                        **{
                            **s,
                            "process": process(s["process"]),
                            "ports": {int(port): name for port, name in s["ports"].items()},
                        }
                    )
                    for s in tree["switches"]
                ),
                "links": tuple(
                    LinkRecord(
                        **{
                            **k,
                            "a": End(**k["a"]),
                            "b": End(**k["b"]),
                            "forth": Way(**k["forth"]),
                            "back": Way(**k["back"]),
                        }
                    )
                    for k in tree["links"]
                ),
                "root": root,
            }
        )


def new_record(
    name: str,
    spec: NetworkSpec,
    *,
    target: str,
    elements: int,
    slots: int,
    window: int = 64,
    replicas: int = 4096,
    pcap: str | None = None,
    super_packets: bool = False,
    listen: str | None = None,
    lease: float | None = None,
    qdiscs: tuple[str, ...] = (),
    root: Path = RUN_ROOT,
    interfaces: Path = Path("/sys/class/net"),
) -> NetRecord:
    """Return the record of a network yet to be built, owned by this process, every name fixed.

    `interfaces` lists the interfaces that exist: their names are not used. RecordError for a bad name.
    """
    if not NET_NAME.fullmatch(name):
        raise RecordError(
            name, f"{name!r} is no name for a network: use a-z, 0-9, - and _, at most 31 of them"
        )
    token = _token(name, interfaces)
    hosts = {host.name for host in spec.hosts}

    def interface(end: End) -> str:
        return f"{end.node}-eth0" if end.node in hosts else f"{token}-{end.node}-{end.port}"

    links = tuple(
        LinkRecord(link.a, link.b, interface(link.a), interface(link.b), link.forth, link.back)
        for link in spec.links
    )
    ends = [end for link in spec.links for end in (link.a, link.b)]

    def host_record(host: HostSpec) -> HostRecord:
        return HostRecord(host.name, host.ip, host.prefix_len, host.mac, interface(End(host.name, 0)))

    def switch_record(switch: SwitchSpec) -> SwitchRecord:
        ports = {
            end.port: interface(end) for end in sorted(ends, key=lambda e: e.port) if end.node == switch.name
        }
        log = str(root / name / f"{switch.name}.log")
        return SwitchRecord(switch.name, switch.device_id, switch.ip, switch.mac, log, ports)

    return NetRecord(
        name=name,
        topology=spec.topology,
        target=target,
        elements=elements,
        slots=slots,
        window=window,
        replicas=replicas,
        token=token,
        owner=Process.of(os.getpid()),
        hosts=tuple(host_record(host) for host in spec.hosts),
        switches=tuple(switch_record(switch) for switch in spec.switches),
        links=links,
        pcap=pcap,
        super_packets=super_packets,
        listen=listen,
        lease=lease,
        qdiscs=qdiscs,
        root=root,
    )


def _unwritten(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be written ({error.strerror}): make room there, or have it mounted writable"


def _token(name: str, interfaces: Path) -> str:
    """Return the prefix of the network's interfaces in the root namespace: p and four hex digits."""
    taken = {path.name.split("-")[0] for path in interfaces.iterdir()} if interfaces.exists() else set()
    for attempt in range(1000):
        token = "p" + hashlib.sha256(f"{name}/{attempt}".encode()).hexdigest()[:4]
        if token not in taken:
            return token
    raise RecordError(name, "no prefix is free for the network's interfaces: take other networks down first")


def with_host(record: NetRecord, name: str, **changes: Any) -> NetRecord:
    """Return the record with one host's fields changed."""
    return replace(record, hosts=tuple(replace(h, **changes) if h.name == name else h for h in record.hosts))


def with_switch(record: NetRecord, name: str, **changes: Any) -> NetRecord:
    """Return the record with one switch's fields changed."""
    return replace(
        record, switches=tuple(replace(s, **changes) if s.name == name else s for s in record.switches)
    )


def with_link(record: NetRecord, link: LinkRecord) -> NetRecord:
    """Return the record with the link of these ends as it is here."""
    return replace(record, links=tuple(link if (k.a, k.b) == (link.a, link.b) else k for k in record.links))


def update(name: str, change: Callable[[NetRecord], NetRecord], root: Path = RUN_ROOT) -> NetRecord:
    """Change the record of a network on disk, one writer at a time; return the new one.

    `change` gets what is there now. Raises RecordError, also when it cannot be written.
    """
    try:
        lock = os.open(root / name / ".net.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise RecordError(name, f"there is no network {name} any more") from None
    except OSError as error:
        raise RecordError(name, _unwritten(root / name, error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = change(load(name, root))
        record.save()
    finally:
        os.close(lock)
    return record


def names(root: Path = RUN_ROOT) -> list[str]:
    """Return the names of the networks that have a record, sorted."""
    if not root.exists():
        return []
    return sorted(path.name for path in root.iterdir() if NET_NAME.fullmatch(path.name) and _has_record(path))


def _has_record(folder: Path) -> bool:
    try:
        return (folder / "net.json").exists()
    except PermissionError:
        return True  # root's: load() says so


def load_all(root: Path = RUN_ROOT) -> tuple[list[NetRecord], list[RecordError]]:
    """Return the records of all networks, and what is wrong with those that cannot be read."""
    found, unreadable = [], []
    for name in names(root):
        try:
            found.append(load(name, root))
        except RecordError as error:
            if name in names(root):  # else it was taken down meanwhile
                unreadable.append(error)
    return found, unreadable


def load(name: str, root: Path = RUN_ROOT) -> NetRecord:
    """Return the record of the network NAME; RecordError when there is none or it cannot be read."""
    try:
        return NetRecord.from_json((root / name / "net.json").read_text(), root)
    except FileNotFoundError:
        have = names(root)
        start = command("net up star")
        listed = f"these run: {', '.join(have)}" if have else f"none runs ({start} starts one)"
        raise RecordError(name, f"there is no network {name}; {listed}") from None
    except PermissionError:
        raise RecordError(
            name, f"only root may read the record of network {name}: run the command with sudo"
        ) from None
    except OSError as error:
        raise RecordError(name, f"{root / name / 'net.json'} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            name,
            f"the record {root / name / 'net.json'} cannot be read ({error}): another version of p4reduce "
            "wrote it; take that network down with that version, or remove the folder after a reboot",
        ) from error


def load_default(name: str | None = None, root: Path = RUN_ROOT) -> NetRecord:
    """Return the record of NAME, or without a name of the only network there is; RecordError otherwise."""
    name = name or os.environ.get(NET_VARIABLE)
    if name:
        return load(name, root)
    have = names(root)
    if len(have) == 1:
        return load(have[0], root)
    if not have:
        raise RecordError("", f"no network runs; start one with: {command('net up star')}")
    raise RecordError("", f"several networks run ({', '.join(have)}): say which with --net NAME")
