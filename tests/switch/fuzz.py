# SPDX-License-Identifier: Apache-2.0
"""Random and mutated packets through programs built with sanitizers.

`python -m tests.switch.fuzz SECONDS [NAME ...]` runs each of `targets()` (or those named) in a process of its
own for its share of the time and says how many packets were tried and what was found; the exit code is 1 when
a program ended with a sanitizer's report. `--one NAME SEED LIMIT` (packets, or seconds as in `10s`) is such a
process; it needs libasan in LD_PRELOAD.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from p4src.forms import form
from switch.device import Exact, Group, Lpm, MatchValue, Member, Range, SwitchDevice, Ternary
from switch.errors import DeviceError
from switch.ir import Action, Key, Profile
from tests.dataplane.rig import JOB_PORT, SWITCH_IP, SWITCH_MAC, Rig, host_mac
from wire.native import BuildError, compiler

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
FLAGS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ARP = bytes.fromhex("ffffffffffff0200000000010806000108000604000102000000000101020304000000000000")
IPV4 = bytes.fromhex(
    "020000000002020000000001080045000020000040004011000a0a0000010a00000210041005000c000000000000"
)
BATCH = 500
PUBLIC = "public/"
INTERESTING = (0, 1, 0x45, 0x46, 0x4F, 0x7F, 0x80, 0xFF, 8, 6, 0xBE)

Packets = list[tuple[int, bytes]]


@dataclass
class Tried:
    """What a run did: packets in, packets out, and of the aggregation's those that were admitted."""

    packets: int = 0
    out: int = 0
    admitted: int = 0


# ---- any program: random entries and mutations of what was seen


