# SPDX-License-Identifier: Apache-2.0
"""An action and its arguments: checked as control calls give them, and in the words of the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from switch import ir
from switch.emit_code import limbs
from switch.errors import BadAction
from switch.library import split


def checked(
    owner: str, actions: Sequence[ir.Action], name: str, args: Sequence[int]
) -> tuple[ir.Action, tuple[int, ...]]:
    """The action of this name and its arguments. Raises BadAction, in which `owner` says whose it is."""
    action = next((a for a in actions if a.name == name), None)
    if action is None:
        have = ", ".join(a.name for a in actions)
        raise BadAction(f"{owner} has no action {name!r}: it has {have}")
    if len(args) != len(action.params):
        raise BadAction(f"action {name!r} takes {len(action.params)} arguments, not {len(args)}")
    for p, v in zip(action.params, args, strict=True):
        if not 0 <= v < 1 << p.width:
            raise BadAction(f"argument {p.name!r} of action {name!r} has {p.width} bits, {v} does not fit")
    return action, tuple(int(v) for v in args)


def pack(action: ir.Action, args: tuple[int, ...]) -> list[int]:
    """The arguments in 64-bit words, each from a word of its own, least significant first."""
    out: list[int] = []
    for p, v in zip(action.params, args, strict=True):
        out += split(v, limbs(p.width))
    return out
