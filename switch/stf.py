# SPDX-License-Identifier: Apache-2.0
"""p4c's simple test framework: run an .stf file (commands, packets, expectations) in process.

The language is that of p4c's backends/bmv2/bmv2stf.py: `packet`, `expect`, `add`, `setdefault`, `remove all`,
`check_counter`, `wait`, and simple_switch_CLI's commands for mirroring, multicast, counters, registers and
meters. A larger priority wins; a table that takes none ignores it, as there. A file that checks counters and
expects no packet anywhere is about the counters alone: its packets may leave where they will.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from switch.device import Exact, Lpm, MatchValue, MeterRates, Range, SwitchDevice, Ternary
from switch.errors import SwitchError
from switch.ir import Key, Table
from switch.tables import has_priority

# they show something, on bmv2's command line
WITHOUT_EFFECT = {"wait", "mirroring_get", "counter_read", "register_read", "meter_get_rates"}


class StfError(SwitchError):
    """A line of an .stf file that cannot be understood or applied."""

    def __init__(self, line: int, text: str, why: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {why}: {text.strip():.100}")


@dataclass
class StfResult:
    """What came out against what was expected: `failures` is empty when the test passes."""

    sent: int = 0
    counters: int = 0
    """Checks of counters."""
    received: list[tuple[int, bytes]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all expectations were met and nothing else came out."""
        return not self.failures

    def verdict(self) -> str:
        """In words. A file with nothing but commands is legal, and passes, but who runs it is to know."""
        words = f"{'passed' if self.passed else 'FAILED'}: {self.sent} packets in"
        if self.passed and not self.sent and not self.counters:
            words += ": no packet was sent or expected and no counter checked: it says nothing of the program"
        return words


def number(text: str) -> int:
    """`0x..`, `0b..` or decimal, with leading zeros as they come."""
    try:
        return int(text, 10 if text.isdecimal() else 0)
    except ValueError:
        raise ValueError(f"{text:.40} is no number: 12, 0x1f or 0b101 is") from None


def port_number(text: str) -> int:
    """One of v1model's ports: they have 9 bits."""
    port = number(text)
    if not 0 <= port < 512:
        raise ValueError(f"port {text:.40} is not in 0..511")
    return port


