# SPDX-License-Identifier: Apache-2.0
"""Writing C text, and where each header, field and array of a program lives in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from itertools import count

from switch import ir
from switch.emit_locals import BLOCKS, Locals
from switch.touched import touched

# fmt: off
_KEYWORDS = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void",
    "volatile", "while", "bool", "true", "false", "valid", "vl", "vl_bits", "e", "next", "s", "k", "h",
    "p", "args", "main",
}
# fmt: on


def c_name(text: str) -> str:
    """A C identifier that still reads like the P4 name."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    if name[0].isdigit() or name in _KEYWORDS or name.startswith(("sw_", "SW_", "p4_", "sm_")):
        name = "x_" + name
    return name


def c_string(text: str) -> str:
    """A C string literal."""
    out = "".join(
        ch if 32 <= ord(ch) < 127 and ch not in '"\\?' else f"\\{b:03o}"
        for ch in text
        for b in ch.encode(errors="replace")
    )
    return f'"{out}"'


PARAMETERS = "sw *restrict s, sw_pkt *restrict k, phv *restrict h"
"""Of every function that works on a packet: a store to a field changes nothing that the others hold."""
PAYLOAD_BYTES = "(k->len - k->pos < k->truncate ? k->len - k->pos : k->truncate)"
"""Bytes of the payload that checksums see: as many as truncate() leaves, as in bmv2's get_data_size()."""


def c_comment(text: str) -> str:
    """Text that cannot end a comment."""
    return re.sub(r"[^\x20-\x7e]", " ", text).replace("*/", "* /").replace("\\", "/")


def limbs(width: int) -> int:
    """64-bit words that hold `width` bits."""
    return (width + 63) // 64


def storage(width: int) -> int:
    """Bits of the C type that stores a field of up to 64 bits."""
    return next(n for n in (8, 16, 32, 64) if width <= n)


# headers from so many bits on start on a cache line: their vectors then do not straddle two
LARGE = 512
# headers from so many bits on are zeroed only where the parser leaves them invalid
LATE = 2048


class Namer:
    """Unique C names."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __call__(self, text: str) -> str:
        """A name like `text`, with a number where it was given out before."""
        base = name = c_name(text)
        n = 2
        while name in self._used:
            name = f"{base}_{n}"
            n += 1
        self._used.add(name)
        return name


class Block:
    """Lines of C at a depth of indentation, with fresh names for temporaries."""

    def __init__(self, depth: int = 1, counter: Iterator[int] | None = None) -> None:
        self.lines: list[str] = []
        self.depth = depth
        self.counter = counter or count(1)

    def inner(self) -> Block:
        """An empty block one level deeper, to be inserted later."""
        return Block(self.depth + 1, self.counter)

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + text if text else "")

    def label(self, name: str) -> None:
        """Add a label (followed by an empty statement, so that anything may come next)."""
        self.lines.append(f"{name}:;")

    def temp(self) -> str:
        """A fresh name."""
        return f"t{next(self.counter)}"

    @contextmanager
    def nest(self, head: str, tail: str = "}") -> Iterator[None]:
        """`head {` ... `}`."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines) + "\n"


def _unread_by_parser(program: ir.Program) -> set[int]:
    """Ids of large headers that the parser does nothing with but extract them, whole."""
    found = {h.id for h in program.headers.values() if not h.metadata and h.type.max_bits >= LATE}
    found -= {h.id for h in program.headers.values() if h.type.varbit is not None}
    used: list[object] = []
    for state in program.parser.states.values():
        used += state.key
        used += [op.length if isinstance(op, ir.Extract) else op for op in state.ops]
    for part in touched(tuple(used)):
        if isinstance(part, ir.FieldRef):
            part = part.header
        if not isinstance(part, ir.HeaderRef):
            continue
        if part.header is None:  # one of a stack's, which is not ours
            continue
        found.discard(part.header.id)
    return found


def _member(f: ir.Field, name: str) -> str:
    """The declaration of one field."""
    if f.varbit:
        return f"    uint8_t {name}[{max(f.width // 8, 1)}]; /* varbit<{f.width}> */"
    if f.width > 64:
        return f"    uint64_t {name}[{limbs(f.width)}]; /* {f.width} bits */"
    note = "" if f.width in (8, 16, 32, 64) else f" /* {f.width} bits */"
    return f"    uint{storage(f.width)}_t {name};{note}"


