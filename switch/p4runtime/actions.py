# SPDX-License-Identifier: Apache-2.0
"""Action messages to the device's action names and arguments, and back (spec 1.4, 9.1.2)."""

from __future__ import annotations

from collections.abc import Container, Iterable

from p4.v1 import p4runtime_pb2

from switch.p4runtime import codec
from switch.p4runtime.errors import invalid, precondition
from switch.p4runtime.p4info import P4InfoView


def decode(
    view: P4InfoView, action: p4runtime_pb2.Action, allowed: Container[int], owner: str
) -> tuple[str, list[int]]:
    """Return name and arguments of an action; `owner` is what takes only the `allowed` ones.

    Raises:
        RpcError: INVALID_ARGUMENT for another action, or parameters that are not the action's.
    """
    chosen = view.action(action.action_id)
    if chosen.id not in allowed:
        raise invalid(f"{owner} does not have the action {chosen.name}")
    given = {param.param_id: param.value for param in action.params}
    if len(given) != len(action.params) or given.keys() != {param.id for param in chosen.params}:
        need = ", ".join(f"{param.id} ({param.name})" for param in chosen.params) or "none"
        raise invalid(f"Unexpected parameters {sorted(given)} of {chosen.name}: it takes {need}")
    args = [
        codec.decode(given[param.id], param.bits, f"{chosen.name}.{param.name}") for param in chosen.params
    ]
    return chosen.name, args


def find(view: P4InfoView, ids: Iterable[int], name: str, owner: str) -> int:
    """Return the id, among these, of the action of this name; FAILED_PRECONDITION if the P4Info has none."""
    for action_id in ids:
        if view.actions[action_id].name == name:
            return action_id
    raise precondition(f"The P4Info does not list {name} for {owner}; is it of another program?")


def encode(view: P4InfoView, action_id: int, args: Iterable[int], message: p4runtime_pb2.Action) -> None:
    """Write an action and its arguments into a message."""
    message.action_id = action_id
    for param, value in zip(view.actions[action_id].params, args, strict=True):
        message.params.add(param_id=param.id, value=codec.encode(value))
