# SPDX-License-Identifier: Apache-2.0
"""What the controller needs of a switch, and the entities that are no table entries.

The classes of controller.program make entities and know no transport. A `Switch` takes them: a
SwitchClient over gRPC, or in tests the embedded switch's own server code, called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from p4.v1 import p4runtime_pb2

from controller.errors import WriteError
from controller.p4info import Entity, P4Info, Update

MAX_GROUP = 0x7FFF
"""Last multicast group: bmv2's P4Runtime server keeps the upper half for clone sessions."""
MAX_RID = 0xFFFF
"""Last replication id; v1model's egress_rid has 16 bits, and 0 marks what is no copy."""

INSERT, MODIFY, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE


class Switch(Protocol):
    """A switch that runs the program."""

    @property
    def name(self) -> str:
        """Its name in the network."""

    @property
    def p4info(self) -> P4Info:
        """Of the program that it runs."""

    def write(self, updates: Sequence[Update]) -> None:
        """Apply all updates in order, going on past refused ones; WriteError if there were any."""

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """Return what the entities select."""

    def counts(self, counter: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return (packets, bytes) of cells of a counter array by index."""

    def exchange(self, packet: Any, wanted: Callable[[Any], bool]) -> Any:
        """Send a PacketOut and return the first PacketIn that is `wanted`; TimedOutError without one."""


def updates(kind: int, entities: Iterable[Entity]) -> list[Update]:
    """Wrap entities in updates of one kind."""
    return [p4runtime_pb2.Update(type=kind, entity=entity) for entity in entities]


def insert(switch: Switch, entities: Iterable[Entity]) -> None:
    """Insert all; WriteError names those that were refused."""
    batch = updates(INSERT, entities)
    if batch:
        switch.write(batch)


def delete(switch: Switch, entities: Iterable[Entity]) -> None:
    """Delete all that are there, by their keys; WriteError names those that were refused."""
    batch = updates(DELETE, entities)
    if not batch:
        return
    try:
        switch.write(batch)
    except WriteError as error:
        left = [failure for failure in error.failures if failure.code != "NOT_FOUND"]
        if left:
            raise WriteError(error.switch, error.total, left) from error


def put(switch: Switch, entity: Entity, key: Entity) -> None:
    """Insert one table entry, or change it where its key exists; P4Runtime has no such call itself."""
    kind = MODIFY if switch.read([key]) else INSERT
    switch.write(updates(kind, [entity]))


def multicast_group(group: int, replicas: Iterable[tuple[int, int]]) -> Entity:
    """Return the multicast group with copies to (port, replication id) each."""
    entity = p4runtime_pb2.Entity()
    message = entity.packet_replication_engine_entry.multicast_group_entry
    message.multicast_group_id = group
    for port, rid in replicas:
        message.replicas.add(egress_port=port, instance=rid)
    return entity


def clone_session(session: int, port: int) -> Entity:
    """Return the clone session with one copy to a port."""
    entity = p4runtime_pb2.Entity()
    message = entity.packet_replication_engine_entry.clone_session_entry
    message.session_id = session
    message.replicas.add(egress_port=port, instance=1)
    return entity


def read_counters(switch: Switch, name: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return (packets, bytes) of cells of a counter array by index, in one request; zeros are left out."""
    found = switch.counts(name, indexes) if indexes else {}
    return {index: count for index, count in found.items() if any(count)}
