# SPDX-License-Identifier: Apache-2.0
"""What touches every value: packets filled from tensors and results stored into them, a burst a call.

Two implementations give the same bits: `NumpyKernels`, to read, and `worker.native.NativeKernels` in C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED
from wire.packet import Packets

from .calls import DTYPES
from .quantize import chunk_exponents, dequantize, quantize
from .ring import NEVER, PARKED, Ring

if TYPE_CHECKING:
    from .flow import Flow
    from .recovery import Recovery
    from .timer import RetransmissionTimer
    from .turn import Turn

Indexes = NDArray[np.int64]
Exponents = NDArray[np.int8]
Flags = NDArray[np.bool_]


FLAG = 1 << 3
"""The flag bit in a packet's `kind`."""


UNKNOWN = 2
"""In Stream.unsendable: the chunk's exponent has not come."""


_Anything = ctypes.c_char * 0


def address(array: Any) -> int:
    """Return what `array.ctypes.data` does, in a third of the time for a plain writable array."""
    try:
        return ctypes.addressof(_Anything.from_buffer(array))
    except (TypeError, ValueError, BufferError):
        of: int = array.ctypes.data
        return of


class Taken(NamedTuple):
    """What there was in received packets."""

    picked: Indexes
    """The packets that are awaited results, each chunk once, ascending."""
    offsets: Indexes
    """The chunks that they answer."""
    strays: int
    """Packets that are no result of this epoch's slots."""
    sent_at: float | None
    """When the last of those was sent that were sent once (Karn) and that no later chunk has overtaken."""
    highest: int
    """Greatest chunk with a result."""
    first: int
    """Least chunk without a result, or the end."""


