# SPDX-License-Identifier: Apache-2.0
"""A one-hidden-layer classifier in numpy; its parameters are one flat vector, as its gradients travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MLP:
    """tanh hidden layer, softmax output, cross-entropy loss."""

    inputs: int
    hidden: int
    classes: int

    @property
    def parameters(self) -> int:
        """Length of the flat parameter vector."""
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes

    def initial(self, seed: int) -> Floats:
        """Return Glorot-scaled starting parameters, float64 (parameters,)."""
        rng = np.random.default_rng([seed, 2])
        w1 = rng.standard_normal((self.inputs, self.hidden)) / np.sqrt(self.inputs)
        w2 = rng.standard_normal((self.hidden, self.classes)) / np.sqrt(self.hidden)
        return np.concatenate([w1.ravel(), np.zeros(self.hidden), w2.ravel(), np.zeros(self.classes)])

    def _unpack(self, flat: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        sizes = (self.inputs * self.hidden, self.hidden, self.hidden * self.classes)
        w1, b1, w2, b2 = np.split(flat, np.cumsum(sizes))
        return w1.reshape(self.inputs, self.hidden), b1, w2.reshape(self.hidden, self.classes), b2

    def scores(self, flat: Floats, x: Floats) -> Floats:
        """Return log-probabilities (samples, classes) of x (samples, inputs)."""
        w1, b1, w2, b2 = self._unpack(flat)
        z = np.tanh(x @ w1 + b1) @ w2 + b2
        z -= z.max(axis=1, keepdims=True)
        log_probabilities: Floats = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return log_probabilities

    def loss_and_gradient(self, flat: Floats, x: Floats, y: NDArray[np.int64]) -> tuple[float, Floats]:
        """Return the mean cross-entropy over the batch and its gradient, flat like the parameters."""
        w1, b1, w2, _ = self._unpack(flat)
        h = np.tanh(x @ w1 + b1)
        log_p = self.scores(flat, x)
        loss = -float(log_p[np.arange(len(y)), y].mean())
        dz = np.exp(log_p)
        dz[np.arange(len(y)), y] -= 1
        dz /= len(y)
        dh = (dz @ w2.T) * (1 - h * h)
        gradient = np.concatenate([(x.T @ dh).ravel(), dh.sum(axis=0), (h.T @ dz).ravel(), dz.sum(axis=0)])
        return loss, gradient

    def accuracy(self, flat: Floats, x: Floats, y: NDArray[np.int64]) -> float:
        """Return the share of samples whose most probable class is right."""
        return float((self.scores(flat, x).argmax(axis=1) == y).mean())
