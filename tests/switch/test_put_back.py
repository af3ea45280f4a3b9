# SPDX-License-Identifier: Apache-2.0
"""What egress changes is put back between the copies of a packet, wherever in the phv it lies."""

from __future__ import annotations

import re

from switch.device import SwitchDevice
from switch.emit import emit_program
from switch.load import load_program
from tests.switch.programs import META, Builder, J, assign, call, const, expr, extract, field, value
from tests.switch.test_checksums import csum16

LARGE = [(f"f{i}", 16) for i in range(64)]
CHANGED = (("small", "b"), ("large", "f0"), ("large", "f63"), ("st[1]", "x"))


def program(changed: tuple[tuple[str, str], ...], *, summed: bool = False) -> str:
    """Each copy's egress adds its replication id to some fields, and puts the sum of `large` into `small`."""
    b = Builder()
    b.header("unused", [("u", 8)])
    b.header("small", [("a", 16), ("b", 16)])
    b.header("large", LARGE)
    b.header("e", [("x", 16)], emit=False)
    b.stack("st", "e_t", 2)
    b.header("m", [("n", 16)], metadata=True)
    into = {"op": "extract", "parameters": [value("stack", "st")]}
    b.state("start", [extract("small"), extract("large"), into, into])
    b.run("body", [assign(field(META, "mcast_grp"), const(1))])
    rid = field(META, "egress_rid")
    body: list[J] = [assign(field(*f), expr("+", field(*f), rid)) for f in changed]
    if summed:
        b.calculation("sum", "csum16", [field("large", f) for f, _ in LARGE])
        args = [field("small", "a"), const(0), {"type": "calculation", "value": "sum"}, const(1 << 16)]
        body.append(call("modify_field_with_hash_based_offset", *args))
    b.run("out", body, pipeline=1)
    return b.json


def test_each_copy_is_changed_once() -> None:
    words = [10 * i for i in range(2 + len(LARGE) + 2)]
    at = {("small", "b"): 1, ("large", "f0"): 2, ("large", "f63"): 65, ("st[1]", "x"): 67}
    want = []
    for rid in (5, 6, 7):
        copy = list(words)
        for place in at.values():
            copy[place] += rid
        want.append((rid - 4, b"".join(w.to_bytes(2, "big") for w in copy)))
    with SwitchDevice.load(program(CHANGED)) as d:
        d.multicast_set(1, [(1, 5), (2, 6), (3, 7)])
        assert d.process([(9, b"".join(w.to_bytes(2, "big") for w in words))]) == want


def test_a_summed_header_goes_back_where_its_version_changed() -> None:
    words = [0, 1] + [0x300 * i for i in range(len(LARGE))] + [3, 4]
    changed = (("large", "f1"),)
    want = []
    for rid in (0, 6, 0, 7):  # the first and the third change nothing
        copy = list(words)
        copy[3] += rid
        copy[0] = csum16(b"".join(w.to_bytes(2, "big") for w in copy[2:-2]))
        want.append((2, b"".join(w.to_bytes(2, "big") for w in copy)))
    with SwitchDevice.load(program(changed, summed=True)) as d:
        d.multicast_set(1, [(2, rid) for rid in (0, 6, 0, 7)])
        for _ in range(2):
            assert d.process([(9, b"".join(w.to_bytes(2, "big") for w in words))]) == want
    guard = "if (to->sw_version_0 != from->sw_version_0"
    stored = "if (h->large.f1 != "
    emitted = emit_program(load_program(program(changed, summed=True)))
    assert guard in emitted
    assert stored in emitted
    emitted = emit_program(load_program(program(changed)))
    assert guard not in emitted
    assert stored not in emitted


def spans(changed: tuple[tuple[str, str], ...]) -> list[str]:
    c = emit_program(load_program(program(changed)))
    body = c[c.index("static void p4_put_back(") :]
    return re.findall(r"sw_copy_lines\(to, from, offsetof\(phv, (.*?)\),", body[: body.index("\n}\n")])


def test_only_what_is_written_goes_back() -> None:
    assert spans(()) == ["standard_metadata"]
    assert spans((("small", "b"),)) == ["standard_metadata"]  # and `small` beside it
    assert spans((("large", "f0"), ("large", "f1"), ("large", "f63"))) == [
        *("standard_metadata", "large.f0", "large.f63")
    ]
    assert len(spans(CHANGED)) == 4


def test_the_headers_that_egress_writes_lie_side_by_side() -> None:
    c = emit_program(load_program(program(CHANGED)))
    phv = c[c.index("typedef struct phv {") : c.index("} phv;")]
    names = re.findall(r" (\w+);$", phv, re.MULTILINE)
    assert names[:3] == ["st", "standard_metadata", "small"]
    assert "_Alignas(64) t_standard_metadata" in phv
