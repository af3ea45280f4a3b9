# SPDX-License-Identifier: Apache-2.0
"""One forwarding pipeline: P4Info and loaded program, and every entity that can be written or read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
from p4.v1 import p4runtime_pb2

from switch import errors as device_errors
from switch.device import SwitchDevice
from switch.p4runtime import packed
from switch.p4runtime.agreement import agree
from switch.p4runtime.counters import Counters
from switch.p4runtime.digests import Digests
from switch.p4runtime.errors import RpcError, invalid, unimplemented
from switch.p4runtime.meters import Meters
from switch.p4runtime.p4info import P4InfoView
from switch.p4runtime.pre import Replication
from switch.p4runtime.profiles import Profiles
from switch.p4runtime.registers import Registers
from switch.p4runtime.tables import Tables
from switch.p4runtime.value_sets import ValueSets

INSERT, MODIFY, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE

MODIFY_ONLY = (
    "counter_entry",
    "direct_counter_entry",
    "meter_entry",
    "direct_meter_entry",
    "register_entry",
    "value_set_entry",
)

INSERTED = (
    "packet_replication_engine_entry",
    "action_profile_member",
    "action_profile_group",
    "digest_entry",
)
"""What a pipeline does not have by itself."""

DEVICE_CODES: tuple[tuple[type[device_errors.DeviceError], grpc.StatusCode], ...] = (
    (device_errors.NoSuchObject, grpc.StatusCode.INVALID_ARGUMENT),
    (device_errors.NoSuchEntry, grpc.StatusCode.NOT_FOUND),
    (device_errors.DuplicateEntry, grpc.StatusCode.ALREADY_EXISTS),
    (device_errors.TableFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (device_errors.BadKey, grpc.StatusCode.INVALID_ARGUMENT),
    (device_errors.BadAction, grpc.StatusCode.INVALID_ARGUMENT),
    (device_errors.Immutable, grpc.StatusCode.PERMISSION_DENIED),
    (device_errors.InUse, grpc.StatusCode.FAILED_PRECONDITION),
    (device_errors.BadIndex, grpc.StatusCode.OUT_OF_RANGE),
)


def from_device(error: device_errors.SwitchError) -> RpcError:
    """Return what the client is to see of an error of the device."""
    for kind, code in DEVICE_CODES:
        if isinstance(error, kind):
            return RpcError(code, str(error))
    return RpcError(grpc.StatusCode.UNKNOWN, str(error))


@dataclass
class Target:
    """A pipeline config and the device that runs it. Not thread-safe: the service serializes.

    Raises:
        RpcError: INVALID_ARGUMENT if P4Info and device are of different programs.
    """

    config: p4runtime_pb2.ForwardingPipelineConfig
    view: P4InfoView
    device: SwitchDevice
    port_up: Callable[[int], bool]
    profiles: Profiles = field(init=False)
    tables: Tables = field(init=False)
    counters: Counters = field(init=False)
    meters: Meters = field(init=False)
    registers: Registers = field(init=False)
    replication: Replication = field(init=False)
    value_sets: ValueSets = field(init=False)
    digests: Digests = field(init=False)

    def __post_init__(self) -> None:
        agree(self.view, self.device.program)
        self.profiles = Profiles(self.view, self.device, self.port_up)
        self.tables = Tables(self.view, self.device, self.profiles)
        self.counters = Counters(self.view, self.device, self.tables)
        self.meters = Meters(self.view, self.device, self.tables)
        self.registers = Registers(self.view, self.device)
        self.replication = Replication(self.device)
        self.value_sets = ValueSets(self.view, self.device)
        self.digests = Digests(self.view, self.device)

    def write(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update.

        Raises:
            RpcError: nothing was changed, but a table entry of which only the direct resource was refused.
        """
        try:
            self._write(update)
        except device_errors.SwitchError as error:
            raise from_device(error) from error

    def read(self, wanted: p4runtime_pb2.Entity) -> Iterator[bytes]:
        """Yield what one entity of a ReadRequest selects, as elements of a ReadResponse (see `packed`).

        Raises:
            RpcError: the request is wrong or the entity not supported.
        """
        name = wanted.WhichOneof("entity")
        try:
            if name == "counter_entry":
                yield from self.counters.read(wanted.counter_entry)
            elif name == "register_entry":
                yield from self.registers.read(wanted.register_entry)
            else:
                yield from map(packed.element, self._read(wanted))
        except device_errors.SwitchError as error:
            raise from_device(error) from error

    def poll(self, now_ns: int) -> tuple[list[p4runtime_pb2.StreamMessageResponse], int | None]:
        """Return what the primary is to be told, and the nanoseconds until the next look, None for none."""
        lists, digests_after = self.digests.poll(now_ns)
        messages = [p4runtime_pb2.StreamMessageResponse(digest=one) for one in lists]
        idle, idle_after = self.tables.poll(now_ns)
        if idle:
            message = p4runtime_pb2.StreamMessageResponse()
            message.idle_timeout_notification.table_entry.extend(idle)
            message.idle_timeout_notification.timestamp = time.time_ns()
            messages.append(message)
        return messages, min((n for n in (digests_after, idle_after) if n is not None), default=None)

    def state(self) -> list[p4runtime_pb2.Update]:
        """Return the updates that bring an empty pipeline to this one's forwarding state.

        Const entries and default entries as the program has them come with the program and are left out.
        """
        updates = []
        for entity in self._forwarding_state():
            kind = MODIFY
            name = entity.WhichOneof("entity")
            if name == "table_entry" and not entity.table_entry.is_default_action:
                if entity.table_entry.is_const:
                    continue
                kind = INSERT
            elif name in INSERTED:
                kind = INSERT
            updates.append(p4runtime_pb2.Update(type=kind, entity=entity))
        return updates

    def _forwarding_state(self) -> Iterator[p4runtime_pb2.Entity]:
        for name in ("action_profile_member", "action_profile_group"):
            wanted = p4runtime_pb2.Entity()
            getattr(wanted, name).SetInParent()
            yield from self._read(wanted)
        wanted = p4runtime_pb2.Entity()
        for table in self.view.tables.values():
            wanted.table_entry.Clear()
            wanted.table_entry.table_id = table.id
            wanted.table_entry.counter_data.SetInParent()
            wanted.table_entry.meter_config.SetInParent()
            yield from self._read(wanted)
            if not table.const_default and not table.implementation:
                wanted.table_entry.is_default_action = True
                yield from self._read(wanted)
        wanted = p4runtime_pb2.Entity()
        wanted.meter_entry.SetInParent()
        yield from (entity for entity in self._read(wanted) if entity.meter_entry.HasField("config"))
        yield from self.counters.counted()
        wanted = p4runtime_pb2.Entity()
        wanted.value_set_entry.SetInParent()
        yield from self._read(wanted)
        wanted = p4runtime_pb2.Entity()
        wanted.digest_entry.SetInParent()
        yield from self._read(wanted)
        for name in ("multicast_group_entry", "clone_session_entry"):
            wanted = p4runtime_pb2.Entity()
            getattr(wanted.packet_replication_engine_entry, name).SetInParent()
            yield from self._read(wanted)

    def _write(self, update: p4runtime_pb2.Update) -> None:
        kind, entity = update.type, update.entity
        name = entity.WhichOneof("entity")
        if kind not in (INSERT, MODIFY, DELETE):
            raise invalid("Update type is not set")
        if name in MODIFY_ONLY and kind != MODIFY:
            raise invalid(f"{p4runtime_pb2.Update.Type.Name(kind)} is not possible for a {name}: use MODIFY")
        if name == "table_entry":
            tables = self.tables
            {INSERT: tables.insert, MODIFY: tables.modify, DELETE: tables.delete}[kind](entity.table_entry)
        elif name == "counter_entry":
            self.counters.modify(entity.counter_entry)
        elif name == "direct_counter_entry":
            self.counters.modify_direct(entity.direct_counter_entry)
        elif name == "meter_entry":
            self.meters.modify(entity.meter_entry)
        elif name == "direct_meter_entry":
            self.meters.modify_direct(entity.direct_meter_entry)
        elif name == "register_entry":
            self.registers.modify(entity.register_entry)
        elif name == "value_set_entry":
            self.value_sets.modify(entity.value_set_entry)
        elif name == "digest_entry":
            self.digests.write(kind, entity.digest_entry)
        elif name == "action_profile_member":
            self.profiles.write_member(kind, entity.action_profile_member)
        elif name == "action_profile_group":
            self.profiles.write_group(kind, entity.action_profile_group)
        elif name == "packet_replication_engine_entry":
            self.replication.write(kind, entity.packet_replication_engine_entry)
        else:
            raise _unsupported(name)

    def _read(self, wanted: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """All but counters and registers."""
        name = wanted.WhichOneof("entity")
        if name == "table_entry":
            return self.tables.read(wanted.table_entry)
        if name == "direct_counter_entry":
            return self.counters.read_direct(wanted.direct_counter_entry)
        if name == "meter_entry":
            return self.meters.read(wanted.meter_entry)
        if name == "direct_meter_entry":
            return self.meters.read_direct(wanted.direct_meter_entry)
        if name == "value_set_entry":
            return self.value_sets.read(wanted.value_set_entry)
        if name == "digest_entry":
            return self.digests.read(wanted.digest_entry)
        if name == "action_profile_member":
            return self.profiles.read_members(wanted.action_profile_member)
        if name == "action_profile_group":
            return self.profiles.read_groups(wanted.action_profile_group)
        if name == "packet_replication_engine_entry":
            return self.replication.read(wanted.packet_replication_engine_entry)
        raise _unsupported(name)


def _unsupported(name: str | None) -> RpcError:
    if name is None:
        return invalid("The entity is empty: set one of its fields")
    return unimplemented(f"{name} is not supported by this switch")
