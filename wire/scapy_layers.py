# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""Scapy layers of the aggregation packet, for building, reading and teaching (a slow import).

In a Scapy shell: `from wire.scapy_layers import *`. `UDP(dport=job_port(3)) / Agg(values=[1] * 64)` is one,
and `show()` of any captured packet says what its fields mean.
"""

from __future__ import annotations

import struct
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    Field,
    IntField,
    SignedByteField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up

from .constants import (
    EXPONENT_UNUSED,
    JOB_PORT_BASE,
    JOBS,
    MSG_CONTRIBUTION,
    MSG_RESULT,
    PAYLOAD_HEADER_BYTES,
    SIZE_CODES,
    is_job_port,
    job_port,
)

__all__ = ["Agg", "job_port"]

_MSG_TYPES = {MSG_CONTRIBUTION: "contribution", MSG_RESULT: "result"}
_FLAGS = {0: "values", 1: "header"}
_ELEMENTS = {code: elements for elements, code in SIZE_CODES.items()}


class _JobField(Field[Any, bytes]):
    """The job's number, which the packet carries in its UDP port and not here."""

    def addfield(self, pkt: Any, s: Any, val: Any) -> Any:
        """Add nothing."""
        return s

    def getfield(self, pkt: Any, s: Any) -> tuple[Any, None]:
        """Take nothing."""
        return s, None

    def i2h(self, pkt: Any, x: Any) -> int | None:
        """Return the job 0..255, None without a job port below."""
        udp = pkt.underlayer if pkt is not None else None
        ports = (udp.dport, udp.sport) if isinstance(udp, UDP) else ()
        return next((port - JOB_PORT_BASE for port in ports if is_job_port(port)), None)

    def i2repr(self, pkt: Any, x: Any) -> str:
        """Say where it is told."""
        job = self.i2h(pkt, x)
        return "none: neither UDP port is a job's" if job is None else f"{job} (of UDP port {job_port(job)})"


class _ExponentField(SignedByteField):
    """E of 2^E, greater than the values of a later chunk (docs/protocol.md, Numbers)."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        """Say what it bounds."""
        return f"{x} (unused, or of zeros)" if x == EXPONENT_UNUSED else f"{x} (a later chunk is below 2^{x})"


class _UnsendableField(SignedByteField):
    """Whether a worker had values that have no exponent."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        """Say which."""
        if x == EXPONENT_UNUSED:
            return f"{x} (unused)"
        return f"{x} (a later chunk has NaN, infinity or |x| >= 2^127)"


class _ValuesField(Field[Any, bytes]):
    """Values, as many as `size` says. (Scapy's own lists end after 100 items.)"""

    islist = 1

    def any2i(self, pkt: Any, x: Any) -> list[int]:
        """Take any sequence."""
        return [int(value) for value in x]

    def do_copy(self, x: Any) -> list[int]:
        """Return another list of them."""
        return list(x)

    def i2repr(self, pkt: Any, x: Any) -> str:
        """Say all."""
        return repr(x)

    def addfield(self, pkt: Any, s: Any, val: Any) -> Any:
        """Add those that are there."""
        return s + struct.pack(f">{len(val)}i", *val)

    def getfield(self, pkt: Any, s: Any) -> tuple[Any, list[int]]:
        """Take as many as there should be."""
        length = 4 * _ELEMENTS[pkt.size]
        return s[length:], list(struct.unpack(f">{length // 4}i", s[:length]))


class Agg(Packet):
    """agg header, exponents and values of one contribution or result; the job is its UDP port's."""

    name = "p4reduce"
    fields_desc = [  # noqa: RUF012 - Scapy's way to declare a layer
        _JobField("job", None, "!"),
        BitEnumField("msg_type", MSG_CONTRIBUTION, 4, _MSG_TYPES),
        BitEnumField("flag", 0, 1, _FLAGS),
        BitEnumField("size", SIZE_CODES[64], 3, {code: f"{n} elements" for n, code in SIZE_CODES.items()}),
        ByteField("tensor", 0),
        IntField("chunk", 0),
        BitField("version", 0, 1),
        BitField("slot", 0, 15),
        _ExponentField("e0", EXPONENT_UNUSED),
        _UnsendableField("e1", EXPONENT_UNUSED),
        _ValuesField("values", [], "i"),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: object, **kargs: object) -> type[Packet]:
        """Leave what is no aggregation payload to Raw: other programs use these ports too."""
        if _pkt is None:
            return cls
        elements = _ELEMENTS.get(_pkt[0] & 7, -1) if _pkt else -1
        return cls if len(_pkt) == PAYLOAD_HEADER_BYTES + 4 * elements else Raw

    def mysummary(self) -> str:
        """Return it in a line."""
        words = "job {} %Agg.msg_type% of %Agg.flag%, all-reduce %Agg.tensor%, chunk %Agg.chunk%, "
        return str(self.sprintf(words.format(self.job) + "slot %Agg.slot% version %Agg.version%"))


def bind() -> None:
    """Teach Scapy that the job ports carry this layer, as source and as destination."""
    for port in range(JOB_PORT_BASE, JOB_PORT_BASE + JOBS):
        bind_bottom_up(UDP, Agg, dport=port)
        bind_bottom_up(UDP, Agg, sport=port)


bind()
