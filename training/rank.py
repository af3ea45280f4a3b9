# SPDX-License-Identifier: Apache-2.0
"""`python -m training.rank`: one rank of a training run, in its own host."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from topologies.ranks import START_LIMIT_S
from worker.child import main, say
from worker.join import join

from .data import Digits
from .loop import Plan, Trainer, epochs_of_rank
from .model import Floats
from .tap import Tap


def run() -> None:
    """Train as a rank of a job; leave the evidence in --evidence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--evidence", required=True, type=Path)
    given = parser.parse_args()
    plan = Plan(**json.loads(given.plan))
    trainer = Trainer(plan, Digits.load(plan.seed))

    tap = Tap()
    gradients, outputs = [], []
    with join(given.job, given.rank, net=given.net, timeout=START_LIMIT_S, transport=tap.transport) as worker:
        say(joined=given.rank)
        g0 = worker.membership.g0

        def all_reduce(gradient: Floats) -> Floats:
            mine = gradient.astype(np.float32)
            total = worker.all_reduce(mine)
            gradients.append(mine)
            outputs.append(total)
            return total.astype(np.float64)

        for epoch, loss in enumerate(epochs_of_rank(trainer, given.rank, all_reduce)):
            say(epoch=epoch, loss=loss)
        chunks = worker.engine.next_chunk - g0
        stats = worker.stats
        np.savez(given.evidence, gradients=gradients, outputs=outputs, sums=tap.sums(chunks))
        say(
            accuracy=trainer.accuracy(),
            all_reduces=stats.all_reduces,
            sent=stats.packets_sent,
            received=stats.packets_received,
            retransmissions=stats.retransmissions,
            seconds=stats.seconds,
            bytes=sum(g.nbytes for g in gradients),
            doubled=tap.doubled,
        )


if __name__ == "__main__":
    main(run)
