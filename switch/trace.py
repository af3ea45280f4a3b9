# SPDX-License-Identifier: Apache-2.0
"""What happened to packets, event by event: the words of runtime/trace.h with the program's names and lines.

An event's text is one line, its `source` the line of the P4 program where p4c gave it ("" elsewhere).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from switch import ir
from switch.emit_code import limbs
from switch.emit_control import key_words
from switch.emit_trace import nodes
from switch.values import Entry, Exact, Lpm, MatchValue, Range


class Kind(IntEnum):
    """runtime/trace.h."""

    RECEIVED = 0
    INGRESS = 1
    STATE = 2
    EXTRACT = 3
    PARSER_ERROR = 4
    CHECKSUM = 5
    TABLE = 6
    ACTION = 7
    CONDITION = 8
    MARK = 9
    CLONE = 10
    RESUBMIT = 11
    RECIRCULATE = 12
    MULTICAST = 13
    DIGEST = 14
    EGRESS = 15
    SENT = 16
    FAULT = 17
    DROPPED = 18


REASONS = (
    "at the end of ingress",
    "at the end of egress",
    "a fault",
    "the multicast group has no members",
    "a priority without a queue",
    "longer than a packet can be",
    "too many passes or copies of one packet",
)
INSTANCES = {0: "normal", 1: "ingress clone", 2: "egress clone", 4: "recirculated", 5: "replicated",
             6: "resubmitted"}  # fmt: skip


@dataclass(frozen=True)
class Event:
    """Something that happened to packet number `packet`, counted from 1 since the program was loaded."""

    packet: int
    source: str
    form: ClassVar[str] = ""
    """`text`, with names of attributes in braces."""

    @property
    def text(self) -> str:
        """The event in words."""
        return self.form.format_map(vars(self))

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"packet {self.packet}: {self.text}{where}"


@dataclass(frozen=True)
class Received(Event):
    """A packet came in; its length in bytes."""

    port: int
    length: int

    form = "received on port {port}, {length} bytes"


@dataclass(frozen=True)
class IngressAgain(Event):
    """A resubmitted or recirculated packet starts over."""

    instance: str

    form = "ingress again, {instance}"


@dataclass(frozen=True)
class StateVisited(Event):
    """A parser state began."""

    state: str

    form = "parser state {state}"


@dataclass(frozen=True)
class HeaderExtracted(Event):
    """A header was extracted from so many bytes."""

    header: str
    length: int

    form = "extracted {header}, {length} bytes"


@dataclass(frozen=True)
class ParserFailed(Event):
    """The parser stopped with an error."""

    error: str

    form = "parser error {error}"


@dataclass(frozen=True)
class ChecksumVerified(Event):
    """A checksum was compared with the field that holds it."""

    field: str
    right: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"checksum {self.field} is {'right' if self.right else 'WRONG'}"


@dataclass(frozen=True)
class TableApplied(Event):
    """A table was looked up: the packet's key, and the entry that it hit (`entry` None when it has gone)."""

    table: str
    key: tuple[int, ...]
    handle: int | None
    entry: Entry | None

    @property
    def hit(self) -> bool:
        """Whether an entry fitted."""
        return self.handle is not None

    @property
    def text(self) -> str:
        """In words."""
        key = ", ".join(f"{v:#x}" for v in self.key)
        if not self.hit:
            return f"table {self.table} [{key}]: miss"
        entry = f" [{', '.join(map(_match, self.entry.key))}]" if self.entry is not None else ""
        return f"table {self.table} [{key}]: hit entry {self.handle}{entry}"


@dataclass(frozen=True)
class ActionRun(Event):
    """An action began: parameters by name."""

    action: str
    args: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """In words."""
        return f"action {self.action}({', '.join(f'{n}={v:#x}' for n, v in self.args)})"


@dataclass(frozen=True)
class ConditionTested(Event):
    """An if of the program."""

    condition: str
    outcome: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"if ({self.condition}) is {str(self.outcome).lower()}"


@dataclass(frozen=True)
class Cloned(Event):
    """Copies go to egress: as many as the clone session has (0 where there is none)."""

    session: int
    copies: int

    form = "cloned to session {session}, {copies} copies"


@dataclass(frozen=True)
class Resubmitted(Event):
    """The packet goes back to the parser as it came."""

    form = "resubmitted"


@dataclass(frozen=True)
class Recirculated(Event):
    """The packet goes back to the parser as it was deparsed."""

    form = "recirculated"


@dataclass(frozen=True)
class Multicast(Event):
    """Copies go to egress: as many as the group has (0 where there is none)."""

    group: int
    copies: int

    form = "multicast to group {group}, {copies} copies"


@dataclass(frozen=True)
class DigestSent(Event):
    """A digest sample goes to the controller."""

    digest: str

    form = "digest {digest}"


@dataclass(frozen=True)
class EgressStarted(Event):
    """A packet or copy enters egress."""

    port: int
    replica: int
    instance: str

    form = "egress to port {port}, replica {replica}, {instance}"


@dataclass(frozen=True)
class Sent(Event):
    """A packet left; its length in bytes."""

    port: int
    length: int

    form = "sent on port {port}, {length} bytes"


@dataclass(frozen=True)
class Dropped(Event):
    """The packet or copy ended here; `source` is where the program marked it, or failed."""

    why: str

    form = "dropped: {why}"


