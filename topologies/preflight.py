# SPDX-License-Identifier: Apache-2.0
"""What a machine needs before a network can run here; every lack is one sentence with its remedy."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from topologies import rootless, shaping
from topologies.errors import PreflightError
from wire.constants import RUN_ROOT

TOOLS = {
    "mnexec": "mininet",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "ifconfig": "net-tools",
    "ping": "iputils-ping",
}
"""The commands a network needs, and the Debian or Ubuntu package that has each."""

HOST_MB = 4
"""Of the shell that holds a host's namespace."""
BASE_MB = 250
"""Of a network's daemon, its controller, and the compiler while the embedded switch loads a program."""
FOLDER_MB = 8
"""Of a network's logs and its controller's data base, to begin with."""
_PROBE_LIMIT_S = 20.0


def memory_mb(switches: int, hosts: int, switch_mb: int) -> int:
    """Return the MB that a network takes whose switches take `switch_mb` each."""
    return switches * switch_mb + hosts * HOST_MB + BASE_MB


def check(needed_mb: int, root: Path = RUN_ROOT) -> None:
    """Raise PreflightError unless a network that takes so much memory can run here, its folder in `root`."""
    problems = [*root_problems(), *tool_problems(), *memory_problems(needed_mb), *space_problems(root)]
    if not problems:
        problems = veth_problems()
    if problems:
        raise PreflightError(problems)


def root_problems() -> list[str]:
    """Say when this process is not root."""
    if os.geteuid() == 0:
        return []
    why = rootless.refusal() or "run it there: python -m topologies.rootless CMD..."
    return [f"Networks need root or user namespaces. Run the command with sudo, or: {why}."]


def tool_problems() -> list[str]:
    """Say which commands are missing."""
    return [
        f"{tool} is missing: apt-get install --no-install-recommends {package} "
        "(on other systems the package with that command)."
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]


def compiler_problems() -> list[str]:
    """Say when no C compiler with the C library's headers is there: the embedded switch compiles programs."""
    compiler = os.environ.get("CC") or "cc"
    try:
        # several words, as in make: "ccache gcc", "gcc -m64"
        command = shlex.split(compiler) or ["cc"]
    except ValueError as error:
        return [f"CC={compiler!r} is not a command ({error}): set it as in CC='ccache gcc'."]
    if shutil.which(command[0]) is None:
        return [f"The C compiler {compiler} is missing: apt-get install gcc libc6-dev (or set CC to yours)."]
    with tempfile.TemporaryDirectory() as folder:
        done = _run(
            [*command, "-shared", "-fPIC", "-x", "c", "-o", str(Path(folder) / "probe.so"), "-"],
            "#include <stdint.h>\n#include <string.h>\nint probe(void) { return 0; }\n",
        )
    if done is None:
        return []
    return [f"The C compiler {compiler} does not work ({done}): apt-get install gcc libc6-dev."]


def memory_problems(needed_mb: int) -> list[str]:
    """Say when less memory is available than is needed."""
    available = available_memory_mb()
    if available is None or available >= needed_mb:
        return []
    return [
        f"The network needs {needed_mb} MB of memory and {available} MB are available: take a smaller one, "
        "end other programs, or give the machine more."
    ]


def space_problems(root: Path = RUN_ROOT) -> list[str]:
    """Say when there is less room in a folder yet to be made than a network's logs and jobs need."""
    there = next(folder for folder in (root, *root.parents) if folder.is_dir())
    free_mb = shutil.disk_usage(there).free >> 20
    if free_mb >= FOLDER_MB:
        return []
    return [
        f"The network needs {FOLDER_MB} MB of room in {there} and {free_mb} MB are free: make room there."
    ]


def veth_problems() -> list[str]:
    """Say when the kernel refuses a network namespace or a veth pair; the attempt leaves nothing behind."""
    pair = ["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]
    # As Mininet does it, which waits for ever where mnexec fails.
    failed = _run(["mnexec", "-n", *pair])
    if failed is None:
        return []
    return [
        f"The kernel refuses a veth pair in a network namespace ({failed}): load the module (modprobe veth), "
        "and where this is a container, start it with --privileged."
    ]


def qdiscs() -> tuple[str, ...]:
    """Return which queueing disciplines of shaping.QDISCS the kernel has; none where it cannot be tried."""
    try:
        return shaping.present()
    except (OSError, subprocess.TimeoutExpired):
        return ()


def available_memory_mb(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory available to new programs in MB, None where the kernel does not tell."""
    for line in meminfo.read_text().splitlines() if meminfo.exists() else []:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None


def _run(argv: list[str], stdin: str = "") -> str | None:
    """Run a command; return None when it succeeded, else its last line of output."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{argv[0]} took more than {_PROBE_LIMIT_S:g} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"{argv[0]} ended with {done.returncode}"
