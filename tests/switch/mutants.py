# SPDX-License-Identifier: Apache-2.0
"""bmv2 JSON with random damage: other types, other shapes, things missing, doubled or in the wrong place."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 64, -(1 << 70), 1.5, float("inf"), float("nan"),
    "", "x", "0x10", "-0x1", "*", "default", "\ud800", "é*/\\\n\"", [], {}, [[]], [None], [0, 1],
    ["x", "y"], {"x": 1}, {"type": "x", "value": None}, {"type": "hexstr", "value": "0x1"},
    {"type": "expression", "value": {"op": [], "left": None, "right": None}},
    {"type": "lookahead", "value": [0, 8]}, {"type": "bool", "value": True},
]  # fmt: skip

Place = tuple[Any, Any]


def places(j: Any) -> list[Place]:
    """Every (container, key or index) below a JSON value, p4c's notes on the source aside."""
    out: list[Place] = []
    todo = [j]
    while todo:
        v = todo.pop()
        steps = range(len(v)) if isinstance(v, list) else [k for k in v if k != "source_info"]
        for k in steps:
            out.append((v, k))
            if isinstance(v[k], list | dict):
                todo.append(v[k])
    return out


def damage(root: Any, r: random.Random) -> str:
    """Change one place of a program; what was done, for people."""
    found = places(root)
    inside, key = r.choice(found)
    kind = r.choice(
        ["value", "value", "elsewhere", "alike", "alike", "alike", "drop", "twice", "swap", "wrap", "number"]
    )
    before = inside[key]
    if kind in ("elsewhere", "alike"):
        others = [o[k] for o, k in found if kind == "elsewhere" or (k == key and type(o[k]) is type(before))]
        inside[key] = copy.deepcopy(r.choice(others))
    elif kind == "drop":
        del inside[key]
        return f"dropped {before!r:.60} at {key!r}"
    elif kind == "twice" and isinstance(inside, list):
        inside.insert(key, copy.deepcopy(before))
    elif kind == "swap":
        k = r.choice(list(range(len(inside)) if isinstance(inside, list) else inside))
        inside[key], inside[k] = inside[k], inside[key]
    elif kind == "wrap":
        inside[key] = [before]
    elif kind == "number" and isinstance(before, int):
        inside[key] = r.choice([before + 1, -before, before * 2, str(before), float(before)])
    else:
        inside[key] = copy.deepcopy(r.choice(VALUES))
    return f"{kind} at {key!r}: {before!r:.60} -> {inside[key]!r:.60}"


def mutant(text: str, seed: int) -> tuple[str, str]:
    """A program with one to three faults; and what they are."""
    r = random.Random(seed)
    root = json.loads(text)
    done = [damage(root, r) for _ in range(r.choice([1, 1, 1, 2, 3]))]
    return json.dumps(root), f"seed {seed}: " + "; ".join(done)
