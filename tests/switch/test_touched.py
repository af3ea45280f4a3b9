# SPDX-License-Identifier: Apache-2.0
"""What an expression touches: no field is missed, wherever it stands in it."""

from __future__ import annotations

import pytest

from switch import ir
from switch.touched import touched

BYTE = ir.HeaderType("t", (ir.Field("f", 8),))
A, B, META = (ir.Header(i, name, BYTE, name == "m") for i, name in enumerate("abm"))
STACK = ir.Stack(0, "s", BYTE, (A, B))
UNIONS = ir.UnionStack(
    0, "u", "U", (ir.Union(0, "u0", "U", (A,), ("a",)), ir.Union(1, "u1", "U", (B,), ("a",)))
)
INDEX = ir.FieldRef(ir.HeaderRef(META), 0)
"""The index of everything below."""
ELEMENT = ir.HeaderRef(stack=STACK, index=INDEX)
UNION = ir.UnionRef(stack=UNIONS, index=INDEX)
MEMBER = ir.HeaderRef(union=UNION)
PLACES = [
    ELEMENT,
    UNION,
    MEMBER,
    *(ir.FieldRef(header, 0) for header in (ELEMENT, MEMBER)),
    *(ir.Valid(what) for what in (ELEMENT, UNION, MEMBER)),
    *(ir.ValidBit(header) for header in (ELEMENT, MEMBER)),
    *(ir.SameHeader(ir.HeaderRef(A), what) for what in (ELEMENT, UNION)),
    ir.HeaderRef(stack=STACK, index=ir.FieldRef(ELEMENT, 0)),
    ir.RegisterRef(ir.RegisterArray("r", 0, 4, 8), INDEX),
    ir.Select(ir.Valid(ELEMENT), ir.Const(1), ir.Const(2)),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
def test_an_index_is_touched_wherever_it_stands(place: object) -> None:
    assert INDEX in list(touched((ir.Const(7), (place,))))


def test_a_validity_touches_nothing() -> None:
    asked = (
        ir.Valid(ir.HeaderRef(A)),
        ir.ValidBit(ir.HeaderRef(A)),
        ir.Valid(ir.UnionRef(UNIONS.elements[0])),
    )
    assert not list(touched(asked))
