# SPDX-License-Identifier: Apache-2.0
"""Whether a P4Info and a bmv2 JSON are of the same program."""

from __future__ import annotations

from dataclasses import replace

from switch import ir
from switch.p4runtime.errors import invalid
from switch.p4runtime.p4info import Array, MatchKind, P4InfoView, Table


def agree(view: P4InfoView, program: ir.Program) -> None:
    """Take out of the view what the compiler took out of the program, and compare the rest.

    p4c writes P4Info before it optimizes: a table that no packet can reach is in the P4Info alone.

    Raises:
        RpcError: INVALID_ARGUMENT where the two contradict each other.
    """
    tables = program.tables
    view.tables = {i: table for i, table in view.tables.items() if table.name in tables}
    view.counters = {i: array for i, array in view.counters.items() if array.name in program.counters}
    view.meters = {i: array for i, array in view.meters.items() if array.name in program.meters}
    view.registers = {i: array for i, array in view.registers.items() if array.name in program.registers}
    view.profiles = {
        i: replace(p, tables=tuple(t for t in p.tables if t in view.tables))
        for i, p in view.profiles.items()
        if p.name in program.profiles
    }
    for profile in view.profiles.values():
        if profile.selector != (program.profiles[profile.name].selector is not None):
            raise _differ(f"{profile.name} has a selector in only one of them")
    sets = program.parser.value_sets
    view.value_sets = {
        i: replace(s, complete=len(s.fields) == len(sets[s.name].widths))
        for i, s in view.value_sets.items()
        if s.name in sets
    }
    for known in view.value_sets.values():
        widths = iter(sets[known.name].widths)
        if not all(f.bits in widths for f in known.fields):  # in their order
            raise _differ(f"the members of value set {known.name} are of different widths")
    digests = {d.name: d for d in program.digests.values()}
    view.digests = {i: d for i, d in view.digests.items() if d.name in digests}
    for digest in view.digests.values():
        if digest.kinds is not None and len(digest.kinds) != len(digests[digest.name].elements):
            raise _differ(f"digest {digest.name} has another number of values")
    for table in view.tables.values():
        _compare_table(view, table, tables[table.name])
    for array in view.counters.values():
        _compare_size(array, program.counters[array.name].size)
    for array in view.meters.values():
        _compare_size(array, program.meters[array.name].size)
    for array in view.registers.values():
        _compare_size(array, program.registers[array.name].size)


def _compare_table(view: P4InfoView, table: Table, node: ir.Table) -> None:
    kinds = ["ternary" if f.kind is MatchKind.OPTIONAL else f.kind.value for f in table.fields]
    if kinds != [key.match for key in node.keys]:
        raise _differ(
            f"table {table.name} matches {kinds} in the one, {[k.match for k in node.keys]} in the other"
        )
    if table.idle_timeout and not node.idle_timeout:
        raise _differ(f"the entries of table {table.name} time out in the P4Info only")
    implementation = view.profiles.get(table.implementation)
    names = [p.name if p is not None else "none" for p in (implementation, node.profile)]
    # A profile that the program gives no name is in the JSON alone: no entry can be written then.
    if names[0] != names[1] and not (table.implementation == 0 and node.profile is not None):
        raise _differ(
            f"table {table.name} has the action profile {names[0]} in the one, {names[1]} in the other"
        )
    for action_id in table.scopes:
        action = view.actions[action_id]
        found = node.action(action.name)
        # Of parameters without a type and without use, as P4_14 has them, the JSON knows nothing.
        if found is not None and not {p.name for p in found.params} <= {p.name for p in action.params}:
            raise _differ(
                f"action {action.name} takes {len(action.params)} parameters in the one, "
                f"{len(found.params)} in the other"
            )


def _compare_size(array: Array, size: int) -> None:
    if array.size != size:
        raise _differ(f"{array.name} has {array.size} cells in the one, {size} in the other")


def _differ(what: str) -> Exception:
    return invalid(f"P4Info and JSON are of different programs: {what}; take both from the same run of p4c")
