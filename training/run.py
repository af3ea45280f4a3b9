# SPDX-License-Identifier: Apache-2.0
"""The main job: a star, a job on its switch, a training run over it, and the checks on its result."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from controller.epochs import EpochStore
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.faults import Shares
from controller.program.verdicts import Counts
from controller.setup import connect, job_controller, seat
from topologies import manager
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.spec import describe
from topologies.targets import targets
from wire.errors import P4ReduceError
from wire.verdicts import Verdict

from .check import Evidence, wrong_all_reduces
from .loop import Plan
from .reference import Reference

JOB = 0
SILENCE_LIMIT_S = 60.0
"""An epoch takes well under a second on a quiet machine; a rank that says nothing for this long hangs."""
POINTS = 0.5
"""Percent of accuracy that the network may cost or give."""


class CheckError(P4ReduceError):
    """The run finished, and a check on its result failed; carries the check's name."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"check failed: {check}: {detail}")
        self.check = check


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    workers: int
    elements: int
    loss_percent: float
    seed: int
    switch: str | None
    pcap: Path | None
    keep: bool
    name: str


@dataclass(frozen=True)
class Outcome:
    """What a run gave; counts are sums over the ranks unless they say otherwise."""

    target: str
    window: int
    plan: Plan
    ranks: list[dict[str, Any]]
    """What each rank said at its end."""
    by_worker: dict[int, Counts]
    by_port: dict[int, Counts]
    lost: int
    """Packets that the fault table dropped."""
    wrong: list[str]
    accuracy: float
    reference: float

    def checks(self) -> list[tuple[str, bool, str]]:
        """Return (what, whether it holds, figures) for each check."""
        all_reduces = self.ranks[0]["all_reduces"]
        points = 100 * abs(self.accuracy - self.reference)
        doubled = sum(r["doubled"] for r in self.ranks)
        exact = f"{all_reduces} all-reduces at {self.plan.n} ranks"
        return [
            (
                "every all-reduce is the exact integer sum of the quantized gradients, bit for bit",
                not self.wrong and not doubled,
                (self.wrong[0] + f" ({len(self.wrong)} such)") if self.wrong else exact,
            ),
            (
                f"final accuracy within {POINTS} points of one process with float64 sums",
                points <= POINTS,
                f"{100 * self.accuracy:.2f} % and {100 * self.reference:.2f} %",
            ),
        ]


class Watch:
    """What a run tells while it goes on; the command draws it."""

    def say(self, line: str) -> None:
        """One step of the set-up or the end."""

    def epoch(self, epoch: int, epochs: int, loss: float) -> None:
        """All ranks have finished an epoch; `loss` is the mean over them."""


def run(options: Options, watch: Watch) -> Outcome:
    """Do the main job; the network is down afterwards unless it is to be kept (and nothing failed).

    Raises P4ReduceError's subclasses: preflight, spec, target, network, controller and rank errors.
    """
    plan = Plan(n=options.workers, seed=options.seed)
    spec = describe("star", options.workers)
    with ExitStack() as stack:
        record = manager.up(
            spec,
            name=options.name,
            target=options.switch,
            elements=options.elements,
            pcap=options.pcap,
            say=watch.say,
        )
        network = stack.enter_context(_Network(record, watch.say))
        reference = stack.enter_context(Reference(plan))
        with connect(record, record.switches[0].name) as client:
            program = Program(client.p4info)
            _set_loss(client, program, record, options, watch.say)
            outcome = _train(record, client, program, plan, watch)
            watch.say("training the same in one process with float64 sums, for comparison")
            accuracy = reference.accuracy()
            _set_loss(client, program, record, None, watch.say)
        network.keep = options.keep
    return outcome(accuracy)


