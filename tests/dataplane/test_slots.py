# SPDX-License-Identifier: Apache-2.0
"""The slot state machine of the contract, packet by packet."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.dataplane.frames import Frame
from tests.dataplane.rig import Rig
from wire.verdicts import Verdict

MakeRig = Callable[..., Rig]


def random_values(rig: Rig, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (n, rig.elements)).astype(np.int32)


def summed(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        total: np.ndarray = np.add.reduce(rows, axis=0, dtype=np.int32)
    return total


def received(packets: list[tuple[int, bytes]]) -> dict[int, Frame]:
    frames = {port: Frame.parse(data) for port, data in packets}
    assert len(frames) == len(packets)
    return frames


@pytest.mark.parametrize("n", [1, 2, 4, 32, 64])
def test_the_last_contribution_sends_the_sum_to_all(make_rig: MakeRig, n: int) -> None:
    rig = make_rig(workers=n)
    x = random_values(rig, n, seed=n)
    sent = [rig.contribution(w, 0, x[w], tensor=9, flag=1, e0=w - 40, e1=-128) for w in range(n)]
    for w in range(n - 1):
        assert rig.send(w, sent[w]) == []
    got = received(rig.send(n - 1, sent[n - 1]))
    assert got == {w + 1: rig.result(w, sent[w], summed(x).tolist(), e0=n - 41) for w in range(n)}
    assert rig.worker_verdicts(n - 1) == {Verdict.COMPLETED: 1}
    for w in range(n - 1):
        assert rig.worker_verdicts(w) == {Verdict.ABSORBED: 1}


def test_the_greatest_exponents_win_each_by_itself(make_rig: MakeRig) -> None:
    rig = make_rig(workers=3)
    exponents = [(-128, 0), (127, -128), (-3, -7)]
    for w, (e0, e1) in enumerate(exponents):
        out = rig.send(w, rig.contribution(w, 5, [], e0=e0, e1=e1))
    assert {(f.e0, f.e1) for f in received(out).values()} == {(127, 0)}


def test_a_lost_result_is_replayed_to_its_worker_alone(rig: Rig) -> None:
    x = random_values(rig, 2)
    sent = [rig.contribution(w, 3, x[w], e0=w) for w in range(2)]
    rig.send(0, sent[0])
    rig.send(1, sent[1])
    for _ in range(2):
        # A repetition is answered with what is stored, whatever it carries, echoing its flag and tensor.
        again = sent[0].but(values=tuple([1] * rig.elements), flag=1, tensor=77)
        got = received(rig.send(0, again))
        assert got == {1: rig.result(0, again, summed(x).tolist(), e0=1)}
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.REPLAYED: 2}


def test_a_duplicate_before_completion_counts_once(rig: Rig) -> None:
    x = random_values(rig, 2)
    assert rig.send(0, rig.contribution(0, 0, x[0])) == []
    assert rig.send(0, rig.contribution(0, 0, x[0])) == []
    got = received(rig.send(1, rig.contribution(1, 0, x[1])))
    assert got[1].values == tuple(summed(x))
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.DUPLICATE: 1}


def test_a_late_duplicate_after_the_slot_moved_on_is_stale(rig: Rig) -> None:
    """SwitchML's bitmap would take it for a fresh contribution (notes in docs/protocol.md)."""
    x = random_values(rig, 2)
    late = rig.contribution(0, 1, [99])
    for chunk in (1, 1 + rig.window, 1 + 2 * rig.window):
        for w in range(2):
            rig.send(w, rig.contribution(w, chunk, x[w]))
    assert rig.send(0, late) == []
    chunk = 1 + 4 * rig.window
    assert rig.send(1, rig.contribution(1, chunk, x[1])) == []
    assert rig.send(0, late) == []
    got = received(rig.send(0, rig.contribution(0, chunk, x[0])))
    assert got[2].values == tuple(summed(x))
    assert rig.worker_verdicts(0)[Verdict.STALE] == 2


def test_both_versions_of_a_slot_and_all_slots_are_apart(rig: Rig) -> None:
    chunks = list(range(2 * rig.window))
    x = random_values(rig, 2 * len(chunks)).reshape(2, len(chunks), rig.elements)
    for chunk in chunks:
        assert rig.send(0, rig.contribution(0, chunk, x[0, chunk])) == []
    for chunk in reversed(chunks):
        got = received(rig.send(1, rig.contribution(1, chunk, x[1, chunk])))
        assert got[1].values == tuple(summed(x[:, chunk]))
        assert (got[1].chunk, got[1].slot, got[1].version) == (chunk, chunk % rig.window, chunk // rig.window)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sums_wrap_as_numpys_in_every_order(make_rig: MakeRig, order: tuple[int, ...]) -> None:
    rig = make_rig(workers=3)
    x = np.full((3, rig.elements), 2**31 - 1, np.int32)
    x[1] = 2**30
    x[2, ::2] = -(2**31)
    for w in order:
        out = rig.send(w, rig.contribution(w, 0, x[w]))
    assert received(out)[1].values == tuple(summed(x))


def test_tags_compare_by_serial_arithmetic_across_the_wrap(rig: Rig) -> None:
    """RFC 1982: 2^32 - 4 < 4 (mod 2^32), both in one slot and version."""
    x = random_values(rig, 2)
    before, after = 2**32 - 2 * rig.window, 2**32
    for w in range(2):
        rig.send(w, rig.contribution(w, before, x[w]))
    assert rig.send(0, rig.contribution(0, after, x[0])) == []
    assert rig.send(1, rig.contribution(1, before, x[1])) == []
    assert rig.worker_verdicts(1) == {Verdict.COMPLETED: 1, Verdict.STALE: 1}
    got = received(rig.send(1, rig.contribution(1, after, x[1])))
    assert got[1].values == tuple(summed(x))
    assert got[1].chunk == 0


def test_a_tag_exactly_half_the_numbers_away_is_not_newer(rig: Rig) -> None:
    rig.send(0, rig.contribution(0, 8, []))
    assert rig.send(0, rig.contribution(0, 8, []).but(chunk=(8 + 2**31) % 2**32)) == []
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.STALE: 1}


def test_a_new_epoch_starts_every_slot_afresh(rig: Rig) -> None:
    x = random_values(rig, 2)
    rig.send(0, rig.contribution(0, 12, x[0]))  # half done in the old life, with a newer tag
    rig.leave()
    rig.join(rig.epoch + 1)
    assert rig.send(0, rig.contribution(0, 4, x[0])) == []
    got = received(rig.send(1, rig.contribution(1, 4, x[1])))
    assert got[1].values == tuple(summed(x))


def test_a_packet_of_an_old_epoch_is_refused(rig: Rig) -> None:
    rig.send(0, rig.contribution(0, 0, [1]))
    rig.leave()
    rig.join(rig.epoch - 1)
    assert rig.send(0, rig.contribution(0, 0, [1])) == []
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1, Verdict.OLD_EPOCH: 1}


def test_pools_are_apart(make_rig: MakeRig) -> None:
    rig = make_rig(window=4, base=0)
    rig.send(0, rig.contribution(0, 0, [5]))
    rig.leave()
    rig.base = 4
    rig.join(rig.epoch)
    rig.send(0, rig.contribution(0, 0, [6]))
    rig.leave()
    rig.base = 0
    rig.join(rig.epoch)
    got = received(rig.send(1, rig.contribution(1, 0, [7])))
    assert got[1].values[0] == 12
