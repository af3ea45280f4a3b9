# SPDX-License-Identifier: Apache-2.0
"""Packets in field terms: which are wanted, and how each is told as text, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.constants import JOBS

from .errors import FilterError
from .model import REASONS, WORDS, Judged, Model, Verdict
from .table import Category, Direction, Table, UdpChecksum

FIRST_VALUES = 4
"""Of a packet that are shown."""
WAYS: dict[int, str | None] = {Direction.UNKNOWN: None, Direction.UP: "in", Direction.DOWN: "out"}
"""What a packet did at its link end, seen from the node there."""
Mask = NDArray[np.bool_]


class Only(str, Enum):
    """Kinds of packets to choose."""

    CONTRIBUTIONS = "contributions"
    RESULTS = "results"
    RETRANSMITS = "retransmits"
    REFUSED = "refused"
    MALFORMED = "malformed"
    ABSORBED = "absorbed"
    COMPLETED = "completed"
    REPLAYED = "replayed"
    DUPLICATE = "duplicate"
    STALE = "stale"
    UNKNOWN = "unknown"
    OTHER = "other"


_OF_CATEGORY = {
    Only.CONTRIBUTIONS: Category.CONTRIBUTION,
    Only.RESULTS: Category.RESULT,
    Only.MALFORMED: Category.MALFORMED,
    Only.OTHER: Category.OTHER,
}


@dataclass(frozen=True)
class Filter:
    """Which packets are wanted; what is None is not asked for."""

    jobs: frozenset[int] | None = None
    slots: range | None = None
    chunks: range | None = None
    workers: tuple[str, ...] | None = None
    """Hosts, ranks or addresses."""
    links: frozenset[str] | None = None
    """Links or their ends."""
    only: tuple[Only, ...] | None = None
    """Without, all packets of ours."""

    def rows(self, table: Table, judged: Judged, model: Model) -> NDArray[np.intp]:
        """Return the rows that are wanted."""
        wanted = np.zeros(len(table), bool)
        if self.only is None:
            wanted = table.category != Category.OTHER
        for kind in self.only or ():
            wanted = wanted | self._kind(kind, table, judged)
        if self.jobs is not None:
            wanted &= np.isin(table.job, list(self.jobs))
        for numbers, column in ((self.slots, table.slot), (self.chunks, table.chunk)):
            if numbers is not None:
                known = (table.category != Category.OTHER) & (table.size != 0)
                wanted &= known & (column >= numbers.start) & (column < numbers.stop)
        if self.workers is not None:
            wanted &= self._of_workers(table, judged, model)
        if self.links is not None:
            of = [bool({source.end, source.link} & self.links) for source in table.sources]
            wanted &= np.asarray(of, bool)[table.file]
        return np.flatnonzero(wanted)

    def alone(self, table: Table) -> Mask:
        """Say which packets matter at all: what becomes of them depends on none of another job or slot."""
        found = np.ones(len(table), bool)
        if self.jobs is not None:
            found &= np.isin(table.job, list(self.jobs))
        if self.slots is not None:
            found &= (table.slot >= self.slots.start) & (table.slot < self.slots.stop)
        return found

    def _kind(self, kind: Only, table: Table, judged: Judged) -> Mask:
        if kind in _OF_CATEGORY:
            return np.equal(table.category, _OF_CATEGORY[kind])
        if kind is Only.RETRANSMITS:
            return judged.again
        return np.equal(judged.verdict, Verdict[kind.name])

    def _of_workers(self, table: Table, judged: Judged, model: Model) -> Mask:
        assert self.workers is not None
        known = [
            index
            for index, (host, rank) in enumerate(model.names)
            if host in self.workers or str(rank) in self.workers
        ]
        of = np.isin(judged.member, known) & (judged.member >= 0)
        for ip, port in filter(None, map(place, self.workers)):
            for address, ports in ((table.src_ip, table.src_port), (table.dst_ip, table.dst_port)):
                of |= (address == ip) if port is None else (address == ip) & (ports == port)
        return of


def place(worker: str) -> tuple[int, int | None] | None:
    """Return the address and UDP port, if any, of 10.0.0.1 or 10.0.0.1:5000; None for what is a name.

    Raises FilterError for what is neither.
    """
    ip, _, port = worker.partition(":")
    if ip.count(".") != 3:
        return None
    try:
        if not port:
            return int(IPv4Address(ip)), None
        if port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16:
            return int(IPv4Address(ip)), int(port)
        raise ValueError(port)
    except ValueError:  # AddressValueError is one
        raise FilterError(
            f"--worker {worker}", "is no address, as 10.0.0.1, nor one with a UDP port, as 10.0.0.1:5000"
        ) from None


def job_number(by_name: Mapping[str, int], option: str, job: str) -> int:
    """Return the number of a job given by name or number; FilterError for what is neither."""
    if job in by_name:
        return by_name[job]
    if job.isascii() and job.isdigit() and len(job) <= 3 and int(job) < JOBS:
        return int(job)
    have = ", ".join(sorted(by_name)) or "no names (no memberships)"
    raise FilterError(
        f"{option} {job}", f"the captures know {have}; a job's number, 0 to {JOBS - 1}, does too"
    )


def numbers(option: str, text: str) -> range:
    """Return the numbers of 7 or 7-12, at most 18 digits; FilterError for others."""
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise FilterError(f"{option} {text}", "is no number, as 7, nor numbers from one to another, as 7-12")
    if max(len(first), len(last)) > 18:
        raise FilterError(f"{option} {text[:20]}…", "there are no numbers of more than 18 digits")
    if int(last) < int(first):
        raise FilterError(f"{option} {text}", "the second number is less than the first")
    return range(int(first), int(last) + 1)


def ours(table: Table, switches: Collection[int]) -> Table:
    """Let packets between others than the switches be OTHER: their ports are job ports by chance."""
    if not switches:
        return table
    known = list(switches)
    chance = (table.job >= 0) & ~np.isin(table.src_ip, known) & ~np.isin(table.dst_ip, known)
    if not chance.any():
        return table
    table.category[chance] = Category.OTHER
    return table


def packets(table: Table, judged: Judged, model: Model, rows: NDArray[np.intp]) -> Iterator[dict[str, Any]]:
    """Yield each row's fields, by the names that JSON and CSV have."""
    picked = table.take(rows)
    verdicts, reasons = judged.verdict[rows].tolist(), judged.reason[rows].tolist()
    again, members = judged.again[rows].tolist(), judged.member[rows].tolist()
    columns = {name: getattr(picked, name).tolist() for name in _SHOWN}
    shown = _first_values(picked)
    for index in range(len(rows)):
        row = {name: column[index] for name, column in columns.items()}
        source = table.sources[row["file"]]
        category, member = Category(row["category"]), members[index]
        host, rank = model.names[member] if member >= 0 else (None, None)
        told = {
            "file": source.path.name,
            "number": row["number"],
            "time": row["time"],
            "link": source.link,
            "end": source.end,
            "direction": WAYS[row["direction"]],
            "kind": category.name.lower(),
            "length": row["length"],
            "src": _address(row["src_ip"], row["src_port"]),
            "dst": _address(row["dst_ip"], row["dst_port"]),
            "job": row["job"] if row["job"] >= 0 else None,
            "job_name": model.job_names.get(row["job"]),
            "worker": host,
            "rank": rank if rank is not None and rank >= 0 else None,
        }
        fields = category is not Category.OTHER and row["size"] != 0
        for name in ("msg_type", "flag", "tensor", "chunk", "slot", "version", "e0", "e1"):
            told[name] = row[name] if fields else None
        yield told | {
            "elements": row["elements"],
            "values": shown[index],
            "udp_checksum": UdpChecksum(row["udp_checksum"]).name.lower(),
            "verdict": WORDS[verdicts[index]],
            "reason": REASONS.get(reasons[index]),
            "again": again[index],
        }


