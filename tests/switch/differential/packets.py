# SPDX-License-Identifier: Apache-2.0
"""Random packets that get through a program's parser: a walk over the states of its JSON.

The walk keeps the values of fields, as a parser does, and draws the packet's bits as it needs them. Where a
state has several transitions it picks one and draws until the packet takes it.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.switch.differential.values import Values

Json = Any
STATES = 24
ATTEMPTS = 40
SHORTEST, LONGEST = 14, 1400
"""Bytes of what a raw socket sends, and what a veth pair passes."""
VLAN = (b"\x81\x00", b"\x88\xa8")
"""Ethernet types that the kernel takes off a frame before a raw socket sees it."""

_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": lambda a, b: a << min(b, 1024),
    ">>": lambda a, b: a >> min(b, 4096),
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}


class StopError(Exception):
    """The parser ends here, with an error."""


class Shapes:
    """The headers and the parser of one program."""

    def __init__(self, program: Json) -> None:
        types = {t["name"]: [(f[0], f[1]) for f in t["fields"]] for t in program["header_types"]}
        self.fields = {h["name"]: types[h["header_type"]] for h in program["headers"]}
        self.widths = {(h, f): w for h, fields in self.fields.items() for f, w in fields}
        self.stacks = {s["name"]: s["size"] for s in program["header_stacks"]}
        self.states = {s["name"]: s for s in program["parsers"][0]["parse_states"]}
        self.start = program["parsers"][0]["init_state"]
        self.constants = sorted(set(_constants(program)))


def _constants(node: Json) -> Iterator[int]:
    """All numbers in expressions, keys and entries."""
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str) and value[:2] == "0x" and key in ("value", "key"):
                yield int(value, 16)
            else:
                yield from _constants(value)
    elif isinstance(node, list):
        for value in node:
            yield from _constants(value)


class Walk:
    """One packet in the making."""

    def __init__(self, shapes: Shapes, r: random.Random, values: Values, port: int) -> None:
        self.shapes = shapes
        self.r = r
        self.values = values
        self.bits = ""
        self.at = 0
        self.known: dict[tuple[str, str], int] = {("standard_metadata", "ingress_port"): port}
        self.places: dict[tuple[str, str], int] = {}
        self.used: dict[str, int] = {}

    # ---- bits
    def read(self, at: int, width: int, draw: Callable[[int], int] | None = None) -> int:
        missing = at + width - len(self.bits)
        if missing > 0:
            self.bits += format((draw or self.values.draw)(missing), f"0{missing}b")
        return int(self.bits[at : at + width] or "0", 2)

    def force(self, at: int, width: int, value: int, mask: int) -> None:
        old = self.read(at, width)
        new = old & ~mask | value & mask
        self.bits = self.bits[:at] + format(new, f"0{width}b") + self.bits[at + width :]

    # ---- values
    def value(self, node: Json) -> int:
        if node is None:
            return 0
        kind, value = node["type"], node.get("value")
        if kind == "expression":
            return self.expression(value)
        if kind in ("field", "stack_field"):
            return self.known.get(self.name(kind, value), 0)
        if kind == "lookahead":
            return self.read(self.at + value[0], value[1])
        if kind == "hexstr":
            return int(value, 16)
        if kind == "bool":
            return int(value)
        raise NotImplementedError(kind)

    def expression(self, node: Json) -> int:
        if "op" not in node:
            return self.value(node)
        op, left, right = node["op"], node["left"], node["right"]
        if op in _BINARY:
            return int(_BINARY[op](self.value(left), self.value(right)))
        if op in ("d2b", "b2d"):
            return int(bool(self.value(right)))
        if op == "not":
            return int(not self.value(right))
        if op == "~":
            return ~self.value(right)
        if op == "?":
            return self.value(left if self.value(node["cond"]) else right)
        if op == "last_stack_index":
            return self.used.get(right["value"], 0) - 1
        raise NotImplementedError(op)

    def name(self, kind: str, value: Json) -> tuple[str, str]:
        if kind == "stack_field":
            return f"{value[0]}[{self.used.get(value[0], 0) - 1}]", value[1]
        return value[0], value[1]

    # ---- operations
    def extract(self, header: str, varying: int | None = None) -> None:
        for field, width in self.shapes.fields[header]:
            size = varying or 0 if width == "*" else width
            self.places[header, field] = self.at
            self.known[header, field] = self.read(self.at, size) if size else 0
            self.at += size

    def operate(self, op: Json) -> None:
        kind, parameters = op["op"], op["parameters"]
        if kind in ("extract", "extract_VL"):
            source, name = parameters[0]["type"], parameters[0]["value"]
            if source == "stack":
                number = self.used.get(name, 0)
                if number == self.shapes.stacks[name]:
                    raise StopError
                self.used[name], name = number + 1, f"{name}[{number}]"
            length = self.expression(parameters[1]["value"]) if kind == "extract_VL" else None
            if length is not None and (length % 8 or length > 1024):
                raise StopError
            self.extract(name, length)
        elif kind == "set":
            width = self.shapes.widths[tuple(parameters[0]["value"])]
            self.known[tuple(parameters[0]["value"])] = self.value(parameters[1]) & (1 << width) - 1
        elif kind == "advance":
            length = self.value(parameters[0])
            if length % 8:
                raise StopError
            self.read(self.at, length)
            self.at += length
        elif kind == "verify":
            if not self.value(parameters[0]):
                raise StopError
        elif kind != "primitive":
            raise NotImplementedError(kind)

    # ---- states
    def key(self, state: Json) -> list[tuple[Json, int]]:
        """The key's elements and their widths in whole bytes, which is how they are put together."""
        parts = []
        for node in state["transition_key"]:
            if node["type"] == "lookahead":
                width = node["value"][1]
            else:
                width = self.shapes.widths[self.name(node["type"], node["value"])]
            parts.append((node, (width + 7) // 8 * 8))
        return parts

    def taken(self, state: Json) -> Json:
        """The transition that these bits take; StopError for none."""
        key = 0
        for node, width in self.key(state):
            key = key << width | self.value(node)
        for transition in state["transitions"]:
            mask = -1 if transition["mask"] is None else int(transition["mask"], 16)
            if transition["type"] == "default" or key & mask == int(transition["value"], 16) & mask:
                return transition
        raise StopError

    def aim(self, state: Json, wanted: Json) -> None:
        """Give the parts of the key that lie in the packet the values of this transition."""
        if wanted["type"] != "hexstr":
            return
        value = int(wanted["value"], 16)
        mask = -1 if wanted["mask"] is None else int(wanted["mask"], 16)
        for node, width in reversed(self.key(state)):
            ones = (1 << width) - 1
            if node["type"] == "lookahead":
                offset, size = node["value"]
                self.force(self.at + offset, size, value & ones, mask & ones)
            else:
                name = self.name(node["type"], node["value"])
                if name in self.places:
                    size = self.shapes.widths[name]
                    self.force(self.places[name], size, value & ones, mask & ones)
                    self.known[name] = self.read(self.places[name], size)
            value, mask = value >> width, mask >> width

    def branch(self) -> Walk:
        walk = copy.copy(self)
        walk.known, walk.places, walk.used = dict(self.known), dict(self.places), dict(self.used)
        return walk

    def step(self, state: Json) -> tuple[Walk, str | None]:
        """Go through a state, by the transition picked if that can be had; the walk and the next state."""
        r, transitions = self.r, state["transitions"]
        wanted = r.choice(transitions) if transitions and r.random() < 0.95 else None
        again = [t for t in transitions if t["next_state"] == state["name"]]
        if again and r.random() < 0.6:
            wanted = again[0]
        for _ in range(ATTEMPTS):
            walk, got = self.branch(), None
            try:
                for op in state["parser_ops"]:
                    walk.operate(op)
                if wanted is not None:
                    walk.aim(state, wanted)
                got = walk.taken(state)
            except StopError:
                if r.random() < 0.1:
                    break
            if got is wanted or wanted is None:
                break
        return walk, got and got["next_state"]

    def bytes(self) -> bytes:
        bits = self.bits + "0" * (-len(self.bits) % 8)
        return int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:]


def shaped(shapes: Shapes, r: random.Random, values: Values, port: int) -> bytes:
    walk = Walk(shapes, r, values, port)
    name: str | None = shapes.start
    for _ in range(STATES):
        if name is None:
            break
        walk, name = walk.step(shapes.states[name])
    return walk.bytes()


def random_packet(shapes: Shapes, r: random.Random, values: Values, port: int) -> bytes:
    """A packet for this port: mostly one that parses, now and then changed, cut or none at all."""
    if r.random() < 0.03:
        frame = r.randbytes(r.choice((14, 15, 20, 64, 300)))
    else:
        frame = shaped(shapes, r, values, port)
        if r.random() < 0.7:
            frame += r.randbytes(r.choice((0, 1, 2, 3, 7, 8, 20, 46, 100)))
    kind = r.random()
    if kind < 0.08:
        changed = bytearray(frame)
        for _ in range(r.randint(1, 3)):
            if changed:
                changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
        frame = bytes(changed)
    elif kind < 0.16:
        frame = frame[: r.randrange(len(frame) + 1)]
    frame = frame.ljust(SHORTEST, b"\0")[:LONGEST]
    return frame[:12] + b"\x12\x34" + frame[14:] if frame[12:14] in VLAN else frame
