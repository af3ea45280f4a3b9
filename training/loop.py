# SPDX-License-Identifier: Apache-2.0
"""Data-parallel SGD: the same steps for a rank in the network and for the reference in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .data import CLASSES, Digits, batches
from .model import MLP, Floats


@dataclass(frozen=True)
class Plan:
    """What is trained; equal at all ranks."""

    n: int
    seed: int
    epochs: int = 30
    batch: int = 32
    """Samples a rank and step."""
    hidden: int = 128
    learning_rate: float = 0.1
    """Stable for one worker too: a larger one magnifies the last bits of a sum."""
    momentum: float = 0.9


class Trainer:
    """Momentum SGD on replicated parameters; every rank's copy stays the same bit for bit."""

    def __init__(self, plan: Plan, data: Digits) -> None:
        self.plan = plan
        self.data = data
        self.model = MLP(data.train_x.shape[1], plan.hidden, CLASSES)
        self.flat = self.model.initial(plan.seed)
        self._velocity = np.zeros_like(self.flat)
        self.steps_an_epoch = len(self._batches(0, 0))

    def _batches(self, rank: int, epoch: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        plan = self.plan
        return batches(len(self.data.train_x), rank, plan.n, plan.batch, epoch, plan.seed)

    def gradient(self, rank: int, epoch: int, step: int) -> tuple[float, Floats]:
        """Return a rank's loss and float64 gradient on its minibatch of this step."""
        picked = self._batches(rank, epoch)[step]
        return self.model.loss_and_gradient(self.flat, self.data.train_x[picked], self.data.train_y[picked])

    def descend(self, total: Floats) -> None:
        """Apply the sum of all ranks' gradients."""
        plan = self.plan
        self._velocity = plan.momentum * self._velocity - plan.learning_rate / plan.n * total
        self.flat = self.flat + self._velocity

    def accuracy(self) -> float:
        """Return the accuracy on the test set, 0..1."""
        return self.model.accuracy(self.flat, self.data.test_x, self.data.test_y)


def epochs_of_rank(trainer: Trainer, rank: int, all_reduce: Callable[[Floats], Floats]) -> Iterator[float]:
    """Train as one rank, `all_reduce` summing over the ranks; yield its mean loss after each epoch."""
    for epoch in range(trainer.plan.epochs):
        losses = []
        for step in range(trainer.steps_an_epoch):
            loss, gradient = trainer.gradient(rank, epoch, step)
            losses.append(loss)
            trainer.descend(all_reduce(gradient))
        yield float(np.mean(losses))


def reference_accuracy(plan: Plan, data: Digits) -> float:
    """Return the test accuracy of the same training in one process, with the gradients summed in float64."""
    trainer = Trainer(plan, data)
    for epoch in range(plan.epochs):
        for step in range(trainer.steps_an_epoch):
            parts = [trainer.gradient(rank, epoch, step)[1] for rank in range(plan.n)]
            trainer.descend(np.sum(parts, axis=0))
    return trainer.accuracy()
