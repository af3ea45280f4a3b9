# SPDX-License-Identifier: Apache-2.0
"""RegisterEntry (spec 1.4, 9.7), which simple_switch_grpc does not have."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import codec
from switch.p4runtime.errors import invalid, unimplemented
from switch.p4runtime.indices import indices
from switch.p4runtime.p4info import Array, P4InfoView


class Registers:
    """The registers of one loaded program, as far as their elements are bit<W>."""

    def __init__(self, view: P4InfoView, device: SwitchDevice) -> None:
        self._view = view
        self._device = device

    def modify(self, entry: p4runtime_pb2.RegisterEntry) -> None:
        """Set one element, or all without an index."""
        array = self._array(entry.register_id)
        if entry.data.WhichOneof("data") != "bitstring":
            raise invalid(f"Register {array.name} holds bit<{array.bits}>: data must be a bitstring")
        value = codec.decode(entry.data.bitstring, array.bits, array.name)
        for index in indices(array, entry):
            self._device.register_write(array.name, index, value)

    def read(self, wanted: p4runtime_pb2.RegisterEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one element, an array, or all arrays."""
        if wanted.register_id:
            arrays = [self._array(wanted.register_id)]
        else:
            arrays = [array for array in self._view.registers.values() if array.bits]
        for array in arrays:
            for index in indices(array, wanted):
                entity = p4runtime_pb2.Entity()
                register = entity.register_entry
                register.register_id, register.index.index = array.id, index
                register.data.bitstring = codec.encode(self._device.register_read(array.name, index))
                yield entity

    def _array(self, register_id: int) -> Array:
        array = self._view.register(register_id)
        if not array.bits:
            raise unimplemented(
                f"Register {array.name} does not hold bit<W>: only those can be read and written"
            )
        return array
