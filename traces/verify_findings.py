# SPDX-License-Identifier: Apache-2.0
"""What `trace verify` found: rules of docs/protocol.md, their violations, and what could not be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .table import Source

KEPT = 1000
"""Violations of one rule at one member that are kept with their packets; of others the number is."""


class Rule(str, Enum):
    """A rule of the contract that a capture can show to be broken."""

    SUM = "sum"
    """A result or partial is the sum mod 2^32 of one contribution of each member."""
    EXPONENT = "exponent"
    """Its exponents are the greatest of theirs."""
    EARLY = "early"
    """A result or partial comes after all the contributions to it."""
    COPIES = "copies"
    """All copies of a contribution, partial or result agree."""
    COUNT = "count"
    """A member gets no more results of a chunk than it sent contributions."""
    PLACE = "place"
    """Chunk g uses slot g mod W and version (g div W) mod 2."""
    SEND = "send"
    """Chunk g is sent only when all of g0..g-W have results that reached the sender."""
    WINDOW = "window"
    """No more than W chunks are sent and without result."""
    EPOCH = "epoch"
    """Nothing is answered in an epoch that is over, nor sent in one from before its first chunk."""
    MEMBERS = "members"
    """Only members send contributions, and only they get results."""
    ADDRESSES = "addresses"
    """A member's packets go to its switch, and what it gets comes from there."""
    LINKS = "links"
    """A job's packets appear only on its tree's links, and go up or down them."""
    ECHO = "echo"
    """A result echoes flag and tensor of a packet that it answers."""

    @property
    def section(self) -> str:
        """Where docs/protocol.md states the rule."""
        return SECTIONS[self]


SECTIONS = {
    **dict.fromkeys((Rule.SUM, Rule.EXPONENT, Rule.EARLY, Rule.COPIES), "The slot's state machine"),
    **dict.fromkeys((Rule.COUNT, Rule.SEND, Rule.WINDOW), "The slot's state machine"),
    **dict.fromkeys((Rule.PLACE, Rule.ECHO), "The packet"),
    **dict.fromkeys((Rule.MEMBERS, Rule.ADDRESSES, Rule.LINKS), "Who may contribute"),
    Rule.EPOCH: "Epochs",
}


@dataclass(frozen=True)
class Packet:
    """A packet of a capture: number from 1 in the file of `source`."""

    source: Source
    number: int

    def __str__(self) -> str:
        return f"{self.source.path.name} #{self.number}"


@dataclass(frozen=True)
class Violation:
    """One break of a rule; the first of `packets` is the one at fault, the others show why."""

    rule: Rule
    job: int
    epoch: int
    """0 where the capture does not name it."""
    chunk: int | None
    """As on the wire."""
    member: str
    text: str
    time: int
    """ns since the Unix epoch, of the packet at fault."""
    packets: tuple[Packet, ...]

    def __str__(self) -> str:
        where = f"job {self.job}" + (f", epoch {self.epoch}" if self.epoch else "")
        where += f", chunk {self.chunk}" if self.chunk is not None else ""
        at = ", ".join(str(packet) for packet in self.packets)
        return f"{self.rule.value}: {where}: {self.text} ({at}; protocol.md, {self.rule.section})"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {
            "rule": self.rule.value,
            "section": self.rule.section,
            "job": self.job,
            "epoch": self.epoch or None,
            "chunk": self.chunk,
            "member": self.member,
            "text": self.text,
            "time": self.time,
            "packets": [{"file": str(p.source.path), "number": p.number} for p in self.packets],
        }


@dataclass
class Findings:
    """Violations by rule and member, and counts of what was checked and of what was not."""

    found: dict[tuple[Rule, str], list[Violation]] = field(default_factory=dict)
    counts: Counter[tuple[Rule, str]] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    """Why something was not checked, in words, and how often."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Packets that no rule looks at, by why."""
    notes: list[str] = field(default_factory=list)
    """What was assumed."""

    def wanted(self, rule: Rule, member: str, many: int) -> int:
        """Count `many` violations; return how many of them are to be told by `add`."""
        key = (rule, member)
        if many:
            self.counts[key] += many
        return min(many, KEPT - len(self.found.get(key, ())))

    def add(self, violations: Iterable[Violation], member: str) -> None:
        """Keep violations that `wanted` asked for."""
        for violation in violations:
            self.found.setdefault((violation.rule, member), []).append(violation)

    def withdraw(self, rule: Rule, member: str, why: str) -> None:
        """Turn a member's violations of a rule into something that could not be checked."""
        self.found.pop((rule, member), None)
        many = self.counts.pop((rule, member), 0)
        if many:
            self.unchecked[why] += many

    @property
    def by_rule(self) -> Counter[str]:
        """Violations of each rule."""
        rules: Counter[str] = Counter()
        for (rule, _), many in self.counts.items():
            rules[rule.value] += many
        return rules

    @property
    def total(self) -> int:
        """Violations, kept or not."""
        return sum(self.counts.values())

    @property
    def violations(self) -> list[Violation]:
        """Those that were kept, in the order of time."""
        every = [violation for kept in self.found.values() for violation in kept]
        return sorted(every, key=lambda violation: violation.time)

    def as_json(self, most: int) -> dict[str, Any]:
        """Return it as JSON's types, with at most `most` violations."""
        return {
            "conforms": not self.total,
            "violations": self.total,
            "by_rule": dict(self.by_rule),
            "first": [violation.as_json() for violation in self.violations[:most]],
            "checked": dict(+self.checked),
            "unchecked": dict(+self.unchecked),
            "ignored": dict(+self.ignored),
            "notes": self.notes,
        }
