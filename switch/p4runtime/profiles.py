# SPDX-License-Identifier: Apache-2.0
"""ActionProfileMember and ActionProfileGroup, and what entries of indirect tables do (spec 1.4, 9.2).

Weights, as in simple_switch_grpc, are copies of the member: a selector takes number (hash mod the sum of
the weights) of the copies, in the order in which they were made. A member whose watch port is down is left
out; a group of which none is left does nothing. A port that is none of the switch's counts as up. The size of
an action profile bounds its members; a selector's max_group_size bounds each group, nothing bounds their sum.
An empty one-shot set is taken; it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from p4.v1 import p4runtime_pb2

from switch.device import Group, Member, SwitchDevice
from switch.errors import InUse
from switch.p4runtime import actions
from switch.p4runtime.errors import already_exists, exhausted, invalid, not_found, precondition
from switch.p4runtime.p4info import P4InfoView, Profile

INSERT, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.DELETE

MAX_WEIGHTS = 1 << 16
"""The sum of a group's weights: each is a copy of a member."""


@dataclass
class _Member:
    message: p4runtime_pb2.ActionProfileMember
    copies: list[int]
    """Handles in the device; the first is the member by itself."""


@dataclass
class _Group:
    """A client's group, or a one-shot set."""

    message: Any
    handle: int
    members: list[tuple[int, int | None]]
    """Handles of copies, each with its watch port."""


@dataclass
class _State:
    profile: Profile
    members: dict[int, _Member] = field(default_factory=dict)
    groups: dict[int, _Group] = field(default_factory=dict)
    one_shots: dict[int, _Group] = field(default_factory=dict)
    """By handle: they have no other name."""


