# SPDX-License-Identifier: Apache-2.0
"""What moves packets below the P4Runtime service: an interface, and the one that runs in process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from switch.device import SwitchDevice
from switch.errors import DeviceError
from switch.p4runtime.errors import precondition


class Dataplane(Protocol):
    """Owns the device that forwards."""

    def attach(self, device: SwitchDevice) -> None:
        """Forward with this device from now on and close the former one."""

    def inject(self, frame: bytes) -> None:
        """Let a frame enter on the CPU port. RpcError if it cannot."""

    def on_packet_in(self, receiver: Callable[[bytes], None]) -> None:
        """Give every frame that leaves on the CPU port to this function, from one thread."""

    def on_port(self, receiver: Callable[[int, bool], None]) -> None:
        """Tell this function of each port that goes down (False) or comes up again, from one thread."""


class InlineDataplane:
    """Runs packets in the caller's thread, without sockets: for tests and simulations.

    What leaves on other ports than the CPU port is given to `sent` as (port, frame).
    """

    def __init__(
        self, cpu_port: int | None, sent: Callable[[int, bytes], None] = lambda port, frame: None
    ) -> None:
        self._cpu_port = cpu_port
        self._sent = sent
        self._receiver: Callable[[bytes], None] = lambda frame: None
        self._port_receiver: Callable[[int, bool], None] = lambda port, up: None
        self._lock = threading.RLock()
        self._device: SwitchDevice | None = None

    def attach(self, device: SwitchDevice) -> None:
        """Forward with this device from now on and close the former one."""
        with self._lock:
            former, self._device = self._device, device
            if former is not None:
                former.close()

    def inject(self, frame: bytes) -> None:
        """Let a frame enter on the CPU port."""
        if self._cpu_port is None:
            raise precondition("PacketOut: the switch was started without a CPU port (--cpu-port)")
        self.receive(self._cpu_port, frame)

    def on_packet_in(self, receiver: Callable[[bytes], None]) -> None:
        """Give every frame that leaves on the CPU port to this function."""
        self._receiver = receiver

    def on_port(self, receiver: Callable[[int, bool], None]) -> None:
        """Tell this function of each port that `set_port` changes."""
        self._port_receiver = receiver

    def set_port(self, port: int, *, up: bool) -> None:
        """Say that a port's link is up or down; packets do not care."""
        self._port_receiver(port, up)

    def receive(self, port: int, frame: bytes) -> None:
        """Run a frame that arrives on a port; without a device it is lost."""
        with self._lock:
            if self._device is None:
                return
            try:
                out = self._device.process([(port, frame)])
            except DeviceError as error:
                raise precondition(f"PacketOut: {error}") from error
        for where, data in out:
            if where == self._cpu_port:
                self._receiver(data)
            else:
                self._sent(where, data)

    def close(self) -> None:
        """Close the device."""
        with self._lock:
            if self._device is not None:
                self._device.close()
                self._device = None
