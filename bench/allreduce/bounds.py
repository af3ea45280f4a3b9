# SPDX-License-Identifier: Apache-2.0
"""What a link's rate leaves to all-reduces, through the switch and round a ring: array bits a second.

Rates are those of htb and tbf, which count whole Ethernet frames, without FCS, preamble and gap.
"""

from __future__ import annotations

from wire.constants import frame_bytes

from .cells import ITEM_BYTES, Cell

BURST_BYTES = 128 << 10
"""After a pause so much passes a shaped link at once (topologies/shaping.py)."""
HEADERS_PER_WORKER = 4
"""Values of the header packets that each rank has (docs/protocol.md, The packet)."""


def packets(cell: Cell, elements: int, lead: int) -> int:
    """Return the packets that each worker must send: H header packets, N chunks, and for floats B ahead.

    H = ceil(4n / elements), N = ceil(values / elements), B = min(lead, N).
    """
    chunks = -(-cell.nbytes // (ITEM_BYTES * elements))
    headers = -(-HEADERS_PER_WORKER * cell.place.workers // elements)
    return headers + chunks + (min(lead, chunks) if cell.dtype != "int32" else 0)


def switch_mbit(cell: Cell, elements: int, lead: int) -> float | None:
    """Return the goodput that header bytes leave of each link, Mbit/s; None where nothing bounds it.

    For large arrays that is 4·elements / (52 + 4·elements) of the rate. Here all packets of a call count, as
    does what the shapers let pass at once: rate · nbytes / (packets · (52 + 4·elements) - BURST_BYTES).
    """
    return _mbit(cell, packets(cell, elements, lead) * frame_bytes(elements))


def ring_mbit(cell: Cell) -> float | None:
    """Return the goodput of a perfect ring without any headers, Mbit/s; None where nothing bounds it.

    Each of n ranks sends, and receives, 2(n-1)/n times the array (Patarasuk and Yuan, 2009).
    """
    n = cell.place.workers
    return _mbit(cell, 2 * (n - 1) / n * cell.nbytes)


def _mbit(cell: Cell, link_bytes: float) -> float | None:
    paced = link_bytes - BURST_BYTES
    if cell.place.link_mbit is None or paced <= 0:
        return None
    return cell.place.link_mbit * cell.nbytes / paced


def least_seconds(cell: Cell) -> float:
    """Return the time that no way undercuts at the link's rate, round a ring or through the switch."""
    if cell.place.link_mbit is None:
        return 0.0
    return 8e-6 * max(0, cell.nbytes - BURST_BYTES) / cell.place.link_mbit
