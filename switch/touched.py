# SPDX-License-Identifier: Apache-2.0
"""What an expression or operation touches of a packet."""

from __future__ import annotations

from collections.abc import Iterator

from switch import ir


def touched(x: object) -> Iterator[object]:
    """All fields, headers, unions and payloads touched inside an expression, place, calculation or operand.

    Of an element of a stack its index, too. A validity is none of them, but the index of whose it is may be.
    """
    todo = [x]
    while todo:
        part = todo.pop()
        if isinstance(part, ir.FieldRef):
            yield part
            todo.append(_index(part.header))
        elif isinstance(part, ir.HeaderRef | ir.UnionRef):
            yield part
            todo.append(_index(part))
        elif isinstance(part, ir.Payload):
            yield part
        elif isinstance(part, ir.Valid):
            todo.append(_index(part.what))
        elif isinstance(part, ir.ValidBit):
            todo.append(_index(part.header))
        else:
            todo += ir.inside(part)


def _index(place: ir.HeaderRef | ir.UnionRef) -> ir.Expr | None:
    """Which element of a stack it is, or lies in."""
    if isinstance(place, ir.HeaderRef) and place.union is not None:
        return place.union.index
    return place.index
