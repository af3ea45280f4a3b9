# SPDX-License-Identifier: Apache-2.0
"""What a program can do that may treat the segments of one TCP super-packet differently.

The segments of a super-packet but the last have the same length and the same headers, except for IPv4's
identification and checksum, TCP's sequence number and checksum, and what follows TCP's 20 bytes (options are
alike, but nobody needs to look at them). So one segment, run through the program, stands for them all unless
what it ran into looked at, or wrote, one of these, or changed state or the packet's layout. The generated
code marks where it does so (`s->differs`), and the port loop cuts the super-packet up then (runtime/alike.c).

Which fields hold these bytes is found by walking the parser over what every such packet has in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from switch import ir
from switch.touched import touched

DIFFERS = "s->differs = 1;"
"""The C statement that marks it."""
MOST_PATHS = 4096
CSUM_AT = (80, 16)
"""Where the checksum stands in an IPv4 header, in bits: offset, width."""
IPV4_AT, IPV4_BITS = 14, 160


@dataclass(frozen=True)
class _Form:
    """A kind of frame: what its bytes are known to be (offset: value, mask), and the ranges that differ."""

    known: dict[int, tuple[int, int]]
    differ: tuple[tuple[int, int], ...]
    tail: int
    """From here on, nothing is looked at: TCP's options and payload."""

    def differs(self, start: int, width: int) -> bool:
        """Whether any of `width` bits from bit `start` of the frame may differ between segments."""
        end = start + width
        return end > 8 * self.tail or any(start < 8 * b and 8 * a < end for a, b in self.differ)

    def bits(self, start: int, width: int) -> tuple[int, int]:
        """Value and mask of what is known of some bits."""
        first, last = start // 8, (start + width + 7) // 8
        value = mask = 0
        for at in range(first, last):
            v, m = self.known.get(at, (0, 0))
            value, mask = value << 8 | v, mask << 8 | m
        shift = 8 * last - start - width
        return value >> shift & (1 << width) - 1, mask >> shift & (1 << width) - 1


# Ethernet, IPv4 without options, not fragmented; Ethernet, IPv6: io_super.c admits no others.
_IPV4 = _Form(
    {12: (8, 255), 13: (0, 255), 14: (0x45, 255), 20: (0, 0xBF), 21: (0, 255), 23: (6, 255)},
    ((18, 20), (24, 26), (38, 42), (50, 52)),
    54,
)
_IPV6 = _Form({12: (0x86, 255), 13: (0xDD, 255), 14: (0x60, 0xF0), 20: (6, 255)}, ((58, 62), (70, 72)), 74)

# fmt: off
_STATELESS = {
    "assign", "modify_field", "add_to_field", "subtract_from_field", "add", "subtract", "bit_xor", "bit_or",
    "bit_and", "shift_left", "shift_right", "mark_to_drop", "drop", "no_op", "exit", "_jump", "_jump_if_zero",
    "modify_field_with_hash_based_offset", "count", "register_read", "assert", "assume",
}
# fmt: on
"""Primitives that do the same for each segment if their operands are the same. Counting is made up for."""