class StfRunner:
    """Runs one file on one freshly loaded device."""

    def __init__(self, device: SwitchDevice) -> None:
        self.device = device
        self.result = StfResult()
        self._expected: dict[int, list[str]] = {}
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = {}
        self._mirrors: dict[int, int] = {}
        self._handles: dict[str, tuple[str, int]] = {}
        self._checks_packets = False

    def run(self, text: str) -> StfResult:
        """Run all statements in order, then compare. Raises `StfError`."""
        for n, line in enumerate(text.splitlines(), 1):
            try:
                self._line(line)
            except StfError:
                raise
            except IndexError as e:
                why = "something is missing at its end, or it names a multicast node no earlier line made"
                raise StfError(n, line, why) from e
            except KeyError as e:
                raise StfError(n, line, str(e.args[0])) from e
            except (ValueError, SwitchError) as e:
                raise StfError(n, line, str(e)) from e
        self._compare()
        return self.result

    def _line(self, line: str) -> None:
        words = line.split()
        if not words or words[0].startswith("#"):
            return
        op = words[0].lower()
        if op == "packet":
            digits = "".join(words[2:])
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", digits):
                raise ValueError(f"{digits!r} is no packet: write two hexadecimal digits for each byte")
            self.result.sent += 1
            self.result.received += self.device.process([(port_number(words[1]), bytes.fromhex(digits))])
            return
        if op == "expect":
            pattern = "".join(words[2:]).lower()
            if not re.fullmatch(r"[0-9a-f*]*\$?", pattern):
                raise ValueError("a packet is written in hex digits, with `*` for any digit and a final `$`")
            self._expected.setdefault(port_number(words[1]), []).append(pattern)
            self._checks_packets = True
            return
        tokens = tokenize(line)
        if op == "add":
            self._add(tokens[1:])
        elif op == "setdefault":
            table = self._table(tokens[1])
            name, args, _ = self._action(table, tokens[2:])
            self.device.table_set_default(table.name, name, args)
        elif op == "remove":
            self._remove(tokens[1:])
        elif op == "no_packet":
            self._checks_packets = True
        elif op == "check_counter":
            self._check_counter(tokens[1:])
            self.result.counters += 1
        elif op not in WITHOUT_EFFECT:
            self._command(op, tokens[1:])

    def _command(self, op: str, a: list[str]) -> None:
        d, program = self.device, self.device.program
        if op == "mirroring_add":
            d.clone_session_set(number(a[0]), [(number(a[1]), 0)])
            self._mirrors.pop(number(a[0]), None)
        elif op == "mirroring_add_mc":
            self._mirrors[number(a[0])] = number(a[1])
            self._replicate()
        elif op == "mirroring_delete":
            d.clone_session_delete(number(a[0]))
            self._mirrors.pop(number(a[0]), None)
        elif op == "mc_mgrp_create":
            self._groups[number(a[0])] = []
            self._replicate()
        elif op == "mc_node_create":
            self._nodes.append((number(a[0]), sorted({number(x) for x in a[1:]})))
        elif op == "mc_node_associate":
            group, node = number(a[0]), number(a[1])
            if group not in self._groups:
                raise KeyError(f"there is no multicast group {group}: `mc_mgrp_create {group}` comes first")
            if any(node in nodes for nodes in self._groups.values()):
                raise ValueError(f"node {node} is in a group already")
            self._groups[group].append(node)
            self._replicate()
        elif op == "mc_node_update":
            rid, _ = self._nodes[number(a[0])]
            self._nodes[number(a[0])] = (rid, sorted({number(x) for x in a[1:]}))
            self._replicate()
        elif op == "counter_write":
            name, index = by_suffix(a[0], "counter", program.counters), number(a[1])
            if program.counters[name].direct:
                d.direct_counter_write(*self._nth(program.counters[name].table, index), *map(number, a[2:4]))
            else:
                d.counter_write(name, index, *map(number, a[2:4]))
        elif op == "register_write":
            d.register_write(by_suffix(a[0], "register", program.registers), number(a[1]), number(a[2]))
        elif op == "register_reset":
            name = by_suffix(a[0], "register", program.registers)
            for i in range(program.registers[name].size):
                d.register_write(name, i, 0)
        elif op == "meter_set_rates":
            name, index = by_suffix(a[0], "meter", program.meters), number(a[1])
            if program.meters[name].direct:
                d.direct_meter_set(*self._nth(program.meters[name].table, index), meter_rates(a[2:]))
            else:
                d.meter_set(name, index, meter_rates(a[2:]))
        elif op == "meter_array_set_rates":
            name, rates = by_suffix(a[0], "meter", program.meters), meter_rates(a[1:])
            for i in range(program.meters[name].size):
                d.meter_set(name, i, rates)
        else:
            raise ValueError(f"unknown command {op!r}")

    def _replicate(self) -> None:
        """Write groups, and the clone sessions that name one, anew: their nodes may have changed."""
        for group, nodes in self._groups.items():
            self.device.multicast_set(
                group, [(port, self._nodes[n][0]) for n in nodes for port in self._nodes[n][1]]
            )
        for session, group in self._mirrors.items():
            self.device.clone_session_set(session, self.device.multicast_groups().get(group, []))

    # ---- tables

    def _table(self, name: str) -> Table:
        return self.device.program.tables[by_suffix(name, "table", self.device.program.tables)]

    def _add(self, tokens: list[str]) -> None:
        table, at = self._table(tokens[0]), 1
        priority = None
        if re.fullmatch(r"\d+|0x[0-9a-fA-F]+", tokens[at]) and tokens[at + 1 : at + 2] != [":"]:
            priority, at = number(tokens[at]) if has_priority(table) else None, at + 1
        key = [wildcard(k) for k in table.keys]
        while tokens[at + 1] == ":":
            i = key_index(table, tokens[at])
            length = number(tokens[at + 4]) if tokens[at + 3] == "/" else None
            key[i] = match_value(table.keys[i], tokens[at + 2], length)
            at += 3 if length is None else 5
        action, args, rest = self._action(table, tokens[at:])
        handle = self.device.table_insert(table.name, key, action, args, priority)
        if rest[:1] == ["="]:
            self._handles[rest[1]] = (table.name, handle)

    def _action(self, table: Table, tokens: list[str]) -> tuple[str, list[int], list[str]]:
        name = by_suffix(tokens[0], "action", [a.name for a in table.actions], f"table {table.name}")
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
        missing = [p.name for p in action.params if p.name not in given]
        if missing:
            raise ValueError(f"action {name} needs {', '.join(missing)}")
        return name, [given[p.name] for p in action.params], tokens[at:]

    def _nth(self, table: str | None, n: int) -> tuple[str, int]:
        """bmv2's handles number the entries of a table from 0, those of the program first."""
        assert table is not None
        entries = self.device.table_entries(table)
        if n >= len(entries):
            raise KeyError(f"table {table} has {len(entries)} entries, there is no number {n}")
        return table, entries[n].handle

    def _remove(self, a: list[str]) -> None:
        if [x.lower() for x in a] != ["all"]:
            raise ValueError("only `remove all` is known")
        for table in self.device.program.tables:
            for entry in self.device.table_entries(table):
                if not entry.const:
                    self.device.table_delete(table, entry.handle)

    def _check_counter(self, a: list[str]) -> None:
        text = "".join(a)
        m = re.fullmatch(
            r"(.+)\(\$?([\w.$]+)\)(?:(packets|bytes)(==|!=|<=|>=|<|>)(\w+))?", text, re.IGNORECASE
        )
        if m is None:
            raise ValueError("expected NAME(INDEX) [packets|bytes OP N]")
        name, index, what, op, value = m.groups()
        if index in self._handles:
            packets, octets = self.device.direct_counter_read(*self._handles[index])
        else:
            packets, octets = self.device.counter_read(
                by_suffix(name, "counter", self.device.program.counters), number(index)
            )
        what = (what or "packets").lower()
        have, want = octets if what == "bytes" else packets, number(value) if value else 0
        tests = {"==": have == want, "!=": have != want, "<": have < want, "<=": have <= want,
                 ">": have > want, ">=": have >= want}  # fmt: skip
        if not tests[op or "=="]:
            self.result.failures.append(f"counter {text}: it is {have}")

    # ---- packets

    def _compare(self) -> None:
        if self.result.counters and not self._checks_packets:
            return
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
    """Words, quoted names and the punctuation `: ( ) , = /`, without a comment."""
    found = re.findall(r'"[^"]*"|#.*|[^\s:(),="/#]+|[:(),=/]', line)
    return [t.strip('"') for t in found if not t.startswith("#")]


