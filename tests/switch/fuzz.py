# SPDX-License-Identifier: Apache-2.0
"""Random and mutated packets through a program built with sanitizers.

`python -m tests.switch.fuzz JSON COUNT SEED [HEX...]`; under AddressSanitizer it needs libasan in LD_PRELOAD
(see test_fuzz.py). A fault of the generated code or the runtime ends the process with the sanitizer's report.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from switch.device import Exact, Lpm, MatchValue, Range, SwitchDevice, Ternary
from switch.errors import DeviceError
from switch.ir import Key

FLAGS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def some_match(r: random.Random, k: Key) -> MatchValue:
    v = r.getrandbits(k.width) if r.random() < 0.5 else r.randrange(min(1 << k.width, 8))
    if k.match == "exact":
        return Exact(v)
    if k.match == "lpm":
        return Lpm(v, r.randint(0, k.width))
    if k.match == "ternary":
        return Ternary(v, r.getrandbits(k.width))
    return Range(v, r.randint(v, (1 << k.width) - 1))


def fill(d: SwitchDevice, r: random.Random) -> None:
    """Random entries, groups and sessions."""
    for t in d.program.tables.values():
        for _ in range(20 if t.keys and not t.immutable else 0):
            action = r.choice(t.actions)
            args = [r.getrandbits(p.width) if r.random() < 0.5 else r.randrange(2) for p in action.params]
            priority = r.randint(1, 9) if t.match in ("ternary", "range") else None
            try:
                d.table_insert(t.name, [some_match(r, k) for k in t.keys], action.name, args, priority)
            except DeviceError:
                continue
    for g in range(1, 8):
        d.multicast_set(g, [(r.randrange(512), r.randrange(3)) for _ in range(r.randrange(4))])
        d.clone_session_set(g, [(r.randrange(512), 0)], truncate=r.choice([0, 0, 1, 60]))


def some_packet(r: random.Random, seen: list[bytes]) -> bytes:
    """Noise, or an earlier packet with bytes changed, cut off or added."""
    if not seen or r.random() < 0.3:
        return r.randbytes(r.choice([0, 1, 13, 14, 20, 34, 60, 128, 1076, 1500]))
    p = bytearray(r.choice(seen))
    for _ in range(r.randrange(4)):
        if p:
            p[r.randrange(len(p))] = r.choice([0, 1, 0x45, 0x46, 0x4F, 0xFF, 8, 6, r.randrange(256)])
    if r.random() < 0.2:
        p = p[: r.randrange(len(p) + 1)]
    return bytes(p) + (r.randbytes(r.randrange(80)) if r.random() < 0.2 else b"")


def fuzz(path: Path, count: int, seed: int, starts: list[bytes], flags: tuple[str, ...] = FLAGS) -> int:
    """Send `count` packets; how many came out."""
    r = random.Random(seed)
    out = 0
    with SwitchDevice.load(path, extra_flags=flags) as d:
        seen = list(starts)
        for _ in range(0, count, 200):
            d.reset()
            fill(d, r)
            batch = [some_packet(r, seen) for _ in range(200)]
            results = d.process([(r.randrange(512), p) for p in batch])
            out += len(results)
            seen = (starts + seen + batch[:10] + [p for _, p in results[:10]])[-200:]
            d.digests()
            d.log()
    return out


if __name__ == "__main__":
    first = [bytes.fromhex(x) for x in sys.argv[4:]]
    print(fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), first))
