# SPDX-License-Identifier: Apache-2.0
"""The main job: a star, or a network that runs; a job on it, a training run, and the checks on its result."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from topologies import jobs, manager
from topologies import record as records
from topologies.ranks import Ranks
from topologies.record import NetRecord
from topologies.spec import star
from wire.control import ControlClient, ControlError

from .check import Evidence, wrong_all_reduces
from .errors import OptionError
from .loop import Plan
from .reference import Reference

WORKERS, ELEMENTS = 4, 256
"""Of a network of its own, unless the user says otherwise."""
SILENCE_LIMIT_S = 60.0
"""An epoch takes well under a second on a quiet machine; a rank that says nothing for this long hangs."""
POINTS = 0.5
"""Percent of accuracy that the network may cost or give."""


@dataclass(frozen=True)
class Options:
    """What the user chose; `net` is the network that runs, without it one of its own is brought up."""

    workers: int | None
    elements: int | None
    loss_percent: float
    seed: int
    switch: str | None
    pcap: Path | None
    keep: bool
    name: str
    net: str | None
    job: str


@dataclass(frozen=True)
class Outcome:
    """What a run gave; counts are sums over the ranks unless they say otherwise."""

    target: str
    elements: int
    """Values of a packet."""
    window: int
    plan: Plan
    ranks: list[dict[str, Any]]
    """What each rank said at its end."""
    verdicts: dict[str, int]
    """What the switch made of their packets."""
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
    """Do the main job; a network of its own is down afterwards unless it is to be kept (and nothing failed).

    Raises P4ReduceError's subclasses: option, preflight, spec, target, network, control and rank errors.
    """
    with ExitStack() as stack:
        if options.net is None:
            record = manager.up(
                star(options.workers or WORKERS),
                name=options.name,
                target=options.switch,
                elements=options.elements or ELEMENTS,
                pcap=options.pcap,
                say=watch.say,
            )
            network = stack.enter_context(_Network(record, watch.say))
            hosts = [host.name for host in record.hosts]
        else:
            network = None
            record, hosts = _running(options.net, options)
        plan = Plan(n=len(hosts), seed=options.seed)
        reference = stack.enter_context(Reference(plan))
        control = stack.enter_context(jobs.control_of(record))
        with _losing(control, record, hosts, options, watch.say):
            outcome = _train(record, hosts, control, options.job, plan, watch)
        watch.say("training the same in one process with float64 sums, for comparison")
        accuracy = reference.accuracy()
        if network is not None:
            network.keep = options.keep
    return outcome(accuracy)


def _running(net: str, options: Options) -> tuple[NetRecord, list[str]]:
    """Return a network that runs and the hosts that take part; what was asked must agree with it."""
    record = records.load(net)
    given: list[tuple[str, object, object]] = [
        ("--elements", options.elements, record.elements),
        ("--switch", options.switch, record.target),
    ]
    for option, wanted, there in given:
        if wanted not in (None, there):
            raise OptionError(f"{option} {wanted}", f"network {net} runs with {there}")
    hosts = [host.name for host in record.hosts]
    if options.workers is not None and options.workers > len(hosts):
        raise OptionError(f"--workers {options.workers}", f"network {net} has {len(hosts)} hosts")
    return record, hosts[: options.workers]


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
            self._say(f"the logs of its switch, controller and daemon are kept in {logs}")


@contextmanager
def _losing(
    control: ControlClient,
    record: NetRecord,
    hosts: Sequence[str],
    options: Options,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Let the switch drop a share of the packets to and from these hosts while the block lasts."""
    share = options.loss_percent / 100
    if not share:
        yield
        return
    say(f"the switch drops {options.loss_percent:g} % of the packets each way, seed {options.seed}")
    ends = jobs.switch_ends(record, hosts)
    try:
        jobs.set_faults(control, ends, drop=share, seed=options.seed)
        yield
    except BaseException:
        with suppress(ControlError):  # what came before says more
            jobs.set_faults(control, ends)
        raise
    jobs.set_faults(control, ends)


def _train(
    record: NetRecord, hosts: Sequence[str], control: ControlClient, job: str, plan: Plan, watch: Watch
) -> Callable[[float], Outcome]:
    ends = jobs.switch_ends(record, hosts)
    lost = jobs.faulted(control, ends)["dropped"]
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
        evidence = [Path(folder, f"rank{rank}.npz") for rank in range(plan.n)]
        told = json.dumps(asdict(plan))
        arguments = [
            ["--net", record.name, "--job", job, "--rank", str(rank), "--plan", told, "--evidence", str(path)]
            for rank, path in enumerate(evidence)
        ]
        watch.say(f"starting {plan.n} workers, each in its own host with its own shard of the digits")
        with (
            jobs.job(control, job, hosts) as rented,
            Ranks(record, hosts, "training.rank", arguments) as ranks,
        ):
            said = _listen(ranks, plan, watch)
            counted = control.call("GET", f"/v1/jobs/{job}/counters")["ranks"]
        watch.say("checking every all-reduce against the gradients")
        kept = []
        for path in evidence:
            with np.load(path) as arrays:
                kept.append(Evidence(arrays["gradients"], arrays["outputs"], arrays["sums"]))
        wrong = wrong_all_reduces(kept, record.elements, rented["lead"])
    lost = jobs.faulted(control, ends)["dropped"] - lost
    verdicts: Counter[str] = Counter()
    for rank in counted:
        verdicts.update({verdict: packets for verdict, (packets, _) in rank["verdicts"].items()})
    accuracies = {end["accuracy"] for end in said}
    if len(accuracies) != 1:
        wrong.append(f"the ranks' models differ: accuracies {sorted(accuracies)}")
    return lambda reference: Outcome(
        target=record.target,
        elements=record.elements,
        window=rented["slots"],
        plan=plan,
        ranks=said,
        verdicts=dict(verdicts),
        lost=lost,
        wrong=wrong,
        accuracy=said[0]["accuracy"],
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
        elif "joined" not in message:
            ends[rank] = message
    return [dict(ends[rank]) for rank in range(plan.n)]