def _address(ip: int, port: int) -> str | None:
    """Return an address with its UDP port, without where there is none; None for what is no IPv4."""
    if ip == 0:
        return None
    return f"{IPv4Address(ip)}:{port}" if port else str(IPv4Address(ip))


_SHOWN = (
    *(
        "number",
        "time",
        "file",
        "direction",
        "category",
        "length",
        "src_ip",
        "src_port",
        "dst_ip",
        "dst_port",
    ),
    *("job", "msg_type", "flag", "size", "tensor", "chunk", "slot", "version", "e0", "e1", "elements"),
    "udp_checksum",
)


def _first_values(table: Table) -> list[list[int]]:
    """Return the first values of each row, [] where there are none."""
    found: list[list[int]] = [[] for _ in range(len(table))]
    whole = np.flatnonzero(table.at >= 0)
    if table.payload is not None and len(whole):
        some = table.payload.gather(table.at[whole], 4 * FIRST_VALUES).view(">i4").tolist()
        for row, values in zip(whole.tolist(), some, strict=True):
            found[row] = values
    return found


# ---- as text
def _start(*cells: object) -> str:
    """Return the cells that every line has, in columns."""
    widths = (">9", ">14", "<9", "<4", "<8", "<8", "<12")
    return " ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))


def _rest(tensor: object, chunk: object, place: str, exponents: str, verdict: str, values: str) -> str:
    return f"{tensor:>6} {chunk:>10} {place:>8} {exponents:>9}  {verdict:<24} {values}".rstrip()


