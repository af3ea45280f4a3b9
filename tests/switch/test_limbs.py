# SPDX-License-Identifier: Apache-2.0
"""Wide values that are put together from parts: word by word, where no carry goes from one to the next."""

import random

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.switch.programs import J, assign, const, expr, field, pack, simple, to_port, unpack

FIELDS = [("a", 32, False), ("b", 64, False), ("c", 8, False), ("w", 136, False), ("x", 200, False)]


def concatenated(*parts: tuple[str, int]) -> J:
    """As p4c writes `a ++ b ++ c`."""
    whole = field("h", parts[0][0])
    for name, width in parts[1:]:
        whole = expr("|", expr("<<", whole, const(width)), field("h", name))
    return whole


def run(target: str, value: J, packet: dict[str, int]) -> int:
    values = [packet.get(f[0], 0) for f in FIELDS]
    with SwitchDevice.load(simple(FIELDS, [to_port(1), assign(field("h", target), value)]).json) as d:
        ((_, data),) = d.process([(0, pack(FIELDS, values))])
    return unpack(FIELDS, data)[[f[0] for f in FIELDS].index(target)]


def loops(target: str, value: J) -> bool:
    """Whether the value is computed by the loops of wide.h."""
    c = emit_program(load_program(simple(FIELDS, [assign(field("h", target), value)]).json))
    return any(f"sw_big_{op}(" in c for op in ("shl", "shr", "or", "and", "add", "copy", "from64", "from128"))


def test_a_concatenation_is_made_word_by_word() -> None:
    r = random.Random(5)
    value = concatenated(("a", 32), ("a", 32), ("b", 64), ("c", 8))
    p = {"a": r.getrandbits(32), "b": r.getrandbits(64), "c": r.getrandbits(8)}
    assert not loops("w", value)
    assert run("w", value, p) == p["a"] << 104 | p["a"] << 72 | p["b"] << 8 | p["c"]


def test_a_value_may_read_the_place_that_it_is_stored_at() -> None:
    r = random.Random(6)
    p = {"w": r.getrandbits(136), "c": r.getrandbits(8)}
    mask = (1 << 136) - (1 << 70)
    turned = expr(
        "|",
        expr("<<", field("h", "w"), const(66)),
        expr(">>", expr("&", field("h", "w"), const(mask)), const(70)),
    )
    assert not loops("w", turned)
    assert run("w", turned, p) == (p["w"] << 66 | (p["w"] & mask) >> 70) % (1 << 136)


def test_small_sums_are_parts_like_fields() -> None:
    p = {"a": 0xFFFF_FFFF, "c": 0xFF, "b": 3}
    total = expr("+", field("h", "a"), field("h", "c"))  # 33 bits
    value = expr("^", expr("<<", total, const(120)), field("h", "b"))
    assert not loops("x", value)
    assert run("x", value, p) == (p["a"] + p["c"]) << 120 ^ p["b"]


def test_sums_that_carry_are_not() -> None:
    p = {"w": (1 << 136) - 1, "a": 1}
    total = expr("+", field("h", "w"), field("h", "a"))
    assert loops("x", total)
    assert run("x", total, p) == 1 << 136
    negative = expr("-", field("h", "a"), field("h", "b"))
    assert loops("x", negative)
    assert run("x", negative, {"a": 1, "b": 3}) == (1 << 200) - 2


def test_bits_that_a_mask_leaves_out_of_a_narrower_value() -> None:
    # ((bit<192>) ((c ++ 32w0 ++ c) & 48w0xf000000000)) << 108, as p4c writes it
    def cut(value: J, width: int) -> J:
        return expr("&", value, const((1 << width) - 1))

    first = expr("|", cut(expr("<<", cut(field("h", "c"), 40), const(32)), 40), const(0))
    concat = expr("|", cut(expr("<<", cut(first, 48), const(8)), 48), cut(field("h", "c"), 8))
    value = cut(expr("<<", cut(expr("&", concat, const(0xF000000000)), 192), const(108)), 192)
    assert run("x", value, {"c": 0xFF}) == ((0xFF << 40 | 0xFF) & 0xF000000000) << 108
