# SPDX-License-Identifier: Apache-2.0
"""What of this machine a network needs: looked at one by one, each lack with its remedy."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from topologies import preflight, rootless
from topologies import record as records
from topologies.targets import Bmv2Target, targets
from wire.constants import RUN_ROOT
from wire.hints import command

OK, LACKS, BAD = "ok", "lacks", "bad"
"""As it should be; something is missing that not everybody needs; no network can run, or one is broken."""
LIMIT_S = 20.0
BUFFER_BYTES = 4 << 20
"""Of switches' and workers' sockets, where they may have as much."""
_OURS = re.compile(r"p[0-9a-f]{4}-[a-z][a-z0-9]{0,4}-\d{1,3}")
"""The name of a switch's interface."""
_DRAFT = re.compile(r"\..+\.(\d+)")
"""The name of a folder that a process is about to give a network's name, or to remove."""
_SHORT = {"generic-receive-offload": "gro", "tx-checksumming": "tx"}
"""ethtool's names for changing what it shows by others."""
_EXTRAS = {
    "p4c-bm2-ss": ("recompiling the P4 program (make p4)", "p4lang's package p4lang-p4c"),
    "tshark": ("reading captures with Wireshark's dissectors", "apt-get install tshark"),
    "iperf3": ("TCP and UDP across the network beside jobs", "apt-get install iperf3"),
    "iperf": ("the iperf command of net cli", "apt-get install iperf"),
}
"""Commands that nothing depends on: what each is for, and how it is got."""
_QDISCS = {
    "htb": "shaped links give what switches send no precedence: modprobe sch_htb cls_u32",
    "tbf": "links cannot be given a rate at hosts: modprobe sch_tbf",
    "netem": "delay and loss are made by the switch instead: modprobe sch_netem",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `text` has the remedy where it is not as it should be."""

    what: str
    state: str
    text: str

    def told(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return asdict(self)


def examine(root: Path = RUN_ROOT, say: Callable[[str], None] | None = None) -> list[Finding]:
    """Look at everything; `say` gets a line about each finding as it is made."""
    found = []
    for look in (
        _system,
        lambda: _room(root),
        _tools,
        _extras,
        _kernel,
        _packages,
        _targets,
        lambda: _networks(root),
        _strays,
    ):
        for finding in look():
            found.append(finding)
            if say is not None:
                mark = {OK: "ok   ", LACKS: "lacks", BAD: "BAD  "}[finding.state]
                say(f"{mark}  {finding.what}: {finding.text}")
    return found


def _all(what: str, problems: list[str], well: str, state: str = BAD) -> Iterator[Finding]:
    if not problems:
        yield Finding(what, OK, well)
    for problem in problems:
        yield Finding(what, state, problem)


def _system() -> Iterator[Finding]:
    yield Finding("system", OK, f"Linux {platform.release()} on {platform.machine()}, {os.cpu_count()} cores")
    yield Finding("Python", OK, f"{platform.python_version()} ({sys.executable})")
    yield from _all("root", preflight.root_problems(), _root())
    if rootless.inside():
        yield from _all("socket buffers", list(_small_buffers()), "as large as they should be", LACKS)
    memory = preflight.available_memory_mb()
    each = targets()["embedded"].memory_mb
    if memory is not None:
        least = preflight.memory_mb(1, 1, each)
        fits = f"{memory} MB are available; the smallest network takes {least}, each further switch {each}"
        yield (
            Finding("memory", OK, fits)
            if memory >= least
            else Finding("memory", BAD, f"{fits}: end other programs, or give the machine more")
        )


def _root() -> str:
    if rootless.inside():
        return "you are not, so your networks are in user namespaces of yours, which the kernel allows"
    return "yes, so networks need no user namespaces"


def _small_buffers(folder: Path = Path("/proc/sys/net/core")) -> Iterator[str]:
    """Say which limits root's sockets may exceed and those in user namespaces may not."""
    for name in ("rmem_max", "wmem_max"):
        path = folder / name
        have = int(path.read_text()) if path.exists() else BUFFER_BYTES
        if have < BUFFER_BYTES:
            yield (
                f"without root they have at most net.core.{name}, {have} bytes, so that bursts are lost (and "
                f"sent again): sudo sysctl -w net.core.{name}={BUFFER_BYTES}"
            )


def _room(root: Path) -> Iterator[Finding]:
    yield from _all("room", preflight.space_problems(root), f"there is enough in {root}")


def _tools() -> Iterator[Finding]:
    missing = preflight.tool_problems()
    yield from _all("commands", missing, f"{', '.join(preflight.TOOLS)} are there")
    yield from _all("C compiler", preflight.compiler_problems(), os.environ.get("CC") or "cc works")


def _extras() -> Iterator[Finding]:
    for tool, (purpose, remedy) in _EXTRAS.items():
        path = shutil.which(tool)
        if path is None:
            yield Finding(tool, LACKS, f"is not there; it is for {purpose}: {remedy}")
        else:
            yield Finding(tool, OK, path)


def _kernel() -> Iterator[Finding]:
    if preflight.root_problems() or shutil.which("mnexec") is None:
        yield Finding("kernel", LACKS, "it is looked at by root, where mnexec is there")
        return
    problems = preflight.veth_problems()
    yield from _all("namespaces and veth", problems, "yes")
    if problems:
        return
    present = preflight.qdiscs()
    for name, remedy in _QDISCS.items():
        yield (
            Finding(name, OK, "yes")
            if name in present
            else Finding(name, LACKS, f"the kernel has none: {remedy}")
        )
    yield from _packets()


def _packets() -> Iterator[Finding]:
    try:
        done = subprocess.run(
            ["mnexec", "-n", sys.executable, "-m", "topologies.probe"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        told: dict[str, bool] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        yield Finding("self-test packet", BAD, f"it could not be sent: {error}; run this as root")
        return
    if told["packet"]:
        yield Finding("self-test packet", OK, "sent over a veth pair, taken by a packet socket")
    else:
        yield Finding(
            "self-test packet",
            BAD,
            "it did not arrive at a packet socket: load the module (modprobe af_packet), and look for a "
            "firewall in new namespaces (nft list ruleset)",
        )
    yield (
        Finding("super-packets", OK, "packet sockets take them whole")
        if told["super_packets"]
        else Finding(
            "super-packets",
            LACKS,
            "packet sockets do not take UDP's whole (Linux 6.2 and newer do): switches work packet by packet",
        )
    )


def _packages() -> Iterator[Finding]:
    try:
        wanted = metadata.requires("p4reduce") or []
    except metadata.PackageNotFoundError:
        yield Finding("Python packages", LACKS, "p4reduce is not installed, so nobody says which: make setup")
        return
    versions, missing = [], []
    for line in wanted:
        if "extra ==" in line:
            continue
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(f"{line} is missing: make setup, or pip install '{line}'")
    yield from _all("Python packages", missing, ", ".join(versions))


def _targets() -> Iterator[Finding]:
    from p4src.compile import out_of_date

    bmv2 = Bmv2Target()
    missing = bmv2.missing()
    if missing is None:
        yield _bmv2_version(bmv2)
    else:
        yield Finding("bmv2", LACKS, missing)
    if out_of_date():
        yield Finding("P4 program", LACKS, "p4src/*.p4 have changed since it was compiled: make p4")
    else:
        yield Finding("P4 program", OK, "compiled from the sources that are there")


def _bmv2_version(bmv2: Bmv2Target) -> Finding:
    argv = [*bmv2.program(), "--version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("bmv2", LACKS, f"simple_switch_grpc does not run ({error}): install it again")
    said = done.stdout.strip().splitlines()
    if done.returncode != 0 or not said:
        why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return Finding("bmv2", LACKS, f"simple_switch_grpc does not run ({why}): install it again")
    return Finding("bmv2", OK, f"simple_switch_grpc {said[-1]}")


# ---- networks and what is left of them
def _networks(root: Path) -> Iterator[Finding]:
    found, failures = records.load_all(root)
    for error in failures:
        yield Finding(f"network {error.name}", BAD, str(error))
    for record in found:
        name = f"network {record.name}"
        down = command(f"net down --net {record.name}")
        if not record.owner.alive():
            yield Finding(name, BAD, f"it has crashed: {down} removes what it left")
        elif record.dead():
            yield Finding(name, BAD, f"{', '.join(record.dead())} died; logs: {record.directory}; {down}")
        elif record.state != "up":
            yield Finding(name, OK, f"it is {record.state}")
        else:
            yield from _all(name, list(_wrong_offloads(record)), "up, nothing has died, offloads are right")
    for path in sorted(root.glob(".*")) if root.exists() else []:
        by = _DRAFT.fullmatch(path.name)
        if by is not None and not Path("/proc", by[1]).exists():
            yield Finding("stale state", LACKS, f"{path} is left of a command that was killed: rm -r {path}")
    if not found and not failures:
        yield Finding("networks", OK, "none runs, none has left a record")


def _wrong_offloads(record: records.NetRecord) -> Iterator[str]:
    """Say which interfaces hand the switch what it does not expect."""
    wanted = {"generic-receive-offload"} | (set() if record.super_packets else {"tx-checksumming"})
    for interface in record.root_interfaces():
        try:
            shown = subprocess.run(
                ["ethtool", "-k", interface], capture_output=True, text=True, timeout=LIMIT_S, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return
        on = {line.split(":")[0].strip() for line in shown.splitlines() if ": on" in line}
        for feature in sorted(wanted & on):
            remedy = f"ethtool -K {interface} {_SHORT[feature]} off"
            yield f"{interface} has {feature} on, which breaks packets there: {remedy}"


def _strays() -> Iterator[Finding]:
    """Find interfaces of ours that no record names."""
    named = {interface for record in records.load_all()[0] for interface in record.root_interfaces()}
    unread = {error.name for error in records.load_all()[1]}
    present = {path.name for path in Path("/sys/class/net").iterdir() if _OURS.fullmatch(path.name)}
    strays = sorted(present - named)
    if strays and not unread:
        each = f"ip link delete {strays[0]}" + (f", and {len(strays) - 1} more" if strays[1:] else "")
        yield Finding("stale state", LACKS, f"interfaces like those of a network, in no record: {each}")
    elif not strays:
        yield Finding("stale state", OK, "no interface without a record")
