# SPDX-License-Identifier: Apache-2.0
"""Which version of this package the process runs: what one version made is not for another."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def _digest() -> str | None:
    """Of all modules beside this one and of Python; None where they cannot be read."""
    h = hashlib.sha256(sys.version.encode())
    try:
        for path in sorted(FOLDER.glob("*.py")):
            h.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError:  # they are being replaced
        return None
    return h.hexdigest()


_FIRST = _digest()
"""Taken before the package's other modules are imported: if it still holds, they are what it says."""


def version() -> str | None:
    """A digest of the code that runs; None where the files are not those any more with which it began."""
    return _FIRST if _digest() == _FIRST else None