def by_suffix(name: str, what: str, names: Iterable[str], owner: str = "the program") -> str:
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
    raise KeyError(f"{owner} has no single {what} {name!r}, it has {', '.join(all_names) or 'none'}")


def key_index(table: Table, name: str) -> int:
    """Which key of a table a name in an `add` means: in full or its tail; `h.valid`, `h` and `valid` are
    short for a validity key."""
    wanted = re.sub(r"\$(\d+)", r"[\1]", name)
    names = [k.name for k in table.keys]
    for tail in (wanted, wanted.removesuffix("valid").rstrip(".") + ".$valid$"):
        if tail in names:
            return names.index(tail)
        for end in ("." + tail.lstrip("."), tail):
            found = [i for i, n in enumerate(names) if n.endswith(end)]
            if len(found) == 1:
                return found[0]
    raise KeyError(f"table {table.name} has no single key {name!r}, it has {', '.join(names) or 'none'}")


def wildcard(k: Key) -> MatchValue:
    """What a key left out means."""
    if k.match == "exact":
        return Exact(0)
    if k.match == "lpm":
        return Lpm(0, 0)
    return Range(0, (1 << k.width) - 1) if k.match == "range" else Ternary(0, 0)


def match_value(k: Key, text: str, length: int | None = None) -> MatchValue:
    """A key's value from its literal, or prefix and length; a `*` is a digit that is not compared."""
    if length is not None:
        if k.match != "lpm":
            raise ValueError(f"key {k.name} is matched {k.match}: only lpm takes a prefix length")
        return Lpm(number(text), length)
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
    body = text[2:]
    value = mask = 0
    for ch in body:
        value = value << digit | (0 if ch == "*" else int(ch, 16))
        mask = mask << digit | (0 if ch == "*" else (1 << digit) - 1)
    full = (1 << k.width) - 1
    if k.match == "lpm":
        return Lpm(value & full, min(digit * sum(ch != "*" for ch in body), k.width))
    return Ternary(value & mask & full, mask & full)


def meter_rates(a: list[str]) -> MeterRates:
    """Two `RATE:BURST`, committed and peak, in units a microsecond and units."""
    if len(a) != 6 or a[1] != ":" or a[4] != ":":
        raise ValueError("a meter takes two rates, RATE:BURST RATE:BURST")
    return MeterRates(float(a[0]) * 1e6, number(a[2]), float(a[3]) * 1e6, number(a[5]))
