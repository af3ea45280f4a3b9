# SPDX-License-Identifier: Apache-2.0
"""Hashes and checksums against their definitions."""

from __future__ import annotations

import binascii
import random
import zlib
from collections.abc import Callable

import pytest

from switch.device import SwitchDevice
from tests.switch.programs import (
    META,
    Builder,
    J,
    assign,
    call,
    const,
    expr,
    extract,
    field,
    pack,
    simple,
    to_port,
    value,
)


def csum16(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF ^ total


def crc(width: int, poly: int, init: int, final: int, reflect: bool) -> Callable[[bytes], int]:
    """A bit-by-bit CRC."""

    def run(data: bytes) -> int:
        value_ = init
        for byte in data:
            bits = int(f"{byte:08b}"[::-1], 2) if reflect else byte
            value_ ^= bits << (width - 8)
            for _ in range(8):
                value_ = (value_ << 1 ^ (poly if value_ >> (width - 1) else 0)) & ((1 << width) - 1)
        return (int(f"{value_:0{width}b}"[::-1], 2) if reflect else value_) ^ final

    return run


def xor(size: int) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        data += b"\0" * (-len(data) % size)
        out = 0
        for i in range(0, len(data), size):
            out ^= int.from_bytes(data[i : i + size], "big")
        return out

    return run


ALGORITHMS: dict[str, Callable[[bytes], int]] = {
    "csum16": csum16,
    "crc16": crc(16, 0x8005, 0, 0, True),
    "crc16_custom": crc(16, 0x8005, 0, 0, True),
    "crc32": binascii.crc32,
    "crc32_custom": binascii.crc32,
    "crcCCITT": lambda d: binascii.crc_hqx(d, 0xFFFF),
    "crc8_custom": crc(8, 0x07, 0, 0, False),
    "crc64_custom": crc(64, 0x1B, 0, 0, True),
    "xor16": xor(2),
    "xor32": xor(4),
    "identity": lambda d: int.from_bytes(d[:8], "big"),
}
FIELDS = [
    ("a", 16),
    ("b", 4),
    ("c", 12),
    ("d", 136),
    ("e", 8),
    *[(f"v{i}", 32) for i in range(20)],
    ("out", 64),
]
INPUTS = [f[0] for f in FIELDS[:-1]]


def hashing(fields: list[tuple[str, int]], algorithm: str, inputs: list[J]) -> Builder:
    """A program that writes a hash modulo 2^64-1 to `out`."""
    b = simple(fields)
    b.calculation("calc", algorithm, inputs)
    hashed = call(
        "modify_field_with_hash_based_offset",
        field("h", "out"),
        const(0),
        value("calculation", "calc"),
        const((1 << 64) - 1),
    )
    b.run("body", [hashed, to_port(1)])
    return b


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hash(algorithm: str) -> None:
    b = hashing(FIELDS, algorithm, [field("h", n) for n in INPUTS])
    r = random.Random(4)
    packets = [r.randbytes(sum(f[1] for f in FIELDS) // 8) for _ in range(20)] + [
        bytes(sum(f[1] for f in FIELDS) // 8)
    ]
    with SwitchDevice.load(b.json) as d:
        for p, (_, out) in zip(packets, d.process([(0, p) for p in packets]), strict=True):
            assert int.from_bytes(out[-8:], "big") == ALGORITHMS[algorithm](p[:-8]) % ((1 << 64) - 1)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_known_values(data: bytes, digest: int) -> None:
    b = hashing([("out", 64)], "xxh64", [{"type": "payload", "value": None}])
    with SwitchDevice.load(b.json) as d:
        ((_, out),) = d.process([(0, bytes(8) + data)])
    assert int.from_bytes(out[:8], "big") == digest


@pytest.mark.parametrize("wraps", [0, 1])
def test_a_bool_is_hashed_as_its_bit(wraps: int) -> None:
    """p4c writes it as a condition: in a calculation bare, in a selector within another expression."""
    flag = expr("d2b", None, field("h", "flag"))
    for _ in range(wraps):
        flag = {"type": "expression", "value": flag}
    b = hashing([("a", 7), ("flag", 1), ("out", 64)], "crc32", [field("h", "a"), flag])
    with SwitchDevice.load(b.json) as d:
        for byte in (b"\x00", b"\x01", b"\xfe", b"\xff"):
            ((_, out),) = d.process([(0, byte + bytes(8))])
            assert int.from_bytes(out[1:], "big") == zlib.crc32(byte)


def test_unaligned_inputs_and_invalid_headers() -> None:
    fields = [("a", 3), ("b", 70), ("c", 7), ("out", 16)]
    b = simple(fields)
    b.header("gone", [("x", 32)])
    constant: J = {"type": "hexstr", "value": "0x5", "bitwidth": 4}
    inputs = [field("h", "c"), constant, field("gone", "x"), field("h", "b"), field("h", "a"), constant]
    b.calculation("calc", "crc16", inputs)
    b.run(
        "body",
        [
            call(
                "modify_field_with_hash_based_offset",
                field("h", "out"),
                const(100),
                value("calculation", "calc"),
                const(0x10000),
            ),
            to_port(1),
        ],
    )
    a, w, c = 5, 0x2A_BCDE_F012_3456_789A, 0x55
    bits = f"{c:07b}{5:04b}{w:070b}{a:03b}{5:04b}"
    data = int(bits, 2).to_bytes(len(bits) // 8, "big")
    with SwitchDevice.load(b.json) as d:
        ((_, out),) = d.process([(0, pack(fields, [a, w, c, 0]))])
    assert int.from_bytes(out[-2:], "big") == (ALGORITHMS["crc16"](data) + 100) & 0xFFFF


def checked(payload: bool) -> Builder:
    fields = [("x", 16), ("sum", 16), ("y", 32), ("bad", 8)]
    b = simple(fields)
    inputs = [field("h", "x"), field("h", "y")] + ([{"type": "payload", "value": None}] if payload else [])
    b.calculation("calc", "csum16", inputs)
    common = {"target": ["h", "sum"], "type": "generic", "calculation": "calc"}
    used = expr("!=", field("h", "x"), const(0xFFFF))
    b.root["checksums"] = [
        {"name": "v", "id": 0, **common, "verify": True, "update": False, "if_cond": used},
        {"name": "u", "id": 1, **common, "verify": False, "update": True, "if_cond": used},
    ]
    body = [
        assign(field("h", "bad"), field(META, "checksum_error")),
        assign(field("h", "y"), expr("+", field("h", "y"), const(1))),
        to_port(1),
    ]
    b.run("body", body)
    return b


@pytest.mark.parametrize("payload", [False, True])
def test_verify_and_update(payload: bool) -> None:
    rest = b"some payload!"
    with SwitchDevice.load(checked(payload).json) as d:
        for x, y in ((1, 2), (0xFFFE, 0xFFFFFFFF), (0, 0)):

            def total(y_: int, x_: int = x) -> bytes:
                data = (
                    x_.to_bytes(2, "big") + (y_ & 0xFFFFFFFF).to_bytes(4, "big") + (rest if payload else b"")
                )
                return csum16(data).to_bytes(2, "big")

            after = total(y + 1) + ((y + 1) & 0xFFFFFFFF).to_bytes(4, "big")
            for right in (True, False):
                given = total(y) if right else bytes([total(y)[0] ^ 1, total(y)[1]])
                sent = x.to_bytes(2, "big") + given + y.to_bytes(4, "big") + b"\x09" + rest
                want = x.to_bytes(2, "big") + after + bytes([not right]) + rest
                assert d.process([(0, sent)]) == [(1, want)]
        # the condition does not hold: neither checked nor written
        assert d.process([(0, b"\xff\xff\x12\x34" + bytes(5))]) == [(1, b"\xff\xff\x12\x34\0\0\0\x01\0")]
    assert extract("h")["op"] == "extract"


@pytest.mark.parametrize("algorithm", ["csum16", "crc32"])
def test_payload_ends_where_truncate_cuts(algorithm: str) -> None:
    b = simple([("sum", 32)], [to_port(1), call("truncate", const(6))])
    b.calculation("calc", algorithm, [{"type": "payload", "value": None}])
    target = {"target": ["h", "sum"], "type": "generic", "calculation": "calc"}
    b.root["checksums"] = [{"name": "u", "id": 0, **target, "verify": False, "update": True, "if_cond": None}]
    with SwitchDevice.load(b.json) as d:
        ((_, out),) = d.process([(0, bytes(4) + b"some payload!")])
    # The checksum is of six bytes of payload, of which two are sent: truncate() counts the headers only then.
    assert out == ALGORITHMS[algorithm](b"some p").to_bytes(4, "big") + b"so"
