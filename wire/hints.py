# SPDX-License-Identifier: Apache-2.0
"""Commands that we tell a person to type, as they would work where that person is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command(arguments: str) -> str:
    """Return `p4reduce ARGUMENTS` as this process was started: by its path, with sudo if that was used."""
    program = Path(sys.argv[0])
    name = "p4reduce"
    if program.name == name and shutil.which(name) is None:
        name = os.path.relpath(program)
    return f"{'sudo ' if 'SUDO_UID' in os.environ else ''}{name} {arguments}"
