# SPDX-License-Identifier: Apache-2.0
"""A SwitchDevice as the controller's `Switch`, without gRPC: the server's own code, called directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from controller.errors import RpcFailedError, TimedOutError, UpdateFailure, WriteError
from controller.p4info import P4Info
from switch.device import SwitchDevice
from switch.p4runtime import packetio
from switch.p4runtime.errors import RpcError
from switch.p4runtime.p4info import P4InfoView
from switch.p4runtime.target import Target
from wire.constants import CPU_PORT


class DirectSwitch:
    """One per load or reset of the device: it keeps the groups and sessions that were written."""

    def __init__(self, device: SwitchDevice, p4info: P4Info, name: str = "s1") -> None:
        self.name = name
        self.p4info = p4info
        self._device = device
        self._target = Target(
            p4runtime_pb2.ForwardingPipelineConfig(p4info=p4info.message),
            P4InfoView(p4info.message),
            device,
            port_up=lambda _port: True,
        )

    def write(self, updates: Sequence[Any]) -> None:
        failures = []
        for index, update in enumerate(updates):
            try:
                self._target.write(update)
            except RpcError as error:
                code = code_pb2.Code.Name(error.canonical)
                failures.append(UpdateFailure(index, code, str(error), self.p4info.describe(update)))
        if failures:
            raise WriteError(self.name, len(updates), failures)

    def read(self, entities: Sequence[Any]) -> list[Any]:
        try:
            parts = [part for entity in entities for part in self._target.read(entity)]
        except RpcError as error:
            code = code_pb2.Code.Name(error.canonical)
            raise RpcFailedError(self.name, f"to read {len(entities)} entities", code, str(error)) from error
        return list(p4runtime_pb2.ReadResponse.FromString(b"".join(parts)).entities)

    def counts(self, counter: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
        found = {}
        for entity in self.read([self.p4info.cell(counter, index) for index in indexes]):
            cell = entity.counter_entry
            found[int(cell.index.index)] = (int(cell.data.packet_count), int(cell.data.byte_count))
        return found

    def exchange(self, packet: Any, wanted: Callable[[Any], bool]) -> Any:
        frame = packetio.packet_out(self._target.view.packet_out, packet)
        for port, out in self._device.process([(CPU_PORT, frame)]):
            message = packetio.packet_in(self._target.view.packet_in, out) if port == CPU_PORT else None
            if message is not None and wanted(message.packet):
                return message.packet
        raise TimedOutError(self.name, "the answer to a PacketOut", 0)
