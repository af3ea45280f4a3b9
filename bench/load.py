# SPDX-License-Identifier: Apache-2.0
"""The contributions that a switch is measured with: every one is new, none is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wire.constants import EXPONENT_UNUSED, MSG_CONTRIBUTION
from wire.membership import Membership
from wire.packet import Packets, build_frames, frame_dtype, kind, payload_dtype


class Load:
    """What all workers of a job contribute: random values, the same in each window, chunks counting up.

    `values` are int32 (workers, W, elements), `sums` their sums modulo 2^32, (W, elements): the result of
    chunk g is sums[g mod W].
    """

    def __init__(self, members: Sequence[Membership], seed: int = 1) -> None:
        self.members = list(members)
        self.window = members[0].window
        self.elements = members[0].elements
        shape = (len(members), self.window, self.elements)
        self.values: NDArray[np.int32] = np.random.default_rng(seed).integers(
            -(2**31), 2**31, shape, dtype=np.int32
        )
        self.sums: NDArray[np.int32] = self.values.sum(axis=0, dtype=np.int32)

    def payloads(self, first: int, windows: int) -> Packets:
        """Return (windows, workers, W) UDP payloads: the chunks from `first`, a multiple of W, on."""
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
        for rank, member in enumerate(self.members):
            frames[:, rank] = build_frames(
                payloads[:, rank].reshape(-1),
                eth_src=member.own_mac,
                eth_dst=member.switch_mac,
                ip_src=member.own_ip,
                ip_dst=member.switch_ip,
                udp_src=member.own_port,
                udp_dst=member.port,
            ).reshape(windows, self.window)
        return frames


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
