# SPDX-License-Identifier: Apache-2.0
"""The model's gradient, the shards, and the check that a run makes of itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from training.check import Evidence, expected, wrong_all_reduces
from training.data import Digits, batches
from training.loop import Plan, Trainer, epochs_of_rank, reference_accuracy
from training.model import MLP


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    model = MLP(5, 4, 3)
    flat = model.initial(1)
    x, y = rng.standard_normal((7, 5)), rng.integers(0, 3, 7)
    _, gradient = model.loss_and_gradient(flat, x, y)
    h = 1e-6
    for i in range(model.parameters):
        up, down = flat.copy(), flat.copy()
        up[i] += h
        down[i] -= h
        slope = (model.loss_and_gradient(up, x, y)[0] - model.loss_and_gradient(down, x, y)[0]) / (2 * h)
        assert gradient[i] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64])
def test_shards_are_disjoint_and_equally_many_batches(n: int) -> None:
    picked = [batches(1348, rank, n, 32, 4, seed=9) for rank in range(n)]
    assert len({len(p) for p in picked}) == 1
    assert len(picked[0]) >= 1
    everything = np.concatenate([b for p in picked for b in p])
    assert len(set(everything.tolist())) == len(everything)
    assert everything.max() < 1348


def test_ranks_in_step_train_as_one_process_does() -> None:
    plan = Plan(n=3, seed=5, epochs=2, hidden=8)
    data = Digits.load(plan.seed)
    trainers = [Trainer(plan, data) for _ in range(plan.n)]
    for epoch in range(plan.epochs):
        for step in range(trainers[0].steps_an_epoch):
            total = np.sum([t.gradient(r, epoch, step)[1] for r, t in enumerate(trainers)], axis=0)
            for t in trainers:
                t.descend(total)
    assert {t.accuracy() for t in trainers} == {reference_accuracy(plan, data)}


def test_a_rank_reports_its_mean_loss_each_epoch() -> None:
    plan = Plan(n=1, seed=5, epochs=3, hidden=8)
    trainer = Trainer(plan, Digits.load(5))
    losses = list(epochs_of_rank(trainer, 0, lambda g: g))
    assert len(losses) == 3
    assert losses[2] < losses[0]


def exact(gradients: np.ndarray, elements: int) -> tuple[list[int], list[float]]:
    """The contract's numbers with fractions and Python's integers."""
    n, size = gradients.shape
    sums, outputs = [], []
    for first in range(0, size, elements):
        chunk = gradients[:, first : first + elements]
        largest = max(Fraction(float(abs(v))) for v in chunk.ravel())
        e = -128
        while largest >= Fraction(2) ** e:
            e += 1
        step = n * Fraction(2) ** e
        for column in chunk.T:
            # round() of a Fraction is half to even, as the contract's.
            q = sum(round(Fraction(np.float64(v) * np.float64(2**31 - 1)) / step) for v in column)
            sums.append(q)
            outputs.append(float(np.float32(float(q * step) / (2**31 - 1))))
    return sums, outputs


def test_expected_sums_by_fractions() -> None:
    rng = np.random.default_rng(2)
    gradients = (rng.standard_normal((3, 70)) * 10.0 ** rng.integers(-6, 6, (3, 70))).astype(np.float32)
    gradients[:, 64:] = 0
    sums, outputs = expected(gradients, 64)
    want_sums, want_outputs = exact(gradients, 64)
    assert sums.reshape(-1)[:70].tolist() == want_sums
    assert outputs.tolist() == want_outputs


def evidence(n: int, all_reduces: int, size: int, elements: int, lead: int) -> list[Evidence]:
    rng = np.random.default_rng(4)
    gradients = rng.standard_normal((n, all_reduces, size)).astype(np.float32)
    chunks = -(-size // elements)
    before = -(-4 * n // elements) + min(lead, chunks)
    sums = np.zeros((all_reduces, before + chunks, elements), np.int32)
    outputs = np.zeros((all_reduces, size), np.float32)
    for a in range(all_reduces):
        sums[a, before:], outputs[a] = expected(gradients[:, a], elements)
    return [Evidence(gradients[r], outputs.copy(), sums.reshape(-1, elements).copy()) for r in range(n)]


def test_the_check_passes_what_is_exact_and_finds_one_wrong_bit() -> None:
    ranks = evidence(2, 5, 200, 64, lead=3)
    assert wrong_all_reduces(ranks, 64, 3) == []
    ranks[1].sums[-1, 0] ^= 1
    ranks[0].outputs[2, 7] = np.nextafter(ranks[0].outputs[2, 7], np.float32(np.inf))
    assert wrong_all_reduces(ranks, 64, 3) == [
        "all-reduce 2: rank 0's floats are not those of the integer sums",
        "all-reduce 4: rank 1's integer sums are not those of the gradients",
    ]
