# SPDX-License-Identifier: Apache-2.0
"""Pipelines -> C: tables, branches and action calls as labels of one function per pipeline."""

from __future__ import annotations

from collections.abc import Callable

from switch import ir
from switch.alike import DIFFERS, Alike
from switch.emit_code import PARAMETERS, Block, Layout, Namer, c_comment, limbs
from switch.emit_expr import Expressions, Val, literal
from switch.emit_known import Known
from switch.emit_locals import Locals
from switch.emit_trace import Trace
from switch.widths import Bounds

SMALL_KEY = 16
"""SW_SMALL_KEY of runtime.h: bits of a key that entries are found by without a hash."""


def key_words(table: ir.Table) -> list[int]:
    """Where each key starts in a table's key words; the last item is their number."""
    at, out = 0, []
    for k in table.keys:
        out.append(at)
        at += limbs(k.width)
    return [*out, at]


def _small(table: ir.Table) -> bool:
    """Whether a table's entries stand in an array, each at its key."""
    return table.match == "exact" and len(table.keys) == 1 and table.keys[0].width <= SMALL_KEY


class Controls:
    """Emits p4_ingress and p4_egress, and the descriptions of tables."""

    def __init__(
        self,
        program: ir.Program,
        layout: Layout,
        bounds: Bounds,
        actions: dict[int, str],
        calculation: Callable[[ir.Calculation], str],
        trace: Trace,
        alike: Alike,
        known: Known,
        local: Locals,
    ) -> None:
        self.program = program
        self.local = local
        self.known = known
        self.alike = alike
        self.trace = trace
        self.calculation = calculation
        self.layout = layout
        self.bounds = bounds
        self.actions = actions
        self.table_index = {name: i for i, name in enumerate(program.tables)}
        self.exits = any(c.op == "exit" for a in program.actions.values() for c in a.body)

    def pipeline(self, p: ir.Pipeline) -> str:
        """The function of one pipeline. Nodes are emitted in an order in which all jumps go forward."""
        b = Block()
        namer = Namer()
        labels = {name: "n_" + namer(name) for name in p.nodes}
        order = self._order(p)
        if p.start is not None:
            self._goto(b, labels, p.start, order[0] if order else None)
        used = self._targets(p)
        for i, name in enumerate(order):
            node, following = p.nodes[name], order[i + 1] if i + 1 < len(order) else None
            if name in used:
                b.label(labels[name])
            b.line(f"/* {c_comment(node.name)} {c_comment(str(node.source))} */")
            with b.nest(""):
                if isinstance(node, ir.Table):
                    self._table(b, node, labels, following)
                elif isinstance(node, ir.Branch):
                    self._branch(b, node, labels, following)
                else:
                    self.trace.action(b, node.action, "NULL")
                    b.line(self._call(node.action, "NULL"))
                    self._exit(b)
                    self._goto(b, labels, node.next, following)
        text = b.text() if b.lines else ""
        unused = "    (void)s;\n    (void)k;\n    (void)h;\n" + self.local.variables(p.name)
        return f"static void p4_{p.name}({PARAMETERS}) {{\n{unused}{text}}}\n"

    @staticmethod
    def _after(node: ir.Table | ir.Branch | ir.Invoke) -> list[str | None]:
        if isinstance(node, ir.Branch):
            return [node.then, node.otherwise]
        if isinstance(node, ir.Invoke):
            return [node.next]
        edges = [*node.next.values(), node.base_next]
        return edges + [e[0] for e in (node.next_hit, node.next_miss) if e is not None]

    def _order(self, p: ir.Pipeline) -> list[str]:
        """Reachable nodes in topological order."""
        out: list[str] = []
        seen: set[str] = set()
        stack: list[tuple[str, bool]] = [(p.start, False)] if p.start is not None else []
        while stack:
            name, finished = stack.pop()
            if finished:
                out.append(name)
                continue
            if name in seen:
                continue
            seen.add(name)
            stack.append((name, True))
            stack += [(n, False) for n in self._after(p.nodes[name]) if n is not None and n not in seen]
        return out[::-1]

    def _targets(self, p: ir.Pipeline) -> set[str]:
        return {n for node in p.nodes.values() for n in self._after(node) if n is not None} | (
            {p.start} if p.start is not None else set()
        )

    def _exit(self, b: Block) -> None:
        if self.exits:
            b.line("if (k->exit) return;")

    def _call(self, action: ir.Action, args: str) -> str:
        return f"{self.actions[action.id]}(s, k, h, {args}{self.local.argument(action)});"

    @staticmethod
    def _goto(b: Block, labels: dict[str, str], target: str | None, following: str | None) -> None:
        if target is None:
            b.line("return;")
        elif target != following:
            b.line(f"goto {labels[target]};")
        else:
            b.line(f"goto {labels[target]}; /* next */")

    def _branch(self, b: Block, node: ir.Branch, labels: dict[str, str], following: str | None) -> None:
        x = Expressions(self.layout, self.bounds, node.source)
        if self.alike.reads(node.condition):
            b.line(DIFFERS)
        condition = self.trace.condition(b, node, x.truth(b, node.condition))
        with b.nest(f"if ({condition})"):
            self._goto(b, labels, node.then, None)
        self._goto(b, labels, node.otherwise, following)

    # ---- tables

    def _fixed_call(self, t: ir.Table) -> bool:
        """Whether the table is only a wrapper that p4c puts around statements."""
        bare = not t.keys and not t.entries and not t.counters and t.meter is None
        return bare and t.default_const and t.default_action is not None

    def _table(self, b: Block, t: ir.Table, labels: dict[str, str], following: str | None) -> None:
        if self._fixed_call(t):
            action = t.default_action
            assert action is not None
            if action.body:
                args = self._const_args(b, t)
                self.trace.action(b, action, args)
                b.line(self._call(action, args))
                self._exit(b)
            after = t.next_miss[0] if t.next_miss is not None else t.next[action.id]
            self._goto(b, labels, after, following)
            return
        x = Expressions(self.layout, self.bounds, t.source)
        if self.alike.table(t):
            b.line(DIFFERS)
        words = key_words(t)
        b.line(f"uint64_t key[{max(words[-1], 1)}];")
        for k, at in zip(t.keys, words, strict=False):
            self._key(x, b, k, at)
        index = self.table_index[t.name]
        b.line(f"const sw_table *t = &s->tables[{index}];")
        if not t.keys:
            b.line("(void)key;")
            b.line("sw_entry *e = NULL;")
        elif _small(t):
            b.line(f"sw_entry *e = sw_lookup_small(t, key[{words[0]}]);")
        elif t.match == "exact":
            b.line(f"sw_entry *e = sw_lookup_exact(t, key, {words[-1]});")
        else:
            b.line("sw_entry *e = sw_lookup_many(t, key);")
        if t.profile is not None:
            self._choose(b, t, t.profile)
        else:
            b.line("int64_t action = e != NULL ? (int64_t)e->action : t->default_action;")
            b.line("const uint64_t *args = e != NULL ? e->args : t->default_args;")
        self.trace.table(b, t, words[-1])
        self._on_hit(x, b, t)
        actions = list(
            {a.id: a for a in [*t.actions, *([t.default_action] if t.default_action else [])]}.values()
        )
        with b.nest("switch (action)"):
            for a in actions:
                call = self._call(a, "args") if a.body else ""
                if self.trace.on:
                    b.line(f"case {a.id}:")
                    self.trace.action(b, a, "args")
                    b.line(f"{call} break;")
                elif call:
                    b.line(f"case {a.id}: {call} break;")
            b.line("default: (void)args; break;")
        self._exit(b)
        self._next(b, t, actions, labels, following)

    def _choose(self, b: Block, t: ir.Table, profile: ir.Profile) -> None:
        """The member of the entry, or the one of its group that the selector's hash picks.

        A group without members does nothing (action_profile.cpp has its hash in 32 bits, too).
        """
        own = ", ".join(str(next(a.id for a in t.actions if a.name == p.name)) for p in profile.actions)
        b.line(f"static const uint32_t own[] = {{{own}}};")
        b.line("int64_t action = t->default_action;")
        b.line("const uint64_t *args = t->default_args;")
        with b.nest("if (e != NULL)"):
            b.line("const sw_choice *c = sw_choice_of(e);")
            pick = "0"
            if profile.selector is not None:
                pick = f"c->n > 1 ? (uint32_t){self.calculation(profile.selector)} % c->n : 0"
            b.line(f"const sw_member *m = c->n > 0 ? c->members[{pick}] : NULL;")
            b.line("action = m != NULL ? (int64_t)own[m->action] : -1;")
            b.line("args = m != NULL ? m->args : NULL;")

    def _const_args(self, b: Block, t: ir.Table) -> str:
        assert t.default_action is not None
        if not t.default_args:
            return "NULL"
        words = []
        for p, v in zip(t.default_action.params, t.default_args, strict=True):
            words += [literal(v >> 64 * i, 64) for i in range(limbs(p.width))]
        b.line(f"static const uint64_t constants[] = {{{', '.join(words)}}};")
        return "constants"

    def _key(self, x: Expressions, b: Block, k: ir.Key, at: int) -> None:
        n = limbs(k.width)
        if isinstance(k.value, ir.ValidBit):
            b.line(f"key[{at}] = {x.validity(b, k.value.header)};")
            return
        # a key of an invalid header reads as zero (match_units.cpp, MatchKeyBuilder)
        valid = x.validity(b, k.value.header)
        place = x.field(b, k.value)
        for i in range(n):
            word = f"(uint64_t){place}" if n == 1 and k.width <= 64 else f"{place}[{i}]"
            if k.mask is not None:
                word = f"({word} & {literal(k.mask >> 64 * i, 64)})"
            b.line(f"key[{at + i}] = {word if valid == '1' else f'{valid} ? {word} : 0'};")

    def _on_hit(self, x: Expressions, b: Block, t: ir.Table) -> None:
        if not (t.counters or t.meter is not None or t.idle_timeout):
            return
        # simple_switch leaves the default entry out: it counts here, and meters where it was configured
        with b.nest(""):
            b.line("sw_entry *r = e != NULL ? e : t->miss;")
            if t.counters:
                b.line("r->packets++;")
                b.line("r->bytes += k->ingress_len;")
                b.line("sw_tally(s, &r->packets, &r->bytes);")
            if t.idle_timeout:
                b.line("r->last_hit_us = s->now_us;")
            if t.meter is not None:
                assert t.meter.target is not None
                units = "k->ingress_len" if t.meter.octets else "1"
                call = f"(uint64_t)sw_meter_run(r->meter, s->now_us, {units}, k)"
                with b.nest("if (e != NULL || r->meter->configured)"):
                    x.store_val(b, x.field(b, t.meter.target), t.meter.target.field.width, Val(call, 64, 2))
                    self.known.change(b, t.meter.target.header.header)

    def _next(
        self, b: Block, t: ir.Table, actions: list[ir.Action], labels: dict[str, str], following: str | None
    ) -> None:
        hit_edges = set(t.next.values()) if t.next_hit is None else {t.next_hit[0]}
        miss_edges = (set(t.next.values()) | {t.base_next}) if t.next_miss is None else {t.next_miss[0]}
        if len(hit_edges | miss_edges) == 1:
            self._goto(b, labels, next(iter(hit_edges | miss_edges)), following)
            return
        if t.next_miss is not None:
            with b.nest("if (e == NULL)"):
                self._goto(b, labels, t.next_miss[0], None)
        if t.next_hit is not None:
            if t.next_miss is not None:
                self._goto(b, labels, t.next_hit[0], following)
                return
            with b.nest("if (e != NULL)"):
                self._goto(b, labels, t.next_hit[0], None)
        with b.nest("switch (action)"):
            for a in actions:
                if a.id in t.next:
                    b.line(f"case {a.id}: {self._jump(labels, t.next[a.id])}")
            b.line(f"default: {self._jump(labels, t.base_next)}")

    @staticmethod
    def _jump(labels: dict[str, str], target: str | None) -> str:
        return "return;" if target is None else f"goto {labels[target]};"

    def descriptions(self) -> str:
        """The static description of each table for the runtime."""
        out, rows = [], []
        kinds = {"exact": "SW_EXACT", "lpm": "SW_LPM", "ternary": "SW_TERNARY", "range": "SW_RANGE"}
        for name, i in self.table_index.items():
            t = self.program.tables[name]
            words = key_words(t)
            ranges = [
                (at, limbs(k.width)) for k, at in zip(t.keys, words, strict=False) if k.match == "range"
            ]
            place = "NULL"
            if ranges:
                place = f"ranges_{i}"
                items = ", ".join(f"{{{at}, {n}}}" for at, n in ranges)
                out.append(f"static const sw_range_desc {place}[] = {{{items}}};")
            meter = 0 if t.meter is None else 2 if t.meter.octets else 1
            row = f"{{{words[-1]}, {kinds[t.match]}, {len(ranges)}, {meter}, {int(_small(t))}, {place}}}"
            rows.append(f"    {row}, /* {c_comment(name)} */")
        out.append("static const sw_table_desc table_descs[] = {")
        out += [*rows, "    {0, SW_EXACT, 0, 0, 0, NULL}", "};"]
        return "\n".join(out) + "\n"
