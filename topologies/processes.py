# SPDX-License-Identifier: Apache-2.0
"""Processes of a network: run one beside it or in a host, find those in a host's namespace, end them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from topologies.errors import NetworkError
from topologies.identity import Process
from topologies.parts import HostRecord
from topologies.record import NetRecord
from topologies.spec import End
from wire.hints import command

GRACE_S = 2.0
STOP_LIMIT_S = 5.0
_PASSES = 5
_COMMAND_LIMIT_S = 10.0
_LOG_LINES = 12


def log_tail(log: Path) -> str:
    """Return the last lines of a log, each where it came last, for an error's text."""
    every = log.read_text(errors="replace").splitlines() if log.exists() else []
    # What is started again often says the same again.
    lines = list(dict.fromkeys(reversed(every)))[_LOG_LINES - 1 :: -1]
    return "its log ends:\n  " + "\n  ".join(lines) if lines else "its log is empty"


class LoggedProcess:
    """A child of ours whose output goes to a log: started on creation, stopped by stop().

    Raises OSError when the program cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, log: Path, directory: Path) -> None:
        self.log = log
        with log.open("ab") as sink:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                # Not the user's folder: python -m would import its modules before ours.
                cwd=directory,
                start_new_session=True,
            )

    @property
    def process(self) -> Process | None:
        """Its identity; None once it has ended."""
        try:
            return Process.of(self._child.pid)
        except ProcessLookupError:
            return None

    def log_tail(self) -> str:
        """Return the last lines of its log, for an error's text."""
        return log_tail(self.log)

    def poll(self) -> int | None:
        """Return the exit code once it has ended, else None."""
        return self._child.poll()

    def terminate(self) -> None:
        """Send TERM, without waiting for what comes of it."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)

    def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """End it: TERM, and KILL after `limit_s`."""
        if self._child.poll() is None:
            self.terminate()
            try:
                self._child.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


def host_argv(record: NetRecord, host: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a host's namespace; NetworkError when the host has died."""
    entry = record.host(host)
    if entry.process is None or not entry.process.alive():
        raise NetworkError(
            host, f"the host has ended; take the network down ({command(f'net down --net {record.name}')})"
        )
    return ["mnexec", "-a", str(entry.process.pid), *argv]


def host_popen(record: NetRecord, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a host; `options` are Popen's. The caller waits for it or ends it."""
    return subprocess.Popen(host_argv(record, host, argv), **options)


def link_places(record: NetRecord) -> list[list[dict[str, Any]]]:
    """Return where the two ends of each link are: node, port and interface; pid and netns of a host's own."""
    switches = {switch.name: switch.ports for switch in record.switches}
    hosts = {host.name: host for host in record.hosts}

    def place(end: End) -> dict[str, Any]:
        told = {"node": end.node, "port": end.port, "pid": None, "netns": None}
        if end.node in switches:
            return told | {"interface": switches[end.node][end.port]}
        host = hosts[end.node]
        pid = host.process.pid if host.process is not None else 0
        return told | {"interface": host.interface, "pid": pid, "netns": host.netns or 0}

    return [[place(link.a), place(link.b)] for link in record.links]


def inside(record: NetRecord) -> list[Process]:
    """Return the processes in the hosts' network namespaces, the hosts' own shells included.

    A namespace's inode number is used again once the namespace is gone: where the host's shell is not there
    to hold it, the other end of the host's link must be in it.
    """
    hosts = {host.netns: host for host in record.hosts if host.netns is not None}
    ours = {number for number, host in hosts.items() if host.process is not None and host.process.alive()}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/net").stat().st_ino
            if namespace not in hosts:
                continue
            process = Process.of(int(entry.name))
        except OSError:
            # It has ended since, or it is a kernel thread.
            continue
        if namespace not in ours and _linked(record, hosts[namespace], process):
            ours.add(namespace)
        if namespace in ours:
            found.append(process)
    return found


def _linked(record: NetRecord, host: HostRecord, process: Process) -> bool:
    """Say whether the process is where the host's link to its switch ends."""
    (end,) = record.peers(host.name).values()
    switch_end = Path("/sys/class/net", record.switch(end.node).ports[end.port], "ifindex")
    show = ["mnexec", "-a", str(process.pid), "ip", "-json", "link", "show", "dev", host.interface]
    try:
        wanted = int(switch_end.read_text())
        done = subprocess.run(show, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and json.loads(done.stdout)[0].get("link_index") == wanted


def end(processes: Iterable[Process], grace_s: float = GRACE_S) -> None:
    """End processes: TERM all, and KILL those still there after `grace_s`."""
    left = [process for process in processes if process.pid != os.getpid()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            if process.alive():
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    continue
        left = _wait(left, grace_s)


def _wait(processes: Iterable[Process], limit_s: float) -> list[Process]:
    """Wait until processes have ended; return those that have not within the limit."""
    deadline = time.monotonic() + limit_s
    left = [process for process in processes if process.alive()]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.alive()]
    return left


def end_guests(record: NetRecord) -> None:
    """End what runs in the hosts apart from their shells, also what enters them meanwhile."""
    shells = {host.process for host in record.hosts}
    for _ in range(_PASSES):
        guests = [process for process in inside(record) if process not in shells]
        if not guests:
            return
        end(guests)


def sweep(record: NetRecord) -> None:
    """Remove what is left of a network, by its record alone: its processes and its interfaces."""
    end_guests(record)
    named = [*(host.process for host in record.hosts), *(switch.process for switch in record.switches)]
    named += [record.controller, record.recorder]
    end(process for process in named if process is not None)
    for interface in _present(record):
        _run_quietly(["ip", "link", "delete", interface])
    # The kernel removes a dead namespace's interfaces in its own time.
    deadline = time.monotonic() + GRACE_S
    while _present(record):
        if time.monotonic() > deadline:
            raise NetworkError(
                record.name,
                f"these interfaces do not go away: {' '.join(_present(record))}; try again, or delete each "
                "with: ip link delete NAME",
            )
        time.sleep(0.02)


def _present(record: NetRecord) -> list[str]:
    return [name for name in record.root_interfaces() if Path("/sys/class/net", name).exists()]


def _run_quietly(argv: Sequence[str]) -> None:
    subprocess.run(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_COMMAND_LIMIT_S, check=False
    )
