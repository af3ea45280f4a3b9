# SPDX-License-Identifier: Apache-2.0
"""What an expression or operation touches of a packet."""

from __future__ import annotations

from collections.abc import Iterator

from switch import ir


def touched(x: object) -> Iterator[object]:
    """Every field, header and payload that is touched inside an expression, place, calculation or operand."""
    todo = [x]
    while todo:
        part = todo.pop()
        if isinstance(part, ir.FieldRef):
            yield part
            todo.append(part.header.index)
        elif isinstance(part, ir.HeaderRef | ir.UnionRef | ir.Payload):
            yield part
        elif not isinstance(part, ir.Valid | ir.ValidBit):
            todo += ir.inside(part)
