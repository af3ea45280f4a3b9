# SPDX-License-Identifier: Apache-2.0
"""The data: scikit-learn's handwritten digits, split and sharded the same way in every process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 0.25
CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """1,797 8x8 images as float64 (n, 64) in 0..1 with int64 labels (n,), shuffled and split by a seed."""

    train_x: NDArray[np.float64]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float64]
    test_y: NDArray[np.int64]

    @classmethod
    def load(cls, seed: int) -> Digits:
        """Load the set that ships with scikit-learn; the same seed gives the same split everywhere."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng([seed, 0]).permutation(len(x))
        x, y = (x[order] / 16.0).astype(np.float64), y[order].astype(np.int64)
        tests = int(len(x) * TEST_SHARE)
        return cls(x[tests:], y[tests:], x[:tests], y[:tests])


def batches(samples: int, rank: int, n: int, batch: int, epoch: int, seed: int) -> list[NDArray[np.int64]]:
    """Return rank's minibatches of an epoch, as indices into the training set.

    All ranks shuffle their own fixed shard (every n-th sample) and have the same number of batches,
    so that they make the same number of all-reduces; the last few samples of an epoch are left out.
    """
    shard = np.arange(rank, samples, n)
    steps = max(1, samples // n // batch)
    order = np.random.default_rng([seed, 1, epoch, rank]).permutation(shard)
    return [order[i * batch : (i + 1) * batch] for i in range(steps)]
