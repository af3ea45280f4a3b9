# SPDX-License-Identifier: Apache-2.0
"""The retransmission timer against RFC 6298's numbers and our bounds."""

from __future__ import annotations

import pytest

from worker.timer import CAP, FLOOR, INITIAL, MOST_BACKOFF, RetransmissionTimer


def test_estimate_follows_rfc_6298():
    timer = RetransmissionTimer()
    assert timer.patience() == INITIAL
    timer.sample(0.010)
    assert timer.base == pytest.approx(0.010 + 4 * 0.005)
    timer.sample(0.018)
    variation = 3 / 4 * 0.005 + 1 / 4 * 0.008
    assert timer.srtt == pytest.approx(7 / 8 * 0.010 + 1 / 8 * 0.018)
    assert timer.base == pytest.approx(0.011 + 4 * variation)


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
    for _ in range(60):
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
    for _ in range(16):
        timer.sample(0.100)
    assert timer.base > 0.100
