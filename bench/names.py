# SPDX-License-Identifier: Apache-2.0
"""Names of the benchmarks' networks: of one process each, so that two benchmarks can run side by side."""

from __future__ import annotations

import os

from topologies import manager
from topologies import record as records

PREFIX = "bench-"


def fresh(what: str) -> str:
    """Return a name that no other process takes, after removing what killed benchmarks left.

    `what` may have 16 characters of a-z, 0-9 and -. Raises RecordError where old ones cannot be removed.
    """
    for name in records.names():
        if name.startswith(PREFIX):
            manager.clear_crashed(name)
    return f"{PREFIX}{what}-{os.getpid()}"
