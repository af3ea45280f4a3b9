# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON pipelines -> IR: tables, conditionals, action calls."""

from __future__ import annotations

from typing import Any

from switch import ir
from switch.errors import LoadError
from switch.load_expr import Names, integer, known, source_of, within

MATCHES = ("exact", "lpm", "ternary", "range")


def load_pipeline(j: Any, names: Names, actions: dict[int, ir.Action]) -> ir.Pipeline:
    """All nodes of one pipeline."""
    nodes: dict[str, ir.Table | ir.Branch | ir.Invoke] = {}
    by_name: dict[str, ir.Action] = {}
    for a in actions.values():
        by_name.setdefault(a.name, a)

    def add(node: ir.Table | ir.Branch | ir.Invoke) -> None:
        if node.name in nodes:
            raise LoadError(f"node {node.name!r}", "defined twice", str(node.source))
        nodes[node.name] = node

    profiles = {p["name"]: p for p in j.get("action_profiles") or ()}
    for t in j.get("tables") or ():
        with within(f"table {t['name']!r}"):
            add(_table(t, names, actions, profiles))
    for c in j.get("conditionals") or ():
        source = source_of(c)
        with within(f"node {c['name']!r}"):
            condition = names.truth(c["expression"], (), source)
        add(ir.Branch(c["name"], condition, c.get("true_next"), c.get("false_next"), source))
    for c in j.get("action_calls") or ():
        action = actions.get(c["action_id"]) if "action_id" in c else by_name.get(c.get("action", ""))
        if action is None:
            raise LoadError(f"action call {c['name']!r}", "no such action", str(source_of(c)))
        add(ir.Invoke(c["name"], action, c.get("next_node"), source_of(c)))
    return ir.Pipeline(j["name"], j.get("init_table"), nodes)


def _table(j: Any, names: Names, actions: dict[int, ir.Action], profiles: dict[str, Any]) -> ir.Table:
    name, source = j["name"], source_of(j)
    if j.get("match_type") not in MATCHES:
        raise LoadError(f"table {name!r}", f"match type {j.get('match_type')!r} is unknown", str(source))
    keys = tuple(_key(k, names, name, source) for k in j["key"])
    if "action_ids" in j:
        own = [actions.get(i) for i in j["action_ids"]]
    else:
        own = [next((a for a in actions.values() if a.name == n), None) for n in j["actions"]]
    table_actions = tuple(a for a in own if a is not None)
    if len(table_actions) != len(own):
        raise LoadError(f"table {name!r}", "it names an action that does not exist", str(source))
    meter = None
    if j.get("direct_meters"):
        meter = names.meters.get(j["direct_meters"])
        if meter is None or not meter.direct:
            raise LoadError(f"table {name!r}", f"no direct meter {j['direct_meters']!r}", str(source))
    default: ir.Action | None = None
    args: tuple[int, ...] = ()
    const = False
    if j.get("default_entry") is not None:
        d = j["default_entry"]
        default = actions.get(d["action_id"])
        if default is None:
            raise LoadError(f"default action of {name!r}", "no such action", str(source))
        args = _data(d.get("action_data") or (), default, f"default action of {name!r}", source)
        const = bool(d.get("action_const"))
    hit, miss, after = _next(j, table_actions, source)
    entries = tuple(_entry(e, keys, actions, name) for e in j.get("entries") or ())
    return ir.Table(
        name=name,
        id=j["id"],
        match=j["match_type"],
        keys=keys,
        actions=table_actions,
        max_size=j.get("max_size", 1024),
        counters=bool(j.get("with_counters")),
        idle_timeout=bool(j.get("support_timeout")),
        meter=meter,
        profile=_profile(j, names, table_actions, profiles, source),
        default_action=default,
        default_args=args,
        default_const=const,
        entries=entries,
        immutable="entries" in j,
        next_hit=hit,
        next_miss=miss,
        next=after,
        base_next=j.get("base_default_next", j.get("base_default_next_node")),
        source=source,
    )


def _profile(
    j: Any, names: Names, actions: tuple[ir.Action, ...], profiles: dict[str, Any], source: ir.Source
) -> ir.Profile | None:
    """The action profile of an indirect table; of old, the table itself describes it."""
    kind, name = j.get("type", "simple"), j.get("action_profile", j.get("act_prof_name"))
    if kind == "simple":
        return None
    if kind not in ("indirect", "indirect_ws"):
        raise LoadError(f"table {j['name']!r}", f"its implementation {kind!r} is unknown", str(source))
    if j.get("entries"):
        raise LoadError(f"table {j['name']!r}", "const entries cannot name members of a profile", str(source))
    if name is None:
        raise LoadError(f"table {j['name']!r}", "it is indirect and names no action profile", str(source))
    if name in names.profiles:
        found = names.profiles[name]
        if {a.name: a.params for a in actions} != {a.name: a.params for a in found.actions}:
            raise LoadError(
                f"table {j['name']!r}", f"the other tables of {name!r} have other actions", str(source)
            )
    else:
        described = j if "act_prof_name" in j else known(profiles, name, f"table {j['name']!r}", "profile")
        selector = described.get("selector")
        where = source_of(described)
        calculation = None if selector is None else names.selector(f"selector of {name}", selector, where)
        found = ir.Profile(name, described.get("max_size", 1024), calculation, actions, where)
        names.profiles[name] = found
    if (kind == "indirect_ws") != (found.selector is not None):
        raise LoadError(f"table {j['name']!r}", f"its type {kind!r} does not fit {name!r}", str(source))
    return found


