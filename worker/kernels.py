# SPDX-License-Identifier: Apache-2.0
"""What touches every value: packets filled from a tensor and results stored into one, a burst a call.

Two implementations give the same bits: `NumpyKernels`, to read, and `worker.native.NativeKernels` in C.

Arrays: `values` is a tensor's (size,) contiguous array; chunk c is its values c * elements on, and the last
chunk may be short: what it lacks is 0 in packets. `packets` is a contiguous array of `payload_dtype`. Results
come as `packets`, the indexes `picked` (m,) int64 of those that count, and for each of these its `place` or
chunk, `places` (m,) int64. `exponents` (chunks,) int8 and `unsendable` (chunks,) bool are per chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED
from wire.packet import Packets

from .quantize import chunk_exponents, dequantize, quantize
from .ring import NEVER, PARKED, Ring

Indexes = NDArray[np.int64]
Exponents = NDArray[np.int8]
Flags = NDArray[np.bool_]


FLAG = 1 << 3
"""The flag bit in a packet's `kind`."""


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


class Kernels(Protocol):
    """The seam between the engine's bookkeeping and what is done for every packet and value."""

    name: str
    """How people are told which it is."""

    def take(self, ring: Ring, packets: Packets, highest: int, first: int, end: int) -> Taken:
        """Find the awaited results among packets, and let their rows await none.

        `highest` is the greatest chunk with a result so far, `first` the least without, `end` the least not
        yet sent.
        """

    def fill_heads(self, packets: Packets, kind: int, tensor: int, chunk: int) -> None:
        """Write these, `chunk` rising by one from packet to packet (mod 2^32), and exponents as unused."""

    def fill_int32(self, values: NDArray[np.int32], first: int, packets: Packets) -> None:
        """Write the values of chunks `first` on into packets."""

    def fill_exponents(
        self, values: NDArray[np.float32], first: int, packets: Packets, unsendable: Flags
    ) -> None:
        """Write the exponents of chunks `first` on into packets, and into `unsendable` which hold what no
        exponent covers (see chunk_exponents).
        """

    def fill_quantized(
        self,
        values: NDArray[np.float32],
        first: int,
        exponents: Exponents,
        unsendable: Flags,
        workers: int,
        packets: Packets,
    ) -> None:
        """Write the quantized values of chunks `first` on into packets; zeros for chunks not to be sent."""

    def deliver_int32(
        self, values: NDArray[np.int32], packets: Packets, picked: Indexes, places: Indexes
    ) -> None:
        """Store sums; a place is a chunk."""

    def deliver_exponents(
        self, packets: Packets, picked: Indexes, places: Indexes, exponents: Exponents, unsendable: Flags
    ) -> None:
        """Store exponents and what is unsendable at a rank; places beyond the last chunk have none."""

    def deliver_quantized(
        self,
        values: NDArray[np.float32],
        packets: Packets,
        picked: Indexes,
        places: Indexes,
        exponents: Exponents,
        divisor: int,
    ) -> None:
        """Store float32(sum * (divisor * 2^E) / (2^31-1)): of n workers, n gives their sum and 1 the mean.

        A place is a chunk; negative ones have no values.
        """


class Chunks:
    """A flat array as rows of `elements` values, of which the last may be short."""

    def __init__(self, flat: NDArray[Any], elements: int) -> None:
        self._flat, self._elements = flat, elements
        self.count = -(-flat.size // elements)
        self._full = flat[: flat.size // elements * elements].reshape(-1, elements)

    def rows(self, first: int, last: int) -> NDArray[Any]:
        """Return chunks first..last-1 as (k, elements); a view unless a short one is among them."""
        if last <= len(self._full):
            return self._full[first:last]
        rows = np.zeros((last - first, self._elements), self._flat.dtype)
        part = self._flat[first * self._elements :]
        rows.reshape(-1)[: part.size] = part
        return rows

    def store(self, chunks: Indexes, rows: NDArray[Any]) -> None:
        """Write (k, elements) values to these chunks."""
        whole = chunks < len(self._full)
        if whole.all():
            self._full[chunks] = rows
            return
        self._full[chunks[whole]] = rows[whole]
        tail = self._flat[self._full.size :]
        tail[:] = rows[~whole][0, : tail.size]


class NumpyKernels:
    """The reference: every step is a line of numpy."""

    name = "numpy"

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

    def fill_heads(self, packets: Packets, kind: int, tensor: int, chunk: int) -> None:
        """See Kernels."""
        packets["kind"], packets["tensor"] = kind, tensor
        packets["chunk"] = (chunk % (1 << 32) + np.arange(len(packets))) % (1 << 32)
        packets["e0"] = packets["e1"] = EXPONENT_UNUSED

    def fill_int32(self, values: NDArray[np.int32], first: int, packets: Packets) -> None:
        """See Kernels."""
        packets["values"] = self._rows(values, first, packets)

    def fill_exponents(
        self, values: NDArray[np.float32], first: int, packets: Packets, unsendable: Flags
    ) -> None:
        """See Kernels."""
        exponents, sendable = chunk_exponents(self._rows(values, first, packets))
        packets["e0"] = exponents
        packets["e1"] = np.where(sendable, EXPONENT_UNUSED, 0)
        unsendable[:] = ~sendable

    def fill_quantized(
        self,
        values: NDArray[np.float32],
        first: int,
        exponents: Exponents,
        unsendable: Flags,
        workers: int,
        packets: Packets,
    ) -> None:
        """See Kernels."""
        rows = self._rows(values, first, packets)
        if unsendable.any():
            rows = np.where(unsendable[:, np.newaxis], np.float32(0), rows)
        quantize(rows, exponents, workers, packets["values"])

    def deliver_int32(
        self, values: NDArray[np.int32], packets: Packets, picked: Indexes, places: Indexes
    ) -> None:
        """See Kernels."""
        Chunks(values, packets["values"].shape[1]).store(places, packets["values"][picked])

    def deliver_exponents(
        self, packets: Packets, picked: Indexes, places: Indexes, exponents: Exponents, unsendable: Flags
    ) -> None:
        """See Kernels."""
        has_exponent = places < len(exponents)
        chunks, of = places[has_exponent], picked[has_exponent]
        exponents[chunks] = packets["e0"][of]
        unsendable[chunks] = packets["e1"][of] != EXPONENT_UNUSED

    def deliver_quantized(
        self,
        values: NDArray[np.float32],
        packets: Packets,
        picked: Indexes,
        places: Indexes,
        exponents: Exponents,
        divisor: int,
    ) -> None:
        """See Kernels."""
        has_values = places >= 0
        chunks, of = places[has_values], picked[has_values]
        sums = dequantize(packets["values"][of], exponents[chunks], divisor)
        Chunks(values, packets["values"].shape[1]).store(chunks, sums)

    @staticmethod
    def _rows(values: NDArray[Any], first: int, packets: Packets) -> NDArray[Any]:
        return Chunks(values, packets["values"].shape[1]).rows(first, first + len(packets))
