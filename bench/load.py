# SPDX-License-Identifier: Apache-2.0
"""The packets that a switch is measured with: every one is new, none is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED, MSG_CONTRIBUTION
from wire.membership import Membership
from wire.packet import Packets, build_frames, frame_dtype, frames_to_switch, kind, payload_dtype


class Stream(ABC):
    """Packets of several senders: random values, the same in each window, chunks counting up.

    `values` are int32 (lanes, W, elements), one lane a sender. `wanted`, of the same shape, are the values of
    what comes back there: `wanted[lane, g mod W]` in answer to chunk g of lane `answers[lane]`.
    """

    wanted: NDArray[np.int32]
    answers: Sequence[int]

    def __init__(self, lanes: int, window: int, elements: int, seed: int) -> None:
        self.window = window
        self.elements = elements
        self.values: NDArray[np.int32] = np.random.default_rng(seed).integers(
            -(2**31), 2**31, (lanes, window, elements), dtype=np.int32
        )

    @abstractmethod
    def _build(self, lane: int, payloads: Packets) -> Packets:
        """Wrap payloads into frames of a lane."""

    def payloads(self, first: int, windows: int) -> Packets:
        """Return (windows, lanes, W) UDP payloads: the chunks from `first`, a multiple of W, on."""
        packets = np.zeros((windows, *self.values.shape[:2]), payload_dtype(self.elements))
        offsets = np.arange(windows * self.window).reshape(windows, 1, self.window)
        packets["kind"] = kind(MSG_CONTRIBUTION, 0, self.elements)
        packets["chunk"] = (offsets + first) % 2**32
        packets["place"] = offsets % self.window | (offsets + first) // self.window % 2 << 15
        packets["e0"] = packets["e1"] = EXPONENT_UNUSED
        packets["values"] = self.values
        return packets

    def frames(self, first: int, windows: int) -> Packets:
        """Return the same as whole frames with right checksums."""
        payloads = self.payloads(first, windows)
        frames = np.zeros(payloads.shape, frame_dtype(self.elements))
        for lane in range(len(self.values)):
            built = self._build(lane, payloads[:, lane].reshape(-1))
            frames[:, lane] = built.reshape(windows, self.window)
        return frames


class Load(Stream):
    """What all workers of a job contribute.

    `sums` are the values' sums modulo 2^32, (W, elements): the result of chunk g is sums[g mod W].
    """

    def __init__(self, members: Sequence[Membership], seed: int = 1) -> None:
        super().__init__(len(members), members[0].window, members[0].elements, seed)
        self.members = list(members)
        self.sums: NDArray[np.int32] = self.values.sum(axis=0, dtype=np.int32)
        self.wanted = np.broadcast_to(self.sums, self.values.shape)
        self.answers = range(len(members))

    def _build(self, lane: int, payloads: Packets) -> Packets:
        return frames_to_switch(payloads, self.members[lane])


class Exchange(Stream):
    """What two hosts send to each other: frames as a job's, only that they go to a host."""

    MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")

    def __init__(self, window: int, elements: int, seed: int = 1) -> None:
        super().__init__(len(self.MACS), window, elements, seed)
        self.wanted = self.values[::-1]
        self.answers = (1, 0)

    def _build(self, lane: int, payloads: Packets) -> Packets:
        return build_frames(
            payloads,
            eth_src=self.MACS[lane],
            eth_dst=self.MACS[1 - lane],
            ip_src=f"10.0.0.{1 + lane}",
            ip_dst=f"10.0.0.{2 - lane}",
            udp_src=5000,
            udp_dst=5000,
        )


def advance(frames: Packets, chunks: int) -> None:
    """Make frames those of `chunks` later ones, in place; a multiple of 2W, so that slot and version stay.

    The checksum is updated, not computed anew (RFC 1624, equation 3).
    """
    old = frames["payload"]["chunk"].astype(np.int64)
    new = (old + chunks) % 2**32
    total = ~frames["udp_checksum"].astype(np.int64) & 0xFFFF
    for number, flip in ((old, 0xFFFF), (new, 0)):
        total += (number >> 16 ^ flip) + (number & 0xFFFF ^ flip)
    for _ in range(2):
        total = (total & 0xFFFF) + (total >> 16)
    checksums = ~total & 0xFFFF
    frames["payload"]["chunk"] = new
    frames["udp_checksum"] = np.where(checksums == 0, 0xFFFF, checksums)
