# SPDX-License-Identifier: Apache-2.0
"""A switch process on veth pairs of its own, whose other ends are in this namespace: for packet sockets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.setup import SetupError
from topologies import manager, preflight
from topologies.errors import NetworkError
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import MTU, star
from topologies.targets import SwitchProcess, Target

LIMIT_S = 10.0


def missing() -> str | None:
    """Say why no veth pairs can be had here, None when they can."""
    if preflight.root_problems():
        return "veth pairs and packet sockets need root: run the command with sudo"
    if shutil.which("ip") is None:
        return "ip is missing: apt-get install --no-install-recommends iproute2"
    return None


@contextmanager
def switch_on_veth(
    name: str, target: Target, *, ports: int, elements: int, slots: int, super_packets: bool
) -> Iterator[NetRecord]:
    """Run a switch without program on ports 1..N; yield its record: that of a star, without its hosts.

    Each link's `a_interface` is the cable's end that is no port. The record stands in the place of those of
    networks, so that what a killed benchmark leaves is removed by the next, or by `p4reduce net down`.
    Raises NetworkError, RecordError, TargetError.
    """
    manager.clear_crashed(name)
    record = new_record(
        name,
        star(ports),
        target=target.name,
        elements=elements,
        slots=slots,
        super_packets=super_packets,
    )
    record.claim()
    child: SwitchProcess | None = None
    try:
        for port, interface in record.switches[0].ports.items():
            _add_pair(interface, far_end(record, port))
        entry = record.switches[0]
        child = SwitchProcess(
            target,
            name=entry.name,
            device_id=entry.device_id,
            ports=entry.ports,
            log=Path(entry.log),
            directory=record.directory,
            super_packets=super_packets,
        )
        record = with_switch(record, entry.name, process=child.wait_ready(), grpc=child.grpc)
        record.save()
        yield record
    finally:
        if child is not None:
            child.stop()
        manager.down(record)


def far_end(record: NetRecord, port: int) -> str:
    """Return the interface at the other end of a port's cable."""
    return f"{record.token}-far-{port}"


def cpu_seconds(record: NetRecord) -> float:
    """Return the processor time that the switch's threads have taken so far (proc(5), utime and stime)."""
    process = record.switches[0].process
    if process is None:
        raise SetupError(record.name, "its switch has not been started")
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        raise NetworkError(record.name, f"its switch has ended; its log: {record.switches[0].log}") from None
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _add_pair(port: str, far: str) -> None:
    _ip("link", "add", port, "type", "veth", "peer", "name", far)
    for name in (port, far):
        # The kernel's own packets would get between ours.
        ipv6 = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if ipv6.exists():
            ipv6.write_text("1")
        _ip("link", "set", name, "mtu", str(MTU), "up")


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NetworkError(" ".join(words), f"ip did not end in {LIMIT_S:g} s") from None
    if done.returncode:
        raise NetworkError(" ".join(words), f"ip refused it: {done.stderr.strip()}")
