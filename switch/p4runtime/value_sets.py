# SPDX-License-Identifier: Apache-2.0
"""ValueSetEntry (spec 1.4, 9.6), which simple_switch_grpc does not have."""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import matches
from switch.p4runtime.errors import unimplemented
from switch.p4runtime.p4info import P4InfoView


class ValueSets:
    """The parser value sets of one loaded program."""

    def __init__(self, view: P4InfoView, device: SwitchDevice) -> None:
        self._view = view
        self._device = device

    def modify(self, entry: p4runtime_pb2.ValueSetEntry) -> None:
        """Replace the members.

        ALREADY_EXISTS for duplicates, RESOURCE_EXHAUSTED for too many, UNIMPLEMENTED where the P4Info does
        not tell all that a member consists of.
        """
        known = self._view.value_set(entry.value_set_id)
        if not known.complete:
            raise unimplemented(
                f"{known.name} cannot be written: its members have more parts than the {len(known.fields)} "
                "that the P4Info tells of; p4c leaves out structs in its struct: use one without them"
            )
        members = [matches.decode_all(known.name, known.fields, member.match) for member in entry.members]
        self._device.value_set(known.name, members)

    def read(self, wanted: p4runtime_pb2.ValueSetEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one value set, or all."""
        chosen = (
            [self._view.value_set(wanted.value_set_id)]
            if wanted.value_set_id
            else list(self._view.value_sets.values())
        )
        for known in chosen:
            entity = p4runtime_pb2.Entity()
            entity.value_set_entry.value_set_id = known.id
            for member in self._device.value_set_get(known.name):
                message = entity.value_set_entry.members.add()
                for field, value in zip(known.fields, member, strict=True):
                    matches.encode(field, value, message)
            yield entity
