# SPDX-License-Identifier: Apache-2.0
"""What the two decoders share: the layout of their arrays, and how they say what they met."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = NDArray[np.void]
"""A structured array of RECORD, INTERFACE or ROW."""

RECORD = np.dtype(
    [
        *(("at", "i8"), ("time", "i8"), ("captured", "u4"), ("length", "u4")),
        *(("interface", "i4"), ("direction", "u1"), ("pad", "u1", (3,))),
    ]
)
"""Where a packet is in the bytes, and what the file says of it."""
INTERFACE = np.dtype(
    [("offset", "i8"), ("snaplen", "u4"), ("base2", "u1"), ("power", "u1"), ("pad", "u1", (2,))]
)
"""A pcapng interface: seconds to add, and a tick of 2^-power (base2) or 10^-power seconds."""
ROW = np.dtype(
    [
        *(("digest", "u8"), ("at", "i8"), ("src_ip", "u4"), ("dst_ip", "u4"), ("chunk", "u4")),
        *((name, "u2") for name in ("src_port", "dst_port", "slot")),
        *(("job", "i2"), ("elements", "i2")),
        *((name, "u1") for name in ("category", "problem", "udp_checksum", "msg_type", "flag")),
        *((name, "u1") for name in ("size", "tensor", "version")),
        *(("e0", "i1"), ("e1", "i1")),
    ]
)
"""What is in a packet; see Table."""

MAX_PACKET = 262144
"""Bytes captured of one packet; more is damage (as Wireshark sees it)."""
MAX_BLOCK = 1 << 24

P4REDUCE, SWITCHML = 0, 1
"""Packet formats."""


class State(IntEnum):
    """Why a scan ended."""

    MORE = 0
    """The next packet or block is not whole here."""
    SPECIAL = 1
    """A block that sets something: a section's header, an interface."""
    BAD = 2
    FULL = 3
    """There is room for no more."""


class Damage(IntEnum):
    """What is bad."""

    LONG_PACKET = 1
    BLOCK_LENGTH = 2
    BLOCK_ENDS = 3
    PACKET_FITS = 4
    NO_INTERFACE = 5
    LONG_BLOCK = 6


class Found(NamedTuple):
    """What a scan found: `at` is where to go on, or what is bad."""

    state: State
    records: Rows
    at: int
    damage: Damage | None


class Decoder(Protocol):
    """The seam between reading files and what is done for every packet. `bytes_` is a contiguous array."""

    name: str
    """How people are told which it is."""

    def scan_pcap(self, bytes_: Bytes, at: int, big: bool, tick: int, room: int) -> Found:
        """Find at most `room` packets of a classic pcap from `at` on; a sub-second tick is `tick` ns."""

    def scan_pcapng(self, bytes_: Bytes, at: int, big: bool, interfaces: Rows, room: int) -> Found:
        """Find those of a pcapng section with these interfaces (INTERFACE)."""

    def decode(self, bytes_: Bytes, records: Rows, ethernet: NDArray[np.bool_], format_: int) -> Rows:
        """Return a ROW for each record; `ethernet` says of each interface whether it is one."""