def some_match(r: random.Random, k: Key, seen: list[bytes]) -> MatchValue:
    v = r.getrandbits(k.width) if r.random() < 0.2 else r.randrange(min(1 << k.width, 8))
    if r.random() < 0.5:  # what stands somewhere in a packet
        packet = r.choice(seen)
        at = r.randrange(min(len(packet), 40) + 1)
        v = int.from_bytes(packet[at : at + (k.width + 7) // 8], "big") & ((1 << k.width) - 1)
    if k.match == "exact":
        return Exact(v)
    if k.match == "lpm":
        return Lpm(v, r.randint(0, k.width))
    if k.match == "ternary":
        return Ternary(v, r.getrandbits(k.width))
    return Range(v, r.randint(v, (1 << k.width) - 1))


Choice = str | Member | Group


def some_action(r: random.Random, actions: tuple[Action, ...]) -> tuple[str, list[int]]:
    action = r.choice(actions)
    return action.name, [
        r.getrandbits(p.width) if r.random() < 0.5 else r.randrange(2) for p in action.params
    ]


def some_choices(d: SwitchDevice, r: random.Random, profile: Profile) -> list[Choice]:
    """Members and groups of a profile, changed and taken out again in part."""
    members = [d.member_add(profile.name, *some_action(r, profile.actions)) for _ in range(4)]
    d.member_delete(profile.name, members.pop())
    d.member_modify(profile.name, members[0], *some_action(r, profile.actions))
    choices: list[Choice] = [Member(m) for m in members]
    for _ in range(3 if profile.selector is not None else 0):
        group = d.group_add(profile.name, r.sample(members, r.randrange(len(members) + 1)))
        d.group_set(profile.name, group, r.sample(members, r.randrange(len(members) + 1)))
        choices.append(Group(group))
    return choices


def fill(d: SwitchDevice, r: random.Random, seen: list[bytes], most: int = 60) -> None:
    """Random entries, groups and sessions."""
    choices = {name: some_choices(d, r, p) for name, p in d.program.profiles.items()}
    for t in d.program.tables.values():
        for _ in range(r.randrange(most) if t.keys and not t.immutable else 0):
            action: Choice
            args: list[int] = []
            if t.profile is not None:
                action = r.choice(choices[t.profile.name])
            else:
                action, args = some_action(r, t.actions)
            priority = r.randint(1, 9) if t.match in ("ternary", "range") else None
            try:
                d.table_insert(t.name, [some_match(r, k, seen) for k in t.keys], action, args, priority)
            except DeviceError:
                continue
        if r.random() < 0.3 and not t.immutable:
            for entry in d.table_entries(t.name)[:: r.randint(1, 3)]:
                d.table_delete(t.name, entry.handle)
    for g in range(1, 8):
        d.multicast_set(g, [(r.randrange(512), r.randrange(3)) for _ in range(r.randrange(4))])
        d.clone_session_set(g, [(r.randrange(512), 0)], truncate=r.choice([0, 0, 1, 60]))


def mutated(r: random.Random, packet: bytes) -> bytes:
    """Some bytes changed, cut off or added."""
    p = bytearray(packet)
    for _ in range(r.randrange(4)):
        if p:
            # headers more often than what they carry
            p[r.randrange(min(len(p), 64) if r.random() < 0.7 else len(p))] = (
                r.choice(INTERESTING) if r.random() < 0.7 else r.randrange(256)
            )
    if r.random() < 0.2:
        p = p[: r.randrange(len(p) + 1)]
    return bytes(p) + (r.randbytes(r.randrange(80)) if r.random() < 0.2 else b"")


def some_packet(r: random.Random, seen: list[bytes]) -> bytes:
    """Noise, or a mutation of an earlier packet."""
    if not seen or r.random() < 0.3:
        return r.randbytes(r.choice([0, 1, 13, 14, 20, 34, 60, 128, 1076, 1500]))
    return mutated(r, r.choice(seen))


class AnyProgram:
    """Batches for a program of which nothing is known."""

    def __init__(self, d: SwitchDevice, r: random.Random) -> None:
        self._device, self._random = d, r
        self._starts = [ARP, IPV4]
        self._seen = list(self._starts)

    def batch(self) -> Packets:
        """Fresh entries, and packets for them."""
        r = self._random
        self._device.reset()
        fill(self._device, r, self._seen)
        ports = [*range(8), 510, r.randrange(512)]
        return [(r.choice(ports), some_packet(r, self._seen)) for _ in range(BATCH)]

    def learn(self, batch: Packets, out: Packets) -> None:
        """Mutate these, too."""
        fresh = [p for _, p in batch[:10] + out[:10]]
        self._seen = (self._starts + self._seen + fresh)[-200:]

    def admitted(self) -> int:
        """Nothing is."""
        return 0


# ---- the aggregation: workers that are admitted, and mostly right packets


class Aggregation:
    """Batches of contributions in any order, doubled, stale, ahead, damaged with right checksums or wrong."""

    def __init__(self, d: SwitchDevice, r: random.Random, elements: int, slots: int) -> None:
        self._random, self._chunk = r, 0
        self._rig = Rig(
            d, elements, slots, workers=r.randint(2, 5), window=r.choice([1, 4, 16]), base=slots - 16
        )

    def batch(self) -> Packets:
        """What the workers send for some chunks, and what else comes by their ports."""
        r, rig = self._random, self._rig
        if r.random() < 0.05:  # a new epoch with other workers
            rig.leave()
            rig.workers = r.randint(1, 8)
            rig.join(rig.epoch + r.randint(1, 3))
        self._chunk += r.choice([0, 1, 5, 1 << 31, (1 << 32) - 3])
        fresh = [self._packet() for _ in range(BATCH // 5)]
        again = [
            (p, mutated(r, b) if r.random() < 0.3 else b) for p, b in r.choices(fresh, k=BATCH - len(fresh))
        ]
        return r.sample(fresh + again, BATCH)

    def _packet(self) -> tuple[int, bytes]:
        r, rig = self._random, self._rig
        worker, kind = r.randrange(rig.workers), r.random()
        port = worker + 1 if r.random() < 0.95 else r.choice([0, 63, 64, 300, 510, 511])
        if kind < 0.05:
            return port, some_packet(r, [ARP])
        values = [r.choice([0, 1, -1, 1 - (1 << 31), (1 << 31) - 1, r.randint(-99, 99)])] * rig.elements
        chunk = self._chunk + r.choice([0, 0, 0, 1, 2, rig.window, 2 * rig.window, -1])
        frame = rig.contribution(worker, chunk, values)
        if kind < 0.6:
            return port, frame.pack()
        if kind < 0.8:  # one field is another, all checksums are right
            changes: dict[str, int | str | bytes] = {
                "msg_type": r.randrange(16), "flag": r.randrange(2), "size": r.randrange(8),
                "tensor": r.randrange(256), "chunk": r.getrandbits(32), "version": r.randrange(2),
                "slot": r.choice([0, rig.window - 1, rig.window, 0x7FFF]), "e0": r.randint(-128, 127),
                "e1": r.randint(-128, 127), "ttl": r.randrange(256), "fragment": r.getrandbits(16),
                "udp_src": JOB_PORT, "udp_dst": r.choice([JOB_PORT - 7, 0xBEFF, 1]),
                "ip_dst": f"10.0.0.{r.randrange(1, 65)}", "ip_src": SWITCH_IP,
                "eth_dst": r.choice(["ff:ff:ff:ff:ff:ff", SWITCH_MAC, host_mac(3)]),
                "options": r.randbytes(4 * r.randrange(11)), "ip_length": r.getrandbits(16),
                "udp_length": r.getrandbits(16),
            }  # fmt: skip
            name = r.choice(sorted(changes))
            return port, frame.but(**{name: changes[name]}).pack()
        return port, mutated(r, frame.pack())

    def learn(self, batch: Packets, out: Packets) -> None:
        """Nothing: the frames are right as they are."""

    def admitted(self) -> int:
        """Packets of the device's life that an admission entry let in."""
        return sum(sum(self._rig.worker_verdicts(bit).values()) for bit in range(8))


@dataclass(frozen=True)
class Target:
    """A program and who makes its packets."""

    json: Path
    source: Callable[[SwitchDevice, random.Random], AnyProgram | Aggregation]
    trace: bool = False


def _aggregation(elements: int, slots: int, *, trace: bool = False) -> Target:
    path = form(elements, slots).json_path
    return Target(path, lambda d, r: Aggregation(d, r, elements, slots), trace)


def targets() -> dict[str, Target]:
    """All programs: our fixtures, the aggregation, and the conformance programs where they are at hand."""
    own = {p.stem: Target(p, AnyProgram) for p in sorted(FIXTURES.glob("*.json"))}
    public = sorted((ROOT.parent / "shared" / "conformance").glob("*/*.json"))
    return {
        **own,
        "forward-traced": Target(FIXTURES / "forward.json", AnyProgram, trace=True),
        "p4reduce-any": Target(form(64, 1024).json_path, AnyProgram),
        "p4reduce-64": _aggregation(64, 1024),
        "p4reduce-64-traced": _aggregation(64, 1024, trace=True),
        "p4reduce-256": _aggregation(256, 1024),
        **{PUBLIC + p.stem: Target(p, AnyProgram) for p in public},
    }


def fuzz(target: Target, seed: int, goes_on: Callable[[int], bool], flags: Iterable[str] = FLAGS) -> Tried:
    """Send batches while `goes_on` says so, given the packets so far."""
    r, tried = random.Random(seed), Tried()
    with SwitchDevice.load(target.json, extra_flags=tuple(flags), cpu_port=510, trace=target.trace) as d:
        source = target.source(d, r)
        while goes_on(tried.packets):
            batch = source.batch()
            out = d.process(batch)
            source.learn(batch, out)
            tried.packets += len(batch)
            tried.out += len(out)
            d.digests()
            d.log()
            if target.trace:
                d.trace()
        tried.admitted = source.admitted()
    return tried


# ---- processes: a sanitizer ends the one that it finds something in


def sanitizer() -> str | None:
    """Path of libasan, where the compiler has it."""
    try:
        command = [*compiler(), "-print-file-name=libasan.so"]
    except BuildError:
        return None
    path = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    return path if os.path.isabs(path) else None


def run_one(name: str, seed: int, limit: str, timeout: float) -> tuple[Tried, str]:
    """One target in a process of its own: what it tried, and the report of what was found ("": nothing)."""
    env = {**os.environ, "LD_PRELOAD": sanitizer() or "", "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.switch.fuzz", "--one", name, str(seed), limit]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Tried(), f"it did not end within {timeout:.0f} s"
    if done.returncode != 0:
        return Tried(), done.stderr[-6000:] or f"exit code {done.returncode}"
    return Tried(**json.loads(done.stdout)), ""


def run_all(seconds: float, names: list[str]) -> int:
    """The targets named, or all of ours and as many public ones as time allows; the number of findings."""
    every, seed = targets(), random.SystemRandom().randrange(1 << 32)
    ours = names or [n for n in every if not n.startswith(PUBLIC)]
    public = [n for n in every if n.startswith(PUBLIC)] if not names else []
    random.Random(seed).shuffle(public)
    findings, total, done = 0, Tried(), 0
    end = time.monotonic() + seconds
    for at, name in enumerate([*ours, *public]):
        left = end - time.monotonic()
        # a third of the time is for public programs, a few seconds each, most of which the compiler needs
        share = (left - seconds / 3 * bool(public)) / (len(ours) - at) if at < len(ours) else 3.0
        if at >= len(ours) and left < share:
            break
        tried, report = run_one(name, seed, f"{max(share, 1.0)}s", share + 300)
        total = Tried(total.packets + tried.packets, total.out + tried.out, total.admitted + tried.admitted)
        findings += bool(report)
        done += 1
        word = f"{tried.packets} packets, {tried.out} out, {tried.admitted} admitted"
        if report:
            word = f"FOUND with seed {seed}: {report}"
        print(f"{name}: {word}", flush=True)
    print(
        f"{total.packets} packets through {done} programs, {total.admitted} admitted to the aggregation: "
        f"{findings} findings"
    )
    return findings


def for_seconds(seconds: float) -> Callable[[int], bool]:
    """A limit that counts from the first batch on, when the program is compiled."""
    end = 0.0

    def goes_on(packets: int) -> bool:
        nonlocal end
        now = time.monotonic()
        end = end if packets else now + seconds
        return now < end

    return goes_on


def main(words: list[str]) -> int:
    """See the module's text."""
    if words[:1] == ["--one"]:
        name, seed, limit = words[1:]
        goes_on = for_seconds(float(limit[:-1])) if limit.endswith("s") else int(limit).__gt__
        print(json.dumps(vars(fuzz(targets()[name], int(seed), goes_on))))
        return 0
    if sanitizer() is None:
        print("fuzz: the compiler has no AddressSanitizer: apt install gcc libasan8", file=sys.stderr)
        return 2
    try:
        return 1 if run_all(float(words[0]), words[1:]) else 0
    except KeyboardInterrupt:
        print("fuzz: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