class Alike:
    """The analysis of one program. `possible` is False where nothing can be said: all is cut up then."""

    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._order = {h.id: i for i, h in enumerate(program.deparser.order)}
        self._places: dict[int, set[tuple[bool, int]]] = {}
        """Header id -> where in frames it may be extracted from: (IPv6, byte)."""
        self._marked: set[str] = set()
        """Parser states that look ahead at what differs, or from which on the layout cannot be told."""
        unique = len(self._order) == len(program.deparser.order)
        self.possible = unique and all(self._walk(form) for form in (_IPV4, _IPV6))

    # ---- what the generated code asks

    def action(self, action: ir.Action) -> bool:
        """Whether an action may treat segments differently."""
        return any(self.call(call) for call in action.body)

    def call(self, call: ir.Call) -> bool:
        """Whether a primitive may."""
        return call.op not in _STATELESS or self.reads(call.args)

    def state(self, name: str, state: ir.State) -> bool:
        """Whether a parser state may."""
        if name in self._marked or self.reads(state.key):
            return True
        return any(self.call(op) if isinstance(op, ir.Call) else self.reads(_read_by(op)) for op in state.ops)

    def table(self, table: ir.Table) -> bool:
        """Whether a table's lookup may; its actions are asked for by themselves."""
        selector = table.profile.selector if table.profile is not None else None
        return (
            table.meter is not None or self.reads(tuple(k.value for k in table.keys)) or self.reads(selector)
        )

    def checksum(self, checksum: ir.Checksum) -> bool:
        """Whether verifying or updating may, where its target is valid and its condition holds.

        IPv4's own is right in each segment as it comes, and stays or becomes so in each alike.
        """
        if not self.reads((checksum.target, checksum.calculation)):
            return False
        return not self._is_ipv4s(checksum)

    def reads(self, x: object) -> bool:
        """Whether an expression, place or calculation touches what differs."""
        return any(self._differs(part) for part in touched(x))

    # ---- fields

    def _differs(self, part: object) -> bool:
        if isinstance(part, ir.Payload | ir.UnionRef):
            return True
        if isinstance(part, ir.FieldRef):
            at = part.header.type.offset(part.index)
            return self._bits_differ(part.header, at, part.field.width)
        if isinstance(part, ir.HeaderRef):
            return self._bits_differ(part, 0, part.type.max_bits)
        return False

    def _bits_differ(self, ref: ir.HeaderRef, at: int, width: int) -> bool:
        return any(
            (_IPV6 if v6 else _IPV4).differs(8 * place + at, width)
            for header in _headers(ref)
            for v6, place in self._places.get(header.id, ())
        )

    def _is_ipv4s(self, checksum: ir.Checksum) -> bool:
        """Whether it is csum16 over a whole header that is only ever the packet's IPv4 header."""
        header = checksum.target.header.header
        if header is None or checksum.calculation.algorithm != "csum16":
            return False
        kind, index = header.type, checksum.target.index
        at = kind.offset(index)
        if (at, kind.fields[index].width) != CSUM_AT or kind.max_bits != IPV4_BITS:
            return False
        if self._places.get(header.id) != {(False, IPV4_AT)}:
            return False
        wanted = [i for i in range(len(kind.fields)) if i != index]
        for part in checksum.calculation.inputs:
            if not isinstance(part, ir.FieldRef) or part.header.header is None:
                return False
            if part.header.header is header:
                if not wanted or part.index != wanted.pop(0):
                    return False
            # options, which such a packet has not: an invalid header adds nothing
            elif part.header.metadata or self._places.get(part.header.header.id):
                return False
        return not wanted

    # ---- the parser

    def _walk(self, form: _Form) -> bool:
        """Follow every path that a frame of this form may take; False where there are too many."""
        parser = self._program.parser
        todo: list[tuple[str | None, tuple[tuple[int, int], ...], int]] = [(parser.start, (), 0)]
        seen = set(todo)
        while todo:
            name, path, at = todo.pop()
            if name is None:
                continue
            state = parser.states[name]
            after = self._ops(form, name, state, path, at)
            if after is None:
                self._marked.add(name)
                continue
            path, at, ended = after
            if ended:
                continue
            if any(form.differs(8 * at + look.offset, look.width) for look in ir.lookaheads(state.key)):
                self._marked.add(name)
            for following in _next(form, state, dict(path), at):
                item = (following, path, at)
                if item not in seen:
                    seen.add(item)
                    todo.append(item)
            if len(seen) > MOST_PATHS:
                return False
        return True

    def _ops(
        self, form: _Form, name: str, state: ir.State, path: tuple[tuple[int, int], ...], at: int
    ) -> tuple[tuple[tuple[int, int], ...], int, bool] | None:
        """The headers extracted after a state's operations, the bytes parsed, and whether parsing ends there.

        `path` has the id and place of each header that was extracted, as it came. None where the deparser may
        not put back what was parsed: then segments are treated differently from here on.
        """
        for op in state.ops:
            if any(form.differs(8 * at + look.offset, look.width) for look in ir.lookaheads(op)):
                self._marked.add(name)
            if isinstance(op, ir.Advance) or (isinstance(op, ir.Call) and self.call(op)):
                return None
            if isinstance(op, ir.Set) and not op.target.header.metadata:
                return None
            if not isinstance(op, ir.Extract):
                continue
            if op.stack is not None:
                taken = {h for h, _ in path}
                header = next((e for e in op.stack.elements if e.id not in taken), None)
                if header is None:
                    return path, at, True
            elif op.header is not None and op.header.header is not None and not op.header.metadata:
                header = op.header.header
            else:
                return None
            if header.id not in self._order or (path and self._order[path[-1][0]] >= self._order[header.id]):
                return None
            if op.length is not None and at < form.tail:
                return None
            self._places.setdefault(header.id, set()).add((form is _IPV6, at))
            path = (*path, (header.id, at))
            if at < form.tail:
                at += header.type.fixed_bits // 8
        return path, at, False


def _read_by(op: ir.ParserOp) -> object:
    """What an operation other than a primitive looks at: extracting is only taking."""
    return op.length if isinstance(op, ir.Extract) else op


def _next(form: _Form, state: ir.State, path: dict[int, int], at: int) -> Iterator[str | None]:
    """Where a state may lead to."""
    known = [_known(form, key, path, at) for key in state.key]
    for tr in state.transitions:
        if tr.match is None:
            yield tr.next
            return
        fits, certain = True, tr.values is None
        for (value, mask), (v, m) in zip(tr.match, known, strict=True):
            if tr.values is None and (value ^ v) & mask & m:
                fits = False
            if mask & ~m:
                certain = False
        if fits:
            yield tr.next
            if certain:
                return


def _known(form: _Form, key: object, path: dict[int, int], at: int) -> tuple[int, int]:
    """Value and mask of what is known of one component of a state's key, above its width 0 as p4c pads it."""
    if isinstance(key, ir.Lookahead):
        return _padded(*form.bits(8 * at + key.offset, key.width), key.width)
    if isinstance(key, ir.FieldRef) and key.header.header is not None:
        header = key.header.header
        if header.id in path and not header.metadata:
            before = header.type.offset(key.index)
            value, mask = form.bits(8 * path[header.id] + before, key.field.width)
            return _padded(value, mask, key.field.width)
    return 0, 0


def _padded(value: int, mask: int, width: int) -> tuple[int, int]:
    """With zeroes known to be above."""
    return value, mask | ~((1 << width) - 1)


def _headers(ref: ir.HeaderRef) -> tuple[ir.Header, ...]:
    """All that a place may stand for."""
    if ref.header is not None:
        return (ref.header,)
    if ref.stack is not None:
        return ref.stack.elements
    assert ref.union is not None
    unions = ref.union.stack.elements if ref.union.stack is not None else (ref.union.example,)
    return tuple(u.members[ref.member] for u in unions)
