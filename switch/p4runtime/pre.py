# SPDX-License-Identifier: Apache-2.0
"""The packet replication engine: multicast groups and clone sessions (spec 1.4, 9.5).

The messages are kept as the client wrote them, for read-write symmetry; the device has ports and
replication ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1 import p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import codec
from switch.p4runtime.errors import already_exists, invalid, not_found, out_of_range, unimplemented

MAX_GROUP = 0xFFFF
MAX_SESSION = 0x7FFF
MAX_INSTANCE = 0xFFFF
"""v1model's egress_rid has 16 bits."""
PORT_BITS = 32


class Replication:
    """The groups and sessions of one device."""

    def __init__(self, device: SwitchDevice) -> None:
        self._device = device
        self._groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4runtime_pb2.CloneSessionEntry] = {}

    def write(self, kind: int, entry: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        """Apply an INSERT, MODIFY or DELETE of a group or session."""
        which = entry.WhichOneof("type")
        if which == "multicast_group_entry":
            self._write_group(kind, entry.multicast_group_entry)
        elif which == "clone_session_entry":
            self._write_session(kind, entry.clone_session_entry)
        else:
            raise invalid("PacketReplicationEngineEntry has neither a multicast group nor a clone session")

    def read(self, wanted: p4runtime_pb2.PacketReplicationEngineEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one group or session, or all with the id 0. NOT_FOUND if the one does not exist."""
        which = wanted.WhichOneof("type")
        if which == "multicast_group_entry":
            number = wanted.multicast_group_entry.multicast_group_id
            for group in _chosen(self._groups, number, "Multicast group"):
                entity = p4runtime_pb2.Entity()
                entity.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
                yield entity
        elif which == "clone_session_entry":
            number = wanted.clone_session_entry.session_id
            for session in _chosen(self._sessions, number, "Clone session"):
                entity = p4runtime_pb2.Entity()
                entity.packet_replication_engine_entry.clone_session_entry.CopyFrom(session)
                yield entity
        else:
            raise invalid("PacketReplicationEngineEntry has neither a multicast group nor a clone session")

    def _write_group(self, kind: int, entry: p4runtime_pb2.MulticastGroupEntry) -> None:
        number = entry.multicast_group_id
        if number == 0:
            raise invalid("0 is not a valid multicast group id")
        if number > MAX_GROUP:
            raise out_of_range(f"Multicast group id {number} is too high: at most {MAX_GROUP}")
        _check_existence(kind, number in self._groups, f"Multicast group {number}")
        if kind == p4runtime_pb2.Update.DELETE:
            self._device.multicast_delete(number)
            del self._groups[number]
            return
        self._device.multicast_set(number, _replicas(f"Multicast group {number}", entry.replicas))
        self._groups[number] = _copy(entry)

    def _write_session(self, kind: int, entry: p4runtime_pb2.CloneSessionEntry) -> None:
        number = entry.session_id
        if not 0 < number <= MAX_SESSION:
            raise invalid(f"Clone session id {number} is out of range: 1..{MAX_SESSION}")
        _check_existence(kind, number in self._sessions, f"Clone session {number}")
        if kind == p4runtime_pb2.Update.DELETE:
            self._device.clone_session_delete(number)
            del self._sessions[number]
            return
        if entry.class_of_service:
            raise unimplemented(f"Clone session {number}: class_of_service is not supported")
        if entry.packet_length_bytes < 0:
            raise invalid(f"Clone session {number}: packet_length_bytes is negative")
        replicas = _replicas(f"Clone session {number}", entry.replicas)
        self._device.clone_session_set(number, replicas, entry.packet_length_bytes)
        self._sessions[number] = _copy(entry)


def _check_existence(kind: int, exists: bool, what: str) -> None:
    if kind == p4runtime_pb2.Update.INSERT:
        if exists:
            raise already_exists(f"{what} already exists, use MODIFY to change it")
    elif not exists:
        raise not_found(f"{what} does not exist")


def _replicas(what: str, replicas: Iterable[p4runtime_pb2.Replica]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for replica in replicas:
        kind = replica.WhichOneof("port_kind")
        if kind == "egress_port":
            port = replica.egress_port
        elif kind == "port":
            port = _port(what, replica.port)
        else:
            raise invalid(f"{what}: a replica has no port")
        if replica.instance > MAX_INSTANCE:
            raise invalid(f"{what}: instance {replica.instance} is above {MAX_INSTANCE}")
        pairs.append((port, replica.instance))
    if len(set(pairs)) != len(pairs):
        raise invalid(f"{what}: duplicate replica (same port and instance)")
    return pairs


def _port(what: str, value: bytes) -> int:
    if len(value) > PORT_BITS // 8:
        raise unimplemented(f"{what}: port of {len(value)} bytes, but only {PORT_BITS // 8} are supported")
    return codec.decode(value, PORT_BITS, f"{what}: port")


def _copy(entry: p4runtime_pb2.MulticastGroupEntry) -> p4runtime_pb2.MulticastGroupEntry:
    copy = type(entry)()
    copy.CopyFrom(entry)
    return copy


def _chosen(kept: dict[int, p4runtime_pb2.MulticastGroupEntry], number: int, what: str) -> list[object]:
    if not number:
        return list(kept.values())
    if number not in kept:
        raise not_found(f"{what} {number} does not exist")
    return [kept[number]]
