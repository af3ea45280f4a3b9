# SPDX-License-Identifier: Apache-2.0
"""TableEntry: matches, actions and default entries between P4Runtime and the device (spec 1.4, 9.1)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from switch.device import Entry, Group, MatchValue, Member, SwitchDevice
from switch.p4runtime import actions, matches, resources
from switch.p4runtime.errors import already_exists, denied, invalid, not_found
from switch.p4runtime.idle import IdleEntries
from switch.p4runtime.p4info import P4InfoView, Scope, Table
from switch.p4runtime.profiles import Profiles


@dataclass(frozen=True)
class Cookies:
    """What the server keeps of an entry for the client."""

    controller_metadata: int = 0
    metadata: bytes = b""
    idle_timeout_ns: int = 0


NO_COOKIES = Cookies()


class Tables:
    """The tables of one loaded program. Entries live in the device; only the clients' cookies live here."""

    def __init__(self, view: P4InfoView, device: SwitchDevice, profiles: Profiles) -> None:
        self._view = view
        self._device = device
        self._profiles = profiles
        self._cookies: dict[tuple[int, int | None], Cookies] = {}
        """By (table id, entry handle), None for the default entry."""
        self._idle = IdleEntries(device)

    # ---- writing
    def insert(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Add an entry with its direct resources."""
        table = self._writable(entry)
        if entry.is_default_action:
            raise invalid(f"Cannot use INSERT for the default entry of {table.name}; use MODIFY")
        if not table.fields:
            raise invalid(f"Cannot use INSERT: table {table.name} has no key; MODIFY its default entry")
        if table.const:
            raise denied(f"Cannot insert: table {table.name} has const entries")
        if not entry.HasField("action"):
            raise invalid(f"'action' field must be set to insert an entry into {table.name}")
        key, priority = self._key(table, entry)
        direct = resources.decode(table, entry)
        if self._device.table_find(table.name, key, priority) is not None:
            raise already_exists(
                f"Match entry exists in {table.name}, use MODIFY if you wish to change the action"
            )
        action, args = self._action(table, entry.action, default=False)
        with self._releasing(table, action):
            handle = self._device.table_insert(table.name, key, action, args, priority)
        resources.write(self._device, table, handle, direct)
        self._remember(table, handle, entry)

    def modify(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Change an entry's action and direct resources, or set or reset the default entry."""
        table = self._writable(entry)
        if entry.is_default_action:
            self._modify_default(table, entry)
            return
        key, priority = self._key(table, entry)
        direct = resources.decode(table, entry)
        handle = self._find(table, key, priority)
        if entry.HasField("action"):
            if table.const:
                raise denied(f"Cannot change the action of an entry of {table.name}: its entries are const")
            former = self._device.table_entry(table.name, handle).action
            action, args = self._action(table, entry.action, default=False)
            with self._releasing(table, action):
                self._device.table_modify(table.name, handle, action, args)
            self._profiles.release(table.implementation, former)
        resources.write(self._device, table, handle, direct)
        self._remember(table, handle, entry)

    def delete(self, entry: p4runtime_pb2.TableEntry) -> None:
        """Remove an entry; only its match and priority are looked at."""
        table = self._view.table(entry.table_id)
        if entry.is_default_action:
            raise invalid(
                f"Cannot use DELETE for the default entry of {table.name}; MODIFY without action resets it"
            )
        if table.const:
            raise denied(f"Cannot delete: table {table.name} has const entries")
        key, priority = self._key(table, entry)
        handle = self._find(table, key, priority)
        former = self._device.table_entry(table.name, handle).action
        self._device.table_delete(table.name, handle)
        self._profiles.release(table.implementation, former)
        self._cookies.pop((table.id, handle), None)
        self._idle.forget((table.name, handle))

    def locate(self, entry: p4runtime_pb2.TableEntry, resource: str) -> tuple[Table, int | None]:
        """Return the table and the handle of the entry that a DirectCounterEntry or DirectMeterEntry names.

        The handle is None for the default entry.

        Raises:
            RpcError: NOT_FOUND without such an entry, INVALID_ARGUMENT if the table has no such resource.
        """
        table = self._view.table(entry.table_id)
        if getattr(table, resource) is None:
            raise invalid(f"Table {table.name} has no direct {resource}")
        key, priority = self._key(table, entry)
        if entry.is_default_action:
            return table, None
        return table, self._find(table, key, priority)

    # ---- reading
    def read(self, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield what the filter selects: entries of all tables, of one, a single one, or a default entry."""
        if wanted.table_id == 0:
            for table in self._view.tables.values():
                yield from self._read_table(table, wanted)
            return
        table = self._view.table(wanted.table_id)
        if wanted.HasField("time_since_last_hit") and (wanted.is_default_action or not table.idle_timeout):
            what = "The default entry" if wanted.is_default_action else "No entry"
            raise invalid(f"time_since_last_hit: {what} of {table.name} times out")
        if wanted.is_default_action:
            yield from self._read_default(table, wanted)
        else:
            yield from self._read_table(table, wanted)

    def select(
        self, wanted: p4runtime_pb2.TableEntry, resource: str
    ) -> Iterator[tuple[Table, int | None, p4runtime_pb2.TableEntry]]:
        """Yield (table, handle, key-only TableEntry) of the entries whose direct `resource` is to be read.

        That is one entry if `wanted` has a match, else all of its table, else those of all tables.
        """
        if wanted.match or wanted.is_default_action:
            table, handle = self.locate(wanted, resource)
            yield table, handle, wanted
            return
        if wanted.table_id:
            tables = [self._view.table(wanted.table_id)]
            if getattr(tables[0], resource) is None:
                raise invalid(f"Table {tables[0].name} has no direct {resource}")
        else:
            tables = [table for table in self._view.tables.values() if getattr(table, resource) is not None]
        for table in tables:
            for entry in self._device.table_entries(table.name):
                yield table, entry.handle, self._key_of(table, entry)

    def poll(self, now_ns: int) -> tuple[list[p4runtime_pb2.TableEntry], int | None]:
        """Return the entries that are idle, as a notification names them, and when to look next (idle.py)."""
        idle, after = self._idle.poll(now_ns)
        by_name = {table.name: table for table in self._view.tables.values()}
        messages = []
        for name, handle in idle:
            message = self._key_of(by_name[name], self._device.table_entry(name, handle))
            _set_cookies(message, self._cookies[message.table_id, handle])
            messages.append(message)
        return messages, after

    def _read_table(self, table: Table, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        single: int | None = None
        if wanted.match:
            key, priority = self._key(table, wanted)
            single = self._device.table_find(table.name, key, priority)
            if single is None:
                return
        for entry in self._device.table_entries(table.name):
            cookies = self._cookies.get((table.id, entry.handle), NO_COOKIES)
            if (
                (single is not None and entry.handle != single)
                or (wanted.priority and entry.priority != wanted.priority)
                or (wanted.controller_metadata and cookies.controller_metadata != wanted.controller_metadata)
                or (wanted.metadata and cookies.metadata != wanted.metadata)
                or (
                    wanted.HasField("action")
                    and wanted.action.WhichOneof("type") == "action"
                    and wanted.action.action.action_id != self._id(table, entry.action)
                )
            ):
                continue
            entity = p4runtime_pb2.Entity()
            message = entity.table_entry
            message.CopyFrom(self._key_of(table, entry))
            message.is_const = entry.const
            self._encode_action(table, entry.action, entry.args, message)
            _set_cookies(message, cookies)
            resources.read(self._device, table, entry.handle, wanted, message)
            if wanted.HasField("time_since_last_hit") and table.idle_timeout:
                message.time_since_last_hit.elapsed_ns = self._idle.idle_ns((table.name, entry.handle))
            yield entity

    def _read_default(self, table: Table, wanted: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Entity]:
        entity = p4runtime_pb2.Entity()
        message = entity.table_entry
        message.table_id, message.is_default_action = table.id, True
        default = self._device.table_get_default(table.name)
        if default is not None:
            self._encode_action(table, default[0], default[1], message)
        _set_cookies(message, self._cookies.get((table.id, None), NO_COOKIES))
        resources.read(self._device, table, None, wanted, message)
        yield entity

    # ---- the parts
    def _writable(self, entry: p4runtime_pb2.TableEntry) -> Table:
        table = self._view.table(entry.table_id)
        if entry.HasField("time_since_last_hit"):
            raise invalid("time_since_last_hit must not be set in a WriteRequest")
        if entry.is_const:
            raise invalid("is_const must not be set in a WriteRequest")
        if entry.idle_timeout_ns < 0:
            raise invalid(f"idle_timeout_ns {entry.idle_timeout_ns} is negative")
        if entry.idle_timeout_ns and (not table.idle_timeout or table.const or entry.is_default_action):
            what = f"default entry of {table.name}" if entry.is_default_action else f"table {table.name}"
            raise invalid(f"idle_timeout_ns must be 0: {what} does not support idle timeout")
        return table

    def _modify_default(self, table: Table, entry: p4runtime_pb2.TableEntry) -> None:
        self._key(table, entry)
        if table.implementation:
            raise invalid(f"Cannot set or reset the default entry of {table.name}: the table is indirect")
        if table.const_default:
            raise denied(f"Cannot set or reset the default action of {table.name}: it is const")
        direct = resources.decode(table, entry)
        if entry.HasField("action"):
            action, args = self._action(table, entry.action, default=True)
            assert isinstance(action, str)
            self._device.table_set_default(table.name, action, args)
            resources.write(self._device, table, None, direct)
            self._remember(table, None, entry)
        else:
            self._device.table_reset_default(table.name)
            resources.write(self._device, table, None, resources.RESET)
            self._cookies.pop((table.id, None), None)

    def _find(self, table: Table, key: list[MatchValue], priority: int | None) -> int:
        handle = self._device.table_find(table.name, key, priority)
        if handle is None:
            raise not_found(f"Cannot find match entry in {table.name}")
        return handle

    def _remember(self, table: Table, handle: int | None, entry: p4runtime_pb2.TableEntry) -> None:
        cookies = Cookies(entry.controller_metadata, entry.metadata, entry.idle_timeout_ns)
        if handle is not None and table.idle_timeout:
            self._idle.set((table.name, handle), entry.idle_timeout_ns, time.monotonic_ns())
        if cookies != NO_COOKIES:
            self._cookies[table.id, handle] = cookies
        else:
            self._cookies.pop((table.id, handle), None)

    def _key(self, table: Table, entry: p4runtime_pb2.TableEntry) -> tuple[list[MatchValue], int | None]:
        if entry.is_default_action:
            if entry.match or entry.priority:
                raise invalid(f"The default entry of {table.name} has neither key nor priority")
            return [], None
        key = matches.decode_all(table.name, table.fields, entry.match)
        if table.has_priority:
            if entry.priority <= 0:
                raise invalid(
                    f"Priority must be positive in {table.name}, which has ternary, range or optional keys"
                )
            return key, entry.priority
        if entry.priority:
            raise invalid(f"Priority must be 0 in {table.name}, which has only exact or lpm keys")
        return key, None

    def _action(
        self, table: Table, action: p4runtime_pb2.TableAction, *, default: bool
    ) -> tuple[str | Member | Group, list[int]]:
        """What an entry is to do. A one-shot set is made a group here: see `_releasing`."""
        if table.implementation:
            return self._profiles.target(table.implementation, action), []
        if self._device.program.tables[table.name].profile is not None:
            raise invalid(
                f"The action profile of {table.name} has no name in the P4Info, so that nothing can refer to "
                'its members: write @name("...") before `implementation` in the P4 program'
            )
        kind = action.WhichOneof("type")
        if kind != "action":
            raise invalid(f"Table {table.name} is direct: it takes an action, not {kind or 'nothing'}")
        name, args = actions.decode(self._view, action.action, table.scopes, f"Table {table.name}")
        scope = table.scopes[action.action.action_id]
        if scope is Scope.ENTRIES_ONLY and default:
            raise denied(f"{name} is a TABLE_ONLY action of {table.name}: not for the default entry")
        if scope is Scope.DEFAULT_ONLY and not default:
            raise denied(f"{name} is a DEFAULT_ONLY action of {table.name}: not for entries")
        return name, args

    @contextlib.contextmanager
    def _releasing(self, table: Table, action: str | Member | Group) -> Iterator[None]:
        """Let go of a new one-shot group where the device refuses the entry."""
        try:
            yield
        except Exception:
            self._profiles.release(table.implementation, action)
            raise

    def _id(self, table: Table, action: str | Member | Group) -> int | None:
        """The id of a direct action, None where the table is indirect."""
        if not isinstance(action, str):
            return None
        return actions.find(self._view, table.scopes, action, table.name)

    def _encode_action(
        self,
        table: Table,
        action: str | Member | Group,
        args: tuple[int, ...],
        message: p4runtime_pb2.TableEntry,
    ) -> None:
        if isinstance(action, str):
            action_id = actions.find(self._view, table.scopes, action, table.name)
            actions.encode(self._view, action_id, args, message.action.action)
        else:
            self._profiles.encode(table.implementation, action, message.action)

    @staticmethod
    def _key_of(table: Table, entry: Entry) -> p4runtime_pb2.TableEntry:
        """A message with the match and priority of an entry."""
        message = p4runtime_pb2.TableEntry(table_id=table.id, priority=entry.priority)
        for field, value in zip(table.fields, entry.key, strict=True):
            matches.encode(field, value, message)
        return message


def _set_cookies(message: p4runtime_pb2.TableEntry, cookies: Cookies) -> None:
    message.controller_metadata, message.metadata = cookies.controller_metadata, cookies.metadata
    message.idle_timeout_ns = cookies.idle_timeout_ns
