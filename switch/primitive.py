# SPDX-License-Identifier: Apache-2.0
"""The registry of primitives: what each takes and the C it becomes.

A signature names the operand kinds that `check` demands:
  field  a fixed-width field to store to     varbit  a varbit field        number  a numeric expression
  header header or metadata                  stack   header or union stack union   header union
  truth-or-number, counter, meter, register, calculation, text, vector, field-or-varbit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from switch import ir
from switch.emit_code import Block
from switch.emit_expr import Expressions

Emit = Callable[["Context", Block, Any], None]


@dataclass
class Context:
    """What a primitive's emitter works with: its function's expressions, C calls of calculations."""

    expressions: Expressions
    calculation: Callable[[ir.Calculation], str]
    position: int = 0


@dataclass(frozen=True)
class Primitive:
    """A registered primitive."""

    name: str
    signature: tuple[str, ...]
    emit: Emit


PRIMITIVES: dict[str, Primitive] = {}


def primitive(name: str, *signature: str) -> Callable[[Emit], Emit]:
    """Register an emitter under its JSON name."""

    def add(emit: Emit) -> Emit:
        PRIMITIVES[name] = Primitive(name, signature, emit)
        return emit

    return add
