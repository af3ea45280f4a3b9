# SPDX-License-Identifier: Apache-2.0
"""FieldMatch to the device's match values and back (spec 1.4, 9.1.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from switch.device import Exact, Lpm, MatchValue, Range, Ternary
from switch.p4runtime import codec
from switch.p4runtime.errors import invalid
from switch.p4runtime.p4info import MatchField, MatchKind


def decode_all(owner: str, fields: Iterable[MatchField], matches: Iterable[Any]) -> list[MatchValue]:
    """Return the match on each of `fields`, from FieldMatch messages in any order.

    Raises:
        RpcError: INVALID_ARGUMENT; see `decode`, or a field is there twice or unknown.
    """
    given: dict[int, Any] = {}
    for match in matches:
        if match.field_id in given:
            raise invalid(f"Match field {match.field_id} of {owner} is there twice")
        given[match.field_id] = match
    key = [decode(owner, field, given.pop(field.id, None)) for field in fields]
    if given:
        raise invalid(f"Unknown field {next(iter(given))} in the match key of {owner}")
    return key


def decode(owner: str, field: MatchField, match: Any) -> MatchValue:
    """Return the match on one field; `match` is its FieldMatch, None where left out ("don't care").

    Raises:
        RpcError: INVALID_ARGUMENT for another kind of match, or one that is not of its form (spec 9.1.1).
    """
    what = f"{owner}.{field.name}"
    full = (1 << field.bits) - 1
    kind = field.kind
    if match is None:
        if kind is MatchKind.EXACT:
            raise invalid(f"Missing match on {what}: an exact field cannot be left out")
        if kind is MatchKind.LPM:
            return Lpm(0, 0)
        return Range(0, full) if kind is MatchKind.RANGE else Ternary(0, 0)
    if match.WhichOneof("field_match_type") != kind.value:
        raise invalid(
            f"Invalid match type on {what}: it is {kind.value}, not {match.WhichOneof('field_match_type')}"
        )
    if kind is MatchKind.EXACT:
        return Exact(codec.decode(match.exact.value, field.bits, what))
    if kind is MatchKind.OPTIONAL:
        return Ternary(codec.decode(match.optional.value, field.bits, what), full)
    if kind is MatchKind.LPM:
        return _lpm(what, field.bits, codec.decode(match.lpm.value, field.bits, what), match.lpm.prefix_len)
    if kind is MatchKind.TERNARY:
        value = codec.decode(match.ternary.value, field.bits, what)
        mask = codec.decode(match.ternary.mask, field.bits, what)
        if not mask:
            raise invalid(f"Mask 0 on {what}: leave the field out to match anything")
        if value & ~mask:
            raise invalid(f"Value {value:#x} on {what} has bits outside the mask {mask:#x}")
        return Ternary(value, mask)
    low = codec.decode(match.range.low, field.bits, what)
    high = codec.decode(match.range.high, field.bits, what)
    if low > high:
        raise invalid(f"Range {low}..{high} on {what} is empty")
    if low == 0 and high == full:
        raise invalid(f"The whole range on {what}: leave the field out to match anything")
    return Range(low, high)


def _lpm(what: str, bits: int, value: int, length: int) -> Lpm:
    if not 0 < length <= bits:
        why = "leave the field out to match anything" if length == 0 else f"it must lie in 1..{bits}"
        raise invalid(f"Prefix length {length} on {what}: {why}")
    if value & ((1 << (bits - length)) - 1):
        raise invalid(f"Value {value:#x} on {what} has bits beyond its prefix length {length}")
    return Lpm(value, length)


def encode(field: MatchField, value: MatchValue, message: Any) -> None:
    """Add the FieldMatch of one field to `message.match`, nothing where it matches anything."""
    if isinstance(value, Exact):
        message.match.add(field_id=field.id).exact.value = codec.encode(value.value)
    elif isinstance(value, Lpm):
        if value.prefix_len:
            lpm = message.match.add(field_id=field.id).lpm
            lpm.value, lpm.prefix_len = codec.encode(value.value), value.prefix_len
    elif isinstance(value, Range):
        if (value.low, value.high) != (0, (1 << field.bits) - 1):
            bounds = message.match.add(field_id=field.id).range
            bounds.low, bounds.high = codec.encode(value.low), codec.encode(value.high)
    elif value.mask:
        if field.kind is MatchKind.OPTIONAL:
            message.match.add(field_id=field.id).optional.value = codec.encode(value.value)
        else:
            ternary = message.match.add(field_id=field.id).ternary
            ternary.value, ternary.mask = codec.encode(value.value), codec.encode(value.mask)
