# SPDX-License-Identifier: Apache-2.0
"""Where a run was made: what its figures depend on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("p4reduce", "numpy", "torch")


def environment() -> dict[str, Any]:
    """Return cores, processor, memory, kernel, load, versions and the time, as JSON holds them."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_1_min": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
