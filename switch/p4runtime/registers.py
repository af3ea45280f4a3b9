# SPDX-License-Identifier: Apache-2.0
"""RegisterEntry (spec 1.4, 9.7), which simple_switch_grpc does not have."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import codec, packed
from switch.p4runtime.errors import invalid, unimplemented
from switch.p4runtime.indices import indices
from switch.p4runtime.p4info import Array, P4InfoView

STEP = 1000
"""Elements that are read at once."""


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

    def read(self, wanted: p4runtime_pb2.RegisterEntry) -> Iterator[bytes]:
        """Yield one element, an array, or all arrays, as `packed.cells` does."""
        if wanted.register_id:
            arrays = [self._array(wanted.register_id)]
        else:
            arrays = [array for array in self._view.registers.values() if array.bits]
        for array in arrays:
            elements = indices(array, wanted)
            for at in range(0, len(elements), STEP):
                some = elements[at : at + STEP]
                values = self._device.register_read_range(array.name, some.start, len(some))
                data = (packed.block(1, codec.encode(value)) for value in values)
                yield from packed.cells("register_entry", array.id, zip(some, data, strict=True))

    def _array(self, register_id: int) -> Array:
        array = self._view.register(register_id)
        if not array.bits:
            raise unimplemented(
                f"Register {array.name} does not hold bit<W>: only those can be read and written"
            )
        return array
