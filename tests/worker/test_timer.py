# SPDX-License-Identifier: Apache-2.0
"""The retransmission timer against its formula and bounds."""

from __future__ import annotations

import random

import pytest

from worker.timer import CAP, FLOOR, INITIAL, MOST_BACKOFF, SAMPLES, RetransmissionTimer


def test_the_quickest_round_trip_and_the_quick_ones():
    timer = RetransmissionTimer()
    assert timer.patience() == INITIAL
    for seconds in (0.010, 0.012, 0.011, 0.5, 0.6, 0.5, 0.5, 0.5):
        timer.sample(seconds)
    assert timer.quickest == 0.010
    assert timer.base == pytest.approx(0.010 + 4 * 0.011)


@pytest.mark.parametrize("workers", [2, 4, 64])
def test_waiting_for_each_others_losses_does_not_feed_on_itself(workers: int):
    draw = random.Random(1)
    timer = RetransmissionTimer()
    for _ in range(20_000):
        lost = draw.random() > 0.98 ** (workers - 1)  # by another worker, whose timer is as ours
        timer.sample(0.001 + (timer.patience() if lost else 0.0))
    assert timer.base < 0.008


def test_floor_cap_and_back_off():
    timer = RetransmissionTimer()
    for _ in range(50):
        timer.sample(20e-6)
    assert timer.patience() == FLOOR
    assert [timer.patience(tries) for tries in (1, 2, 3, 9)] == [
        FLOOR,
        2 * FLOOR,
        4 * FLOOR,
        MOST_BACKOFF * FLOOR,
    ]
    timer.back_off()
    assert timer.patience() == 2 * FLOOR
    timer.answered()
    assert timer.patience() == FLOOR
    for _ in range(SAMPLES):
        timer.sample(5.0)
    assert timer.patience() == CAP


def test_one_late_peer_does_not_spoil_the_estimate():
    timer = RetransmissionTimer()
    for _ in range(50):
        timer.sample(100e-6)
    timer.sample(10.0)
    assert timer.base < 3 * FLOOR


def test_a_path_that_became_slower_is_learned():
    timer = RetransmissionTimer()
    for _ in range(50):
        timer.sample(100e-6)
    for _ in range(SAMPLES):
        timer.sample(0.100)
    assert timer.base > 0.100
