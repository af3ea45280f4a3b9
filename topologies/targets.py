# SPDX-License-Identifier: Apache-2.0
"""The switch targets: which program runs as a switch, started and stopped alike.

Both take simple_switch_grpc's flags and are driven over P4Runtime, so nothing above this module
knows which one runs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from topologies import preflight
from topologies.errors import TargetError
from topologies.identity import Process
from topologies.processes import LoggedProcess
from topologies.record import stats_socket
from wire.constants import CPU_PORT, DROP_PORT

SWITCH_VARIABLE = "P4REDUCE_SWITCH"
READY_LIMIT_S = 60.0


class Target(ABC):
    """A program that can be a switch."""

    name: str
    default_slots: int
    """Slots of the P4 program that this target runs by default."""
    default_window: int
    """Slots of a job's pool that suit this target's queues."""
    replicas: int
    """Multicast copies, over all groups, that one switch can hold."""
    memory_mb: int
    """Memory that one switch with the default program takes."""
    super_packets: bool
    """Whether it takes what the kernel's offloads leave undone: super-packets and checksums not computed."""

    holds_back: bool
    """Whether it can delay packets at its ports."""
    ports_go_down: bool
    """Whether its ends of links may be taken down while it runs."""

    @abstractmethod
    def missing(self) -> str | None:
        """Say in a sentence why this target cannot run here and how to get it; None when it can."""

    @abstractmethod
    def program(self) -> list[str]:
        """Return the command that starts the program, without flags."""

    def extra_flags(self, directory: Path, device_id: int) -> list[str]:
        """Return flags that only this target needs; `directory` is the network's."""
        return []

    def available(self) -> bool:
        """Say whether this target can run here."""
        return self.missing() is None

    def command(
        self,
        device_id: int,
        ports: Mapping[int, str],
        grpc: str,
        directory: Path,
        super_packets: bool = True,
        flags: Sequence[str] = (),
    ) -> list[str]:
        """Return the whole command line of a switch with these ports (number → interface).

        Without `super_packets` a target that has them is told to do without. `flags` are more of its own.
        """
        interfaces = [word for port, name in sorted(ports.items()) for word in ("-i", f"{port}@{name}")]
        return [
            *self.program(),
            "--device-id",
            str(device_id),
            *interfaces,
            "--no-p4",
            *(["--no-super-packets"] if self.super_packets and not super_packets else []),
            *self.extra_flags(directory, device_id),
            *flags,
            "--",
            "--grpc-server-addr",
            grpc,
            "--cpu-port",
            str(CPU_PORT),
            "--drop-port",
            str(DROP_PORT),
        ]


class EmbeddedTarget(Target):
    """Our own switch, from the Python environment that runs this."""

    name = "embedded"
    default_slots = 16384
    default_window = 512  # at 100 Mbit 11 ms under way (W/4): loss and a busy machine stop nothing
    replicas = 65535  # replication ids have 16 bits
    memory_mb = 100  # measured: 47 idle, and 34 for the values of its slots once all are used
    super_packets = True
    holds_back = True
    ports_go_down = True

    def missing(self) -> str | None:
        """See Target.missing."""
        # It compiles each P4 program when it is loaded.
        return next(iter(preflight.compiler_problems()), None)

    def program(self) -> list[str]:
        """See Target.program."""
        return [sys.executable, "-m", "switch"]

    def extra_flags(self, directory: Path, device_id: int) -> list[str]:
        """Let it tell what its ports lose, where the controller asks."""
        return ["--stats-socket", str(stats_socket(directory, device_id))]


class Bmv2Target(Target):
    """simple_switch_grpc, as found on the PATH."""

    name = "bmv2"
    default_slots = 1024
    default_window = 64  # its egress queues hold 64 packets
    replicas = 4096
    memory_mb = 200  # measured: 137 idle
    super_packets = False
    holds_back = False
    # It hangs in libpcap until that end is up again and a packet comes (behavioral-model issue 1215).
    ports_go_down = False

    def missing(self) -> str | None:
        """See Target.missing."""
        if shutil.which("simple_switch_grpc") is None:
            return (
                "simple_switch_grpc is not on the PATH: install p4lang's package p4lang-bmv2 "
                "(https://github.com/p4lang/behavioral-model tells how), or use the embedded switch."
            )
        return None

    def program(self) -> list[str]:
        """See Target.program."""
        return ["simple_switch_grpc"]

    def extra_flags(self, directory: Path, device_id: int) -> list[str]:
        """Keep bmv2's side channels apart: by default two networks share a Thrift port and an IPC file."""
        flags: list[str] = []
        if "--thrift-port" in self._help:
            flags += ["--thrift-port", str(free_port())]
        if "--notifications-addr" in self._help:
            flags += ["--notifications-addr", f"ipc://{directory}/notifications-{device_id}.ipc"]
        return flags

    @cached_property
    def _help(self) -> str:
        done = subprocess.run(
            [*self.program(), "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=READY_LIMIT_S,
            check=False,
        )
        return done.stdout


def targets() -> dict[str, Target]:
    """Return the targets by name, the default first."""
    return {target.name: target for target in (EmbeddedTarget(), Bmv2Target())}


def choose(name: str | None = None) -> Target:
    """Return the target of that name, else of P4REDUCE_SWITCH, else the embedded one.

    Raises TargetError when it is unknown or cannot run here.
    """
    wanted = name or os.environ.get(SWITCH_VARIABLE) or EmbeddedTarget.name
    known = targets()
    if wanted not in known:
        raise TargetError(wanted, f"no such switch target: {wanted}; there is {' and '.join(known)}")
    missing = known[wanted].missing()
    if missing is not None:
        raise TargetError(wanted, missing)
    return known[wanted]


def free_port() -> int:
    """Return a TCP port that was free on 127.0.0.1 a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class SwitchProcess(LoggedProcess):
    """A switch that runs: started on creation, stopped by stop().

    Without `grpc`, the HOST:PORT to serve P4Runtime at, a free port is taken. Raises TargetError when the
    program cannot be started.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str,
        device_id: int,
        ports: Mapping[int, str],
        log: Path,
        directory: Path,
        grpc: str | None = None,
        super_packets: bool = True,
        flags: Sequence[str] = (),
    ) -> None:
        self.target = target
        self.name = name
        self.grpc = grpc or f"127.0.0.1:{free_port()}"
        argv = target.command(device_id, ports, self.grpc, directory, super_packets, flags)
        try:
            super().__init__(argv, log=log, directory=directory)
        except OSError as error:
            raise TargetError(target.name, f"the switch {name} cannot be started: {error}") from error

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> Process:
        """Wait until the P4Runtime port accepts; return the process.

        Raises TargetError with the log's last lines when it ended or took longer than `limit_s`.
        """
        host, _, port = self.grpc.rpartition(":")
        deadline = time.monotonic() + limit_s
        while True:
            code, process = self.poll(), self.process
            if code is not None:
                raise TargetError(self.target.name, f"{self._what()} ended with {code}; {self.log_tail()}")
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                if process is not None:
                    return process
            except OSError:
                if time.monotonic() > deadline:
                    raise TargetError(
                        self.target.name,
                        f"{self._what()} did not accept P4Runtime on {self.grpc} in {limit_s:g} s; "
                        f"{self.log_tail()}",
                    ) from None
            time.sleep(0.05)

    def _what(self) -> str:
        return f"the {self.target.name} switch {self.name}"