class _Network:
    """Takes the network down at the end, unless it is to be kept; of a run that failed the logs stay."""

    def __init__(self, record: NetRecord, say: Callable[[str], None]) -> None:
        self._record = record
        self._say = say
        self.keep = False

    def __enter__(self) -> _Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.keep:
            return
        logs = manager.down(self._record, keep_logs=error is not None)
        self._say(f"network {self._record.name} is down: no namespace, interface or process of it is left")
        if logs is not None:
            self._say(f"the logs of its switch and daemon are kept in {logs}")


def _set_loss(
    client: SwitchClient,
    program: Program,
    record: NetRecord,
    options: Options | None,
    say: Callable[[str], None],
) -> None:
    """Let the switch drop a share of every port's packets each way; without options, end that."""
    share = options.loss_percent / 100 if options else 0.0
    if options and share:
        say(f"the switch drops {options.loss_percent:g} % of the packets each way, seed {options.seed}")
    seed = options.seed % 2**32 if options else 0
    for port in record.peers(record.switches[0].name):
        for faults in (program.ingress_faults, program.egress_faults):
            faults.set(client, port, Shares(drop=share, seed=seed))


def _train(
    record: NetRecord, client: SwitchClient, program: Program, plan: Plan, watch: Watch
) -> Callable[[float], Outcome]:
    hosts = [host.name for host in record.hosts]
    window = targets()[record.target].default_window
    jobs = job_controller(record, client, EpochStore(record.directory / "controller.db"))
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
        evidence = [Path(folder, f"rank{rank}.npz") for rank in range(plan.n)]
        arguments = [
            ["--ip", record.host(host).ip, "--plan", json.dumps(asdict(plan)), "--evidence", str(path)]
            for host, path in zip(hosts, evidence, strict=True)
        ]
        watch.say(f"starting {plan.n} workers, each in its own host with its own shard of the digits")
        with Ranks(record, hosts, "training.rank", arguments) as ranks:
            ports = ranks.ports()
            seats = [seat(record, host, port) for host, port in zip(hosts, ports, strict=True)]
            members = jobs.add_job(JOB, seats, window)
            for rank, membership in enumerate(members):
                ranks.tell(rank, membership.to_json())
            ends = _listen(ranks, plan, watch)
            counted = program.verdicts.of_jobs(client, {JOB: plan.n})[JOB]
            ports_read = program.verdicts.of_ports(client, record.peers(record.switches[0].name))
            jobs.remove_job(JOB)  # after a failure the network goes down, and the job with it
        watch.say("checking every all-reduce against the gradients")
        kept = []
        for path in evidence:
            with np.load(path) as arrays:
                kept.append(Evidence(arrays["gradients"], arrays["outputs"], arrays["sums"]))
        wrong = wrong_all_reduces(kept, record.elements, members[0].lead)
    dropped = [
        counts.get(Verdict.FAULT_DROPPED, (0, 0))[0]
        for way in (ports_read.ingress_faults, ports_read.egress_faults)
        for counts in way.values()
    ]
    accuracies = {end["accuracy"] for end in ends}
    if len(accuracies) != 1:
        wrong.append(f"the ranks' models differ: accuracies {sorted(accuracies)}")
    return lambda reference: Outcome(
        target=record.target,
        window=window,
        plan=plan,
        ranks=ends,
        by_worker=counted.workers,
        by_port=ports_read.ingress,
        lost=sum(dropped),
        wrong=wrong,
        accuracy=ends[0]["accuracy"],
        reference=reference,
    )


def _listen(ranks: Ranks, plan: Plan, watch: Watch) -> list[dict[str, Any]]:
    losses: dict[int, list[float]] = {}
    ends: dict[int, Mapping[str, Any]] = {}
    for rank, message in ranks.heard(SILENCE_LIMIT_S):
        if "epoch" in message:
            of_epoch = losses.setdefault(message["epoch"], [])
            of_epoch.append(message["loss"])
            if len(of_epoch) == plan.n:
                watch.epoch(message["epoch"], plan.epochs, float(np.mean(of_epoch)))
        else:
            ends[rank] = message
    return [dict(ends[rank]) for rank in range(plan.n)]
