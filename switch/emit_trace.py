# SPDX-License-Identifier: Apache-2.0
"""The calls that a traced program makes to report what it does (runtime/trace.h); a plain one has none."""

from __future__ import annotations

from switch import ir
from switch.emit_code import Block, limbs


class Trace:
    """Emits events, or nothing where `on` is false."""

    def __init__(self, program: ir.Program, *, on: bool) -> None:
        self.on = on
        self._nodes = {id(n): i for i, n in enumerate(nodes(program))}
        self._tables = {name: i for i, name in enumerate(program.tables)}

    def event(self, b: Block, kind: str, first: str | int = 0, second: str | int = 0) -> None:
        """One event; `first` and `second` are C expressions."""
        if self.on:
            b.line(f"SW_TRACE(s, {kind}, {first}, {second});")

    def table(self, b: Block, t: ir.Table, words: int) -> None:
        """A table was looked up: `e` is its entry, `key` the key."""
        if self.on:
            index = self._tables[t.name]
            b.line(f"SW_TRACE_WORDS(s, TABLE, {index}, e != NULL ? e->handle : 0, key, {words});")

    def action(self, b: Block, a: ir.Action, args: str) -> None:
        """An action begins."""
        if self.on:
            n = sum(limbs(p.width) for p in a.params)
            b.line(f"SW_TRACE_WORDS(s, ACTION, {a.id}, 0, {args}, {n if args != 'NULL' else 0});")

    def condition(self, b: Block, node: ir.Branch, condition: str) -> str:
        """The condition, reported."""
        if not self.on:
            return condition
        b.line(f"const bool outcome = {condition};")
        self.event(b, "CONDITION", self._nodes[id(node)], "outcome")
        return "outcome"


def nodes(program: ir.Program) -> list[ir.Table | ir.Branch | ir.Invoke]:
    """All nodes of both pipelines; events give their place in this list."""
    return [*program.ingress.nodes.values(), *program.egress.nodes.values()]
