# SPDX-License-Identifier: Apache-2.0
"""PacketIn and PacketOut: the controller headers as bytes before the packet (spec 1.4, 16.1).

The header's fields lie one after the other, most significant bit first, and padding fills the last byte.
"""

from __future__ import annotations

from p4.v1 import p4runtime_pb2

from switch.p4runtime import codec
from switch.p4runtime.errors import ERROR_SPACE, RpcError, invalid
from switch.p4runtime.p4info import PacketHeader


def packet_in(header: PacketHeader | None, frame: bytes) -> p4runtime_pb2.StreamMessageResponse | None:
    """Return what the primary gets for a frame that left on the CPU port, None if the frame is too short."""
    message = p4runtime_pb2.StreamMessageResponse()
    if header is None:
        message.packet.payload = frame
        return message
    if len(frame) < header.size:
        return None
    values = codec.unpack_bits(frame[: header.size], [field.bits for field in header.fields])
    message.packet.payload = frame[header.size :]
    for field, value in zip(header.fields, values, strict=True):
        message.packet.metadata.add(metadata_id=field.id, value=codec.encode(value))
    return message


def packet_out(header: PacketHeader | None, packet: p4runtime_pb2.PacketOut) -> bytes:
    """Return the frame that enters the switch on the CPU port; missing metadata is 0, as in bmv2.

    Raises:
        RpcError: INVALID_ARGUMENT for an unknown or repeated metadata id or a value that does not fit.
    """
    given: dict[int, bytes] = {}
    for metadata in packet.metadata:
        if metadata.metadata_id in given:
            raise invalid(f"PacketOut: metadata {metadata.metadata_id} is there twice")
        given[metadata.metadata_id] = metadata.value
    bits: list[tuple[int, int]] = []
    for field in header.fields if header else ():
        value = given.pop(field.id, b"\0")
        bits.append((codec.decode(value, field.bits, f"PacketOut metadata {field.name}"), field.bits))
    if given:
        known = ", ".join(f"{f.id} ({f.name})" for f in header.fields) if header else "none"
        raise invalid(f"PacketOut: unknown metadata id {next(iter(given))}; the program has {known}")
    payload: bytes = packet.payload
    return codec.pack_bits(bits) + payload


def error_message(error: RpcError) -> p4runtime_pb2.StreamMessageResponse:
    """Return a StreamError without what it is about."""
    message = p4runtime_pb2.StreamMessageResponse()
    message.error.canonical_code = error.canonical
    message.error.message = str(error)
    message.error.space = ERROR_SPACE
    return message


def stream_error(error: RpcError, packet: p4runtime_pb2.PacketOut) -> p4runtime_pb2.StreamMessageResponse:
    """Return the StreamError that answers a refused PacketOut."""
    message = error_message(error)
    message.error.packet_out.packet_out.CopyFrom(packet)
    return message
