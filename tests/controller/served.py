# SPDX-License-Identifier: Apache-2.0
"""The embedded switch with its P4Runtime server in this process, its ports a function."""

from __future__ import annotations

from functools import cache
from typing import Any

from switch.build import build
from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from switch.p4runtime.dataplane import InlineDataplane
from switch.p4runtime.server import P4RuntimeServer
from switch.p4runtime.service import P4RuntimeService
from wire.constants import CPU_PORT
from worker.memory import Frames


@cache
def loaded(json: bytes) -> tuple[Any, Any]:
    """A program and what was built of it; the same for all switches that run it."""
    program = load_program(json.decode())
    return program, build(emit_program(program))


class Served:
    """A switch as a process would be: its server, and its ports as a function."""

    def __init__(self, device_id: int, address: str = "127.0.0.1:0") -> None:
        self._out: Frames = []
        self.dataplane = InlineDataplane(CPU_PORT, lambda port, frame: self._out.append((port, frame)))
        service = P4RuntimeService(
            device_id, lambda json: SwitchDevice(*loaded(bytes(json)), cpu_port=CPU_PORT), self.dataplane
        )
        self._server = P4RuntimeServer(service, address)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.port}"

    def process(self, frames: Frames) -> Frames:
        for port, frame in frames:
            self.dataplane.receive(port, frame)
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        self._server.stop()
        self.dataplane.close()