HEAD = " ".join(
    (
        _start("packet", "seconds", "end", "way", "job", "worker", "kind"),
        _rest("tensor", "chunk", "slot", "exponents", "verdict", "first values"),
    )
)


def line(told: dict[str, Any], start: int) -> str:
    """Return a packet as a line below HEAD; times are from `start`, in ns."""
    seconds, rest = divmod(told["time"] - start, 10**9)
    job = told["job_name"] or ("" if told["job"] is None else str(told["job"]))
    worker = told["worker"] or (told["dst" if told["kind"] == "result" else "src"] or "").split(":")[0]
    kind = told["kind"] + ("*" if told["flag"] else "")
    way = told["direction"] or "?"
    head = _start(told["number"], f"{seconds}.{rest:09d}", told["end"], way, job, worker, kind)
    verdict = told["verdict"] + (f": {told['reason']}" if told["reason"] else "")
    if told["again"]:
        verdict += " (again)"
    if told["udp_checksum"] == "unfinished":
        verdict += " (checksum left to the card)"
    if told["chunk"] is None:
        plain = (
            f"{told['src']} > {told['dst']}, {told['length']} bytes"
            if told["src"]
            else f"{told['length']} bytes"
        )
        return f"{head} {_rest('', '', '', '', verdict, plain)}".rstrip()
    place, exponents = f"{told['slot']}.{told['version']}", f"{told['e0']},{told['e1']}"
    values = " ".join(map(str, told["values"])) + (" …" if told["elements"] > FIRST_VALUES else "")
    return f"{head} {_rest(told['tensor'], told['chunk'], place, exponents, verdict, values)}"


Writer = Callable[[Sequence[dict[str, Any]], int], str]
"""Returns packets as text that is to be printed; the capture began at the time given, in ns."""


def text_writer() -> Writer:
    """Return a writer of lines, the first of them HEAD."""
    heads = [HEAD]

    def write(told: Sequence[dict[str, Any]], start: int) -> str:
        lines = [*heads, *(line(each, start) for each in told)]
        heads.clear()
        return "\n".join(lines) + "\n"

    return write


def json_writer() -> Writer:
    """Return a writer of an object a line."""
    return lambda told, _: "".join(json.dumps(each) + "\n" for each in told)


def csv_writer() -> Writer:
    """Return a writer of CSV, its names in the first line; values are separated by spaces."""
    began: list[bool] = []

    def write(told: Sequence[dict[str, Any]], _: int) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, list(told[0]), lineterminator="\n")
        if not began:
            writer.writeheader()
            began.append(True)
        writer.writerows({**each, "values": " ".join(map(str, each["values"]))} for each in told)
        return out.getvalue()

    return write
