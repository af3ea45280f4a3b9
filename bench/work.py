# SPDX-License-Identifier: Apache-2.0
"""What switches are compared in: the same program and entries on each, put in over P4Runtime."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from controller.entities import insert
from controller.epochs import EpochStore
from controller.p4info import P4Info
from controller.program import Program
from controller.program.verdicts import JobVerdicts
from controller.setup import connect, job_controller, prepare, seat
from topologies.record import NetRecord
from wire.constants import FEW_SLOTS, frame_bytes
from wire.verdicts import Verdict

from .errors import RefusedError
from .load import Exchange, Load, Stream

PROGRAMS = Path(__file__).parent / "programs"
JOB = 0
FIRST_UDP_PORT = 40000
SLOTS = FEW_SLOTS
"""Those of the form that bmv2 has the memory for."""
FORWARDED_ELEMENTS = 256

Check = Callable[[str, int, int], None]
"""(target, chunks of each lane, frames sent again) so far: raises RefusedError unless all was done."""


class Work(ABC):
    """A program with entries, and the packets for it."""

    name: str
    ports: int
    elements: int
    """Values a frame."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of every frame, both ways."""
        return frame_bytes(self.elements)

    @abstractmethod
    def set_up(self, stack: ExitStack, record: NetRecord, window: int) -> tuple[Stream, Check]:
        """Load a switch, that of a star's record; what stays open is closed with the stack.

        Raises the controller's errors.
        """


class Aggregation(Work):
    """Sums of `workers` workers, one on each port."""

    def __init__(self, elements: int, workers: int) -> None:
        self.name = f"aggregation_{elements}"
        self.elements = elements
        self.ports = workers

    def set_up(self, stack: ExitStack, record: NetRecord, window: int) -> tuple[Stream, Check]:
        """See Work.set_up."""
        prepare(record)
        client = stack.enter_context(connect(record, record.switches[0].name))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-"))
        jobs = job_controller(record, client, EpochStore(Path(folder, "controller.db")))
        seats = [seat(record, host.name, FIRST_UDP_PORT + i) for i, host in enumerate(record.hosts)]
        members = jobs.add_job(JOB, seats, window)
        verdicts = Program(client.p4info).verdicts

        def checked(target: str, chunks: int, resent: int) -> None:
            counted = verdicts.of_jobs(client, {JOB: self.ports})[JOB]
            check(target, counted, self.ports, chunks, resent)

        return Load(members), checked


class Forwarding(Work):
    """Plain L2 forwarding between two ports (programs/l2.p4); what arrives is all there is to check."""

    name = "forwarding"
    ports = 2
    elements = FORWARDED_ELEMENTS

    def set_up(self, stack: ExitStack, record: NetRecord, window: int) -> tuple[Stream, Check]:
        """See Work.set_up."""
        p4info = P4Info.from_file(PROGRAMS / "l2.p4info.txtpb")
        client = stack.enter_context(connect(record, record.switches[0].name))
        client.push_pipeline(p4info, (PROGRAMS / "l2.json").read_bytes())
        insert(
            client,
            [
                p4info.entry("ingress.l2", {"hdr.ethernet.dst": mac}, "forward", {"port": port})
                for port, mac in enumerate(Exchange.MACS, 1)
            ],
        )
        return Exchange(window, self.elements), lambda target, chunks, resent: None


def check(target: str, counted: JobVerdicts, workers: int, chunks: int, resent: int) -> None:
    """Raise RefusedError unless every chunk had one contribution of each worker and was completed once.

    Only as many others as were sent again may have come, as duplicates or for a replay.
    """
    totals: dict[Verdict, int] = {}
    for counts in (*counted.workers.values(), counted.others):
        for verdict, (packets, _) in counts.items():
            totals[verdict] = totals.get(verdict, 0) + packets
    absorbed, completed = totals.pop(Verdict.ABSORBED, 0), totals.pop(Verdict.COMPLETED, 0)
    repeated = sum(totals.pop(v, 0) for v in (Verdict.REPLAYED, Verdict.DUPLICATE, Verdict.STALE))
    if (absorbed, completed) != ((workers - 1) * chunks, chunks) or repeated > resent or any(totals.values()):
        others = ", ".join(f"{n} {v.name.lower()}" for v, n in totals.items() if n) or "no refusals"
        raise RefusedError(
            target,
            f"of {workers * chunks} contributions its counters show {absorbed} absorbed and {completed} "
            f"completed ({chunks} chunks), {repeated} repeated ({resent} sent again) and {others}: "
            "this is no rate of sums",
        )
