# SPDX-License-Identifier: Apache-2.0
"""The trace of a running switch, as lines of its log."""

from __future__ import annotations

import logging
import threading
import weakref

from switch.device import SwitchDevice
from switch.errors import DeviceError

TRACE = logging.DEBUG - 5
"""The log level of simple_switch's `-L trace`."""
PERIOD_S = 0.2
MAX_LINES = 1000
"""Of each period and device: what is beyond is counted, not written."""

log = logging.getLogger("switch.trace")


class TraceLog:
    """A thread that takes the events of traced devices until `stop`; closed devices are forgotten."""

    def __init__(self) -> None:
        self._devices: weakref.WeakSet[SwitchDevice] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def add(self, device: SwitchDevice) -> None:
        """Log what happens in a device that was loaded with `trace`."""
        with self._lock:
            self._devices.add(device)

    def stop(self) -> None:
        """Log what there is, then end the thread."""
        self._end.set()
        self._thread.join(timeout=10)
        self._write_all()

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self._write_all()

    def _write_all(self) -> None:
        with self._lock:
            for device in list(self._devices):
                try:
                    events = device.trace()
                except DeviceError:
                    self._devices.discard(device)
                    continue
                for event in events[:MAX_LINES]:
                    log.log(TRACE, "%s", event)
                if len(events) > MAX_LINES:
                    log.log(TRACE, "%d more events in this while", len(events) - MAX_LINES)
