# SPDX-License-Identifier: Apache-2.0
"""p4c's simple test framework: run an .stf file (commands, packets, expectations) in process.

The language is that of p4c's backends/bmv2/stf: `packet`, `expect`, `add`, `setdefault`, `mirroring_add`,
`mc_mgrp_create` and friends, `check_counter`, `wait`. A larger priority wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from switch.device import Exact, Lpm, MatchValue, Range, SwitchDevice, Ternary
from switch.errors import SwitchError
from switch.ir import Key, Table

PASSED_THROUGH = {"mirroring_get", "counter_read", "register_read", "meter_get_rates", "remove", "no_packet"}


class StfError(SwitchError):
    """A line of an .stf file that cannot be understood or applied."""

    def __init__(self, line: int, text: str, why: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {why}: {text.strip()}")


@dataclass
class StfResult:
    """What came out against what was expected: `failures` is empty when the test passes."""

    sent: int = 0
    received: list[tuple[int, bytes]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all expectations were met and nothing else came out."""
        return not self.failures


def number(text: str) -> int:
    """`0x..`, `0b..` or decimal."""
    return int(text.replace("_", ""), 0)


class StfRunner:
    """Runs one file on one freshly loaded device."""

    def __init__(self, device: SwitchDevice) -> None:
        self.device = device
        self.result = StfResult()
        self._expected: dict[int, list[str]] = {}
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = {}
        self._handles: dict[str, tuple[str, int]] = {}

    def run(self, text: str) -> StfResult:
        """Run all statements in order, then compare. Raises `StfError`."""
        for n, line in enumerate(text.splitlines(), 1):
            try:
                self._line(line)
            except StfError:
                raise
            except (ValueError, KeyError, IndexError, SwitchError) as e:
                raise StfError(n, line, str(e) or type(e).__name__) from e
        self._compare()
        return self.result

    def _line(self, line: str) -> None:
        words = line.split()
        if not words or words[0].startswith("#"):
            return
        op = words[0].lower()
        if op == "packet":
            data = bytes.fromhex("".join(words[2:]))
            self.result.sent += 1
            self.result.received += self.device.process([(number(words[1]), data)])
            return
        if op == "expect":
            self._expected.setdefault(number(words[1]), []).append("".join(words[2:]).lower())
            return
        line = re.sub(r"\s#.*$", "", line)
        tokens = tokenize(line)
        if op == "add":
            self._add(tokens[1:])
        elif op == "setdefault":
            table = self._table(tokens[1])
            name, args, _ = self._action(table, tokens[2:])
            self.device.table_set_default(table.name, name, args)
        elif op == "wait" or op in PASSED_THROUGH:
            return
        else:
            self._command(op, tokens[1:])

    def _command(self, op: str, a: list[str]) -> None:
        d = self.device
        if op == "mirroring_add":
            d.clone_session_set(number(a[0]), [(number(a[1]), 0)])
        elif op == "mirroring_add_mc":
            d.clone_session_set(number(a[0]), d.multicast_groups().get(number(a[1]), []))
        elif op == "mirroring_delete":
            d.clone_session_delete(number(a[0]))
        elif op == "mc_mgrp_create":
            self._groups[number(a[0])] = []
            d.multicast_set(number(a[0]), [])
        elif op == "mc_node_create":
            self._nodes.append((number(a[0]), [number(x) for x in a[1:]]))
        elif op == "mc_node_associate":
            group = self._groups[number(a[0])]
            group.append(number(a[1]))
            d.multicast_set(number(a[0]), [(p, self._nodes[n][0]) for n in group for p in self._nodes[n][1]])
        elif op == "mc_node_update":
            self._nodes[number(a[0])] = (self._nodes[number(a[0])][0], [number(x) for x in a[1:]])
        elif op == "counter_write":
            d.counter_write(a[0], number(a[1]), number(a[3]), number(a[2]))
        elif op == "register_write":
            d.register_write(a[0], number(a[1]), number(a[2]))
        elif op == "register_reset":
            for i in range(d.program.registers[a[0]].size):
                d.register_write(a[0], i, 0)
        elif op == "check_counter":
            self._check_counter(a)
        else:
            raise ValueError(f"unknown command {op!r}")

    # ---- tables

    def _table(self, name: str) -> Table:
        return self.device.program.tables[by_suffix(name, self.device.program.tables)]

    def _add(self, tokens: list[str]) -> None:
        table, at = self._table(tokens[0]), 1
        priority = None
        if re.fullmatch(r"\d+|0x[0-9a-fA-F]+", tokens[at]) and tokens[at + 1 : at + 2] != [":"]:
            priority, at = number(tokens[at]), at + 1
        given: dict[str, str] = {}
        while tokens[at + 1] == ":":
            given[tokens[at]] = tokens[at + 2]
            at += 3
        key = [wildcard(k) for k in table.keys]
        for name, text in given.items():
            i = key_index(table, name)
            key[i] = match_value(table.keys[i], text)
        action, args, rest = self._action(table, tokens[at:])
        handle = self.device.table_insert(table.name, key, action, args, priority)
        if rest[:1] == ["="]:
            self._handles[rest[1]] = (table.name, handle)

    def _action(self, table: Table, tokens: list[str]) -> tuple[str, list[int], list[str]]:
        name = by_suffix(tokens[0], [a.name for a in table.actions])
        action = table.action(name)
        assert action is not None
        given: dict[str, int] = {}
        at = 1
        if tokens[at : at + 1] == ["("]:
            at += 1
            while tokens[at] != ")":
                if tokens[at] == ",":
                    at += 1
                    continue
                given[tokens[at]] = number(tokens[at + 2])
                at += 3
            at += 1
        unknown = set(given) - {p.name for p in action.params}
        if unknown:
            raise ValueError(f"action {name} has no parameter {', '.join(sorted(unknown))}")
        return name, [given[p.name] for p in action.params], tokens[at:]

    def _check_counter(self, a: list[str]) -> None:
        text = "".join(a)
        m = re.fullmatch(r"([\w.$]+)\((\$?\w+)\)(?:(packets|bytes)(==|!=|<=|>=|<|>)(\w+))?", text)
        if m is None:
            raise ValueError("expected NAME(INDEX) [packets|bytes OP N]")
        name, index, what, op, value = m.groups()
        if index.startswith("$"):
            packets, octets = self.device.direct_counter_read(*self._handles[index[1:]])
        else:
            packets, octets = self.device.counter_read(
                by_suffix(name, self.device.program.counters), number(index)
            )
        have, want = octets if what == "bytes" else packets, number(value) if value else 0
        tests = {"==": have == want, "!=": have != want, "<": have < want, "<=": have <= want,
                 ">": have > want, ">=": have >= want}  # fmt: skip
        if not tests[op or "=="]:
            self.result.failures.append(f"counter {text}: it is {have}")

    # ---- packets

    def _compare(self) -> None:
        by_port: dict[int, list[bytes]] = {}
        for port, data in self.result.received:
            by_port.setdefault(port, []).append(data)
        for port in sorted(set(by_port) | set(self._expected)):
            got, want = by_port.get(port, []), self._expected.get(port, [])
            if len(got) != len(want):
                shown = ", ".join(g.hex() for g in got) or "none"
                self.result.failures.append(
                    f"port {port}: expected {len(want)} packets, got {len(got)}: {shown}"
                )
            for i, (g, w) in enumerate(zip(got, want, strict=False)):
                if not packet_matches(g, w):
                    self.result.failures.append(f"port {port} packet {i}: expected {w}, got {g.hex()}")


