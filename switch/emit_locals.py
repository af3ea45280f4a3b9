# SPDX-License-Identifier: Apache-2.0
"""Metadata that lives in one block of the program only, as local variables of that block.

p4c makes a metadata field of each local variable and temporary of a program. One that only the parser, only
ingress or only egress touches is zero when the block begins and nobody's afterwards: kept in the block's
frame instead of the packet, the compiler has it in a register, and no copy of a packet carries it. Fields of
more than 64 bits stay in the packet: arrays would keep all others in memory.
"""

from __future__ import annotations

from switch import ir
from switch.touched import touched

BLOCKS = ("parser", "ingress", "egress")
# functions that touch a block's variables are compiled into it where called once, or not longer than this: a
# variable whose address is passed on stays in memory
SHORT = 16

Code = ir.Action | ir.Calculation


class Locals:
    """Which fields these are, and which functions touch them."""

    def __init__(self, program: ir.Program, targets: set[str]) -> None:
        """`targets` names the headers that the target itself reads and writes."""
        self._calls: dict[Code, int] = {}
        for block in BLOCKS:
            for user in _users(program, block):
                self._calls[user] = self._calls.get(user, 0) + 1
        users: dict[tuple[int, int], set[str]] = {}
        whole: set[int] = set()  # ids of headers that are copied, compared or summed as a whole
        uncalled = tuple(c for c in program.calculations.values() if c not in self._calls)
        for block, code in _code(program).items():
            for part in touched(code if block else (code, uncalled)):
                if isinstance(part, ir.FieldRef) and part.header.header is not None:
                    users.setdefault((part.header.header.id, part.index), set()).add(block)
                elif isinstance(part, ir.HeaderRef) and part.header is not None:
                    whole.add(part.header.id)
        many = {h.id for s in program.stacks.values() for h in s.elements}
        many |= {h.id for u in program.unions.values() for h in u.members}
        self.blocks: dict[tuple[int, int], str] = {}
        """Block of each such field, by header id and index."""
        for h in program.headers.values():
            if not h.metadata or h.name in targets or h.id in whole | many:
                continue
            for i, f in enumerate(h.type.fields):
                found = users.get((h.id, i), set())
                if len(found) == 1 and found <= set(BLOCKS) and not f.varbit and f.width <= 64:
                    self.blocks[h.id, i] = next(iter(found))
        self._of: dict[Code, str | None] = {}

    def block(self, code: Code) -> str | None:
        """The block whose variables an action or calculation touches."""
        if code not in self._of:
            self._of[code] = next(
                (
                    block
                    for part in touched(code)
                    if isinstance(part, ir.FieldRef)
                    and part.header.header is not None
                    and (block := self.blocks.get((part.header.header.id, part.index))) is not None
                ),
                None,
            )
        return self._of[code]

    def head(self, code: Code) -> str:
        """C: how the definition of an action's or calculation's function begins."""
        if self.block(code) is None:
            return "static"
        length = len(code.body if isinstance(code, ir.Action) else code.inputs)
        if self._calls.get(code, 0) <= 1 or length <= SHORT:
            return "SW_INLINE"
        return "static"

    def parameter(self, code: Code) -> str:
        """C: the function's further parameter, or nothing."""
        block = self.block(code)
        return f", {block}_locals *l" if block is not None else ""

    def argument(self, code: Code) -> str:
        """C: the further argument of a call, or nothing."""
        return ", l" if self.block(code) is not None else ""

    def variables(self, block: str) -> str:
        """C: what a block declares."""
        if block not in self.blocks.values():
            return ""
        return f"    {block}_locals own = {{0}}, *const l = &own;\n    (void)l;\n"


def _code(program: ir.Program) -> dict[str, object]:
    """All that touches fields, by block; "" is for what belongs to none."""
    parser = [(s.ops, s.key) for s in program.parser.states.values()]
    return {
        "parser": (tuple(parser), tuple(k for k in program.checksums if k.verify)),
        "ingress": tuple(program.ingress.nodes.values()),
        "egress": tuple(program.egress.nodes.values()),
        "": (
            tuple(k for k in program.checksums if k.update),
            program.deparser.body,
            tuple(program.field_lists.values()),
            tuple(program.digests.values()),
        ),
    }


def _users(program: ir.Program, block: str) -> list[Code]:
    """The actions and calculations that a block calls, once for each place where it does."""
    calls: list[Code] = []
    todo: list[object] = [_code(program)[block]]
    while todo:
        part = todo.pop()
        if isinstance(part, ir.Table):
            calls += {a.id: a for a in (*part.actions, part.default_action) if a is not None}.values()
            if part.profile is not None and part.profile.selector is not None:
                calls.append(part.profile.selector)
        elif isinstance(part, ir.Invoke):
            calls.append(part.action)
        elif isinstance(part, ir.Calculation):
            calls.append(part)
        elif isinstance(part, tuple | ir.Call | ir.Checksum):
            todo += ir.inside(part)
    bodies = [a.body for a in {id(c): c for c in calls if isinstance(c, ir.Action)}.values()]
    calls += [x for body in bodies for call in body for x in call.args if isinstance(x, ir.Calculation)]
    return calls
