# SPDX-License-Identifier: Apache-2.0
"""One all-reduce as a stream of packets, numbered from 0: headers, then values (kernels.Stream).

No I/O and no clock here: `fill` writes the packets of a range, `deliver` takes results in any order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.constants import MSG_CONTRIBUTION
from wire.membership import Membership
from wire.packet import Packets, kind

from .calls import CALL_VALUES, DTYPES, Call, compare_calls, header_packets
from .errors import MismatchError, NonFiniteError, WorkerError
from .kernels import UNKNOWN, Flags, Indexes, Kernels, Stream, Tensors, address
from .stats import Stats


class Operation(ctypes.Structure):
    """One all-reduce call of one rank. C sees a struct operation (kernel.h).

    `number` is the job's count of all-reduces before this one, `chunk` the number of its first packet,
    `start` the same as the engine counts. The call's memory is read and written until the last result, and
    not kept. Its engine keeps the public fields.
    """

    start: int
    end: int
    lacking: int
    """Results that have not come."""
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("_stream_at", "_source_at", "_target_at")),
        *((name, ctypes.c_int64) for name in ("start", "end", "lacking", "_headers_missing")),
        *((name, ctypes.c_void_p) for name in ("_calls_at", "_own_call_at", "_next")),
        ("_rank", ctypes.c_uint32),
    )

    def __init__(
        self, call: Call, number: int, start: int, chunk: int, membership: Membership, kernels: Kernels
    ) -> None:
        self._call, self._kernels = call, kernels
        n, elements = membership.n, membership.elements
        self._source = Tensors.in_turn(call.sources, elements)
        self._target = Tensors.in_turn(call.targets, elements)
        of_floats = self._target.end if call.is_float else 0
        self._stream = Stream(
            elements=elements,
            chunks=self._target.end,
            dtype=DTYPES[call.dtype.name],
            headers=header_packets(n, elements),
            ahead=min(membership.lead, of_floats),
            kind=kind(MSG_CONTRIBUTION, 0, elements),
            tensor=number % 256,
            chunk=chunk & 0xFFFFFFFF,
            workers=n,
            divisor=1 if call.op == "mean" else n,
        )
        self._elements = elements
        self._own_call = call.header(number)
        self.headers = self._stream.headers
        self._calls = np.zeros((self.headers, elements), np.int32)
        self.ahead = self._stream.ahead
        """Packets that a float chunk's exponent is ahead of its values."""
        self.is_short = self.ahead >= of_floats > 0
        """Whether no values can be sent before the last exponent was."""
        self.length = self._stream.length
        """Its packets."""
        super().__init__(
            *(ctypes.addressof(of) for of in (self._stream, self._source, self._target)),
            *(start, start + self.length, self.length, self.headers),
            *(address(self._calls), address(self._own_call), None),
            membership.rank,
        )
        self.number = number
        self.timeout = self.begun_at = 0.0
        self.mismatch: MismatchError | None = None
        """How the ranks' calls differ, once the headers' results are here."""
        self.done = False
        """Whether it has ended, well or not, and all before it: `result` can be called."""
        self.error: WorkerError | None = None
        """What ended it without a result."""
        self.stats: Stats | None = None
        """The worker's counts when it ended."""

    @property
    def size(self) -> int:
        """Values to sum."""
        return self._source.size

    @property
    def summed(self) -> int:
        """Values whose sums are here: all of them once it has ended well, before that about."""
        return min(self.size, max(0, self._source.end - self.lacking) * self._elements)

    def ready(self, answered: int) -> int:
        """Return the end of what can be filled when positions 0..answered-1 have their results."""
        if not self.ahead:
            return self.length
        return min(self.length, max(answered, self.headers) + self.ahead)

    def unready(self, first: int, last: int) -> Flags | None:
        """Return for each of positions first..last-1 whether its exponent is not known; None if all are."""
        begin = self.headers + self.ahead
        if not self.ahead or last <= begin:
            return None
        lead = max(0, begin - first)
        unknown = self._stream.unsendable[max(0, first - begin) : last - begin] == UNKNOWN
        return np.concatenate([np.zeros(lead, np.bool_), unknown]) if unknown.any() else None

    def fill(self, packets: Packets, first: int) -> None:
        """Write the packets of positions first, first+1, ... (all but `place`)."""
        self._kernels.fill(self._stream, self._source, packets, first)
        if first < self.headers:
            self._fill_headers(packets[: self.headers - first], first)

    def _fill_headers(self, packets: Packets, first: int) -> None:
        packets["kind"] = kind(MSG_CONTRIBUTION, 1, self._elements)
        values = np.zeros((self.headers, self._elements), np.int32)
        values.reshape(-1)[CALL_VALUES * self._rank :][:CALL_VALUES] = self._own_call
        packets["values"] = values[first : first + len(packets)]

    def deliver(self, positions: Indexes, packets: Packets, picked: Indexes) -> None:
        """Take packets[picked[i]] as the result of positions[i], each once; the headers set `mismatch`."""
        self.lacking -= len(positions)
        if self._headers_missing:
            positions, picked = self._deliver_headers(positions, packets, picked)
        if not len(positions):
            return
        self._kernels.deliver(self._stream, self._target, packets, picked, positions)

    def _deliver_headers(
        self, positions: Indexes, packets: Packets, picked: Indexes
    ) -> tuple[Indexes, Indexes]:
        """Take the headers' results, and return the others."""
        is_header = positions < self.headers
        self._calls[positions[is_header]] = packets["values"][picked[is_header]]
        self._headers_missing -= int(is_header.sum())
        self.compare()
        return positions[~is_header], picked[~is_header]

    def compare(self) -> bool:
        """Set `mismatch` and say whether there is one, as far as the headers' results are here."""
        if not self._headers_missing:
            n = self._stream.workers
            calls = self._calls.reshape(-1)[: CALL_VALUES * n].reshape(n, CALL_VALUES)
            self.mismatch = compare_calls(calls)
        return self.mismatch is not None

    def followed_by(self, operation: Operation) -> None:
        """It is begun after this one."""
        self._next = ctypes.addressof(operation)

    def finish(self, stats: Stats, error: WorkerError | None = None) -> None:
        """It is done: all results are here, or the error is why they will not come."""
        if error is None:
            self._call.finish()  # not in `result`: once done, `out` is the caller's
        self.done, self.error, self.stats = True, error, stats

    def result(self) -> list[NDArray[Any]]:
        """Return the outputs, once it is done; raises what ended it, or NonFiniteError."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        unsendable = self._stream.unsendable
        if unsendable.any():
            first = int(unsendable.argmax())
            raise NonFiniteError(
                int(unsendable.sum()),
                self._source.values_before(first),
                self._elements,
                bool(self._stream.own_unsendable.any()),
            )
        return self._call.outs
