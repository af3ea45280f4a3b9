# SPDX-License-Identifier: Apache-2.0
"""What the emitter does in one go (loops over fields, sums in place, copies put back) against one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from switch.device import Exact, SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
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
    key,
    pack,
    simple,
    to_port,
    unpack,
    value,
)
from tests.switch.test_checksums import csum16

N = 19
SIZE = 3  # of the registers


def f(k: int) -> J:
    return field("h", f"f{k}")


def g(k: int) -> J:
    return field("g", f"g{k}")


T, U = field("meta", "t"), field("meta", "u")
I = field("h", "i")  # noqa: E741


def read(target: J, k: int, index: J = I) -> J:
    return call("register_read", target, value("register_array", f"r{k}"), index)


def write(k: int, what: J, index: J = I) -> J:
    return call("register_write", value("register_array", f"r{k}"), index, what)


# each yields the statements of its repetition k
TEMPLATES: dict[str, Callable[[int], list[J]]] = {
    "add": lambda k: [read(T, k), assign(f(k), expr("+", f(k), T)), write(k, f(k))],
    "store": lambda k: [write(k, f(k))],
    "load": lambda k: [read(g(k), k)],
    "running sum": lambda k: [write(k, T), assign(T, expr("+", T, f(k)))],
    "other header": lambda k: [assign(g(k), f(k))],
    "previous field": lambda k: [assign(f(k + 1), expr("^", f(k), g(k)))],
    "next field": lambda k: [assign(f(k), expr("-", f(k + 1), const(3)))],
    "standing inside": lambda k: [assign(f(k), expr("+", f(7), const(1)))],
    "standing register": lambda k: [read(U, 4), assign(g(k), expr("|", g(k), U)), write(k, U)],
    "lanes ahead": lambda k: [read(T, k + 1), write(k, T)],
    "last value": lambda k: [assign(T, f(k)), assign(U, expr("*", T, T))],
    "two fields": lambda k: [assign(T, f(k)), assign(f(k), g(k)), assign(g(k), T)],
}


class Python:
    """Runs the same statements on integers."""

    def __init__(self, width: int) -> None:
        self._top = (1 << width) - 1
        self.values: dict[tuple[str, str], int] = {}
        self.registers = {f"r{k}": [0] * SIZE for k in range(N + 1)}

    def number(self, e: J) -> int:
        if e["type"] == "field":
            return self.values[tuple(e["value"])]  # type: ignore[index]
        if e["type"] == "hexstr":
            return int(e["value"], 0)
        x, y = self.number(e["value"]["left"]), self.number(e["value"]["right"])
        return {"+": x + y, "-": x - y, "*": x * y, "^": x ^ y, "|": x | y}[e["value"]["op"]]

    def run(self, c: J) -> None:
        a = c["parameters"]
        if c["op"] == "assign":
            self.values[tuple(a[0]["value"])] = self.number(a[1]) & self._top
            return
        array, index = (a[1], a[2]) if c["op"] == "register_read" else (a[0], a[1])
        i = self.number(index)
        if i >= SIZE:
            return
        if c["op"] == "register_read":
            self.values[tuple(a[0]["value"])] = self.registers[array["value"]][i]
        else:
            self.registers[array["value"]][i] = self.number(a[2]) & self._top


def program(
    width: int, bodies: list[list[J]]
) -> tuple[Builder, list[tuple[str, int]], list[tuple[str, int]]]:
    h = [("i", 8), *((f"f{k}", width) for k in range(N + 1)), ("pad", -(N + 1) * width % 8 or 8)]
    second = [*((f"g{k}", width) for k in range(N + 1)), ("pad", -(N + 1) * width % 8 or 8)]
    b = Builder()
    b.header("h", h)
    b.header("g", second)
    b.header("meta", [("t", width), ("u", width)], metadata=True)
    b.state("start", [extract("h"), extract("g")])
    b.register("aside", width, SIZE)
    for k in range(N + 1):
        b.register(f"r{k}", width, SIZE)
    for i, body in enumerate(bodies):
        b.run(f"part{i}", body)
    b.run("out", [to_port(1)])
    return b, h, second


@pytest.mark.parametrize("width", [5, 8, 16, 32, 48, 64])
def test_repeated_statements(width: int) -> None:
    rng = random.Random(width)
    names = [rng.choice(list(TEMPLATES)) for _ in range(4)] + list(TEMPLATES)
    bodies = [[c for k in range(N) for c in TEMPLATES[name](k)] for name in names]
    bodies.append([c for body in bodies for c in body])  # all in one action, too
    b, h, second = program(width, bodies)
    model = Python(width)
    with SwitchDevice.load(b.json) as d:
        for i in (0, 1, 0, 2, 3, 255, 1):
            first = [i, *(rng.getrandbits(width) for _ in range(N + 1)), 0]
            other = [*(rng.getrandbits(width) for _ in range(N + 1)), 0]
            model.values = {("meta", "t"): 0, ("meta", "u"): 0}
            model.values |= {("h", n): v for (n, _), v in zip(h, first, strict=True)}
            model.values |= {("g", n): v for (n, _), v in zip(second, other, strict=True)}
            for body in bodies:
                for c in body:
                    model.run(c)
            [(_, out)] = d.process([(0, pack(h, first) + pack(second, other))])
            size = len(pack(h, first))
            got = [*unpack(h, out[:size]), *unpack(second, out[size:])]
            assert got == [
                *(model.values["h", n] for n, _ in h),
                *(model.values["g", n] for n, _ in second),
            ]
            for name, row in model.registers.items():
                assert d.register_read_range(name, 0, SIZE) == row, name
            assert d.register_read_range("aside", 0, SIZE) == [0] * SIZE


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - {"standing inside"}))
def test_repeated_statements_are_loops(name: str) -> None:
    b, _, _ = program(32, [[c for k in range(N) for c in TEMPLATES[name](k)]])
    assert " < 19; " in emit_program(load_program(b.json)) or " < 18; " in emit_program(load_program(b.json))


def test_a_field_that_stands_where_others_pass_makes_no_loop_over_it() -> None:
    b, _, _ = program(32, [[c for k in range(N) for c in TEMPLATES["standing inside"](k)]])
    assert " < 19; " not in emit_program(load_program(b.json))


# ---- sums where the fields are


def widths(rng: random.Random) -> Iterator[int]:
    while True:
        yield from [
            rng.choice([1, 3, 4, 7, 8, 9, 12, 16, 17, 32, 33, 48, 63, 64, 65, 128, 200])
        ] * rng.choice([1, 1, 1, 2, 4, 9])


@pytest.mark.parametrize("seed", range(6))
def test_sums_of_fields_of_any_width(seed: int) -> None:
    rng = random.Random(seed)
    source, lists = widths(rng), []
    for _ in range(3):
        own = [next(source) for _ in range(rng.randrange(1, 20))]
        if rng.random() < 0.7:  # else what follows has a place that the packet decides
            own.append(-sum(own) % 16 or 16)
        own.append(-sum(own) % 8 or 8)
        lists.append(own)
    b = Builder()
    fields = []
    b.header("sum", [("v", 16), ("more", 8)])
    for n, own in enumerate(lists):
        fields.append([(f"x{i}", w) for i, w in enumerate(own)])
        b.header(f"h{n}", fields[-1])
    b.state(
        "start",
        [extract("sum"), extract("h0")],
        [field("sum", "more")],
        [
            {"type": "hexstr", "value": "0x1", "mask": None, "next_state": "all"},
            {"type": "default", "value": None, "mask": None, "next_state": None},
        ],
    )
    b.state("all", [extract("h1"), extract("h2")])
    taken = [(n, i) for n, own in enumerate(lists) for i in range(len(own)) if rng.random() < 0.9]
    inputs = [field(f"h{n}", f"x{i}") for n, i in taken]
    inputs.insert(rng.randrange(len(inputs)), {"type": "hexstr", "value": "0xffff1", "bitwidth": 20})
    b.calculation("c", "csum16", inputs)
    into = [const(0), value("calculation", "c"), const(1 << 16)]
    b.run("sum", [call("modify_field_with_hash_based_offset", field("sum", "v"), *into), to_port(1)])
    with SwitchDevice.load(b.json) as d:
        for more in (0, 1, 1):
            zero = rng.random() < 0.3
            values = [[0 if zero else rng.getrandbits(w) for w in own] for own in lists]
            present = {0, 1, 2} if more else {0}
            bits = ""
            rest = iter(taken)
            for item in inputs:
                if item["type"] == "hexstr":
                    bits += f"{0xFFFF1:020b}"
                    continue
                n, i = next(rest)
                if n in present:
                    bits += f"{values[n][i]:0{lists[n][i]}b}"
            bits += "0" * (-len(bits) % 8)
            data = b"".join(pack(fields[n], values[n]) for n in sorted(present))
            [(_, out)] = d.process([(0, bytes([0, 0, more]) + data)])
            assert int.from_bytes(out[:2], "big") == csum16(
                int(bits or "0", 2).to_bytes(len(bits) // 8, "big")
            )


def test_the_payload_is_summed_behind_whole_bytes() -> None:
    b = simple([("v", 16), ("x", 8)])
    b.calculation("c", "csum16", [field("h", "x"), {"type": "payload"}])
    into = [const(0), value("calculation", "c"), const(1 << 16)]
    b.run("sum", [call("modify_field_with_hash_based_offset", field("h", "v"), *into), to_port(1)])
    rng = random.Random(1)
    with SwitchDevice.load(b.json) as d:
        for n in (0, 1, 2, 3, 64, 101):
            data = rng.randbytes(n + 1)
            [(_, out)] = d.process([(0, b"\0\0" + data)])
            assert int.from_bytes(out[:2], "big") == csum16(data)


# ---- copies


def test_each_copy_starts_from_what_ingress_left() -> None:
    b = Builder()
    b.header("h", [("a", 8), ("b", 8), ("c", 8)])
    b.header("large", [(f"f{i}", 32) for i in range(40)])
    b.header("meta", [("m", 8)], metadata=True)
    b.header("e_type", [("v", 8)], emit=False)
    b.stack("s", "e_type_t", 3)
    b.state("start", [extract("h"), extract("large"), extract("s[0]"), extract("s[1]")])
    b.run("spread", [assign(field(META, "mcast_grp"), const(1)), assign(field("meta", "m"), const(5))])
    change = [
        assign(field("h", "a"), expr("+", field("h", "a"), const(1))),
        assign(field("h", "b"), expr("+", field("meta", "m"), const(1))),
        assign(field("meta", "m"), expr("+", field("meta", "m"), const(1))),
        assign(field("large", "f0"), expr("+", field("large", "f0"), const(1))),
        assign(field("large", "f39"), const(9)),
        call("push", value("header_stack", "s"), const(1)),
    ]
    drop = [call("remove_header", value("header", "large")), assign(field("h", "c"), const(7))]
    a, r = b.action("change", change), b.action("drop_large", drop)
    b.table("copies", [key("exact", META, "egress_rid")], [a, r], a, pipeline=1)
    large = b"".join((100 + i).to_bytes(4, "big") for i in range(40))
    packet = bytes([1, 2, 3]) + large + bytes([21, 22]) + b"payload"
    changed = (101).to_bytes(4, "big") + large[4:-4] + (9).to_bytes(4, "big")

    with SwitchDevice.load(b.json) as d:
        d.multicast_set(1, [(1, 1), (2, 2), (3, 1), (4, 2), (5, 1)])
        d.table_insert("copies", [Exact(1)], "change")
        d.table_insert("copies", [Exact(2)], "drop_large")
        one = bytes([2, 6, 3]) + changed + bytes([21, 22]) + b"payload"
        two = bytes([1, 2, 7]) + bytes([21, 22]) + b"payload"
        assert d.process([(0, packet)] * 2) == [(1, one), (2, two), (3, one), (4, two), (5, one)] * 2
