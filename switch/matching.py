# SPDX-License-Identifier: Apache-2.0
"""Match values of tables and value sets, checked and in the form in which the runtime compares them."""

from __future__ import annotations

from switch.errors import BadKey
from switch.values import Exact, Lpm, MatchValue, Range, Ternary


def normal(where: str, width: int, m: MatchValue) -> MatchValue:
    """A match value that fits a key of this width, don't-care bits cleared. Raises BadKey, naming `where`."""
    full = (1 << width) - 1
    numbers = [m.low, m.high] if isinstance(m, Range) else [m.value]
    if any(not 0 <= n <= full for n in numbers):
        raise BadKey(f"{where} has {width} bits, {m} does not fit")
    if isinstance(m, Lpm):
        if not 0 <= m.prefix_len <= width:
            raise BadKey(f"{where} has {width} bits, a prefix of {m.prefix_len} does not fit")
        return Lpm(m.value & (full ^ ((1 << (width - m.prefix_len)) - 1)), m.prefix_len)
    if isinstance(m, Ternary):
        if not 0 <= m.mask <= full:
            raise BadKey(f"{where} has {width} bits, mask {m.mask:#x} does not fit")
        return Ternary(m.value & m.mask, m.mask)
    if isinstance(m, Range) and m.low > m.high:
        raise BadKey(f"{where}: the range {m.low}..{m.high} is empty")
    return m


def value_mask(width: int, m: MatchValue) -> tuple[int, int]:
    """What the key must be under a mask; a range is compared beside it."""
    full = (1 << width) - 1
    if isinstance(m, Exact):
        return m.value, full
    if isinstance(m, Lpm):
        return m.value, full ^ ((1 << (width - m.prefix_len)) - 1)
    if isinstance(m, Ternary):
        return m.value, m.mask
    return 0, 0
