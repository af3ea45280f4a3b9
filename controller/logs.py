# SPDX-License-Identifier: Apache-2.0
"""A log that does not grow without limit: it lies in memory (/run), for as long as its network runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 1 << 20
"""Of a log; what was before it is kept once, in a file of the same name with .1 behind it."""


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr; where that is `file`, its bytes are moved to `file`.1 when they are `most`.

    logging's RotatingFileHandler moves the file itself: a traceback, which Python prints, would follow it.
    The file must be open for appending.
    """

    def __init__(self, file: Path, most: int = MOST_BYTES) -> None:
        super().__init__(sys.stderr)
        self._file, self._most = file, most

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        with suppress(OSError, ValueError):  # no file, or no descriptor
            descriptor = self.stream.fileno()
            here, there = os.fstat(descriptor), os.stat(self._file)
            if here.st_size < self._most or not os.path.samestat(here, there):
                return
            try:
                shutil.copyfile(self._file, self._file.with_name(self._file.name + ".1"))
            finally:  # also where there is no room for it
                os.ftruncate(descriptor, 0)
