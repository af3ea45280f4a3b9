# SPDX-License-Identifier: Apache-2.0
"""What a running program has queued for its control plane: digests and lines of log."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from switch import ir
from switch.library import LOG_LINE, LOG_LINES, words
from switch.values import Digest


class Messages:
    """Takes them from one device."""

    def __init__(
        self, program: ir.Program, lib: ctypes.CDLL, handle: Callable[[], int], lock: threading.RLock
    ) -> None:
        """`lock` is held while a device is used: it may be closed else."""
        self._digests = program.digests
        self._lib = lib
        self._handle = handle
        self._lock = lock
        self._words = max([64, *(sum((w + 63) // 64 for w in _widths(d)) for d in self._digests.values())])

    def digests(self, limit: int) -> list[Digest]:
        """See SwitchDevice.digests."""
        out: list[Digest] = []
        number, values = ctypes.c_uint32(), words([0] * self._words)
        with self._lock:
            while len(out) < limit:
                got = self._lib.sw_digest_take(self._handle(), ctypes.byref(number), values, self._words)
                if got == 0:
                    break
                d = self._digests[number.value]
                fields, at = [], 0
                for width in _widths(d):
                    n = (width + 63) // 64
                    fields.append(sum(values[at + i] << (64 * i) for i in range(n)))
                    at += n
                out.append(Digest(d.name, tuple(fields)))
        return out

    def log(self) -> list[str]:
        """See SwitchDevice.log."""
        line = ctypes.create_string_buffer(LOG_LINE)
        out: list[str] = []
        with self._lock:
            # Packets may go on writing as fast as we read.
            while len(out) < LOG_LINES and self._lib.sw_log_take(self._handle(), line):
                out.append(line.value.decode(errors="replace"))
        return out


def _widths(d: ir.FieldList) -> list[int]:
    return [e.width if isinstance(e, ir.Constant) else e.field.width for e in d.elements]
