# SPDX-License-Identifier: Apache-2.0
"""One all-reduce as a stream of packets, numbered from 0: headers, then values (protocol.md, The packet).

    position   0 .. H-1        header packets: what every rank called
    int32      H .. H+N-1      chunk c's values at H+c
    floats     H .. H+B+N-1    chunk c's exponent at H+c, its values at H+B+c, B = min(L, N)

No I/O and no clock here: `fill` writes the packets of a range, `deliver` takes results in any order. Floats
other than float32 are float32 on the way, a burst at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED, MSG_CONTRIBUTION
from wire.membership import Membership
from wire.packet import Packets, kind

from .calls import CALL_VALUES, Call, compare_calls, header_packets
from .errors import MismatchError, NonFiniteError
from .kernels import Chunks, Indexes, Kernels


class Operation:
    """One all-reduce call of one rank.

    `number` is the job's count of all-reduces before this one, `chunk` the number of its first packet (mod
    2^32). The call's memory is read and written until the last result, and not kept.
    """

    def __init__(self, call: Call, number: int, chunk: int, membership: Membership, kernels: Kernels) -> None:
        self._call, self._kernels = call, kernels
        self._first_chunk = chunk
        self._n, self._rank, self._elements = membership.n, membership.rank, membership.elements
        self._divisor = 1 if call.op == "mean" else membership.n
        self._tensor = number % 256
        self._output = Chunks(call.target, membership.elements)
        self.chunks = self._output.count
        self.headers = header_packets(membership.n, membership.elements)
        self._ahead = min(membership.lead, self.chunks) if call.is_float else 0
        self.length = self.headers + self._ahead + self.chunks
        of_floats = self.chunks if call.is_float else 0
        self._exponents = np.full(of_floats, EXPONENT_UNUSED, np.int8)
        self._own_unsendable = np.zeros(of_floats, np.bool_)
        self._unsendable = np.zeros(of_floats, np.bool_)
        self._own_call = call.header(number)
        self._calls = np.zeros((self.headers, membership.elements), np.int32)
        self._headers_missing = self.headers
        self.mismatch: MismatchError | None = None

    def ready(self, answered: int) -> int:
        """Return the end of what can be filled when positions 0..answered-1 have their results."""
        if not self._call.is_float:
            return self.length
        return min(self.length, max(answered, self.headers) + self._ahead)

    def fill(self, packets: Packets, first: int) -> None:
        """Write the packets of positions first, first+1, ... (all but `place`)."""
        last = first + len(packets)
        self._kernels.fill_heads(
            packets, kind(MSG_CONTRIBUTION, 0, self._elements), self._tensor, self._first_chunk + first
        )
        self._part(packets, first, 0, self.headers, self._fill_headers)
        if not self._call.is_float:
            self._part(packets, first, self.headers, last, self._fill_int32)
            return
        begin = self.headers + self._ahead
        self._part(packets, first, self.headers, self.headers + self.chunks, self._fill_exponents)
        self._part(packets, first, self.headers, begin, self._fill_nothing)
        self._part(packets, first, begin, last, self._fill_floats)

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

    def _fill_int32(self, packets: Packets, low: int, _high: int) -> None:
        self._kernels.fill_int32(self._call.source, low, packets)

    def _fill_exponents(self, packets: Packets, low: int, high: int) -> None:
        values, first = self._float32(low, high)
        self._kernels.fill_exponents(values, first, packets, self._own_unsendable[low:high])

    def _fill_nothing(self, packets: Packets, _low: int, _high: int) -> None:
        packets["values"] = 0

    def _fill_floats(self, packets: Packets, low: int, high: int) -> None:
        values, first = self._float32(low, high)
        exponents, unsendable = self._exponents[low:high], self._own_unsendable[low:high]
        self._kernels.fill_quantized(values, first, exponents, unsendable, self._n, packets)

    def _float32(self, low: int, high: int) -> tuple[NDArray[np.float32], int]:
        """Return an array of float32 and the chunk of it at which the input's chunks low..high-1 begin."""
        source = self._call.source
        if source.dtype == np.float32:
            return source, low
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # infinity is told as such
            return source[low * self._elements : high * self._elements].astype(np.float32), 0

    def deliver(self, positions: Indexes, packets: Packets, picked: Indexes) -> None:
        """Take packets[picked[i]] as the result of positions[i], each once; the headers set `mismatch`."""
        if self._headers_missing:
            positions, picked = self._deliver_headers(positions, packets, picked)
        places = positions - self.headers
        if not self._call.is_float:
            self._kernels.deliver_int32(self._call.target, packets, picked, places)
            return
        self._kernels.deliver_exponents(packets, picked, places, self._exponents, self._unsendable)
        places -= self._ahead
        if self._call.target.dtype == np.float32:
            self._deliver_float32(self._call.target, packets, picked, places, self._exponents)
            return
        with_values = places >= 0
        picked, places = picked[with_values], places[with_values]
        rows = np.empty((len(picked), self._elements), np.float32)
        self._deliver_float32(
            rows.reshape(-1), packets, picked, np.arange(len(picked)), self._exponents[places]
        )
        with np.errstate(over="ignore", under="ignore"):
            self._output.store(places, rows.astype(self._call.dtype))

    def _deliver_float32(
        self,
        values: NDArray[np.float32],
        packets: Packets,
        picked: Indexes,
        chunks: Indexes,
        exponents: NDArray[np.int8],
    ) -> None:
        self._kernels.deliver_quantized(values, packets, picked, chunks, exponents, self._divisor)

    def _deliver_headers(
        self, positions: Indexes, packets: Packets, picked: Indexes
    ) -> tuple[Indexes, Indexes]:
        """Take the headers' results, and return the others."""
        is_header = positions < self.headers
        self._calls[positions[is_header]] = packets["values"][picked[is_header]]
        self._headers_missing -= int(is_header.sum())
        if not self._headers_missing:
            calls = self._calls.reshape(-1)[: CALL_VALUES * self._n].reshape(self._n, CALL_VALUES)
            self.mismatch = compare_calls(calls)
        return positions[~is_header], picked[~is_header]

    def result(self) -> NDArray[Any]:
        """Return the output, once all is here; raises MismatchError or NonFiniteError."""
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
        return self._call.result()
