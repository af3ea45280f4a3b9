# SPDX-License-Identifier: Apache-2.0
"""Whose packet is whose: by a member's UDP port, which it has in one epoch alone. And who is nobody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from .table import Category, Direction, Source, Table
from .verify_capture import Capture
from .verify_findings import KEPT, Findings, Rule, Violation
from .verify_ledger import SLACK, Ints
from .verify_tree import Seat, Tree

Mask = NDArray[np.bool_]
UNKNOWN_EPOCHS = "packets of epochs that are not told of"


class Matcher:
    """Finds the seat of packets among those of all trees, and tells of packets that no seat could have."""

    def __init__(self, told: Sequence[Tree], capture: Capture, findings: Findings) -> None:
        self._capture, self._findings = capture, findings
        self._all: list[tuple[Tree, Seat]] = [(tree, seat) for tree in told for seat in tree.seats]
        keys = np.array([_key(tree.job, seat.ip, seat.port) for tree, seat in self._all], np.int64)
        # A port may come again after ten minutes: the later epoch, from its beginning on.
        order = np.argsort(keys, kind="stable")
        self._keys, self._seats = keys[order], order
        again = np.flatnonzero(np.diff(self._keys) == 0)
        self._again = np.unique(self._keys[again])
        self._began = np.array([tree.began or 0 for tree, _ in self._all], np.int64)
        self._switch = np.array([tree.switches[seat.switch] for tree, seat in self._all], np.int64)
        self._linked = np.array([bool(seat.link) for _, seat in self._all], np.bool_)
        self._switches = np.unique(np.array([ip for tree in told for ip in tree.switches], np.int64))
        self._jobs = np.unique(np.array([tree.job for tree in told if not tree.inferred], np.int64))
        self._members = np.unique(
            np.array([_key(tree.job, seat.ip, 0) for tree, seat in self._all], np.int64)
        )
        self._tree_of = [index for index, tree in enumerate(told) for _ in tree.seats]
        self._last: dict[int, int] = {}
        """The tree of each member's last contribution."""
        self._doubts: dict[int, list[Violation]] = {}
        """Of each member: packets to or from ports that are of no known epoch."""
        self._ways: dict[Source, tuple[Mask, Mask]] = {}

    def match(self, table: Table, rows: Ints, sources: Ints, refs: Ints) -> tuple[Ints, Ints]:
        """Return those of the rows, contributions and results, that a seat could have, and these seats."""
        up = table.category[rows] == Category.CONTRIBUTION
        ip = np.where(up, table.src_ip[rows], table.dst_ip[rows]).astype(np.int64)
        port = np.where(up, table.src_port[rows], table.dst_port[rows]).astype(np.int64)
        other = np.where(up, table.dst_ip[rows], table.src_ip[rows]).astype(np.int64)
        job, time = table.job[rows].astype(np.int64), table.time[rows]
        key = job << 48 | ip << 16 | port
        at = np.searchsorted(self._keys, key)
        found = at < len(self._keys)
        found[found] = self._keys[at[found]] == key[found]
        seat = np.full(len(rows), -1, np.int64)
        seat[found] = self._seats[at[found]]
        for again in self._again:
            candidates = self._seats[self._keys == again]
            candidates = candidates[np.argsort(self._began[candidates], kind="stable")]
            mine = np.flatnonzero(key == again)
            last = np.searchsorted(self._began[candidates], time[mine] + SLACK, side="right") - 1
            seat[mine] = candidates[np.maximum(last, 0)]
        self._strangers(table, rows, refs, up, job << 48 | ip << 16, other, seat)
        rows, up, other, seat = rows[found], up[found], other[found], seat[found]
        good = self._check_ways(table, rows, sources, refs, up, other, seat)
        return rows[good], seat[good]

    def _strangers(
        self, table: Table, rows: Ints, refs: Ints, up: Mask, who: Ints, other: Ints, seat: Ints
    ) -> None:
        """Tell of packets to or from a job's switch that are no member's."""
        unknown, ours = seat < 0, np.isin(other, self._switches)
        self._findings.ignored["packets of other programs, to job ports"] += int((unknown & ~ours).sum())
        unknown &= ours
        strange_job = unknown & ~np.isin(who >> 48, self._jobs)
        self._findings.unchecked["packets of members that are not known"] += int(strange_job.sum())
        unknown &= ~strange_job
        member = unknown & np.isin(who, self._members)

        def text(i: int) -> str:
            row = rows[i]
            if up[i]:
                sender = f"{IPv4Address(int(table.src_ip[row]))}:{table.src_port[row]}"
                return f"a contribution from {sender}, which is no member"
            receiver = f"{IPv4Address(int(table.dst_ip[row]))}:{table.dst_port[row]}"
            return f"a result for {receiver}, which is no member"

        self._tell(Rule.MEMBERS, table, rows, refs, np.flatnonzero(unknown & ~member), text)
        self._doubtful(table, rows, refs, who, seat, member, text)

    def _doubtful(
        self,
        table: Table,
        rows: Ints,
        refs: Ints,
        who: Ints,
        seat: Ints,
        member: Mask,
        text: Callable[[int], str],
    ) -> None:
        """Tell of a member's address with a port that no known epoch gave it, once it can be of no other.

        An epoch may be missing among those that are known. But not in the middle of one that is.
        """
        senders = (table.category[rows] == Category.CONTRIBUTION) & (seat >= 0)
        for whose in {
            *np.unique(who[member]).tolist(),
            *(each for each, waiting in self._doubts.items() if waiting),
        }:
            waiting = self._doubts.setdefault(whose, [])
            for i in np.flatnonzero((who == whose) & (senders | member)).tolist():
                if member[i]:
                    waiting.append(self._violation(Rule.MEMBERS, table, int(rows[i]), refs, text(i)))
                    del waiting[:-KEPT]
                    continue
                tree = self._tree_of[seat[i]]
                if self._last.get(whose) == tree:
                    self._findings.add(waiting[: self._findings.wanted(Rule.MEMBERS, "", len(waiting))], "")
                else:
                    self._findings.unchecked[UNKNOWN_EPOCHS] += len(waiting)
                waiting.clear()
                self._last[whose] = tree
        whose, back = np.unique(who[senders][::-1], return_index=True)
        trees = np.array(self._tree_of, np.int64)[seat[senders][::-1][back]]
        self._last.update(zip(whose.tolist(), trees.tolist(), strict=True))

    def close(self) -> None:
        """Count what stayed doubtful."""
        self._findings.unchecked[UNKNOWN_EPOCHS] += sum(map(len, self._doubts.values()))

    def _check_ways(
        self, table: Table, rows: Ints, sources: Ints, refs: Ints, up: Mask, other: Ints, seat: Ints
    ) -> Mask:
        """Tell of a member's packets with another's address, on another's link, or the wrong way on it."""
        address = other != self._switch[seat]
        link = np.zeros(len(rows), np.bool_)
        way = np.zeros(len(rows), np.bool_)
        of = sources[rows]
        for index in np.unique(of):
            source = self._capture.sources[index]
            if not source.node:
                continue
            here = np.flatnonzero(of == index)
            on_link, comes_in = self._at(source)
            right = on_link[seat[here]]
            link[here] = ~right
            direction = table.direction[rows[here]]
            expected = np.where(comes_in[seat[here]] == up[here], Direction.UP, Direction.DOWN)
            told = self._linked[seat[here]] & (direction != Direction.UNKNOWN)
            way[here] = right & told & (direction != expected)

        def name(i: int) -> str:
            tree, member = self._all[seat[i]]
            return f"{member.name} (epoch {tree.epoch})"

        def what(i: int) -> str:
            return f"a contribution of {name(i)}" if up[i] else f"a result for {name(i)}"

        def wrong_address(i: int) -> str:
            whose = IPv4Address(int(other[i]))
            return f"{what(i)} {'goes to' if up[i] else 'comes from'} {whose}, which is not its switch"

        def wrong_link(i: int) -> str:
            own = self._all[seat[i]][1].link
            return f"{what(i)} on link {self._capture.sources[of[i]].link}, where its own is {own}"

        def wrong_way(i: int) -> str:
            return f"{what(i)} goes {'down' if up[i] else 'up'} link {self._capture.sources[of[i]].link}"

        self._tell(Rule.ADDRESSES, table, rows, refs, np.flatnonzero(address), wrong_address)
        self._tell(Rule.LINKS, table, rows, refs, np.flatnonzero(link & ~address), wrong_link)
        self._tell(Rule.LINKS, table, rows, refs, np.flatnonzero(way & ~address), wrong_way)
        self._findings.checked["addresses, ports and links"] += len(rows)
        good: Mask = ~(address | link | way)
        return good

    def _at(self, source: Source) -> tuple[Mask, Mask]:
        """Return for each seat whether its link ends here, and whether what it sends comes in here.

        It does so at its switch's end; at its own it goes out.
        """
        if source not in self._ways:
            self._ways[source] = (
                np.array([seat.link in ("", source.link) for _, seat in self._all], np.bool_),
                np.array([seat.name != source.node for _, seat in self._all], np.bool_),
            )
        return self._ways[source]

    def _tell(
        self,
        rule: Rule,
        table: Table,
        rows: Ints,
        refs: Ints,
        which: Ints,
        text: Callable[[int], str],
    ) -> None:
        """Report rows that break a rule."""
        told = which[: self._findings.wanted(rule, "", len(which))]
        self._findings.add(
            (self._violation(rule, table, int(rows[i]), refs, text(i)) for i in told.tolist()), ""
        )

    def _violation(self, rule: Rule, table: Table, row: int, refs: Ints, text: str) -> Violation:
        packet = self._capture.packet(int(refs[row]))
        job, chunk, time = int(table.job[row]), int(table.chunk[row]), int(table.time[row])
        return Violation(rule, job, 0, chunk, "", text, time, (packet,))


def _key(job: int, ip: int, port: int) -> int:
    return job << 48 | ip << 16 | port
