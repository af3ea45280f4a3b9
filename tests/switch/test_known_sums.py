# SPDX-License-Identifier: Apache-2.0
"""Sums of large headers that are kept until they change: what comes out is as if each were added up anew.

Packets go through a program that changes its large header in every way there is, in ingress and in the
egress of each copy, and sums it up before, between and after. With them goes what a port knows of them.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import pytest

from switch.device import Exact, SwitchDevice
from tests.switch.flows import total
from tests.switch.programs import (
    META,
    Builder,
    J,
    arg,
    assign,
    call,
    const,
    expr,
    extract,
    field,
    key,
    value,
)
from tests.switch.test_process_ports import EMIT, NEXT, PROCESS, Packet, Sink, Source, Sum

WORDS = 32
HEAD = [("op", 8), ("other_op", 8), ("before", 16), ("between", 16), ("after", 16)]
BIG = [(f"f{i}", 32) for i in range(WORDS)]
HEAD_BYTES, BIG_BYTES = 8, 4 * WORDS
COPIES = 4
MASK = (1 << 32) - 1
ARGUMENT = 0x1234


def big(i: int) -> J:
    return field("big", f"f{i}")


def hashed(to: J) -> J:
    return call(
        "modify_field_with_hash_based_offset", to, const(0), value("calculation", "sum"), const(0x10000)
    )


def bodies() -> list[list[J]]:
    """What may be done to the header; see `changed`."""
    header, spare = value("header", "big"), value("header", "spare")
    return [
        [],
        [assign(big(3), const(ARGUMENT))],
        [assign(big(5), expr("^", big(5), arg(0)))],
        [assign(big(i), expr("&", expr("+", big(i), const(1)), const(MASK))) for i in range(WORDS)],
        [
            call("assign_header", spare, header),
            assign(field("spare", "f0"), const(7)),
            call("assign_header", header, spare),
        ],
        [call("remove_header", header), call("add_header", header), assign(big(1), const(7))],
        [hashed(big(7))],
        [call("remove_header", header)],
        [call("register_write", value("register_array", "kept"), const(0), big(9)),
         call("register_read", big(10), value("register_array", "kept"), const(0))],
    ]  # fmt: skip


def changed(op: int, words: list[int] | None, argument: int) -> list[int] | None:
    """The same in Python; None stands for an invalid header."""
    if op == 5:
        return [0, 7, *[0] * (WORDS - 2)]
    if op == 7 or words is None:
        return None
    words = list(words)
    if op == 1:
        words[3] = ARGUMENT
    elif op == 2:
        words[5] ^= argument
    elif op == 3:
        words = [(w + 1) & MASK for w in words]
    elif op == 4:
        words[0] = 7
    elif op == 6:
        words[7] = csum16(words)
    elif op == 8:
        words[10] = words[9]
    return words


def as_bytes(words: list[int] | None) -> bytes:
    return b"".join(w.to_bytes(4, "big") for w in words or [])


def csum16(words: list[int] | None) -> int:
    return 0xFFFF ^ total(as_bytes(words))


def program() -> str:
    b = Builder()
    b.header("head", HEAD)
    b.header("big", BIG)
    b.instance("spare", "big_t", emit=False)
    b.register("kept", 32, 1)
    b.calculation("sum", "csum16", [field("big", f"f{i}") for i in range(WORDS)])
    b.state("start", [extract("head"), extract("big")])
    for pipeline, way in enumerate(("in", "out")):
        numbers = [
            b.action(f"{way}{i}", body, [("a", 32)] if i == 2 else None) for i, body in enumerate(bodies())
        ]
        if way == "in":
            b.run("before", [hashed(field("head", "before"))])
            b.table("change_in", [key("exact", "head", "op")], numbers, numbers[0])
            b.run("between", [hashed(field("head", "between")), assign(field(META, "mcast_grp"), const(1))])
        else:
            keys = [key("exact", "head", "other_op"), key("exact", META, "egress_rid")]
            b.table("change_out", keys, numbers, numbers[0], pipeline=pipeline)
            b.run("after", [hashed(field("head", "after"))], pipeline=pipeline)
    return b.json


@pytest.fixture(scope="module")
def device() -> Iterator[SwitchDevice]:
    with SwitchDevice.load(program()) as device:
        device.multicast_set(1, [(i, i) for i in range(1, COPIES + 1)])
        for op in range(1, len(bodies())):
            args = [0x55AA] if op == 2 else []
            device.table_insert("change_in", [Exact(op)], f"in{op}", args)
        for other in range(256):
            for rid in range(1, COPIES + 1):
                op = copy_op(other, rid)
                args = [other % 2] if op == 2 else []
                device.table_insert("change_out", [Exact(other), Exact(rid)], f"out{op}", args)
        yield device


def copy_op(other: int, rid: int) -> int:
    """What egress does to a copy."""
    op: int = random.Random(other * 10 + rid).choice([0, 0, *range(len(bodies()))])
    return op


def some_packet(draw: random.Random) -> bytes:
    fill = draw.choice(["random", "random", "zero", "ones", "balanced"])
    size = BIG_BYTES + draw.choice([0, 1, 2, 60, 61, 400])
    if fill == "random":
        rest = draw.randbytes(size)
    elif fill == "balanced":  # sums to 0xffff, as only zeroes do otherwise
        rest = (b"\x12\x34\xed\xcb" * size)[:size]
    else:
        rest = (b"\0" if fill == "zero" else b"\xff") * size
    return bytes([draw.randrange(len(bodies())), draw.randrange(256)]) + bytes(6) + rest


def known(data: bytes, draw: random.Random) -> Sum:
    """What a port may know of it."""
    start = draw.choice([0, 2, HEAD_BYTES, HEAD_BYTES, HEAD_BYTES + BIG_BYTES, draw.randrange(len(data))])
    end = start + (len(data) - start) // 2 * 2
    if start <= HEAD_BYTES and draw.random() < 0.3:
        end = max(HEAD_BYTES + BIG_BYTES - draw.choice([0, 0, 4]), start)
        end -= (end - start) % 2
    if draw.random() < 0.3:
        return Sum(0, 0, 0)
    return Sum(start, end, total(data[start:end]))


def expected(data: bytes) -> Iterator[tuple[int, bytes]]:
    op, other = data[0], data[1]
    body = data[HEAD_BYTES : HEAD_BYTES + BIG_BYTES]
    words: list[int] | None = [int.from_bytes(body[i : i + 4], "big") for i in range(0, BIG_BYTES, 4)]
    before = csum16(words)
    words = changed(op, words, 0x55AA)
    between = csum16(words)
    for rid in range(1, COPIES + 1):
        mine = changed(copy_op(other, rid), words, other % 2)
        checks = b"".join(c.to_bytes(2, "big") for c in (before, between, csum16(mine)))
        yield rid, data[:2] + checks + as_bytes(mine) + data[HEAD_BYTES + BIG_BYTES :]


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_those_of_the_bytes(device: SwitchDevice, seed: int) -> None:
    draw = random.Random(seed)
    out: list[tuple[int, bytes]] = []
    told = 0

    def emit(context: int, port: int, data: int, length: int, sums: int) -> None:
        nonlocal told
        frame, sums_ = ctypes.string_at(data, length), Sum.from_address(sums)
        out.append((port, frame))
        if sums_.from_ != sums_.to:
            told += 1
            assert sums_.from_ < sums_.to <= length
            assert (sums_.to - sums_.from_) % 2 == 0
            assert sums_.sum == total(frame[sums_.from_ : sums_.to])

    process = PROCESS(device.c_process)
    failures: list[BaseException] = []

    def checked(context: int, port: int, data: int, length: int, sums: int) -> None:
        try:
            emit(context, port, data, length, sums)
        except AssertionError as e:
            failures.append(e)

    left: list[Packet] = []

    def give(context: int, to: Any) -> int:
        if left:
            to[0] = left.pop()
            return 1
        return 0

    source, sink = Source(NEXT(give), None), Sink(None, EMIT(checked), None)
    for _ in range(500):
        data = some_packet(draw)
        keep = ctypes.create_string_buffer(data, len(data))
        packet = Packet(ctypes.cast(keep, ctypes.c_void_p), len(data), 9, known(data, draw))
        out.clear()
        left.append(packet)
        process(device.c_handle, ctypes.byref(source), ctypes.byref(sink))
        assert not failures
        assert out == list(expected(data))
    assert told > 500
