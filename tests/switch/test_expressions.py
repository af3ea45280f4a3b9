# SPDX-License-Identifier: Apache-2.0
"""Random expressions of every operator and width against Python's integers."""

import random
from collections.abc import Callable

import pytest

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.errors import LoadError
from switch.load import load_program
from tests.switch.programs import J, assign, const, expr, field, pack, simple, to_port, unpack

FIELDS = [
    ("u1", 1, False),
    ("u7", 7, False),
    ("u8", 8, False),
    ("i8", 8, True),
    ("u13", 13, False),
    ("i11", 11, True),
    ("u32", 32, False),
    ("i32", 32, True),
    ("u48", 48, False),
    ("u64", 64, False),
    ("i64", 64, True),
    ("u65", 65, False),
    ("u128", 128, False),
    ("i100", 100, True),
    ("u136", 136, False),
    ("i200", 200, True),
    ("u331", 331, False),
]
FIELDS.append(("pad", -sum(f[1] for f in FIELDS) % 8 or 8, False))
RESULTS = [
    (f"r{i}", w, s)
    for i, (w, s) in enumerate(
        [
            (1, False),
            (8, False),
            (8, True),
            (20, False),
            (32, False),
            (48, True),
            (64, False),
            (72, False),
            (128, False),
            (128, True),
            (136, False),
            (200, True),
            (352, False),
        ]
        * 3
    )
]
RESULTS.append(("rpad", -sum(f[1] for f in RESULTS) % 8 or 8, False))
ALL = FIELDS + RESULTS

Evaluate = Callable[[dict[str, int]], int]


def wrap(v: int, width: int, signed: bool) -> int:
    v &= (1 << width) - 1
    return v - (1 << width) if signed and v >> (width - 1) else v


def clamp(v: int, low: int, high: int) -> int:
    return min(max(v, low), high)