def _struct(name: str, fields: list[tuple[ir.Field, str]], varbit: bool) -> str:
    """The declaration of a header's type."""
    lines = [f"typedef struct {name} {{", *(_member(*f) for f in fields)]
    if varbit:
        lines.append("    uint32_t vl_bits; /* of the varbit field */")
    return "\n".join([*lines, "    uint8_t valid;", f"}} {name};"])


class Layout:
    """C types and lvalues of a program's headers, and places of its arrays."""

    def __init__(
        self, program: ir.Program, local: Locals | None = None, written: Set[int] = frozenset()
    ) -> None:
        """`local`: the fields that are no part of the phv; none without it. `written`: see Writes.headers."""
        self.program = program
        self._blocks = local.blocks if local is not None else {}
        self._local: dict[tuple[str, int], str] = {}  # (header's C lvalue, index) -> the local field's
        self._own: dict[str, str] = {}  # header's C lvalue -> its type, where it lacks local fields
        namer, members = Namer(), Namer()
        self.type_names = {id(t): namer("t_" + t.name) for t in program.header_types.values()}
        self.field_names: dict[int, list[str]] = {}
        for t in program.header_types.values():
            fields = Namer()
            self.field_names[id(t)] = [fields(f.name) for f in t.fields]
        self.union_names: dict[str, str] = {}
        self.union_members: dict[str, list[str]] = {}
        for u in program.unions.values():
            if u.type not in self.union_names:
                self.union_names[u.type] = namer("u_" + u.type)
                own = Namer()
                self.union_members[u.type] = [own(m) for m in u.member_names]
        self.places: dict[int, str] = {}  # header id -> lvalue after "h->"
        self.union_places: dict[int, str] = {}
        self.stack_names: dict[int, str] = {}
        self.members: list[str] = []  # declarations inside the phv struct
        for s in program.stacks.values():
            name = self.stack_names[id(s)] = members(s.name)
            self.members.append(
                f"struct {{ {self.type_names[id(s.type)]} e[{len(s.elements)}]; uint32_t next; }} {name};"
            )
            for i, h in enumerate(s.elements):
                self.places[h.id] = f"{name}.e[{i}]"
        for us in program.union_stacks.values():
            name = self.stack_names[id(us)] = members(us.name)
            self.members.append(
                f"struct {{ {self.union_names[us.type]} e[{len(us.elements)}]; uint32_t next; }} {name};"
            )
            for i, u in enumerate(us.elements):
                self.union_places[u.id] = f"{name}.e[{i}]"
        for u in program.unions.values():
            if u.id not in self.union_places:
                self.union_places[u.id] = members(u.name)
                self.members.append(f"{self.union_names[u.type]} {self.union_places[u.id]};")
            for header, member in zip(u.members, self.union_members[u.type], strict=True):
                self.places[header.id] = f"{self.union_places[u.id]}.{member}"
        plain = [h for h in program.headers.values() if h.id not in self.places]
        unread = _unread_by_parser(program)
        self.late: list[str] = []
        """Places of headers at the end of the phv, whose fields are set or zeroed by the end of parsing."""
        self.written: list[str] = []
        """Places side by side, from a cache line on: of headers that egress may write, but large ones."""
        self._written_at = len(self.members)
        variables = Namer()
        bits = {h.id: sum(f.width for f in self._here(h)) for h in plain}
        side_by_side = {h.id for h in plain if h.id in written and bits[h.id] < LARGE}
        for h in sorted(plain, key=lambda h: (h.id in unread, h.id not in side_by_side)):
            place = self.places[h.id] = members(h.name)
            if len(self._here(h)) < len(h.type.fields):
                self._own[f"h->{place}"] = namer(f"t_{place}_rest")
            for i, f in enumerate(h.type.fields):
                if (h.id, i) in self._blocks:
                    self._local[f"h->{place}", i] = f"l->{variables(f'{place}_{f.name}')}"
            align = "_Alignas(64) " if bits[h.id] >= LARGE else ""
            self.members.append(f"{align}{self.struct_name(f'h->{place}', h.type)} {place};")
            if h.id in side_by_side:
                self.written.append(place)
            if h.id in unread:
                self.late.append(place)
        self.union_of = {h.id: u for u in program.unions.values() for h in u.members}
        # registers of one size and storage lie side by side: lane k of element i is at (i * lanes + k)
        self.groups: list[tuple[int, int, list[ir.RegisterArray]]] = []
        self.register_place: dict[str, tuple[int, int]] = {}
        for r in program.registers.values():
            element = storage(r.width) // 8 if r.width <= 64 else 8 * limbs(r.width)
            g = next((i for i, (z, e, _) in enumerate(self.groups) if (z, e) == (r.size, element)), None)
            if g is None:
                g = len(self.groups)
                self.groups.append((r.size, element, []))
            self.register_place[r.name] = (g, len(self.groups[g][2]))
            self.groups[g][2].append(r)

    def _here(self, h: ir.Header) -> list[ir.Field]:
        """The fields of a header that are part of the phv."""
        return [f for i, f in enumerate(h.type.fields) if (h.id, i) not in self._blocks]

    def add_version(self, name: str) -> None:
        """Add a 64-bit member that egress may write."""
        self.members.insert(self._written_at, f"uint64_t {name};")
        self.written.insert(0, name)

    def declarations(self) -> str:
        """The C structs of header types, unions and the phv."""
        out = []
        for t in self.program.header_types.values():
            all_fields = list(zip(t.fields, self.field_names[id(t)], strict=True))
            out.append(_struct(self.type_names[id(t)], all_fields, t.varbit is not None))
        for h in self.program.headers.values():
            own = f"h->{self.places[h.id]}"
            if own in self._own:
                named = zip(h.type.fields, self.field_names[id(h.type)], strict=True)
                here = [f for i, f in enumerate(named) if (own, i) not in self._local]
                out.append(_struct(self._own[own], here, False))
        out += self._local_structs()
        seen = set()
        for u in self.program.unions.values():
            if u.type in seen:
                continue
            seen.add(u.type)
            fields = " ".join(
                f"{self.type_names[id(m.type)]} {n};"
                for m, n in zip(u.members, self.union_members[u.type], strict=True)
            )
            out.append(
                f"typedef struct {self.union_names[u.type]} {{ {fields} }} {self.union_names[u.type]};"
            )
        for at in {0, self._written_at if self.written else 0}:
            if self.members:
                self.members[at] = "_Alignas(64) " + self.members[at].removeprefix("_Alignas(64) ")
        out.append("typedef struct phv {\n" + "\n".join("    " + m for m in self.members) + "\n} phv;")
        return "\n\n".join(out) + "\n"

    def _local_structs(self) -> Iterator[str]:
        for block in BLOCKS:
            lines = []
            for h in self.program.headers.values():
                for i, f in enumerate(h.type.fields):
                    if self._blocks.get((h.id, i)) == block:
                        place = self._local[f"h->{self.places[h.id]}", i]
                        lines.append(_member(f, place.removeprefix("l->")))
            if lines:
                yield "\n".join([f"typedef struct {block}_locals {{", *lines, f"}} {block}_locals;"])

    def field(self, header: str, kind: ir.HeaderType, index: int) -> str:
        """C lvalue of a field, given its header's."""
        local = self._local.get((header, index))
        return local if local is not None else f"{header}.{self.field_names[id(kind)][index]}"

    def block(self, header: ir.Header, index: int) -> str | None:
        """The block whose variable a field is; None for one in the phv."""
        return self._blocks.get((header.id, index))

    def is_local(self, header: str, index: int) -> bool:
        """Whether a field is a variable, given its header's C lvalue."""
        return (header, index) in self._local

    def struct_name(self, header: str, kind: ir.HeaderType) -> str:
        """C type of a header, given its lvalue."""
        return self._own.get(header, self.type_names[id(kind)])

    def arg_offsets(self, action: ir.Action) -> list[int]:
        """Where each parameter's words start in `args`."""
        offsets, at = [], 0
        for p in action.params:
            offsets.append(at)
            at += limbs(p.width)
        return offsets
