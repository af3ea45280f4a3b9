# SPDX-License-Identifier: Apache-2.0
"""Random P4Runtime updates for a program's tables, and for multicast groups and clone sessions."""

from __future__ import annotations

import functools
import random
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4

from tests.switch.differential.values import Values
from tests.switch.p4rt import DELETE, INSERT, MODIFY, group, octets, session, table, update

PORTS = range(6)
GROUPS = 7
SESSIONS = 9
PER_TABLE = 14

_KINDS = p4info_pb2.MatchField


class Entries:
    """Updates in the order in which they are to be written."""

    def __init__(self, info: Any, r: random.Random, values: Values) -> None:
        self.r = r
        self.values = values
        self.actions = {action.preamble.id: action for action in info.actions}
        self.updates: list[Any] = []
        self.indirect = {
            profile.preamble.id: self._profile(info, profile) for profile in info.action_profiles
        }
        for known in info.tables:
            if not known.is_const_table:
                self._fill(known)
        self._replication()

    def _match(self, entry: Any, field: Any) -> None:
        """One field; a match of everything is left out, as P4Runtime wants it."""
        r, width = self.r, field.bitwidth
        value, everything = self.values.draw(width), (1 << width) - 1
        kind = field.match_type
        if kind == _KINDS.EXACT:
            entry.match.add(field_id=field.id).exact.value = octets(value)
        elif kind == _KINDS.LPM:
            length = r.choice((0, 1, width, width - 1, r.randint(0, width)))
            if length > 0:
                mask = everything ^ (1 << width - length) - 1
                match = entry.match.add(field_id=field.id).lpm
                match.value, match.prefix_len = octets(value & mask), length
        elif kind == _KINDS.TERNARY:
            mask = r.choice((0, everything, r.getrandbits(width), 1 << r.randrange(width)))
            if mask:
                match = entry.match.add(field_id=field.id).ternary
                match.value, match.mask = octets(value & mask), octets(mask)
        elif kind == _KINDS.RANGE:
            low, high = sorted((value, r.choice((value, everything, self.values.draw(width)))))
            if (low, high) != (0, everything):
                match = entry.match.add(field_id=field.id).range
                match.low, match.high = octets(low), octets(high)
        elif r.random() < 0.7:
            entry.match.add(field_id=field.id).optional.value = octets(value)

    def _profile(self, info: Any, profile: Any) -> Any:
        """Members and groups of a profile, and one action of a table that refers to them."""
        r, number = self.r, profile.preamble.id
        refs = next(t for t in info.tables if t.preamble.id in profile.table_ids)
        make = functools.partial(self._direct, refs, p4info_pb2.ActionRef.DEFAULT_ONLY)
        if profile.with_selector and r.random() < 0.5:
            # Sets in the table entries themselves.
            def one_shot() -> Any:
                action = p4.TableAction()
                for _ in range(r.randint(1, 4)):
                    one = action.action_profile_action_set.action_profile_actions.add(weight=r.randint(1, 3))
                    one.action.CopyFrom(make().action)
                return action

            return one_shot
        members = [
            p4.ActionProfileMember(action_profile_id=number, member_id=at, action=make().action)
            for at in r.sample(range(1, 40), 8)
        ]
        self.updates += [update(INSERT, action_profile_member=member) for member in members]
        choices = [p4.TableAction(action_profile_member_id=member.member_id) for member in members]
        for at in range(1, 6) if profile.with_selector else ():
            group = p4.ActionProfileGroup(action_profile_id=number, group_id=at, max_size=8)
            for member in r.sample(members, r.randint(1, 5)):
                group.members.add(member_id=member.member_id, weight=r.choice((1, 1, 2)))
            self.updates.append(update(INSERT, action_profile_group=group))
            choices.append(p4.TableAction(action_profile_group_id=at))
        for member in r.sample(members, 3):
            member.action.CopyFrom(make().action)
            self.updates.append(update(MODIFY, action_profile_member=member))
        return lambda: r.choice(choices)

    def _action(self, known: Any, out_of_scope: int) -> Any:
        if known.implementation_id:
            return self.indirect[known.implementation_id]()
        return self._direct(known, out_of_scope)

    def _direct(self, known: Any, out_of_scope: int) -> Any:
        ref = self.r.choice([ref for ref in known.action_refs if ref.scope != out_of_scope])
        action = p4.TableAction()
        action.action.action_id = ref.id
        for param in self.actions[ref.id].params:
            # Ports have 9 bits; groups and sessions are among the small numbers.
            small = self.r.random() < (0.9 if param.bitwidth == 9 else 0.6)
            number = self.r.randrange(len(PORTS)) & (1 << param.bitwidth) - 1
            value = number if small else self.values.draw(param.bitwidth)
            action.action.params.add(param_id=param.id, value=octets(value))
        return action

    def _fill(self, known: Any) -> None:
        r = self.r
        if not (known.const_default_action_id or known.implementation_id) and r.random() < 0.5:
            entry = p4.TableEntry(table_id=known.preamble.id, is_default_action=True)
            entry.action.CopyFrom(self._action(known, p4info_pb2.ActionRef.TABLE_ONLY))
            self.updates.append(table(MODIFY, entry))
        if not known.match_fields:
            return
        ordered = any(
            f.match_type in (_KINDS.TERNARY, _KINDS.RANGE, _KINDS.OPTIONAL) for f in known.match_fields
        )
        # None twice: which of two entries wins then is not specified, and with bmv2 hangs on deleted ones.
        priorities = r.sample(range(1, 1000), PER_TABLE)
        made: list[Any] = []
        for _ in range(r.randint(0, PER_TABLE)):
            if made and r.random() < 0.15:
                old = r.choice(made)
                entry, kind = p4.TableEntry(), r.choice((MODIFY, DELETE))
                entry.CopyFrom(old)
                if kind == MODIFY:
                    entry.action.CopyFrom(self._action(known, p4info_pb2.ActionRef.DEFAULT_ONLY))
                else:
                    entry.ClearField("action")
                self.updates.append(table(kind, entry))
                continue
            entry = p4.TableEntry(table_id=known.preamble.id, priority=priorities.pop() if ordered else 0)
            for field in known.match_fields:
                self._match(entry, field)
            entry.action.CopyFrom(self._action(known, p4info_pb2.ActionRef.DEFAULT_ONLY))
            made.append(entry)
            self.updates.append(table(INSERT, entry))

    def _replication(self) -> None:
        r = self.r
        everywhere = [(port, instance) for port in PORTS for instance in (0, 1, 2, 600)]
        for number in range(1, GROUPS):
            if r.random() < 0.8:
                some = r.sample(everywhere, r.randint(1, 4))
                entry = group(number, some)
                self.updates.append(update(INSERT, packet_replication_engine_entry=entry))
        for number in range(1, SESSIONS):
            if r.random() < 0.8:
                # bmv2's server takes port 0 of a clone session for a negative number.
                some = [(port, i) for port, i in r.sample(everywhere, r.choice((1, 1, 1, 2))) if port]
                entry = session(number, some)
                self.updates.append(update(INSERT, packet_replication_engine_entry=entry))
