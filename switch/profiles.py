# SPDX-License-Identifier: Apache-2.0
"""The action profiles of a device: members, groups, and who names them; runtime/profiles.c holds the actions.

As in simple_switch, a new member gets the lowest free handle, and a group's members stand in the order of
their handles: the selector takes number (hash mod size), the hash cut to 32 bits.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from switch import ir
from switch.arguments import checked, pack
from switch.errors import DeviceError, InUse, NoSuchEntry, NoSuchObject
from switch.library import words
from switch.values import Group, Member


@dataclass
class _Member:
    action: str
    args: tuple[int, ...]
    pointer: int
    alone: int
    """The choice of this member only."""
    users: int = 0


@dataclass
class _Group:
    members: tuple[int, ...]
    choice: int
    users: int = 0


@dataclass
class _State:
    profile: ir.Profile
    members: dict[int, _Member] = field(default_factory=dict)
    groups: dict[int, _Group] = field(default_factory=dict)


class Profiles:
    """All action profiles of one device."""

    def __init__(
        self, program: ir.Program, lib: ctypes.CDLL, handle: Callable[[], int], lock: threading.RLock
    ) -> None:
        self._lib = lib
        self._sw = handle
        self._lock = lock
        self._states = {name: _State(p) for name, p in program.profiles.items()}

    def restart(self) -> None:
        """No members and no groups. The C side is empty."""
        with self._lock:
            for s in self._states.values():
                s.members.clear()
                s.groups.clear()

    # ---- members

    def member_add(self, profile: str, action: str, args: Sequence[int]) -> int:
        """See SwitchDevice.member_add."""
        with self._lock:
            s = self._state(profile)
            chosen, values = checked(f"action profile {profile!r}", s.profile.actions, action, args)
            packed, number = pack(chosen, values), s.profile.actions.index(chosen)
            pointer = self._lib.sw_member_new(self._sw(), number, words(packed), len(packed))
            alone = self._choice([pointer]) if pointer else None
            if alone is None:
                if pointer:
                    self._lib.sw_member_delete(self._sw(), pointer)
                raise DeviceError(f"no memory for a member of {profile!r}")
            handle = _lowest(s.members)
            s.members[handle] = _Member(chosen.name, values, pointer, alone)
            return handle

    def member_modify(self, profile: str, member: int, action: str, args: Sequence[int]) -> None:
        """See SwitchDevice.member_modify."""
        with self._lock:
            s = self._state(profile)
            m = self._member(s, member)
            chosen, values = checked(f"action profile {profile!r}", s.profile.actions, action, args)
            packed, number = pack(chosen, values), s.profile.actions.index(chosen)
            if self._lib.sw_member_modify(self._sw(), m.pointer, number, words(packed), len(packed)):
                raise DeviceError(f"no memory for a member of {profile!r}")
            m.action, m.args = chosen.name, values

    def member_delete(self, profile: str, member: int) -> None:
        """See SwitchDevice.member_delete."""
        with self._lock:
            s = self._state(profile)
            m = self._member(s, member)
            if m.users:
                raise InUse(f"member {member} of {profile!r} is named by {m.users} entries or groups")
            self._lib.sw_choice_delete(self._sw(), m.alone)
            self._lib.sw_member_delete(self._sw(), m.pointer)
            del s.members[member]

    def members(self, profile: str) -> dict[int, tuple[str, tuple[int, ...]]]:
        """See SwitchDevice.members."""
        with self._lock:
            return {h: (m.action, m.args) for h, m in sorted(self._state(profile).members.items())}

    # ---- groups

    def group_add(self, profile: str, members: Iterable[int]) -> int:
        """See SwitchDevice.group_add."""
        with self._lock:
            s = self._state(profile)
            if s.profile.selector is None:
                raise NoSuchObject(f"action profile {profile!r} has no selector, and so no groups")
            wanted = self._members_of(s, members)
            choice = self._choice([s.members[m].pointer for m in wanted])
            if choice is None:
                raise DeviceError(f"no memory for a group of {profile!r}")
            handle = _lowest(s.groups)
            s.groups[handle] = _Group(wanted, choice)
            self._count(s, wanted, 1)
            return handle

    def group_set(self, profile: str, group: int, members: Iterable[int], resting: Iterable[int]) -> None:
        """See SwitchDevice.group_set."""
        with self._lock:
            s = self._state(profile)
            g = self._group(s, group)
            wanted = self._members_of(s, members)
            out = set(resting)
            if self._fill(g.choice, [s.members[m].pointer for m in wanted if m not in out]):
                raise DeviceError(f"no memory for a group of {profile!r}")
            self._count(s, g.members, -1)
            self._count(s, wanted, 1)
            g.members = wanted

    def group_delete(self, profile: str, group: int) -> None:
        """See SwitchDevice.group_delete."""
        with self._lock:
            s = self._state(profile)
            g = self._group(s, group)
            if g.users:
                raise InUse(f"group {group} of {profile!r} is named by {g.users} entries")
            self._lib.sw_choice_delete(self._sw(), g.choice)
            self._count(s, g.members, -1)
            del s.groups[group]

    def groups(self, profile: str) -> dict[int, tuple[int, ...]]:
        """See SwitchDevice.groups."""
        with self._lock:
            return {h: g.members for h, g in sorted(self._state(profile).groups.items())}

    # ---- entries of tables

    def address(self, profile: str, target: Member | Group) -> int:
        """The address of the choice that an entry is to carry. Raises NoSuchEntry."""
        s = self._state(profile)
        if isinstance(target, Member):
            return self._member(s, target.handle).alone
        return self._group(s, target.handle).choice

    def hold(self, table: ir.Table, target: str | Member | Group) -> None:
        """An entry of the table names a member or group from now on; an action is nothing to hold."""
        self._use(table, target, 1)

    def release(self, table: ir.Table, target: str | Member | Group) -> None:
        """It does no more."""
        self._use(table, target, -1)

    def _use(self, table: ir.Table, target: str | Member | Group, change: int) -> None:
        if table.profile is None or isinstance(target, str):
            return
        s = self._state(table.profile.name)
        if isinstance(target, Member):
            s.members[target.handle].users += change
        else:
            s.groups[target.handle].users += change

    # ---- parts

    def _choice(self, pointers: list[int]) -> int | None:
        made = self._lib.sw_choice_new(self._sw())
        if made is not None and self._fill(made, pointers):
            self._lib.sw_choice_delete(self._sw(), made)
            return None
        return made  # type: ignore[no-any-return]

    def _fill(self, choice: int, pointers: list[int]) -> int:
        array = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        failed: int = self._lib.sw_choice_set(self._sw(), choice, array, len(pointers))
        return failed

    @staticmethod
    def _count(s: _State, members: Iterable[int], change: int) -> None:
        for m in members:
            s.members[m].users += change

    def _members_of(self, s: _State, members: Iterable[int]) -> tuple[int, ...]:
        wanted = tuple(sorted(set(members)))
        for m in wanted:
            self._member(s, m)
        return wanted

    def _state(self, profile: str) -> _State:
        s = self._states.get(profile)
        if s is None:
            have = ", ".join(sorted(self._states)) or "none"
            raise NoSuchObject(f"no action profile {profile!r}: there are {have}")
        return s

    @staticmethod
    def _member(s: _State, member: int) -> _Member:
        m = s.members.get(member)
        if m is None:
            raise NoSuchEntry(f"action profile {s.profile.name!r} has no member {member}")
        return m

    @staticmethod
    def _group(s: _State, group: int) -> _Group:
        g = s.groups.get(group)
        if g is None:
            raise NoSuchEntry(f"action profile {s.profile.name!r} has no group {group}")
        return g


def _lowest(taken: dict[int, object] | dict[int, _Member] | dict[int, _Group]) -> int:
    """The lowest number that is not taken."""
    handle = 0
    while handle in taken:
        handle += 1
    return handle