def _key(j: Any, names: Names, table: str, source: ir.Source) -> ir.Key:
    match, target = j.get("match_type"), j["target"]
    name = j.get("name") or (".".join(map(str, target)) if isinstance(target, list) else str(target))
    if match == "valid":
        return ir.Key(name, "exact", ir.ValidBit(names.header(target, source)), 1, None)
    if match not in MATCHES:
        raise LoadError(
            f"key {name!r} of table {table!r}", f"match kind {match!r} is not supported", str(source)
        )
    value = names.value(target, (), source) if isinstance(target, dict) else names.field(target, source)
    if not isinstance(value, ir.FieldRef | ir.ValidBit):
        raise LoadError(f"key {name!r} of table {table!r}", "it is neither field nor validity", str(source))
    if isinstance(value, ir.FieldRef) and value.field.varbit:
        raise LoadError(f"key {name!r} of table {table!r}", "a varbit cannot be matched on", str(source))
    width = value.field.width if isinstance(value, ir.FieldRef) else 1
    mask = None if j.get("mask") is None else integer(j["mask"], "key mask", source)
    return ir.Key(name, match, value, width, mask)


def _data(values: Any, action: ir.Action, what: str, source: ir.Source) -> tuple[int, ...]:
    numbers = [integer(v, what, source) for v in values]
    if len(numbers) != len(action.params):
        raise LoadError(
            what, f"{action.name} takes {len(action.params)} arguments, not {len(numbers)}", str(source)
        )
    return tuple(n & ((1 << p.width) - 1) for n, p in zip(numbers, action.params, strict=True))


def _next(
    j: Any, actions: tuple[ir.Action, ...], source: ir.Source
) -> tuple[tuple[str | None] | None, tuple[str | None] | None, dict[int, str | None]]:
    after = dict(j.get("next_tables") or {})
    hit = (after.pop("__HIT__"),) if "__HIT__" in after else None
    miss = (after.pop("__MISS__"),) if "__MISS__" in after else None
    by_id: dict[int, str | None] = {}
    for a in actions:
        if a.name in after:
            by_id[a.id] = after[a.name]
        elif hit is None:
            raise LoadError(f"table {j['name']!r}", f"no next node for action {a.name!r}", str(source))
    return hit, miss, by_id


def _entry(j: Any, keys: tuple[ir.Key, ...], actions: dict[int, ir.Action], table: str) -> ir.ConstEntry:
    source = source_of(j)
    what = f"const entry of {table!r}"
    if len(j["match_key"]) != len(keys):
        raise LoadError(what, f"{len(j['match_key'])} keys instead of {len(keys)}", str(source))
    action = actions.get(j["action_entry"]["action_id"])
    if action is None:
        raise LoadError(what, "no such action", str(source))
    args = _data(j["action_entry"].get("action_data") or (), action, what, source)
    match = tuple(_match(m, k, what, source) for m, k in zip(j["match_key"], keys, strict=True))
    return ir.ConstEntry(match, action, args, j.get("priority", 0), source)


def _match(j: Any, key: ir.Key, what: str, source: ir.Source) -> ir.Match:
    full = (1 << key.width) - 1
    kind = j.get("match_type")
    if kind == "range" and key.match == "range":
        return ir.Match(
            integer(j.get("start"), what, source) & full, integer(j.get("end"), what, source) & full
        )
    raw = j.get("key")
    value = int(raw) if isinstance(raw, bool) else integer(raw, what, source) & full
    if kind in ("exact", "valid") and key.match == "exact":
        return ir.Match(value, full)
    if kind == "lpm" and key.match == "lpm":
        length = j.get("prefix_length")
        if length is None or not 0 <= length <= key.width:
            raise LoadError(what, f"prefix length {length} of a {key.width}-bit key", str(source))
        mask = full ^ ((1 << (key.width - length)) - 1)
        return ir.Match(value & mask, mask, length)
    if kind == "ternary" and key.match == "ternary":
        mask = integer(j.get("mask"), what, source) & full
        return ir.Match(value & mask, mask)
    raise LoadError(what, f"match kind {kind!r} for a key of kind {key.match!r}", str(source))
