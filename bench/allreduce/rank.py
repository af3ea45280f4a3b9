# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.allreduce.rank`: one rank that reduces through the switch, in its own host."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.ranks import START_LIMIT_S
from worker import Worker, join
from worker.child import main, say

from .serve import serve

COUNTS = ("packets_sent", "retransmissions", "seconds", "packet_seconds", "limited_seconds")


class Switch:
    """See serve.Collective."""

    quantized = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._barrier = np.zeros(1, np.int32)
        self._before = worker.stats.copy()

    def load(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """See serve.Collective."""

    def reduce(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """See serve.Collective."""
        self._worker.all_reduce(mine, out=out)

    def barrier(self) -> None:
        """See serve.Collective."""
        self._worker.all_reduce(self._barrier)

    def counts(self) -> dict[str, float]:
        """Return those that worker.Stats explains."""
        stats = self._worker.stats
        return {name: getattr(stats, name) for name in COUNTS}

    def trips(self) -> dict[str, float | None]:
        """Return the median and the 99th percentile in seconds."""
        since, self._before = self._worker.stats.since(self._before), self._worker.stats.copy()
        return {"p50": since.rtt_p50, "p99": since.rtt_p99}


def run() -> None:
    """Join the job, say its window and lead, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--rank", required=True, type=int)
    given = parser.parse_args()
    with join(given.job, given.rank, net=given.net, timeout=START_LIMIT_S) as worker:
        membership = worker.membership
        say(window=membership.window, lead=membership.lead)
        serve(Switch(worker), membership.rank, membership.n)


if __name__ == "__main__":
    main(run)