class Tensors(ctypes.Structure):
    """Flat contiguous arrays of one dtype, not empty, cut into chunks of `elements` values.

    Each is given with the number of its first chunk, ascending; its last chunk may be short: what it lacks is
    0 in packets. C sees a struct tensors (kernel.h).
    """

    end: int
    """One more than the last chunk."""
    size: int
    """Values."""
    _fields_ = (("_at", ctypes.c_void_p), ("_count", ctypes.c_uint64))

    def __init__(self, arrays: Sequence[tuple[int, NDArray[Any]]], elements: int) -> None:
        self.elements = elements
        self._parts: list[tuple[int, int, NDArray[Any]]] = []
        self.end = self.size = 0
        words: list[int] = []
        for first, array in arrays:
            size = array.size
            self.size += size
            self.end = first - (-size // elements)
            self._parts.append((first, self.end, array))
            words += (address(array), size, first)
        # struct segment: where each lies, its values, its first chunk.
        self._segments = (ctypes.c_uint64 * len(words))(*words)
        super().__init__(ctypes.addressof(self._segments), len(arrays))

    @cached_property
    def _starts(self) -> Indexes:
        return np.array([first for first, _, _ in self._parts], np.int64)

    @classmethod
    def in_turn(cls, arrays: Sequence[NDArray[Any]], elements: int) -> Tensors:
        """Return arrays, which may be empty, as chunks numbered on from 0."""
        pieces, first = [], 0
        for array in arrays:
            if array.size:
                pieces.append((first, array))
                first -= -array.size // elements
        return cls(pieces, elements)

    def values_before(self, chunk: int) -> int:
        """Return how many values lie in the chunks before this one."""
        return sum(min(array.size, max(0, chunk - first) * self.elements) for first, _, array in self._parts)

    def rows(self, first: int, last: int, dtype: Any) -> NDArray[Any]:
        """Return chunks first..last-1 as (k, elements) of a dtype, a copy."""
        rows = np.zeros((last - first, self.elements), dtype)
        begin, beyond = np.searchsorted(self._starts, (first + 1, last))
        for start, end, array in self._parts[max(0, begin - 1) : beyond]:
            low, high = max(first, start), min(last, end)
            if low < high:
                part = array[(low - start) * self.elements : (high - start) * self.elements]
                rows[low - first : high - first].reshape(-1)[: part.size] = part
        return rows

    def store(self, chunks: Indexes, rows: NDArray[Any]) -> None:
        """Write (k, elements) values to these chunks."""
        at = np.searchsorted(self._starts, chunks, "right") - 1
        for i in np.unique(at).tolist():
            start, _, array = self._parts[i]
            to, of = chunks[at == i] - start, rows[at == i]
            whole = array[: array.size // self.elements * self.elements].reshape(-1, self.elements)
            full = to < len(whole)
            whole[to[full]] = of[full]
            if not full.all():
                tail = array[whole.size :]
                tail[:] = of[~full][0, : tail.size]


class Stream(ctypes.Structure):
    """An all-reduce's packets by position: headers, then exponents and, `ahead` later, values of chunks.

    position   0 .. H-1        header packets
    int32      H .. H+N-1      chunk c's values at H+c
    floats     H .. H+B+N-1    chunk c's exponent at H+c, its values at H+B+c

    C sees a struct stream (kernel.h).
    """

    elements: int
    headers: int
    ahead: int
    """B; 0 for int32."""
    chunks: int
    """N, chunks of values."""
    chunk: int
    """Number of the packet at position 0, mod 2^32."""
    workers: int
    divisor: int
    """`workers` for their sum, 1 for the mean."""
    dtype: int
    """Of the tensors; a number of calls.DTYPES."""
    kind: int
    tensor: int
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("elements", "headers", "ahead", "chunks")),
        *((name, ctypes.c_void_p) for name in ("_exponents", "_unsendable", "_own_unsendable")),
        *((name, ctypes.c_uint32) for name in ("chunk", "workers", "divisor", "dtype", "kind", "tensor")),
    )

    def __init__(
        self,
        *,
        elements: int,
        chunks: int,
        dtype: int,
        headers: int,
        ahead: int,
        kind: int,
        tensor: int,
        chunk: int,
        workers: int,
        divisor: int,
    ) -> None:
        self.is_float = dtype != DTYPES["int32"]
        of_floats = chunks if self.is_float else 0
        rows = np.zeros((3, of_floats), np.int8)
        rows[0], rows[1] = EXPONENT_UNUSED, UNKNOWN
        self.exponents: Exponents = rows[0]
        """(N,): what the chunks' results say."""
        self.unsendable: NDArray[np.uint8] = rows[1].view(np.uint8)
        """(N,): 1 for chunks that some worker cannot send, 0 for others, UNKNOWN."""
        self.own_unsendable: Flags = rows[2].view(np.bool_)
        """(N,): those of this worker."""
        at = address(rows)
        super().__init__(
            *(elements, headers, ahead, chunks),
            *(at, at + of_floats, at + 2 * of_floats),
            *(chunk, workers, divisor, dtype, kind, tensor),
        )

    @property
    def length(self) -> int:
        """H + B + N, the packets."""
        return self.headers + self.ahead + self.chunks


class Kernels(Protocol):
    """The seam between the engine's bookkeeping and what is done for every packet and value.

    `packets` is a contiguous array of `payload_dtype`.
    """

    name: str
    """How people are told which it is."""

    def take(self, ring: Ring, packets: Packets, highest: int, first: int, end: int) -> Taken:
        """Find the awaited results among packets, and let their rows await none.

        `highest` is the greatest chunk with a result so far, `first` the least without, `end` the least not
        yet sent.
        """

    def fill(self, stream: Stream, source: Tensors, packets: Packets, position: int) -> None:
        """Write the packets of `position` on: all but `place`; a header's values are left to the caller.

        `source` has values of the stream's dtype; floats are float32 on the way, and become 0 where they
        cannot be sent.
        """

    def deliver(
        self, stream: Stream, target: Tensors, packets: Packets, picked: Indexes, positions: Indexes
    ) -> None:
        """Store packets[picked[i]] as the result of positions[i], none of them a header's.

        Sums to `target`, which is of the stream's dtype: floats as float32(sum * (divisor * 2^E) /
        (2^31-1)), rounded to it; exponents and what is unsendable to the stream.
        """

    def turn(self, ring: Ring, timer: RetransmissionTimer, recovery: Recovery, flow: Flow) -> Turn | None:
        """Return what does the usual turn of an epoch by itself, None where the engine does."""


