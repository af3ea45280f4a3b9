# SPDX-License-Identifier: Apache-2.0
"""What the programs of a running switch have to say, as lines of its log: messages, faults, and the trace."""

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
MAX_FAULTS = 5
"""Of these fewer, for they are shown where nobody asked for a log, and any packet may cause one."""
FAULT = "packet dropped: "

log = logging.getLogger("switch.program")
trace_log = logging.getLogger("switch.trace")


class DeviceLog:
    """A thread that takes the lines of devices until `stop`; closed devices are forgotten."""

    def __init__(self, *, trace: bool) -> None:
        """With `trace`, the devices are such as were loaded with it."""
        self._trace = trace
        self._devices: weakref.WeakSet[SwitchDevice] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def add(self, device: SwitchDevice) -> None:
        """Log what happens in a device."""
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
                    self._write(device)
                except DeviceError:
                    self._devices.discard(device)

    def _write(self, device: SwitchDevice) -> None:
        events = device.trace() if self._trace else []
        for event in events[:MAX_LINES]:
            trace_log.log(TRACE, "%s", event)
        if len(events) > MAX_LINES:
            trace_log.log(TRACE, "%d more events in this while", len(events) - MAX_LINES)
        lines = device.log()
        faults = [line for line in lines if line.startswith(FAULT)]
        for line in lines:
            if not line.startswith(FAULT):
                log.info("%s", line)
        for line in faults[:MAX_FAULTS]:
            log.warning("%s", line)
        if len(faults) > MAX_FAULTS:
            log.warning("%d more packets dropped like this in this while", len(faults) - MAX_FAULTS)
