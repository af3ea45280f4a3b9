# SPDX-License-Identifier: Apache-2.0
"""A rank as a child process: what it reports to its parent are lines of JSON on stdout.

Whatever its task reports, and {"error": …} when it fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from wire.errors import P4ReduceError


def say(**fields: Any) -> None:
    """Report one line to the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main(task: Callable[[], None]) -> None:
    """Run a rank's task; an error of ours becomes one line to the parent and exit code 1."""
    try:
        task()
    except P4ReduceError as error:
        say(error=str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
