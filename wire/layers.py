# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""Scapy layers of the aggregation packet, for building, reading and teaching (a slow import)."""

from __future__ import annotations

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    FieldListField,
    IntField,
    SignedByteField,
    SignedIntField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from .constants import (
    EXPONENT_UNUSED,
    JOB_PORT_BASE,
    JOBS,
    MSG_CONTRIBUTION,
    MSG_RESULT,
    PAYLOAD_HEADER_BYTES,
    SIZE_CODES,
)

_MSG_TYPES = {MSG_CONTRIBUTION: "contribution", MSG_RESULT: "result"}
_ELEMENTS = {code: elements for elements, code in SIZE_CODES.items()}


class Agg(Packet):
    """agg header, exponents and values of one contribution or result."""

    name = "p4reduce"
    fields_desc = [  # noqa: RUF012 - Scapy's way to declare a layer
        BitEnumField("msg_type", MSG_CONTRIBUTION, 4, _MSG_TYPES),
        BitField("flag", 0, 1),
        BitEnumField("size", 1, 3, {code: f"{n} elements" for n, code in SIZE_CODES.items()}),
        ByteField("tensor", 0),
        IntField("chunk", 0),
        BitField("version", 0, 1),
        BitField("slot", 0, 15),
        SignedByteField("e0", EXPONENT_UNUSED),
        SignedByteField("e1", EXPONENT_UNUSED),
        FieldListField(
            "values", [], SignedIntField("", 0), count_from=lambda pkt: _ELEMENTS.get(pkt.size, 0)
        ),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: object, **kargs: object) -> type[Packet]:
        """Leave what is no aggregation payload to Raw: other programs use these ports too."""
        from scapy.packet import Raw

        if _pkt is None:
            return cls
        elements = _ELEMENTS.get(_pkt[0] & 7, -1) if _pkt else -1
        return cls if len(_pkt) == PAYLOAD_HEADER_BYTES + 4 * elements else Raw


def bind() -> None:
    """Teach Scapy that the job ports carry this layer, as source and as destination."""
    for port in range(JOB_PORT_BASE, JOB_PORT_BASE + JOBS):
        bind_layers(UDP, Agg, dport=port)
        bind_layers(UDP, Agg, sport=port)


bind()
