# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.rank`: one rank of the all-reduce benchmark, in its own host."""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.ranks import START_LIMIT_S
from worker.child import main, say
from worker.join import join

from .errors import WrongSumError

LARGEST = 2.0**31 - 1


def data(dtype: str, rank: int, size: int) -> NDArray[Any]:
    """Return what a rank contributes: `size` values, of normal distribution or over all of int32."""
    rng = np.random.default_rng(rank)
    if dtype == "float32":
        return rng.standard_normal(size, np.float32)
    return rng.integers(-(2**31), 2**31, size, dtype=np.int32)


def is_sum(result: NDArray[Any], dtype: str, n: int) -> bool:
    """Say whether a result is numpy's sum over n ranks' data: exact for int32, for float32 within the bound.

    The bound is half a quantum, n·2^E/(2^31-1), a rank (docs/protocol.md, Numbers) and float32's rounding.
    """
    wide = np.float64 if dtype == "float32" else np.int64
    total = np.zeros(result.size, wide)
    largest = 0.0
    for rank in range(n):
        mine = data(dtype, rank, result.size)
        total += mine
        largest = max(largest, float(np.abs(mine.astype(wide)).max(initial=0)))
    if dtype == "int32":
        return bool(np.array_equal(result, total.astype(np.int32)))
    quantum = n * 2.0 ** np.frexp(largest)[1] / LARGEST
    bound = n / 2 * quantum + np.abs(total) * 2.0**-24
    return bool((np.abs(result - total) <= bound).all())


def run() -> None:
    """Reduce as often as the parent wants: for each dtype a warm-up, then the timed ones, all verified."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--plan", required=True, help="JSON: dtypes, size, repeats, target")
    given = parser.parse_args()
    plan = json.loads(given.plan)

    barrier = np.zeros(1, np.int32)
    with join(given.job, given.rank, net=given.net, timeout=START_LIMIT_S) as worker:
        say(joined=given.rank)
        n = worker.membership.n
        for dtype in plan["dtypes"]:
            mine = data(dtype, given.rank, plan["size"])
            first = worker.all_reduce(mine)
            if not is_sum(first, dtype, n):
                raise WrongSumError(plan["target"], f"an all-reduce of {dtype} differs from numpy's sum")
            for repeat in range(plan["repeats"]):
                # Nobody's clock starts while another rank still compares.
                worker.all_reduce(barrier)
                sent, again = worker.stats.packets_sent, worker.stats.retransmissions
                start = perf_counter()
                result = worker.all_reduce(mine)
                seconds = perf_counter() - start
                if result.tobytes() != first.tobytes():
                    raise WrongSumError(
                        plan["target"], f"all-reduce {repeat} of {dtype} differs from the first"
                    )
                say(
                    dtype=dtype,
                    repeat=repeat,
                    seconds=seconds,
                    packets=worker.stats.packets_sent - sent,
                    retransmissions=worker.stats.retransmissions - again,
                )


if __name__ == "__main__":
    main(run)