class NumpyKernels:
    """The reference: every step is a line of numpy."""

    name = "numpy"

    def turn(self, ring: Ring, timer: RetransmissionTimer, recovery: Recovery, flow: Flow) -> None:
        """See Kernels."""

    def take(self, ring: Ring, packets: Packets, highest: int, first: int, end: int) -> Taken:
        """See Kernels."""
        place = packets["place"].astype(np.int64)
        slot = place & 0x7FFF
        sound = (packets["kind"] & ~np.uint8(FLAG) == ring.result_kind) & (slot < ring.window)
        rows = np.where(sound, slot + (place >> 15) * ring.window, 0)
        same_chunk = ring.packets["chunk"][rows] == packets["chunk"]
        awaited = np.flatnonzero(sound & same_chunk & (ring.deadline[rows] < PARKED))
        picked = awaited[np.sort(np.unique(rows[awaited], return_index=True)[1])]
        rows = rows[picked]
        offsets = ring.offset[rows]
        in_order = rows[(ring.tries[rows] == 1) & (offsets > highest)]
        ring.deadline[rows] = NEVER
        return Taken(
            picked,
            offsets,
            strays=len(packets) - int(sound.sum()),
            sent_at=float(ring.sent_at[in_order].max()) if len(in_order) else None,
            highest=int(offsets.max(initial=highest)),
            first=ring.first_awaited(first, end),
        )

    def fill(self, stream: Stream, source: Tensors, packets: Packets, position: int) -> None:
        """See Kernels."""
        s, last = stream, position + len(packets)
        dtype = np.float32 if s.is_float else np.int32
        packets["kind"], packets["tensor"] = s.kind, s.tensor
        packets["chunk"] = (s.chunk + position + np.arange(len(packets))) % (1 << 32)
        packets["e0"] = packets["e1"] = EXPONENT_UNUSED
        packets["values"] = 0

        def part(begin: int, fill: Callable[[Packets, NDArray[Any], slice], None]) -> None:
            """Fill the packets at positions from `begin` on that belong to chunks, with these chunks."""
            low, high = max(begin, position), min(begin + s.chunks, last)
            if low < high:
                chunks = slice(low - begin, high - begin)
                with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # infinity is told as such
                    rows = source.rows(chunks.start, chunks.stop, dtype)
                fill(packets[low - position : high - position], rows, chunks)

        def integers(packets: Packets, rows: NDArray[Any], _: slice) -> None:
            packets["values"] = rows

        def exponents(packets: Packets, rows: NDArray[Any], chunks: slice) -> None:
            packets["e0"], sendable = chunk_exponents(rows)
            packets["e1"] = np.where(sendable, EXPONENT_UNUSED, 0)
            s.own_unsendable[chunks] = ~sendable

        def floats(packets: Packets, rows: NDArray[Any], chunks: slice) -> None:
            rows[s.own_unsendable[chunks] | (s.unsendable[chunks] == UNKNOWN)] = 0
            quantize(rows, s.exponents[chunks], s.workers, packets["values"])

        if not s.is_float:
            part(s.headers, integers)
            return
        part(s.headers, exponents)
        part(s.headers + s.ahead, floats)

    def deliver(
        self, stream: Stream, target: Tensors, packets: Packets, picked: Indexes, positions: Indexes
    ) -> None:
        """See Kernels."""
        s = stream
        chunks = positions - s.headers
        if not s.is_float:
            target.store(chunks, packets["values"][picked])
            return
        has_exponent = chunks < s.chunks
        s.exponents[chunks[has_exponent]] = packets["e0"][picked[has_exponent]]
        s.unsendable[chunks[has_exponent]] = packets["e1"][picked[has_exponent]] != EXPONENT_UNUSED
        chunks = chunks - s.ahead
        has_values = chunks >= 0
        chunks, picked = chunks[has_values], picked[has_values]
        with np.errstate(over="ignore", under="ignore"):
            target.store(chunks, dequantize(packets["values"][picked], s.exponents[chunks], s.divisor))
