# SPDX-License-Identifier: Apache-2.0
"""Bytestrings of P4Runtime (spec 1.4, 8.4): big-endian, shortest form out, any leading zeros accepted in."""

from __future__ import annotations

from switch.p4runtime.errors import invalid, unimplemented


def decode(value: bytes, bits: int, what: str) -> int:
    """Return the number that a bytestring of a `bits` wide field carries.

    `what` names the field in the error.

    Raises:
        RpcError: INVALID_ARGUMENT if it is empty or does not fit, UNIMPLEMENTED if the field has no width.
    """
    if not bits and value and not any(value):
        return 0  # of a bit<0>, which looks the same
    if not bits:
        raise unimplemented(f"{what} has no bit width in the P4Info (type error, or translated to a string)")
    if not value:
        raise invalid(f"{what}: the bytestring is empty; write 0 as a single zero byte")
    number = int.from_bytes(value, "big")
    if number >> bits:
        raise invalid(f"{what}: {value.hex()} does not fit within {bits} bits")
    return number


def encode(number: int) -> bytes:
    """Return the canonical (shortest, at least one byte) bytestring of a number that is not negative."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def pack_bits(fields: list[tuple[int, int]]) -> bytes:
    """Return (value, bits) fields one after the other, most significant bit first, zero-padded to bytes."""
    number = total = 0
    for value, bits in fields:
        number = number << bits | value
        total += bits
    padding = -total % 8
    return (number << padding).to_bytes((total + padding) // 8, "big")


def unpack_bits(data: bytes, widths: list[int]) -> list[int]:
    """Return the fields of the given widths from the start of data, which holds at least that many bits."""
    number = int.from_bytes(data, "big")
    left = 8 * len(data)
    values = []
    for bits in widths:
        left -= bits
        values.append(number >> left & ((1 << bits) - 1))
    return values
