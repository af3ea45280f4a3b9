# SPDX-License-Identifier: Apache-2.0
"""The parser's value sets of a device."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

from switch import ir
from switch.emit_code import limbs
from switch.errors import BadKey, DeviceError, DuplicateEntry, NoSuchObject, TableFull
from switch.library import split, words
from switch.matching import normal, value_mask
from switch.values import MatchValue, Range

SetMember = tuple[MatchValue, ...]


class ValueSets:
    """What is in each value set."""

    def __init__(
        self, program: ir.Program, lib: ctypes.CDLL, handle: Callable[[], int], lock: threading.RLock
    ) -> None:
        self._lib = lib
        self._sw = handle
        self._lock = lock
        self._sets = program.parser.value_sets
        self._members: dict[str, tuple[SetMember, ...]] = {}

    def restart(self) -> None:
        """Nothing is in any. The C side is empty."""
        with self._lock:
            self._members.clear()

    def get(self, name: str) -> tuple[SetMember, ...]:
        """See SwitchDevice.value_set_get."""
        with self._lock:
            self._known(name)
            return self._members.get(name, ())

    def set(self, name: str, members: Sequence[Sequence[MatchValue]]) -> None:
        """See SwitchDevice.value_set."""
        with self._lock:
            v = self._known(name)
            wanted = tuple(self._checked(v, m) for m in members)
            if len(set(wanted)) != len(wanted):
                raise DuplicateEntry(f"value set {name!r}: a member is there twice")
            if len(wanted) > v.max_size:
                raise TableFull(f"value set {name!r} holds {v.max_size} members, not {len(wanted)}")
            packed = [word for member in wanted for word in _pack(v, member)]
            if self._lib.sw_vset_set(self._sw(), v.id, words(packed), len(wanted)):
                raise DeviceError(f"no memory for the members of value set {name!r}")
            self._members[name] = wanted

    def _known(self, name: str) -> ir.ValueSet:
        v = self._sets.get(name)
        if v is None:
            have = ", ".join(sorted(self._sets)) or "none"
            raise NoSuchObject(f"no value set {name!r}: there are {have}")
        return v

    @staticmethod
    def _checked(v: ir.ValueSet, member: Sequence[MatchValue]) -> SetMember:
        if len(member) != len(v.widths):
            raise BadKey(
                f"members of value set {v.name!r} have {len(v.widths)} components, not {len(member)}"
            )
        return tuple(
            normal(f"component {i} of value set {v.name!r}", width, m)
            for i, (width, m) in enumerate(zip(v.widths, member, strict=True))
        )


def _pack(v: ir.ValueSet, member: SetMember) -> list[int]:
    """Masks, values, lows, highs (runtime.h)."""
    parts: list[list[int]] = [[], [], [], []]
    for width, m in zip(v.widths, member, strict=True):
        n, (value, mask) = limbs(width), value_mask(width, m)
        low, high = (m.low, m.high) if isinstance(m, Range) else (0, (1 << width) - 1)
        for part, number in zip(parts, (mask, value, low, high), strict=True):
            part += split(number, n)
    return [word for part in parts for word in part]
