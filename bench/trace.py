# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench trace`: packets a second that a capture is read with, beside tshark in the same run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bench import terminal
from bench.errors import BenchError
from traces import members
from wire import packet
from wire.constants import SIZE_CODES, frame_bytes, job_port

WORKERS, JOB, WINDOW, SWITCH = 4, 3, 256, "10.0.255.1"
ROUND = 4096
"""Chunks that are made at once."""
REPEATED = 0.01
"""Of the contributions."""
TSHARK_PACKETS = 1_000_000
"""The most that tshark reads, from the beginning: its rate stays the same, and it is slow."""
START_SECONDS, LEAST_RATE = 60.0, 2000
"""How long a program may take: so many seconds, and one more for each so many packets."""
WATCH_SECONDS = 0.05
"""How often its memory is looked at."""


@dataclass(frozen=True)
class Reading:
    """How one program read the capture, or its first packets."""

    what: str
    packets: int
    """That it read."""
    seconds: float
    cpu_seconds: float
    """Of its process, which other programs on the machine change little."""
    memory_mb: float
    """The most that its process had resident, but for what came in its last WATCH_SECONDS."""

    @property
    def rate(self) -> float:
        """Packets a second."""
        return self.packets / self.seconds


def bench_trace(
    packets: Annotated[int, typer.Option(min=10_000, help="Packets in the capture.")] = 1_000_000,
    elements: Annotated[int, typer.Option(help="Values in a packet, 64 or 256.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Packets a second that a capture is read with: by trace show with filters, and by tshark.

    The capture is made for it: a job of 4 workers that sends 1 % of its contributions twice.
    """
    if elements not in SIZE_CODES:
        raise BenchError(f"--elements {elements}", "a packet has 64 or 256")
    absent = {} if shutil.which("tshark") else {"tshark": "it is not there (apt install tshark)"}
    readings: list[Reading] = []
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder, terminal.progress() as (say, _):
        capture = Path(folder, "s1-h1.pcap")
        check_room(capture.parent, packets, elements)
        say(f"writing {packets:,} packets with {elements} values")
        count, repeated = write_capture(capture, packets, elements)
        shown = [sys.executable, "-m", "controller", "trace", "show", str(capture)]
        runs: list[tuple[str, list[str], int, int]] = [
            ("trace show --only refused", [*shown, "--only", "refused"], count, 0),
            ("trace show --only retransmits", [*shown, "--only", "retransmits"], count, repeated + 1),
            ("trace show --job 3 --slot 7 --csv", [*shown, "--job", "3", "--slot", "7", "--csv"], count, -1),
        ]
        if not absent:
            first = min(count, TSHARK_PACKETS)
            fields = [word for name in _FIELDS for word in ("-e", name)]
            tshark = ["tshark", "-n", "-r", str(capture), "-c", str(first), "-T", "fields", *fields]
            wrong = [*tshark, "-Y", _WRONG, *_CHECK]
            runs.append(("tshark -T fields -Y 'udp.checksum.status == 0'", wrong, first, 0))
            runs.append(("tshark -T fields, all packets", tshark, first, first))
        for what, argv, each, lines in runs:
            say(f"reading {each:,} packets with {what}")
            readings.append(measured(what, argv, each, lines))
            say(f"  {readings[-1].rate:,.0f} packets/s, {readings[-1].memory_mb:.0f} MB")
    if as_json:
        told = [asdict(each) | {"rate": each.rate} for each in readings]
        tree = {"packets": count, "elements": elements, "readings": told, "absent": absent}
        typer.echo(json.dumps(tree, indent=1))
        return
    rows = [
        (
            *(r.what, f"{r.packets:,}", f"{r.rate:,.0f}"),
            *(f"{r.seconds:.1f}", f"{r.cpu_seconds:.1f}", f"{r.memory_mb:.0f} MB"),
        )
        for r in readings
    ]
    terminal.print_table(
        f"Reading a capture of {count:,} packets, {elements} values each", HEADS, rows, left=1
    )
    terminal.print_absent(absent)


HEADS = ("program", "packets", "packets/s", "seconds", "CPU seconds", "most memory")
_FIELDS = (
    "frame.number",
    "frame.time_epoch",
    "ip.src",
    "udp.srcport",
    "ip.dst",
    "udp.dstport",
    "udp.payload",
)
_WRONG = "udp.checksum.status == 0"
_CHECK = ("-o", "udp.check_checksum:TRUE")


def check_room(folder: Path, packets: int, elements: int) -> None:
    """Raise BenchError where a folder has no room for the capture."""
    need, free = packets * (16 + frame_bytes(elements)), shutil.disk_usage(folder).free
    if free < need:
        raise BenchError(
            f"{packets:,} packets",
            f"the capture has {need / 1e9:.1f} GB, {folder.parent} has {free / 1e9:.1f} GB left: "
            "make room, set TMPDIR to another folder, or give fewer --packets",
        )


def measured(what: str, argv: list[str], packets: int, lines: int) -> Reading:
    """Run a program that reads so many packets; BenchError unless it prints that many lines (-1: some)."""
    limit = START_SECONDS + packets / LEAST_RATE
    over, late = threading.Event(), threading.Event()
    memory = 0.0
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        assert child.stdout is not None

        def watch() -> None:
            nonlocal memory
            while not over.wait(WATCH_SECONDS):
                memory = max(memory, peak_mb(child.pid))
                if time.monotonic() - began > limit:
                    late.set()
                    child.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            found = sum(1 for _ in child.stdout)
            _, code, usage = os.wait4(child.pid, 0)
            child.returncode = status = os.waitstatus_to_exitcode(code)
            seconds = time.monotonic() - began
        except BaseException:
            child.kill()
            raise
        finally:
            over.set()
            watcher.join()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if late.is_set():
        raise BenchError(what, f"it was not done with {packets:,} packets in {limit:.0f} s and was ended")
    if status != 0:
        raise BenchError(what, f"it failed: {said.strip()[-500:]}")
    if found != lines and not (lines < 0 < found):
        raise BenchError(what, f"it printed {found} lines, not {lines}: its figures mean nothing")
    return Reading(what, packets, seconds, usage.ru_utime + usage.ru_stime, memory)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process had resident so far, in MB (2^20), 0 once it is over.

    Its `ru_maxrss` would say at least what the process had that started it, which has written the capture.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    told = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(told[0]) / 1024 if told else 0.0


def write_capture(path: Path, packets: int, elements: int) -> tuple[int, int]:
    """Write a classic capture and its memberships; return its packets, and the contributions that repeat."""
    written, repeated, now, first = 0, 0, 1_700_000_000_000_000, 0
    with path.open("wb") as file:
        file.write(np.array([0xA1B2C3D4, 0x00040002, 0, 0, 262144, 1], "<u4").tobytes())
        while written < packets:
            some, again = records(first, elements, now)
            file.write(some.tobytes())
            written, repeated = written + len(some), repeated + again
            first, now = first + ROUND, now + len(some)
    place = members.SwitchPlace("s1", SWITCH)
    seats = [members.Member(r, f"h{r + 1}", _host(r), _port(r), r, "s1", "h1-s1") for r in range(WORKERS)]
    epoch = members.Epoch(
        *(JOB, "bench", 7, WINDOW, WINDOW // 4, elements, WORKERS, 0, 0, (place,), tuple(seats), 0, None)
    )
    members.write(path.parent / members.FILE, [epoch])
    return written, repeated


def _host(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def _port(rank: int) -> int:
    return 5000 + rank


def records(first: int, elements: int, now: int) -> tuple[np.ndarray, int]:  # type: ignore[type-arg]
    """Return ROUND chunks from `first` on as records: each worker's contribution, some twice, and results."""
    rng = np.random.default_rng(first)
    made = np.zeros(ROUND, packet.payload_dtype(elements))
    chunks = np.arange(first, first + ROUND)
    made["chunk"] = chunks & 0xFFFFFFFF
    made["place"] = (chunks // WINDOW % 2) << 15 | chunks % WINDOW
    made["e0"] = made["e1"] = -128
    made["values"] = rng.integers(-(2**20), 2**20, (ROUND, elements))
    parts, order = [], []
    twice = np.sort(rng.choice(ROUND, round(ROUND * REPEATED * WORKERS), replace=False))
    for rank in range(WORKERS):
        sent, got = frames(made, rank, elements, True), frames(made, rank, elements, False)
        parts += [sent, got]
        order += [chunks * 10 + rank, chunks * 10 + 8]
        if rank == 0:
            parts.append(sent[twice])
            order.append(chunks[twice] * 10 + 1)
    every = np.concatenate(parts)[np.argsort(np.concatenate(order), kind="stable")]
    out = np.zeros(len(every), [("head", "<u4", (4,)), ("frame", every.dtype)])
    stamps, size = now + np.arange(len(every)), every.dtype.itemsize
    for column, value in enumerate((stamps // 10**6, stamps % 10**6, size, size)):
        out["head"][:, column] = value
    out["frame"] = every
    return out, len(twice)


def frames(made: packet.Packets, rank: int, elements: int, up: bool) -> np.ndarray:  # type: ignore[type-arg]
    """Return a worker's contributions, or its results, as frames of so many bytes."""
    made["kind"] = packet.kind(1 if up else 2, 0, elements)
    ends = [(_host(rank), _port(rank)), (SWITCH, job_port(JOB))]
    (src, src_port), (dst, dst_port) = ends if up else reversed(ends)
    built = packet.build_frames(
        made,
        eth_src="02:00:00:00:00:01",
        eth_dst="02:01:00:00:00:01",
        ip_src=src,
        ip_dst=dst,
        udp_src=src_port,
        udp_dst=dst_port,
    )
    return built.view(f"V{built.dtype.itemsize}")  # numpy would change the byte order where it joins them
