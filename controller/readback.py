# SPDX-License-Identifier: Apache-2.0
"""What a switch holds, in a form that can be compared with what it should hold.

Every entity has a key (what it is) and a value (what it says), in numbers and names: equal for what was
written and what either target returns, whatever their order of fields, padding of bytes or rounding of rates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from controller.entities import DELETE, INSERT, MODIFY, Switch, updates
from controller.errors import P4InfoError, RpcFailedError
from controller.p4info import Entity, P4Info, Update
from controller.program.admission import Admission
from controller.program.rates import KBIT, Rates
from controller.program.receivers import Receivers
from controller.program.refusals import Refusals
from controller.program.routing import Routing

TABLE, GROUP, SESSION, METER, DIGEST = "table", "group", "session", "meter", "digest"

Key = tuple[Hashable, ...]
"""("table", name, key values by key field) | ("group", id) | ("session", id) | ("meter", name, index) |
("digest", name)."""


@dataclass(frozen=True)
class Item:
    """An entity and its normal form."""

    key: Key
    value: Hashable
    entity: Entity


@dataclass(frozen=True)
class Difference:
    """What is to be done so that a switch holds what it should."""

    strays: tuple[Item, ...]
    """On the switch alone."""
    missing: tuple[Item, ...]
    changed: tuple[Item, ...]
    """There with another value; the wanted ones."""

    def batches(self) -> list[list[Update]]:
        """Return the updates in an order that leaves no member without what it needs; empty batches left out.

        Strays go, admission first, then receivers, then the rest; what is missing comes in the reverse order.
        Next hops are the first to come and the last to go: meanwhile routes change from some to others.
        """
        first: dict[int, list[Update]] = {level: [] for level in (2, 1, 0)}
        last: list[Update] = []
        for item in self.strays:
            first.get(_level(item.key), last).extend(_removal(item))
        then: dict[int, list[Update]] = {level: [] for level in (-1, 0, 1, 2)}
        for item in self.changed:
            then[_level(item.key)] += updates(MODIFY, [item.entity])
        for item in self.missing:
            kind = MODIFY if item.key[0] == METER else INSERT
            then[_level(item.key)] += updates(kind, [item.entity])
        return [batch for batch in (*first.values(), *then.values(), last) if batch]


def item(p4info: P4Info, entity: Entity) -> Item:
    """Return an entity with its normal form; P4InfoError for what the controller does not write."""
    which = entity.WhichOneof("entity")
    if which == "table_entry":
        row = p4info.row(entity)
        key = tuple(row.key[name] for name in p4info.tables[row.table].fields)
        return Item((TABLE, row.table, *key), (row.action, tuple(sorted(row.args.items()))), entity)
    if which == "packet_replication_engine_entry":
        engine = entity.packet_replication_engine_entry
        kind = engine.WhichOneof("type")
        if kind == "multicast_group_entry":
            group = engine.multicast_group_entry
            return Item((GROUP, group.multicast_group_id), _replicas(group), entity)
        if kind == "clone_session_entry":
            session = engine.clone_session_entry
            return Item((SESSION, session.session_id), _replicas(session), entity)
    if which == "meter_entry":
        meter, config = entity.meter_entry, entity.meter_entry.config
        rates = round(config.cir / KBIT), config.cburst, round(config.pir / KBIT), config.pburst
        cell = (METER, p4info.meter(int(meter.meter_id)).name, int(meter.index.index))
        return Item(cell, rates if meter.HasField("config") else None, entity)
    if which == "digest_entry":
        entry, kept = entity.digest_entry, entity.digest_entry.config
        times = kept.max_list_size, kept.max_timeout_ns, kept.ack_timeout_ns
        return Item((DIGEST, p4info.digest(int(entry.digest_id)).name), times, entity)
    raise P4InfoError(which or "nothing", "the controller writes no such entity")


def read_all(switch: Switch) -> dict[Key, Item]:
    """Return all that a switch holds: every table's entries, groups, sessions, configured meters, digests.

    A request for each table, and three. Raises as Switch.read, and P4InfoError for what is not our program's.
    """
    p4info = switch.p4info
    found = [entity for name in p4info.tables for entity in switch.read([p4info.all_entries(name)])]
    found = [entity for entity in found if not entity.table_entry.is_default_action]
    groups, sessions = p4runtime_pb2.Entity(), p4runtime_pb2.Entity()
    groups.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 0
    sessions.packet_replication_engine_entry.clone_session_entry.session_id = 0
    found += switch.read([groups, sessions])
    cells = switch.read([p4info.rate(Rates.METER, None)])
    found += [entity for entity in cells if entity.meter_entry.HasField("config")]
    digest = p4runtime_pb2.Entity()
    digest.digest_entry.digest_id = p4info.digest(Refusals.DIGEST).id
    try:
        found += switch.read([digest])
    except RpcFailedError as error:  # a whole request fails for one digest that is not configured
        if error.code != "NOT_FOUND":
            raise
    items = [item(p4info, entity) for entity in found]
    return {one.key: one for one in items}


def difference(p4info: P4Info, wanted: Iterable[Entity], held: Mapping[Key, Item]) -> Difference:
    """Compare what a switch should hold with what it holds; of equal keys in `wanted` the last one counts."""
    items = {one.key: one for one in (item(p4info, entity) for entity in wanted)}
    return Difference(
        tuple(one for key, one in held.items() if key not in items),
        tuple(one for key, one in items.items() if key not in held),
        tuple(one for key, one in items.items() if key in held and held[key].value != one.value),
    )


def _level(key: Key) -> int:
    if key[0] != TABLE:
        return 0
    return {Admission.TABLE: 2, Receivers.TABLE: 1, Routing.NEXT_HOPS: -1}.get(str(key[1]), 0)


def _removal(item: Item) -> list[Update]:
    """Return the update that takes an entity away: a meter cannot be deleted, only made unconfigured."""
    entity = p4runtime_pb2.Entity()
    entity.CopyFrom(item.entity)
    if item.key[0] == METER:
        entity.meter_entry.ClearField("config")
        return updates(MODIFY, [entity])
    return updates(DELETE, [entity])


def _replicas(entry: Entity) -> Hashable:
    return tuple(sorted((int(r.egress_port), int(r.instance)) for r in entry.replicas))
