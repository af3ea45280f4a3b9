# SPDX-License-Identifier: Apache-2.0
"""One all-reduce as a stream of packets, numbered from 0: headers, then values (DESIGN.md, Packet format).

    position   0 .. H-1        header packets: what every rank called
    int32      H .. H+N-1      chunk c's values at H+c
    float32    H .. H+B+N-1    chunk c's exponent at H+c, its values at H+B+c, B = min(L, N)

No I/O and no clock here: `fill` writes the packets of a range, `deliver` takes results in any order.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED, MSG_CONTRIBUTION
from wire.membership import Membership
from wire.packet import Packets, kind

from .errors import MismatchError, NonFiniteError, UnsupportedError
from .quantize import chunk_exponents, dequantize, quantize

OPS = {"sum": 1}
"""Operations by name; the number is the low byte of a header's first value."""
DTYPES = {np.dtype(np.float32): 1, np.dtype(np.int32): 2}
"""Element types; the number is the second byte of a header's first value."""
CALL_VALUES = 4
"""Header values a rank: dtype and op, element count, all-reduce number, digest of the shape."""


def header_packets(n: int, elements: int) -> int:
    """Return H, the header packets of an all-reduce of n ranks."""
    return -(-CALL_VALUES * n // elements)


def shape_digest(shape: tuple[int, ...]) -> int:
    """Return the CRC-32 of the shape's dimensions as 64-bit big-endian numbers."""
    return zlib.crc32(struct.pack(f">{len(shape)}Q", *shape))


def describe_call(values: NDArray[np.int32]) -> str:
    """Say in words what the four header values of one rank mean."""
    code, count, number, digest = (int(v) & 0xFFFFFFFF for v in values)
    dtype = next((str(d) for d, c in DTYPES.items() if c == code >> 8), f"dtype {code >> 8}")
    op = next((o for o, c in OPS.items() if c == code & 0xFF), f"op {code & 0xFF}")
    return f"{op} of {count} {dtype} (shape {digest:08x}) as all-reduce {number}"


class _Chunks:
    """A flat array as rows of `elements` values, the last row filled up with zeros; copies only that row."""

    def __init__(self, flat: NDArray[Any], elements: int) -> None:
        self.count = -(-flat.size // elements)
        full = flat.size // elements
        self._full = flat[: full * elements].reshape(full, elements)
        self._tail = np.zeros((self.count - full, elements), flat.dtype)
        self._tail.reshape(-1)[: flat.size - full * elements] = flat[full * elements :]

    def rows(self, first: int, last: int) -> NDArray[Any]:
        """Return chunks first..last-1 as (k, elements), a view where no filled-up row is among them."""
        full = len(self._full)
        if last <= full:
            return self._full[first:last]
        return np.concatenate([self._full[first:], self._tail[max(0, first - full) : last - full]])


class Operation:
    """One all-reduce call of one rank.

    array: float32 or int32 of any shape, not changed and not kept after the last `fill`. `number` is
    the job's count of all-reduces before this one. Raises UnsupportedError for another dtype or op.
    """

    def __init__(self, array: NDArray[Any], op: str, number: int, membership: Membership) -> None:
        if op not in OPS:
            raise UnsupportedError(f"all_reduce op {op!r} is not known; use one of {', '.join(OPS)}")
        if array.dtype not in DTYPES:
            wanted = " or ".join(str(d) for d in DTYPES)
            raise UnsupportedError(
                f"all_reduce of {array.dtype} is not supported; "
                f"convert the array to {wanted} (native byte order) first"
            )
        self._shape, self._dtype = array.shape, array.dtype
        self._n, self._rank, self._elements = membership.n, membership.rank, membership.elements
        self._tensor = number % 256
        self._input = _Chunks(np.ascontiguousarray(array).reshape(-1), membership.elements)
        self.chunks = self._input.count
        self._output = np.empty((self.chunks, membership.elements), array.dtype)
        self.headers = header_packets(membership.n, membership.elements)
        self._is_float = array.dtype == np.float32
        self._ahead = min(membership.lead, self.chunks) if self._is_float else 0
        self.length = self.headers + self._ahead + self.chunks
        self._exponents = np.full(self.chunks, EXPONENT_UNUSED, np.int8)
        self._own_unsendable = np.zeros(self.chunks, np.bool_)
        self._unsendable = np.zeros(self.chunks, np.bool_)
        self._own_call = np.array(
            [
                DTYPES[array.dtype] << 8 | OPS[op],
                array.size & 0xFFFFFFFF,
                number & 0xFFFFFFFF,
                shape_digest(array.shape),
            ],
            np.uint32,
        ).view(np.int32)
        self._calls = np.zeros((self.headers, membership.elements), np.int32)
        self._headers_missing = self.headers
        self.mismatch: MismatchError | None = None

    def ready(self, answered: int) -> int:
        """Return the end of what can be filled when positions 0..answered-1 have their results."""
        if not self._is_float:
            return self.length
        return min(self.length, max(answered, self.headers) + self._ahead)

    def fill(self, packets: Packets, first: int) -> None:
        """Write the packets of positions first, first+1, ... (all but `chunk` and `place`)."""
        last = first + len(packets)
        packets["tensor"] = self._tensor
        packets["e0"] = EXPONENT_UNUSED
        packets["e1"] = EXPONENT_UNUSED
        self._part(packets, first, 0, self.headers, self._fill_headers)
        values = packets[max(0, self.headers - first) :]
        values["kind"] = kind(MSG_CONTRIBUTION, 0, self._elements)
        if not self._is_float:
            self._part(packets, first, self.headers, last, self._fill_int32)
            return
        begin = self.headers + self._ahead
        self._part(packets, first, self.headers, self.headers + self.chunks, self._fill_exponents)
        self._part(packets, first, self.headers, begin, self._fill_nothing)
        self._part(packets, first, begin, last, self._fill_float32)

    @staticmethod
    def _part(
        packets: Packets, first: int, begin: int, end: int, fill: Callable[[Packets, int, int], None]
    ) -> None:
        """Call `fill` with the packets at positions begin..end-1 and these positions, relative to begin."""
        low, high = max(begin, first), min(end, first + len(packets))
        if low < high:
            fill(packets[low - first : high - first], low - begin, high - begin)

    def _fill_headers(self, packets: Packets, low: int, high: int) -> None:
        packets["kind"] = kind(MSG_CONTRIBUTION, 1, self._elements)
        values = np.zeros((self.headers, self._elements), np.int32)
        values.reshape(-1)[CALL_VALUES * self._rank :][:CALL_VALUES] = self._own_call
        packets["values"] = values[low:high]

    def _fill_int32(self, packets: Packets, low: int, high: int) -> None:
        packets["values"] = self._input.rows(low, high)

    def _fill_exponents(self, packets: Packets, low: int, high: int) -> None:
        exponents, sendable = chunk_exponents(self._input.rows(low, high))
        packets["e0"] = exponents
        packets["e1"] = np.where(sendable, EXPONENT_UNUSED, 0)
        self._own_unsendable[low:high] = ~sendable

    def _fill_nothing(self, packets: Packets, low: int, high: int) -> None:
        packets["values"] = 0

    def _fill_float32(self, packets: Packets, low: int, high: int) -> None:
        rows = self._input.rows(low, high)
        unsendable = self._own_unsendable[low:high]
        if unsendable.any():
            rows = np.where(unsendable[:, np.newaxis], np.float32(0), rows)
        quantize(rows, self._exponents[low:high], self._n, packets["values"])

    def deliver(self, positions: NDArray[np.int64], packets: Packets) -> None:
        """Take results, each position once, in any order; sets `mismatch` when the headers show one."""
        if self._headers_missing:
            is_header = positions < self.headers
            self._calls[positions[is_header]] = packets["values"][is_header]
            self._headers_missing -= int(is_header.sum())
            if not self._headers_missing:
                self.mismatch = self._compare_calls()
            positions, packets = positions[~is_header], packets[~is_header]
        places = positions - self.headers
        if not self._is_float:
            self._output[places] = packets["values"]
            return
        is_exponent = places < self.chunks
        known = places[is_exponent]
        self._exponents[known] = packets["e0"][is_exponent]
        self._unsendable[known] = packets["e1"][is_exponent] != EXPONENT_UNUSED
        places = places - self._ahead
        has_values = places >= 0
        if has_values.all():
            values = packets["values"]
        else:
            places, values = places[has_values], packets["values"][has_values]
        self._output[places] = dequantize(values, self._exponents[places], self._n)

    def result(self) -> NDArray[Any]:
        """Return the sum in the caller's shape, once all is here; raises MismatchError or NonFiniteError."""
        if self.mismatch is not None:
            raise self.mismatch
        if self._unsendable.any():
            first = int(self._unsendable.argmax())
            raise NonFiniteError(
                int(self._unsendable.sum()),
                first * self._elements,
                self._elements,
                bool(self._own_unsendable.any()),
            )
        size = int(np.prod(self._shape))
        return self._output.reshape(-1)[:size].reshape(self._shape)

    def _compare_calls(self) -> MismatchError | None:
        calls = self._calls.reshape(-1)[: CALL_VALUES * self._n].reshape(self._n, CALL_VALUES)
        if (calls == calls[0]).all():
            return None
        keys = [row.tobytes() for row in calls]
        words = [describe_call(row) for row in calls]
        common, count = Counter(keys).most_common(1)[0]
        if 2 * count <= self._n:
            return MismatchError(list(range(self._n)), words, None)
        differing = [r for r, key in enumerate(keys) if key != common]
        return MismatchError(differing, words, words[keys.index(common)])