class Profiles:
    """The action profiles of one loaded program. `port_up` says whether a port's link is up."""

    def __init__(self, view: P4InfoView, device: SwitchDevice, port_up: Callable[[int], bool]) -> None:
        self._view = view
        self._device = device
        self._port_up = port_up
        self._states = {number: _State(profile) for number, profile in view.profiles.items()}

    # ---- members
    def write_member(self, kind: int, entry: p4runtime_pb2.ActionProfileMember) -> None:
        """Insert, modify or delete a member."""
        state = self._state(entry.action_profile_id)
        profile, number = state.profile, entry.member_id
        if number == 0:
            raise invalid(f"0 is not a valid member id of {profile.name}")
        what = f"Member {number} of {profile.name}"
        _check_existence(kind, number in state.members, what)
        if kind == DELETE:
            self._delete_member(state, number, what)
            return
        if not entry.HasField("action"):
            raise invalid(f"{what}: 'action' must be set")
        name, args = self._action(profile, entry.action)
        if kind == INSERT:
            self._check_mode(state, one_shot=False)
            if profile.size and len(state.members) >= profile.size:
                raise exhausted(f"{profile.name} holds {profile.size} members and is full")
            copies = [self._device.member_add(profile.name, name, args)]
        else:
            copies = state.members[number].copies
            for handle in copies:
                self._device.member_modify(profile.name, handle, name, args)
        state.members[number] = _Member(_copied(entry), copies)

    def read_members(self, wanted: p4runtime_pb2.ActionProfileMember) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one member, those of one profile, or all. NOT_FOUND if the one does not exist."""
        for state in self._selected(wanted.action_profile_id):
            for member in _chosen(state.members, wanted.member_id, f"Member of {state.profile.name}"):
                yield p4runtime_pb2.Entity(action_profile_member=member.message)

    def _delete_member(self, state: _State, number: int, what: str) -> None:
        profile, member = state.profile, state.members[number]
        try:
            self._device.member_delete(profile.name, member.copies[0])
        except InUse as error:
            raise precondition(f"{what} is in use: take it out of groups and entries first") from error
        del state.members[number]

    # ---- groups
    def write_group(self, kind: int, entry: p4runtime_pb2.ActionProfileGroup) -> None:
        """Insert, modify or delete a group; modifying replaces all of its members."""
        state = self._state(entry.action_profile_id)
        profile, number = state.profile, entry.group_id
        if not profile.selector:
            raise invalid(f"{profile.name} has no selector, and so no groups")
        if number == 0:
            raise invalid(f"0 is not a valid group id of {profile.name}")
        what = f"Group {number} of {profile.name}"
        _check_existence(kind, number in state.groups, what)
        group = state.groups.get(number)
        if kind == DELETE:
            assert group is not None
            self._delete_group(state, number, group, what)
            return
        self._check_mode(state, one_shot=False)
        largest = self._max_size(profile, group, entry, what)
        self._check_weights(profile, entry.members, largest, what, too_many=exhausted)
        named = [member.member_id for member in entry.members]
        if len(set(named)) != len(named):
            raise invalid(f"{what}: a member is there twice; give it a weight instead")
        for member_id in named:
            if member_id not in state.members:
                raise not_found(f"{what}: there is no member {member_id}; insert it first")
        pairs = self._copies(state, entry.members)
        if group is None:
            group = _Group(None, self._device.group_add(profile.name), [])
            state.groups[number] = group
        group.message, group.members = _copied(entry), pairs
        group.message.max_size = largest
        self._fill(profile, group)
        self._drop_copies(state)

    def read_groups(self, wanted: p4runtime_pb2.ActionProfileGroup) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one group, those of one selector, or all. NOT_FOUND if the one does not exist."""
        for state in self._selected(wanted.action_profile_id):
            for group in _chosen(state.groups, wanted.group_id, f"Group of {state.profile.name}"):
                yield p4runtime_pb2.Entity(action_profile_group=group.message)

    def _delete_group(self, state: _State, number: int, group: _Group, what: str) -> None:
        try:
            self._device.group_delete(state.profile.name, group.handle)
        except InUse as error:
            raise precondition(f"{what} is in use: change the entries that name it first") from error
        del state.groups[number]
        self._drop_copies(state)

    def _max_size(
        self, profile: Profile, group: _Group | None, entry: p4runtime_pb2.ActionProfileGroup, what: str
    ) -> int:
        """The max_size that the group keeps; left out when modifying, it is as before (so does bmv2)."""
        asked: int = entry.max_size
        if group is not None:
            kept: int = group.message.max_size
            if asked not in (0, kept):
                raise invalid(f"{what}: max_size is {kept} and cannot change to {asked}")
            return kept
        if asked < 0 or 0 < profile.max_group_size < asked:
            raise invalid(f"{what}: max_size {asked} is not in 0..{profile.max_group_size or 'any'}")
        return asked

    # ---- entries of indirect tables
    def target(self, profile_id: int, action: p4runtime_pb2.TableAction) -> Member | Group:
        """Return what an entry is to name in the device; a one-shot set becomes a group: see `release`.

        Raises:
            RpcError: NOT_FOUND for an unknown id, INVALID_ARGUMENT for what the profile does not take.
        """
        state, kind = self._state(profile_id), action.WhichOneof("type")
        name = state.profile.name
        if kind == "action_profile_member_id":
            self._check_mode(state, one_shot=False)
            member = state.members.get(action.action_profile_member_id)
            if member is None:
                raise not_found(f"{name} has no member {action.action_profile_member_id}; insert it first")
            return Member(member.copies[0])
        if kind not in ("action_profile_group_id", "action_profile_action_set"):
            raise invalid(f"Tables of {name} take its members and groups, no {kind or 'nothing'}")
        if not state.profile.selector:
            raise invalid(f"{name} has no selector: entries take its members only")
        if kind == "action_profile_group_id":
            self._check_mode(state, one_shot=False)
            group = state.groups.get(action.action_profile_group_id)
            if group is None:
                raise not_found(f"{name} has no group {action.action_profile_group_id}; insert it first")
            return Group(group.handle)
        self._check_mode(state, one_shot=True)
        return self._one_shot(state, action.action_profile_action_set)

    def release(self, profile_id: int, target: str | Member | Group) -> None:
        """Forget the one-shot group of an entry that names it no more; others stay."""
        state = self._states.get(profile_id)
        if state is None or not isinstance(target, Group):
            return
        group = state.one_shots.pop(target.handle, None)
        if group is not None:
            self._device.group_delete(state.profile.name, group.handle)
            self._delete_copies(state.profile, [handle for handle, _ in group.members])

    def encode(self, profile_id: int, target: Member | Group, message: p4runtime_pb2.TableAction) -> None:
        """Write what an entry does as the client had it."""
        state, handle = self._state(profile_id), target.handle
        if isinstance(target, Member):
            message.action_profile_member_id = next(
                number for number, member in state.members.items() if member.copies[0] == handle
            )
        elif handle in state.one_shots:
            message.action_profile_action_set.CopyFrom(state.one_shots[handle].message)
        else:
            message.action_profile_group_id = next(
                number for number, group in state.groups.items() if group.handle == handle
            )

    def _one_shot(self, state: _State, message: p4runtime_pb2.ActionProfileActionSet) -> Group:
        profile, what = state.profile, f"The action set for {state.profile.name}"
        wanted = message.action_profile_actions
        self._check_weights(profile, wanted, profile.max_group_size, what, too_many=invalid)
        decoded = [(one, *self._action(profile, one.action)) for one in wanted]
        pairs = [
            (self._device.member_add(profile.name, name, args), _watch_port(one))
            for one, name, args in decoded
            for _ in range(one.weight)
        ]
        group = _Group(_copied(message), self._device.group_add(profile.name), pairs)
        state.one_shots[group.handle] = group
        self._fill(profile, group)
        return Group(group.handle)

    # ---- ports
    def ports_changed(self) -> None:
        """Leave out members whose watch port went down, and take in those whose came up."""
        for state in self._states.values():
            for group in (*state.groups.values(), *state.one_shots.values()):
                if any(port is not None for _, port in group.members):
                    self._fill(state.profile, group)

    def _fill(self, profile: Profile, group: _Group) -> None:
        down = [handle for handle, port in group.members if port is not None and not self._port_up(port)]
        members = [handle for handle, _ in group.members]
        self._device.group_set(profile.name, group.handle, members, resting=down)

    # ---- copies of members, one for each unit of weight
    def _copies(self, state: _State, wanted: Iterable[Any]) -> list[tuple[int, int | None]]:
        """The copies that a group takes, made where there are too few, by member id as in bmv2."""
        pairs = []
        for one in sorted(wanted, key=lambda m: m.member_id):
            member = state.members[one.member_id]
            name, args = self._action(state.profile, member.message.action)
            while len(member.copies) < one.weight:
                member.copies.append(self._device.member_add(state.profile.name, name, args))
            pairs += [(handle, _watch_port(one)) for handle in member.copies[: one.weight]]
        return pairs

    def _drop_copies(self, state: _State) -> None:
        """Remove the copies beyond what any group uses, but for each member's first."""
        used = {handle for group in state.groups.values() for handle, _ in group.members}
        for member in state.members.values():
            keep = max([1, *(i + 1 for i, handle in enumerate(member.copies) if handle in used)])
            self._delete_copies(state.profile, member.copies[keep:])
            del member.copies[keep:]

    def _delete_copies(self, profile: Profile, handles: Iterable[int]) -> None:
        for handle in handles:
            self._device.member_delete(profile.name, handle)

    # ---- checks
    def _state(self, profile_id: int) -> _State:
        return self._states[self._view.profile(profile_id).id]

    def _selected(self, profile_id: int) -> list[_State]:
        return [self._state(profile_id)] if profile_id else list(self._states.values())

    def _action(self, profile: Profile, action: p4runtime_pb2.Action) -> tuple[str, list[int]]:
        allowed = {number for table in profile.tables for number in self._view.table(table).scopes}
        return actions.decode(self._view, action, allowed, profile.name)

    @staticmethod
    def _check_mode(state: _State, *, one_shot: bool) -> None:
        """Raise INVALID_ARGUMENT where one-shot sets and members or groups would stand side by side."""
        if state.one_shots if not one_shot else state.members or state.groups:
            raise invalid(
                f"{state.profile.name} is programmed "
                f"{'by members and groups' if one_shot else 'by one-shot action sets'}: do not mix them"
            )

    @staticmethod
    def _check_weights(
        profile: Profile, wanted: Iterable[Any], largest: int, what: str, too_many: Callable[[str], Exception]
    ) -> None:
        """Check weights, and their sum (or the count, by the selector's size semantics) against `largest`."""
        weights = [one.weight for one in wanted]
        if any(weight <= 0 for weight in weights):
            raise invalid(f"{what}: each weight must be positive")
        if profile.max_member_weight and any(weight > profile.max_member_weight for weight in weights):
            raise invalid(f"{what}: a weight is above {profile.max_member_weight}")
        size = len(weights) if profile.counts_members else sum(weights)
        limit = largest or profile.max_group_size
        if limit and size > limit:
            unit = "members" if profile.counts_members else "weights"
            raise too_many(f"{what}: {size} {unit} are more than the {limit} that it can hold")
        if sum(weights) > MAX_WEIGHTS:
            raise exhausted(
                f"{what}: the weights sum up to {sum(weights)}, at most {MAX_WEIGHTS} are possible"
            )


def _watch_port(one: Any) -> int | None:
    """The watch port of a member of a group; empty is none."""
    if one.WhichOneof("watch_kind") == "watch_port" and one.watch_port:
        return int.from_bytes(one.watch_port, "big")
    return one.watch or None


def _check_existence(kind: int, exists: bool, what: str) -> None:
    if kind == INSERT:
        if exists:
            raise already_exists(f"{what} already exists, use MODIFY to change it")
    elif not exists:
        raise not_found(f"{what} does not exist")


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _chosen(kept: dict[int, Any], number: int, what: str) -> list[Any]:
    if not number:
        return list(kept.values())
    if number not in kept:
        raise not_found(f"{what}: there is no {number}")
    return [kept[number]]
