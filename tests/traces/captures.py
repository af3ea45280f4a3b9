# SPDX-License-Identifier: Apache-2.0
"""Captures made in memory, written as pcapng by struct alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.dataplane.frames import Frame
from traces.members import FILE, Epoch, Member, SwitchPlace, write
from wire.membership import Membership

START = 1_700_000_000_000_000_000
"""ns since the Unix epoch, of all captures."""


@dataclass(frozen=True)
class Captured:
    """A frame at a link end, `s1-h1`, at a time in ns from START."""

    end: str
    time: int
    frame: bytes
    way: int = 0
    """1 it came in at the end's node, 2 it went out, 0 is not told."""

    def parsed(self) -> Frame:
        return Frame.parse(self.frame)

    def but(self, **changes: object) -> Captured:
        """The same with some fields of its frame changed, and right checksums."""
        return replace(self, frame=self.parsed().but(**changes).pack())


@dataclass
class Capture:
    """What was captured, and the epochs that explain it."""

    packets: list[Captured] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """When the capture of an end begins, if later than START."""

    def in_file(self, end: str) -> list[Captured]:
        """The packets of an end in the order of its file."""
        since = self.since.get(end, 0)
        mine = (each for each in self.packets if each.end == end and each.time >= since)
        return sorted(mine, key=lambda each: each.time)

    def write_ways(self, folder: Path) -> Path:
        """Write a classic pcap for each way at each switch's end, in microseconds, as bmv2's --pcap."""
        folder.mkdir(parents=True, exist_ok=True)
        for end in {packet.end for packet in self.packets if packet.end.startswith("s")}:
            for way, name in ((1, "in"), (2, "out")):
                data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
                for each in self.in_file(end):
                    if each.way == way:
                        seconds, ns = divmod(START + each.time, 10**9)
                        size = len(each.frame)
                        data += struct.pack("<IIII", seconds, ns // 1000, size, size) + each.frame
                (folder / f"{end}_{name}.pcap").write_bytes(data)
        write(folder / FILE, self.epochs)
        return folder

    def write(
        self, folder: Path, *, ends: Sequence[str] | None = None, memberships: bool = True, snap: int = 65535
    ) -> Path:
        """Write one file a link end, all that were there or those of `ends`; `snap` bytes of a packet."""
        folder.mkdir(parents=True, exist_ok=True)
        for end in ends if ends is not None else sorted({packet.end for packet in self.packets}):
            data = pcapng(end, self.in_file(end), self.dropped.get(end, 0), snap, self.since.get(end, 0))
            (folder / f"{end}.pcapng").write_bytes(data)
        if memberships:
            write(folder / FILE, self.epochs)
        return folder


def pcapng(
    end: str, packets: Iterable[Captured], dropped: int = 0, snap: int = 65535, since: int = 0
) -> bytes:
    """A file as trace record writes it: stamps in ns, and statistics that say when it began."""
    out = [_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    told = f"link end {end}".encode()
    options = struct.pack("<HH", 3, len(told)) + told + bytes(-len(told) % 4)
    options += struct.pack("<HHB3x", 9, 1, 9) + bytes(4)
    out.append(_block(1, struct.pack("<HHI", 1, 0, 0) + options))
    for each in packets:
        stamp, size = START + each.time, len(each.frame)
        kept = each.frame[:snap]
        head = struct.pack("<IIIII", 0, stamp >> 32, stamp & 0xFFFFFFFF, len(kept), size)
        flags = struct.pack("<HHI", 2, 4, each.way) + bytes(4)
        out.append(_block(6, head + kept + bytes(-len(kept) % 4) + flags))
    stamp = START + since
    began = struct.pack("<HHII", 2, 8, stamp >> 32, stamp & 0xFFFFFFFF)
    out.append(
        _block(5, struct.pack("<III", 0, 0, 0) + began + struct.pack("<HHQ", 5, 8, dropped) + bytes(4))
    )
    return b"".join(out)


def _block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


def epoch_of(members: Sequence[Membership], began: int, name: str = "job") -> Epoch:
    """The epoch of a job whose rank r is host h(r+1), at one switch."""
    m = members[0]
    return Epoch(
        job=m.job,
        job_name=name,
        epoch=m.epoch,
        window=m.window,
        lead=m.lead,
        elements=m.elements,
        n=m.n,
        g0=m.g0,
        t0=m.t0,
        switches=(SwitchPlace("s1", m.switch_ip),),
        members=tuple(
            Member(
                each.rank,
                f"h{each.rank + 1}",
                each.own_ip,
                each.own_port,
                each.rank,
                "s1",
                f"h{each.rank + 1}-s1",
            )
            for each in members
        ),
        began=START + began,
    )