class Generator:
    """Makes an expression as JSON together with the Python function that computes it."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)

    def leaf(self) -> tuple[J, Evaluate]:
        if self.r.random() < 0.3:
            v = self.r.choice(
                [0, 1, 2, 0xFF, 0xFFFF_FFFF, 1 << 63, (1 << 128) - 1, self.r.getrandbits(140), -1, -77]
            )
            return const(v), lambda _: v
        name = self.r.choice(FIELDS)[0]
        return field("h", name), lambda x: x[name]

    def number(self, depth: int) -> tuple[J, Evaluate]:
        if depth == 0:
            return self.leaf()
        op = self.r.choice(
            [
                "+",
                "-",
                "*",
                "&",
                "|",
                "^",
                "~",
                "<<k",
                ">>k",
                "<<",
                ">>",
                "?",
                "b2d",
                "&mask",
                "&mask",
                "two_comp_mod",
                "usat_cast",
                "sat_cast",
                "/",
                "%",
            ]
        )
        j, f = self.number(depth - 1)
        if op in ("~", "b2d"):
            if op == "~":
                return expr("~", None, j), lambda x: ~f(x)
            jc, fc = self.truth(depth - 1)
            return expr("b2d", None, jc), lambda x: int(fc(x))
        if op == "&mask":
            mask = (1 << self.r.choice([1, 8, 13, 32, 64, 100, 128, 136])) - 1
            return expr("&", j, const(mask)), lambda x: f(x) & mask
        if op in ("two_comp_mod", "usat_cast", "sat_cast"):
            w = self.r.choice([2, 8, 31, 64, 65, 128, 136])
            least, most = (0, (1 << w) - 1) if op == "usat_cast" else (-(1 << (w - 1)), (1 << (w - 1)) - 1)
            if op == "two_comp_mod":
                return expr(op, j, const(w)), lambda x: wrap(f(x), w, True)
            return expr(op, j, const(w)), lambda x: clamp(f(x), least, most)
        if op in ("<<k", ">>k"):
            k = self.r.choice([0, 1, 7, 31, 32, 64, 70, 130])
            if op == "<<k":
                return expr("<<", j, const(k)), lambda x: f(x) << k
            return expr(">>", j, const(k)), lambda x: f(x) >> k
        if op in ("<<", ">>"):
            name = self.r.choice(["u1", "u7", "u8"])
            if op == "<<":
                return expr("<<", j, field("h", name)), lambda x: f(x) << x[name]
            return expr(">>", j, field("h", name)), lambda x: f(x) >> x[name]
        if op in ("/", "%"):
            # both sides made non-negative and small, the divisor not zero
            d = self.r.choice([1, 3, 10, 1 << 20])
            m = (1 << self.r.choice([32, 64, 120])) - 1
            g = expr("&", j, const(m))
            if op == "/":
                return expr("/", g, const(d)), lambda x: (f(x) & m) // d
            return expr("%", g, const(d)), lambda x: (f(x) & m) % d
        k2, g2 = self.number(depth - 1)
        if op == "?":
            jc, fc = self.truth(depth - 1)
            return expr("?", j, k2, jc), lambda x: f(x) if fc(x) else g2(x)
        functions: dict[str, Evaluate] = {
            "+": lambda x: f(x) + g2(x),
            "-": lambda x: f(x) - g2(x),
            "*": lambda x: f(x) * g2(x),
            "&": lambda x: f(x) & g2(x),
            "|": lambda x: f(x) | g2(x),
            "^": lambda x: f(x) ^ g2(x),
        }
        return expr(op, j, k2), functions[op]

    def truth(self, depth: int) -> tuple[J, Callable[[dict[str, int]], bool]]:
        op = self.r.choice(["==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "d2b", "eqb"])
        if op in ("and", "or", "not", "eqb") and depth > 0:
            j, f = self.truth(depth - 1)
            if op == "not":
                return expr("not", None, j), lambda x: not f(x)
            k, g = self.truth(depth - 1)
            if op == "eqb":
                return expr("==", j, k), lambda x: f(x) == g(x)
            if op == "and":
                return expr("and", j, k), lambda x: f(x) and g(x)
            return expr("or", j, k), lambda x: f(x) or g(x)
        a, fa = self.number(max(depth - 1, 0))
        if op == "d2b":
            return expr("d2b", None, a), lambda x: fa(x) != 0
        b, fb = self.number(max(depth - 1, 0))
        name = op if op in ("==", "!=", "<", "<=", ">", ">=") else "<"
        tests = {
            "==": lambda x: fa(x) == fb(x),
            "!=": lambda x: fa(x) != fb(x),
            "<": lambda x: fa(x) < fb(x),
            "<=": lambda x: fa(x) <= fb(x),
            ">": lambda x: fa(x) > fb(x),
            ">=": lambda x: fa(x) >= fb(x),
        }
        return expr(name, a, b), tests[name]


def inputs(r: random.Random) -> list[int]:
    out = []
    for _, width, signed in FIELDS:
        v = r.choice([0, 1, (1 << width) - 1, 1 << (width - 1), r.getrandbits(width), r.getrandbits(width)])
        out.append(wrap(v, width, signed))
    return out


def check_seed(seed: int, flags: tuple[str, ...] = ()) -> None:
    g = Generator(seed)
    made: list[tuple[str, int, bool, Evaluate]] = []
    body = [to_port(1)]
    for name, width, signed in RESULTS[:-1]:
        while True:
            j, f = g.number(g.r.choice([1, 2, 2, 3]))
            try:
                emit_program(load_program(simple(ALL, [assign(field("h", name), j)]).json))
            except LoadError:  # a value of more than 4096 bits, or a division of more than 128
                continue
            break
        made.append((name, width, signed, f))
        body.append(assign(field("h", name), j))
    packets, expected = [], []
    r = random.Random(seed)
    for _ in range(40):
        x = inputs(r)
        packets.append((0, pack(ALL, x + [0] * len(RESULTS))))
        env = dict(zip([f[0] for f in FIELDS], x, strict=True))
        expected.append([wrap(f(env), width, signed) for _, width, signed, f in made])
    with SwitchDevice.load(simple(ALL, body).json, extra_flags=flags) as d:
        out = d.process(packets)
        assert d.log() == []
    assert [p for p, _ in out] == [1] * len(packets)
    for (_, data), want, (_, sent) in zip(out, expected, packets, strict=True):
        got = unpack(ALL, data)[len(FIELDS) : -1]
        for (name, *_), a, b in zip(made, got, want, strict=True):
            assert a == b, (seed, name, sent.hex())


@pytest.mark.parametrize("seed", range(6))
def test_expressions_agree_with_python(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_expressions_agree_with_python(seed: int) -> None:
    check_seed(seed, ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"))