@dataclass(frozen=True)
class Lost(Event):
    """No room for so many events: take them more often."""

    events: int

    form = "{events} events were lost"


def _match(m: MatchValue) -> str:
    if isinstance(m, Exact):
        return f"{m.value:#x}"
    if isinstance(m, Lpm):
        return f"{m.value:#x}/{m.prefix_len}"
    if isinstance(m, Range):
        return f"{m.low:#x}..{m.high:#x}"
    return f"{m.value:#x}&&&{m.mask:#x}"


class Decoder:
    """Makes events of words. It knows the packet that it is at, so the words must come in their order."""

    def __init__(self, program: ir.Program, entry: Callable[[str, int], Entry | None]) -> None:
        """`entry` finds a table's entry by its handle."""
        self._entry = entry
        self._program = program
        self._nodes = nodes(program)
        self._states = list(program.parser.states)
        self._headers = {h.id: h.name for h in program.headers.values()}
        self._errors = {number: name for name, number in program.errors.items()}
        self._tables = list(program.tables.values())
        self._packet = 0
        self._egress = False
        self._marks = ["", ""]
        self._fault = ("", "")

    def events(self, words: Sequence[int], lost: int) -> list[Event]:
        """The events of words as sw_trace_take gives them, and a last one when some were lost."""
        out: list[Event] = []
        at = 0
        while at < len(words):
            n = words[at] >> 32
            event = self._event(Kind(words[at] & 0xFFFFFFFF), words[at + 1], words[at + 2],
                                words[at + 3 : at + 3 + n])  # fmt: skip
            at += 3 + n
            if event is not None:
                out.append(event)
        if lost:
            out.append(Lost(self._packet, "", lost))
        return out

    def _event(self, kind: Kind, a: int, b: int, words: Sequence[int]) -> Event | None:
        if kind == Kind.RECEIVED:
            self._packet = words[0]
            self._start(egress=False)
            return Received(self._packet, "", a, b)
        n = self._packet
        if kind == Kind.INGRESS:
            self._start(egress=False)
            return IngressAgain(n, "", INSTANCES.get(a, str(a)))
        if kind == Kind.EGRESS:
            self._start(egress=True)
            return EgressStarted(n, "", a, b, INSTANCES.get(words[0], str(words[0])))
        if kind == Kind.MARK:
            self._marks[self._egress] = str(self._program.actions[a].body[b].source)
            return None
        if kind == Kind.FAULT:
            self._fault = (ctypes.string_at(a).decode(), ctypes.string_at(b).decode())
            return None
        if kind == Kind.DROPPED:
            return self._dropped(a)
        return self._step(kind, a, b, words) or self._sending(kind, a, b)

    def _start(self, *, egress: bool) -> None:
        self._egress = egress
        self._marks[egress] = ""

    def _dropped(self, why: int) -> Event:
        reason = REASONS[why]
        if reason == "a fault":
            return Dropped(self._packet, self._fault[1], self._fault[0])
        return Dropped(self._packet, self._marks[why] if why < len(self._marks) else "", reason)

    def _step(self, kind: Kind, a: int, b: int, words: Sequence[int]) -> Event | None:
        """What parser and pipelines did."""
        n = self._packet
        if kind == Kind.STATE:
            return StateVisited(n, "", self._states[a])
        if kind == Kind.EXTRACT:
            return HeaderExtracted(n, "", self._headers[a], b)
        if kind == Kind.PARSER_ERROR:
            return ParserFailed(n, "", self._errors.get(a, str(a)))
        if kind == Kind.CHECKSUM:
            checksum = self._program.checksums[a]
            target = checksum.target
            header = target.header.header.name if target.header.header is not None else checksum.name
            return ChecksumVerified(n, str(checksum.source), f"{header}.{target.field.name}", b != 0)
        if kind == Kind.TABLE:
            table = self._tables[a]
            places = key_words(table)
            key = tuple(_number(words, at, k.width) for k, at in zip(table.keys, places, strict=False))
            entry = self._entry(table.name, b) if b else None
            return TableApplied(n, str(table.source), table.name, key, b or None, entry)
        if kind == Kind.ACTION:
            action, at, args = self._program.actions[a], 0, []
            for p in action.params:
                args.append((p.name, _number(words, at, p.width)))
                at += limbs(p.width)
            source = str(action.source) or "".join(str(c.source) for c in action.body[:1])
            return ActionRun(n, source, action.name, tuple(args))
        if kind == Kind.CONDITION:
            node = self._nodes[a]
            return ConditionTested(n, str(node.source), node.source.fragment or node.name, b != 0)
        return None

    def _sending(self, kind: Kind, a: int, b: int) -> Event | None:
        """What the target did."""
        n = self._packet
        if kind == Kind.CLONE:
            return Cloned(n, "", a, b)
        if kind == Kind.RESUBMIT:
            return Resubmitted(n, "")
        if kind == Kind.RECIRCULATE:
            return Recirculated(n, "")
        if kind == Kind.MULTICAST:
            return Multicast(n, "", a, b)
        if kind == Kind.DIGEST:
            return DigestSent(n, "", self._program.digests[a].name)
        return Sent(n, "", a, b)


def _number(words: Sequence[int], at: int, width: int) -> int:
    return sum(words[at + i] << (64 * i) for i in range(limbs(width)))
