# SPDX-License-Identifier: Apache-2.0
"""One case: a program, and entries and packets of a seed, on two switches; the smallest that differs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import grpc
from google.protobuf import text_format

from tests.switch.differential.entries import Entries
from tests.switch.differential.packets import Shapes, random_packet
from tests.switch.differential.sides import (
    PORTS,
    EndedError,
    InProcess,
    Process,
    Program,
    push,
    state,
    write,
)
from tests.switch.differential.values import Values
from tests.switch.p4rt import DELETE, update

COPIES = 40
"""Most packets that one may become: bmv2's queues hold 64, and it drops what they do not."""
SLOW_S = 0.05
STARTS = 2
"""How often a case may end a process before that is taken for its answer."""


@dataclass(frozen=True)
class Case:
    """What is put into both switches."""

    program: Program
    seed: int
    updates: Sequence[Any]
    packets: Sequence[tuple[int, bytes]]

    @classmethod
    def random(cls, program: Program, seed: int, packets: int) -> Case:
        r = random.Random(f"{program.name} {seed}")
        shapes = Shapes(json.loads(program.json))
        values = Values(r, shapes.constants)
        updates = Entries(program.info, r, values).updates
        ports = [r.choice(PORTS) for _ in range(packets)]
        return cls(program, seed, updates, [(p, random_packet(shapes, r, values, p)) for p in ports])


@dataclass
class Difference:
    """Where two switches part; its text is all that is needed to see it again."""

    case: Case
    what: str
    expected: Any
    got: Any
    sides: tuple[str, str]

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.case.program.name}, seed {self.case.seed}"]
        lines += [f"  {text_format.MessageToString(u, as_one_line=True)}" for u in self.case.updates]
        lines += [f"  in  {port} {frame.hex()}" for port, frame in self.case.packets]
        for side, found in zip(self.sides, (self.expected, self.got), strict=True):
            lines += [f"  {side}:"]
            lines += [f"    {line}" for line in (_lines(found) or ["nothing"])]
        return "\n".join(lines)


def _replicates(written: Any) -> bool:
    return bool(written.entity.HasField("packet_replication_engine_entry"))


def _lines(found: Any) -> list[str]:
    return [f"{one[0]} {one[1].hex()}" if isinstance(one, tuple) else str(one) for one in found]


@dataclass
class Count:
    """What was compared."""

    cases: int = 0
    entries: int = 0
    packets_in: int = 0
    packets_out: int = 0
    restarts: int = 0
    not_seen_again: list[str] = field(default_factory=list)
    """Differences that a second, slower run of the case did not show: a process that was late."""


class Comparison:
    """The switch in this process against another."""

    def __init__(self, ours: InProcess, other: Process) -> None:
        self.ours = ours
        self.other = other
        self.count = Count()

    @cached_property
    def sides(self) -> tuple[str, str]:
        return self.ours.name, self.other.name

    def run(self, case: Case) -> Difference | None:
        """Run a case; a difference is run again slowly, and made smaller, before it counts."""
        found = self._once(case, 0)
        self.count.cases += 1
        if found is None:
            return None
        again = self._once(found.case, SLOW_S)
        if again is None:
            self.count.not_seen_again.append(str(found))
            return None
        return self._smaller(again)

    def _once(self, case: Case, quiet_s: float) -> Difference | None:
        for _ in range(STARTS):
            try:
                return self._compare(case, quiet_s)
            except (EndedError, grpc.RpcError) as error:
                if not self.other.has_ended():
                    raise
                ended = error
                self.count.restarts += 1
                self.other.start()
        return Difference(case, "it ends", [], [ended], self.sides)

    def _compare(self, case: Case, quiet_s: float) -> Difference | None:
        ours, other, program = self.ours, self.other, case.program
        other.quiet_s = quiet_s
        for side in (ours, other):
            push(side, program)
        found = self._compare_loaded(case)
        # bmv2 keeps groups and sessions when a program is replaced.
        copies = [u.entity.packet_replication_engine_entry for u in case.updates if _replicates(u)]
        write(other, [update(DELETE, packet_replication_engine_entry=entry) for entry in copies])
        return found

    def _compare_loaded(self, case: Case) -> Difference | None:
        ours, other, program = self.ours, self.other, case.program
        codes = write(ours, case.updates), write(other, case.updates)
        for at, (mine, its) in enumerate(zip(*codes, strict=True)):
            # What bmv2 itself refuses, its server calls UNKNOWN.
            if mine != its and (mine == "OK" or its != "UNKNOWN"):
                short = replace(case, updates=case.updates[: at + 1], packets=())
                return Difference(short, "a write", [mine], [its], self.sides)
        self.count.entries += codes[0].count("OK")
        for at, (port, frame) in enumerate(case.packets):
            expected = ours.put(port, frame)
            if ours.made > COPIES:
                continue
            got = other.put(port, frame, len(expected))
            self.count.packets_in += 1
            self.count.packets_out += len(got)
            if got != expected:
                short = replace(case, packets=case.packets[: at + 1])
                return Difference(short, "packets", expected, got, self.sides)
        rest = other.left_over()
        if rest:
            return Difference(case, "late packets", [], rest, self.sides)
        states = state(ours, program.info), state(other, program.info)
        if states[0] != states[1]:
            only = [[line for line in one if line not in two] for one, two in (states, states[::-1])]
            return Difference(case, "entries or counters", only[0], only[1], self.sides)
        return None

    def _smaller(self, found: Difference) -> Difference:
        """Leave out packets and entries as long as there is a difference."""
        for packets in (True, False):
            size = max(len(found.case.packets if packets else found.case.updates) // 2, 1)
            while True:
                at = 0
                while at < len(old := found.case.packets if packets else found.case.updates):
                    kept = [*old[:at], *old[at + size :]]
                    fewer = (
                        replace(found.case, packets=kept) if packets else replace(found.case, updates=kept)
                    )
                    less = self._once(fewer, SLOW_S / 2)
                    if less is not None and less.what == found.what:
                        found = less
                    else:
                        at += size
                if size == 1:
                    break
                size //= 2
        return found


def run(program: str, ours: InProcess, other: Process, seeds: range, packets: int) -> Count:
    """Compare cases; AssertionError with the smallest case of the first difference."""
    comparison = Comparison(ours, other)
    loaded = Program(program)
    for seed in seeds:
        found = comparison.run(Case.random(loaded, seed, packets))
        assert found is None, f"\n{found}"
    return comparison.count
