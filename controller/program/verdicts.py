# SPDX-License-Identifier: Apache-2.0
"""What became of the packets: the counters of SwitchIngress and SwitchEgress, by wire.verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.entities import Switch, read_counters
from controller.p4info import P4Info
from controller.program.faults import FAULTS, Faults, read_ports
from wire.constants import MAX_WORKERS
from wire.verdicts import WORKER_VERDICTS, Verdict, job_counter, worker_counter

Counts = dict[Verdict, tuple[int, int]]
"""(packets, bytes) by verdict; verdicts never given are left out."""

INGRESS = tuple(verdict for verdict in Verdict if verdict is not Verdict.NO_RECEIVER)
OF_WORKERS = tuple(verdict for verdict in Verdict if verdict < WORKER_VERDICTS)


@dataclass(frozen=True)
class PortVerdicts:
    """Counts by port; ports without any are left out."""

    ingress: dict[int, Counts]
    """Of every packet that came in by the port."""
    egress: dict[int, Counts]
    """Only copies without a receiver (NO_RECEIVER)."""
    ingress_faults: dict[int, Counts]
    """Injected by the fault table; the dropped ones are among `ingress` too."""
    egress_faults: dict[int, Counts]


@dataclass(frozen=True)
class JobVerdicts:
    """Counts of one job at one switch."""

    workers: dict[int, Counts]
    """Of admitted packets, by worker bit."""
    others: Counts
    """Of packets that name the job's UDP port and come from no worker, and of a parent's results."""


class Verdicts:
    """The counters `port_verdicts`, `job_verdicts`, `worker_verdicts` and both fault tables' `injected`."""

    PORTS_IN = "SwitchIngress.port_verdicts"
    PORTS_OUT = "SwitchEgress.port_verdicts"
    JOBS = "SwitchIngress.job_verdicts"
    WORKERS = "SwitchIngress.worker_verdicts"

    def __init__(self, p4info: P4Info) -> None:
        for name in (self.PORTS_IN, self.PORTS_OUT, self.JOBS, self.WORKERS):
            p4info.counter(name)
        self._ingress_faults = Faults(p4info, "SwitchIngress.receive.faults")
        self._egress_faults = Faults(p4info, "SwitchEgress.faults")

    def of_ports(self, switch: Switch, ports: Iterable[int]) -> PortVerdicts:
        """Read the counters of some ports; raises as Switch.read."""
        ports = list(ports)
        return PortVerdicts(
            read_ports(switch, self.PORTS_IN, ports, INGRESS),
            read_ports(switch, self.PORTS_OUT, ports, [Verdict.NO_RECEIVER]),
            self._ingress_faults.injected(switch, ports),
            self._egress_faults.injected(switch, ports),
        )

    def of_jobs(self, switch: Switch, jobs: Mapping[int, int]) -> dict[int, JobVerdicts]:
        """Read the counters of some jobs, given as job number → number of its workers at this switch."""
        workers = {
            worker_counter(job, bit, verdict): (job, bit, verdict)
            for job, n in jobs.items()
            for bit in range(min(n, MAX_WORKERS))
            for verdict in OF_WORKERS
        }
        others = {job_counter(job, verdict): (job, verdict) for job in jobs for verdict in Verdict}
        found = {job: JobVerdicts({}, {}) for job in jobs}
        for index, value in read_counters(switch, self.WORKERS, list(workers)).items():
            job, bit, verdict = workers[index]
            found[job].workers.setdefault(bit, {})[verdict] = value
        for index, value in read_counters(switch, self.JOBS, list(others)).items():
            job, verdict = others[index]
            found[job].others[verdict] = value
        return found


__all__ = ["FAULTS", "Counts", "JobVerdicts", "PortVerdicts", "Verdicts"]
