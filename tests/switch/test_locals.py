# SPDX-License-Identifier: Apache-2.0
"""Metadata in the frame of one block: random programs do the same as with all of it in the packet.

Their parsers, ingresses and egresses set and read metadata at random, also in keys, hashes, loops, lists
that go with clones, resubmitted and recirculated packets, digests, and headers copied as a whole.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from switch import emit_bytes, emit_known
from switch.device import Exact, SwitchDevice
from switch.emit_locals import Locals
from switch.load import load_program
from tests.switch.programs import META, Builder, J, arg, assign, call, const, expr, extract, field, key, value

WIDTHS = (1, 5, 8, 16, 32, 48, 64, 70, 136)
RUN = 18
FIELDS = [("f0", 8), ("f1", 8), *((f"f{i}", 16) for i in range(2, 24))]
LARGE = [(f"v{i}", 32) for i in range(20)]
METADATA = ("m0", "m1", "m2", "copied", "copy")


class Program:
    """One random program, and packets for it."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        b = self.b = Builder()
        b.header("h", FIELDS)
        b.header("large", LARGE)
        kind = [(f"w{w}", w) for w in WIDTHS] + [(f"r{i}", 16) for i in range(RUN)]
        b.header(METADATA[0], kind, metadata=True)
        for name in METADATA[1:]:
            b.instance(name, f"{METADATA[0]}_t", metadata=True)
        self.names = [f[0] for f in kind]
        self.own = {
            "parser": self.some(8),
            "ingress": self.some(40),
            "egress": self.some(30),
            "all": self.some(6),
        }
        for n, algorithm in enumerate(("csum16", "crc32", "csum16", "crc16", "csum16")):
            where = ("ingress", "egress")[n % 2]
            inputs = [self.place(where) for _ in range(self.r.randrange(1, 8))]
            inputs += [field("m1", f"r{i}") for i in range(RUN)] if n == 2 else []
            inputs += [field("large", f"v{i}") for i in range(len(LARGE))] if n in (0, 3) else []
            b.calculation(f"c{where}{n}", algorithm, inputs)
        b.calculation("uncalled", "crc16", [self.place("ingress"), self.place("egress")])
        b.field_list(1, [self.place("all") for _ in range(3)])
        b.root["learn_lists"].append({"name": "news", "id": 1, "elements": [self.place("ingress")]})
        sets: list[J] = [
            {"op": "set", "parameters": [self.place("parser"), self.source("parser")]} for _ in range(4)
        ]
        b.state(
            "start",
            [
                extract("h"),
                extract("large"),
                *sets,
                {"op": "set", "parameters": [field("h", "f2"), self.place("parser")]},
            ],
        )
        for pipeline, where in enumerate(("ingress", "egress")):
            b.run(f"{where}_first", self.body(where), pipeline=pipeline)
            nothing = b.action(f"{where}_none", [])
            numbers = [b.action(f"{where}{i}", self.body(where), [("a", 16)]) for i in range(4)]
            m, f = self.place(where, narrow=True)["value"]
            keys = [key("exact", "h", "f0"), key("exact", m, f)]
            b.table(f"t{where}", keys, [nothing, *numbers], nothing, pipeline=pipeline)
            if where == "ingress":
                b.run("spread", [assign(field(META, "mcast_grp"), const(1))])
                again = b.action(
                    "again", [call("resubmit", const(1)), assign(field(META, "mcast_grp"), const(0))]
                )
                clone = b.action(
                    "clone",
                    [
                        call("clone_ingress_pkt_to_egress", const(1), const(1)),
                        call("generate_digest", const(0), const(1)),
                    ],
                )
                none = b.action("none", [])
                b.table(
                    "way",
                    [key("exact", "h", "f1"), key("exact", META, "instance_type")],
                    [again, clone, none],
                    none,
                )
            else:
                again = b.action("round", [call("recirculate", const(1))])
                none = b.action("end", [])
                b.table(
                    "out",
                    [key("exact", "h", "f1"), key("exact", META, "instance_type")],
                    [again, none],
                    none,
                    pipeline=1,
                )
            b.run(f"{where}_last", self.loop(where), pipeline=pipeline)

    def some(self, n: int) -> list[tuple[str, str]]:
        places = [(m, self.r.choice(self.names)) for m in ("m0", "m1", "m2") for _ in range(n // 3 + 1)]
        return places if n < 40 else places + [("m1", f"r{i}") for i in range(RUN)]

    def place(self, where: str, narrow: bool = False) -> J:
        while True:
            m, f = self.r.choice(self.own[where if self.r.random() < 0.9 else "all"])
            if not narrow or f in ("w8", "w1", "w5"):
                return field(m, f)
            self.own[where].append(("m0" if where == "ingress" else "m2", "w5"))

    def source(self, where: str) -> J:
        n = self.r.randrange(5)
        if n == 0:
            return const(self.r.getrandbits(16))
        if n == 1:
            return field("h", f"f{self.r.randrange(24)}")
        if n == 2:
            return expr(self.r.choice("+-^&|"), self.place(where), field("h", f"f{self.r.randrange(24)}"))
        return self.place(where)

    def body(self, where: str) -> list[J]:
        out: list[J] = []
        for _ in range(self.r.randrange(3, 12)):
            n = self.r.randrange(12)
            if n < 6:
                out.append(assign(self.place(where), self.source(where)))
            elif n < 9:
                out.append(assign(field("h", f"f{self.r.randrange(2, 24)}"), self.source(where)))
            elif n == 9:
                name = self.r.choice(
                    [c["name"] for c in self.b.root["calculations"] if c["name"][1:-1] == where]
                )
                out.append(
                    call(
                        "modify_field_with_hash_based_offset",
                        self.place(where),
                        const(0),
                        value("calculation", name),
                        const(0x10000),
                    )
                )
            elif n == 10:
                out.append(call("assign_header", value("header", "copy"), value("header", "copied")))
                out.append(assign(field("copied", self.r.choice(self.names)), field("copy", "w16")))
            else:
                out.append(assign(field("large", f"v{self.r.randrange(20)}"), self.source(where)))
        return out

    def loop(self, where: str) -> list[J]:
        """Repeated statements over metadata, into the packet."""
        out = [
            assign(field("m1", f"r{i}"), expr("^", field("m1", f"r{i}"), field("h", f"f{i + 3}")))
            for i in range(RUN)
        ]
        out += [
            assign(field("h", f"f{i + 3}"), expr("+", field("m1", f"r{i}"), self.place(where)))
            for i in range(RUN)
        ]
        return out

    def outputs(self, json: str) -> tuple[list[list[tuple[int, bytes]]], list[Any]]:
        """What leaves for each of some packets, and all digests."""
        r = random.Random(1)
        with SwitchDevice.load(json, clock=lambda: 7) as d:
            d.multicast_set(1, [(1, 1), (2, 2), (3, 1)])
            d.clone_session_set(1, [(4, 3)])
            for where in ("ingress", "egress"):
                for i in range(16):
                    d.table_insert(f"t{where}", [Exact(i), Exact(0)], f"{where}{i % 4}", [i])
            for kind in (0, 1, 4, 5, 6):
                d.table_insert("way", [Exact(1), Exact(kind)], "clone")
                d.table_insert("way", [Exact(2), Exact(kind)], "again" if kind == 0 else "none")
                d.table_insert("out", [Exact(3), Exact(kind)], "round" if kind == 5 else "end")
            out = []
            for _ in range(120):
                head = bytes([r.randrange(20), r.randrange(5)])
                data = (head + r.randbytes(200))[: r.choice([126, 126, 140, 60])]
                out.append(d.process([(r.randrange(4), data)]))
            return out, [x.values for x in d.digests()]


def body_with_argument(program: Program) -> None:
    for a in program.b.root["actions"]:
        if a["runtime_data"]:
            a["primitives"].append(assign(field("h", "f5"), arg(0)))


class NoLocals(Locals):
    """All metadata in the packet."""

    def __init__(self, program: Any, targets: set[str]) -> None:
        super().__init__(program, targets)
        self.blocks.clear()


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_do_the_same(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = Program(seed)
    body_with_argument(program)
    json = program.b.json
    found = Locals(load_program(json), {META})
    assert {"ingress", "egress"} <= set(found.blocks.values())
    fast = program.outputs(json)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing of it is made anew otherwise
    monkeypatch.setattr("switch.emit.Locals", NoLocals)
    monkeypatch.setattr(emit_bytes, "STORED_RUN", 4)
    monkeypatch.setattr(emit_known, "summed_run", lambda *args: None)
    plain = program.outputs(json)
    assert fast == plain
    assert sum(len(x) for x in fast[0]) > 200
    assert fast[1]


def names(json: str) -> dict[str, str]:
    """Blocks of the fields of m."""
    program = load_program(json)
    m = program.headers["m"]
    return {
        m.type.fields[i].name: block for (h, i), block in Locals(program, {META}).blocks.items() if h == m.id
    }


def test_which_fields_are_local() -> None:
    b = Builder()
    b.header("h", [("a", 16), ("b", 16)])
    fields = ("parsed", "in", "out", "both", "kept", "told", "hashed", "wide", "checked", "unused", "written")
    b.header("m", [(n, 72 if n == "wide" else 16) for n in fields], metadata=True)
    m = {n: field("m", n) for n in fields}
    b.calculation("hash", "crc16", [m["hashed"]])
    b.calculation("update", "csum16", [m["checked"]])
    b.field_list(1, [m["kept"]])
    b.root["learn_lists"].append({"name": "news", "id": 1, "elements": [m["told"]]})
    b.root["checksums"].append(
        {
            "name": "x",
            "id": 0,
            "source_info": {},
            "target": ["h", "a"],
            "type": "generic",
            "calculation": "update",
            "verify": False,
            "update": True,
        }
    )
    b.state("start", [extract("h"), {"op": "set", "parameters": [m["parsed"], field("h", "a")]}])
    b.run(
        "one",
        [assign(m[n], field("h", "b")) for n in ("in", "both", "kept", "told", "hashed", "wide", "checked")],
    )
    b.run("two", [assign(field("h", "b"), m["in"]), assign(field(META, "egress_spec"), const(1))])
    b.run(
        "three",
        [
            call(
                "modify_field_with_hash_based_offset",
                m["in"],
                const(0),
                value("calculation", "hash"),
                const(0x10000),
            )
        ],
    )
    b.run(
        "four",
        [assign(m["out"], m["both"]), assign(field("h", "a"), m["out"]), assign(m["written"], const(1))],
        pipeline=1,
    )
    wanted = {"parsed": "parser", "in": "ingress", "hashed": "ingress", "out": "egress", "written": "egress"}
    assert names(b.json) == wanted
    b.run("five", [call("assign_header", value("header", "m"), value("header", "m"))], pipeline=1)
    assert names(b.json) == {}
    with SwitchDevice.load(b.json) as d:  # csum16 of b, which ingress left in `checked`
        assert d.process([(0, bytes.fromhex("00112233"))]) == [(1, bytes.fromhex("ddcc2233"))]


def test_each_packet_and_copy_finds_zeroes() -> None:
    b = Builder()
    b.header("h", [("a", 8), ("b", 8), ("c", 8)])
    b.header("m", [("p", 8), ("i", 8), ("e", 8)], metadata=True)
    more = {n: assign(field("m", n), expr("+", field("m", n), const(1))) for n in "pie"}
    parsed = [
        {"op": "set", "parameters": [*x["parameters"]]}
        for x in (more["p"], assign(field("h", "a"), field("m", "p")))
    ]
    b.state("start", [extract("h"), *parsed])
    b.run(
        "in",
        [more["i"], assign(field("h", "b"), field("m", "i")), assign(field(META, "mcast_grp"), const(1))],
    )
    b.run("out", [more["e"], assign(field("h", "c"), field("m", "e"))], pipeline=1)
    assert names(b.json) == {"p": "parser", "i": "ingress", "e": "egress"}
    with SwitchDevice.load(b.json) as d:
        d.multicast_set(1, [(1, 1), (2, 2)])
        assert d.process([(0, b"\7\7\7rest")] * 2) == [(1, b"\1\1\1rest"), (2, b"\1\1\1rest")] * 2
