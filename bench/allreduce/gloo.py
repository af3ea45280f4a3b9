# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.allreduce.gloo`: one rank of PyTorch's Gloo: a ring of TCP connections."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.ranks import START_LIMIT_S
from worker.child import main, say

from .serve import serve

STORE_PORT = 29500
"""Where rank 0 tells the others who is where; each network's hosts have their own."""
RANK_MB = 300
"""Memory that a rank takes beside its arrays, mostly PyTorch."""


def missing() -> str | None:
    """Say why Gloo cannot be measured here, None when it can."""
    if find_spec("torch") is None:
        return "PyTorch is not installed: .venv/bin/pip install 'torch>=2'"
    return None


class Gloo:
    """See serve.Collective."""

    quantized = False

    def __init__(self) -> None:
        import torch
        from torch import distributed

        self._torch, self._distributed = torch, distributed
        self._barrier = torch.zeros(1, dtype=torch.int32)

    def load(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy: Gloo reduces in place."""
        np.copyto(out, mine)

    def reduce(self, mine: NDArray[Any], out: NDArray[Any]) -> None:
        """See serve.Collective."""
        self._distributed.all_reduce(self._torch.from_numpy(out))

    def barrier(self) -> None:
        """See serve.Collective."""
        self._distributed.all_reduce(self._barrier)

    def counts(self) -> dict[str, float]:
        """Return none: the kernel counts what TCP sends."""
        return {}

    def trips(self) -> dict[str, float | None]:
        """Return none."""
        return {}


def run() -> None:
    """Meet the other ranks and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--ranks", required=True, type=int)
    parser.add_argument("--store", required=True, help="rank 0's address")
    parser.add_argument("--interface", required=True, help="the host's")
    given = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = given.interface
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{given.store}:{STORE_PORT}",
        rank=given.rank,
        world_size=given.ranks,
        timeout=timedelta(seconds=START_LIMIT_S),
    )
    say(met=True)
    serve(Gloo(), given.rank, given.ranks)


if __name__ == "__main__":
    main(run)