def packet_matches(data: bytes, pattern: str) -> bool:
    """Whether a packet is what an `expect` asks for: `*` is any digit, a final `$` ends the packet."""
    ends = pattern.endswith("$")
    wanted = pattern.rstrip("$").replace("*", "?")
    text = data.hex()
    if len(text) < len(wanted) or (ends and len(text) != len(wanted)):
        return False
    return fnmatchcase(text[: len(wanted)], wanted)


def tokenize(line: str) -> list[str]:
    """Words, quoted names and the punctuation `: ( ) , =`."""
    return [t.strip('"') for t in re.findall(r'"[^"]*"|[^\s:(),="]+|[:(),=]', line)]


def by_suffix(name: str, names: Iterable[str]) -> str:
    """The full name, else the only one that ends with `.name` (or with the text)."""
    all_names = list(dict.fromkeys(names))
    if name in all_names:
        return name
    for found in (
        [n for n in all_names if n.endswith("." + name)],
        [n for n in all_names if n.endswith(name)],
    ):
        if len(found) == 1:
            return found[0]
    raise KeyError(f"no single name ends with {name!r}")


def key_index(table: Table, name: str) -> int:
    """Which key of a table a name in an `add` means."""
    wanted = re.sub(r"\$(\d+)", r"[\1]", name)
    names = [k.name for k in table.keys]
    if wanted in names:
        return names.index(wanted)
    for tail in ("." + wanted, wanted):
        found = [i for i, n in enumerate(names) if n.endswith(tail)]
        if len(found) == 1:
            return found[0]
    if not wanted.endswith("$valid$"):
        return key_index(table, wanted.removesuffix(".valid") + ".$valid$")
    raise KeyError(f"table {table.name} has no key {name!r}")


def wildcard(k: Key) -> MatchValue:
    """What a key left out means."""
    if k.match == "exact":
        return Exact(0)
    if k.match == "lpm":
        return Lpm(0, 0)
    return Range(0, (1 << k.width) - 1) if k.match == "range" else Ternary(0, 0)


def match_value(k: Key, text: str) -> MatchValue:
    """A key's value from its literal; a `*` in it is a digit that is not compared."""
    if k.match == "exact":
        return Exact(number(text))
    if k.match == "range":
        low, _, high = text.partition("..")
        return Range(number(low), number(high or low))
    digit = 4 if text.lower().startswith("0x") else 1
    if digit == 1 and not text.lower().startswith("0b"):
        value = number(text)
        full = (1 << k.width) - 1
        return Lpm(value, k.width) if k.match == "lpm" else Ternary(value, full)
    body = text[2:].replace("_", "")
    value = mask = 0
    for ch in body:
        value = value << digit | (0 if ch == "*" else int(ch, 16))
        mask = mask << digit | (0 if ch == "*" else (1 << digit) - 1)
    full = (1 << k.width) - 1
    if k.match == "lpm":
        return Lpm(value & full, min(digit * sum(ch != "*" for ch in body), k.width))
    return Ternary(value & mask & full, mask & full)
