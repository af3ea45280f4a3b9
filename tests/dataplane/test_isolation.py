# SPDX-License-Identifier: Apache-2.0
"""A hostile tenant beside a job: sums stay exact, values go nowhere else, each refusal is counted right."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.device import SwitchDevice
from tests.dataplane.attacks import ATTACKS, BAD, Scene, echo, ipv4, mutated
from tests.dataplane.frames import Frame, ip, mac
from tests.dataplane.rig import (
    AGGREGATION,
    JOB,
    RECEIVE,
    SWITCH_IP,
    SWITCH_MAC,
    Rig,
    host_ip,
    host_mac,
    number,
    udp_port,
)
from wire.constants import FEW_SLOTS, job_port
from wire.membership import Membership
from wire.verdicts import PASSED, Verdict
from worker import Worker
from worker.memory import Frames, MemoryFabric, MemoryTransport, reduce_together

WORKERS = 2
WINDOW = 4
ATTACKER = 5
"""Its port; its accomplice has the next one."""
ATTACKERS_JOB = 9
ATTACKERS_BASE = 12
"""Its pool begins where the victim's ends."""
FORMER_PORT = 5999
SECRET = 0x5EC4E7


def membership(port: int, job: int, rank: int, elements: int, epoch: int) -> Membership:
    return Membership(
        job=job,
        rank=rank,
        n=WORKERS,
        switch_ip=SWITCH_IP,
        switch_mac=SWITCH_MAC,
        own_ip=host_ip(port),
        own_mac=host_mac(port),
        own_port=udp_port(port),
        window=WINDOW,
        lead=1,
        epoch=epoch,
        elements=elements,
    )


def admit_attacker(rig: Rig) -> Scene:
    """Give the attacker a job of its own (worker bit 0 of two) and an entry of its former life."""
    table, receivers = f"{AGGREGATION}.admission.members", "SwitchEgress.receivers.receivers"
    port, epoch = job_port(ATTACKERS_JOB), rig.epoch + 10
    rig.device.multicast_set(2, [(ATTACKER, 300), (ATTACKER + 1, 301)])
    for bit, at in enumerate((ATTACKER, ATTACKER + 1)):
        args = [bit, 1 << bit, 0b11, ATTACKERS_BASE, WINDOW, epoch, 2]
        rig.add(table, [at, number(ip(host_ip(at))), udp_port(at), port], "worker", args)
        addresses = [number(mac(SWITCH_MAC)), number(mac(host_mac(at))), number(ip(SWITCH_IP))]
        rig.add(receivers, [300 + bit], "receiver", [*addresses, number(ip(host_ip(at))), port, udp_port(at)])
    former = [ATTACKER, number(ip(host_ip(ATTACKER))), FORMER_PORT, port]
    rig.add(table, former, "worker", [0, 1, 0b11, ATTACKERS_BASE, WINDOW, epoch - 1, 2])
    victim = membership(1, JOB, 0, rig.elements, rig.epoch)
    attacker = membership(ATTACKER, ATTACKERS_JOB, 0, rig.elements, epoch)
    captured = rig.contribution(0, 1, range(SECRET, SECRET + rig.elements))
    scene = Scene(attacker, FORMER_PORT, victim, captured)
    # Its present life has used all its slots.
    for slot in range(2 * WINDOW):
        rig.send(ATTACKER - 1, scene.own(chunk=slot, slot=slot % WINDOW, version=slot // WINDOW))
    return scene


def of_attackers_job(rig: Rig) -> dict[Verdict, int]:
    counts = rig.worker_verdicts(0, ATTACKERS_JOB)
    counts[Verdict.ABSORBED] -= 2 * WINDOW
    return {verdict: n for verdict, n in counts.items() if n}


@pytest.mark.parametrize("what", ATTACKS)
def test_an_attack_is_refused_where_it_is_counted_and_changes_no_sum(rig: Rig, what: str) -> None:
    scene = admit_attacker(rig)
    others = [rig.contribution(1, 1, range(7, 7 + rig.elements)), rig.contribution(0, 2, [1])]
    rig.send(0, scene.captured)
    attack = ATTACKS[what](scene)
    assert rig.send(ATTACKER - 1, attack.data) == []
    counts = rig.verdicts(ATTACKER)
    assert counts.pop(Verdict.ABSORBED) == 2 * WINDOW
    assert counts == {attack.verdict: 1}
    counted = {job: rig.job_verdicts(job) for job in (JOB, ATTACKERS_JOB, 0xFE)}
    counted = {job: counts for job, counts in counted.items() if counts}
    if attack.admitted:
        assert of_attackers_job(rig) == {attack.verdict: 1}
        assert counted == {}
    else:
        assert of_attackers_job(rig) == {}
        assert counted == ({} if attack.job is None else {attack.job: {attack.verdict: 1}})
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1}
    # The chunk completes with the sum of its workers, at its workers.
    out = {port: Frame.parse(data) for port, data in rig.send(1, others[0])}
    total = [SECRET + 7 + 2 * i for i in range(rig.elements)]
    assert out == {w + 1: rig.result(w, f, total) for w, f in ((0, scene.captured), (1, others[0]))}
    # Once more behind it: nothing of a stored result is told either.
    assert rig.send(ATTACKER - 1, attack.data) == []
    assert rig.send(0, others[1]) == []


def test_the_page_on_isolation_names_every_verdict_that_attacks_meet(rig: Rig) -> None:
    page = (Path(__file__).parents[2] / "docs" / "isolation.md").read_text()
    table = page[page.index("|---") : page.index("An entry admits")]
    named = {name for row in table.splitlines()[1:] if row for name in row.split("|")[2].strip().split(", ")}
    scene = admit_attacker(rig)
    met = {make(scene).verdict.name.lower().replace("_", " ") for make in ATTACKS.values()}
    assert named == met | {"over rate"}


def test_what_is_not_refused_goes_where_it_may_and_is_no_result(rig: Rig) -> None:
    scene = admit_attacker(rig)
    rig.send(0, scene.captured)
    forged = scene.result(eth_src=host_mac(ATTACKER), ip_src=host_ip(ATTACKER))
    ((port, data),) = rig.send(ATTACKER - 1, forged)
    assert (port, Frame.parse(data).ip_src) == (1, host_ip(ATTACKER))
    for size in (56, 9000, 65_000):
        ((port, data),) = rig.send(ATTACKER - 1, ipv4(scene, SWITCH_IP, 1, echo(size)))
        assert (port, len(data), data[42:]) == (ATTACKER, 42 + size, b"\xa5" * size)
    ((port, data),) = rig.send(ATTACKER - 1, ipv4(scene, host_ip(1), 1, b"\xa5" * 1000, fragment=0x1FFF))
    assert (port, data[34:]) == (1, b"\xa5" * 1000)  # its kernel's to refuse
    assert rig.verdicts(ATTACKER) == {Verdict.ABSORBED: 8, Verdict.ROUTED: 2, Verdict.PING_ANSWERED: 3}


def test_a_pool_that_was_anothers_tells_nothing_of_it(make_rig: Callable[..., Rig]) -> None:
    """The same slots, chunks and versions, rented by the next tenant: only what its workers sent comes."""
    rig = make_rig(workers=2)
    for chunk in range(2 * WINDOW):
        for worker in range(2):
            rig.send(worker, rig.contribution(worker, chunk, [SECRET] * rig.elements))
    rig.leave()
    rig.join(rig.epoch + 1, ports=[ATTACKER, ATTACKER + 1])
    for chunk in range(2 * WINDOW):
        frame = rig.contribution(ATTACKER - 1, chunk, [1])
        assert rig.send(ATTACKER - 1, frame) == []
        assert rig.send(ATTACKER - 1, frame) == []
        out = rig.send(ATTACKER, rig.contribution(ATTACKER, chunk, [1]))
        assert {port: Frame.parse(data).values for port, data in out} == {
            port: (2, *[0] * (rig.elements - 1)) for port in (ATTACKER, ATTACKER + 1)
        }


LEAF_PORT, LEAF_IP, LEAF_MAC, LEAF_UDP = 65, "10.0.255.9", "02:00:00:00:ff:09", 6000


def test_a_partial_is_taken_from_the_leafs_own_port_alone(make_rig: Callable[..., Rig]) -> None:
    """The leaf is worker bit 1; hosts before and behind it send what it would send, byte for byte."""
    rig = make_rig(workers=2)
    table = f"{AGGREGATION}.admission.members"
    for entry in rig.device.table_entries(table):
        if entry.args[0] == 1:
            rig.device.table_delete(table, entry.handle)
    rig.add(f"{RECEIVE}.ports", [LEAF_PORT], "switch_port")
    key = [LEAF_PORT, number(ip(LEAF_IP)), LEAF_UDP, job_port(JOB)]
    rig.add(table, key, "worker", [1, 0b10, 0b11, rig.base, WINDOW, rig.epoch, 1])
    partial = rig.contribution(1, 0, [5], ip_src=LEAF_IP, eth_src=LEAF_MAC, udp_src=LEAF_UDP)
    rig.send(0, rig.contribution(0, 0, [2]))
    assert rig.send(ATTACKER - 1, partial) == []
    # A host behind the leaf, which routes it, comes by the same port: not with these addresses.
    behind = partial.but(ip_src=host_ip(9), ttl=63)
    assert rig.send(LEAF_PORT - 1, behind) == []
    assert rig.send(LEAF_PORT - 1, behind.but(udp_src=LEAF_UDP + 1, ip_src=LEAF_IP)) == []
    assert rig.job_verdicts() == {Verdict.NOT_ADMITTED: 3}
    out = rig.send(LEAF_PORT - 1, partial)
    assert {Frame.parse(data).values[0] for _, data in out} == {7}


class Hostile:
    """A switch with an attacker on its ports, who sends between any two frames of the others."""

    def __init__(self, rig: Rig, scene: Scene, seed: int, share: float) -> None:
        self.rig, self.scene, self.share = rig, scene, share
        self.draw = random.Random(seed)
        self.seen: list[bytes] = []
        """All that crossed any wire while it listened."""
        self.listening = True
        self.secrets: set[bytes] = set()
        self.sent: dict[int, int] = {}

    def process(self, frames: Frames) -> Frames:
        out: Frames = []
        for port, data in frames:
            while not self.listening and self.draw.random() < self.share:
                attacker = self.draw.choice([ATTACKER, ATTACKER, ATTACKER + 1])
                out += self._pass(attacker, mutated(self.scene, self.seen, self.draw))
            out += self._pass(port, data)
        return out

    def _pass(self, port: int, data: bytes) -> Frames:
        self.sent[port] = self.sent.get(port, 0) + 1
        out = self.rig.device.process([(port, data)])
        if self.listening:
            self.seen += [data, *(frame for _, frame in out)]
        elif port < ATTACKER:
            self.secrets |= {frame[52:68] for frame in (data, *(frame for _, frame in out))}
        for to, frame in out:
            if to >= ATTACKER:
                assert port >= ATTACKER, "what the victim sends reaches its own workers alone"
                assert not any(secret in frame for secret in self.secrets)
        return [(to, frame) for to, frame in out if to < ATTACKER]


def run_beside_an_attacker(rig: Rig, seed: int, share: float) -> None:
    scene = admit_attacker(rig)
    hostile = Hostile(rig, scene, seed, share)
    faults: dict[str, Any] = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.1, "seed": seed}
    fabric = MemoryFabric(hostile.process, **faults)
    members = [membership(w + 1, JOB, w, rig.elements, rig.epoch) for w in range(WORKERS)]
    team = [Worker(m, MemoryTransport(m, fabric, m.rank + 1), timeout=30.0) for m in members]
    rng = np.random.default_rng(seed)
    before = {port: rig.verdicts(port) for port in (ATTACKER, ATTACKER + 1)}
    for listening in (True, False):
        hostile.listening = listening
        arrays = [rng.integers(-(2**31), 2**31, 12 * rig.elements, dtype=np.int32) for _ in team]
        for result in reduce_together(fabric, team, arrays):
            assert isinstance(result, np.ndarray), result
            np.testing.assert_array_equal(result, np.sum(arrays, axis=0, dtype=np.int32))
    # Each packet has one verdict at its port; at the job, none but those its workers sent.
    for port in (ATTACKER, ATTACKER + 1):
        total = sum(rig.verdicts(port).values()) - sum(before[port].values())
        assert total == hostile.sent.get(port, 0)
    for bit in range(WORKERS):
        assert sum(rig.worker_verdicts(bit).values()) == hostile.sent[bit + 1]
    assert not rig.job_verdicts().keys() & PASSED


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.3, 0.8]))
def test_an_attacker_by_chance(device: tuple[SwitchDevice, int], seed: int, share: float) -> None:
    run_beside_an_attacker(Rig(device[0], device[1], FEW_SLOTS), seed, share)


@pytest.mark.slow
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_an_attacker_by_chance_long(device: tuple[SwitchDevice, int], seed: int, share: float) -> None:
    run_beside_an_attacker(Rig(device[0], device[1], FEW_SLOTS), seed, share)


def test_the_attacker_is_admitted_at_all(rig: Rig) -> None:
    """Else all tests here would show nothing: with its accomplice it sums, in its own slots."""
    scene = admit_attacker(rig)
    accomplice = scene.own(
        eth_src=host_mac(ATTACKER + 1), ip_src=host_ip(ATTACKER + 1), udp_src=udp_port(ATTACKER + 1)
    )
    out = {port: Frame.parse(data).values for port, data in rig.send(ATTACKER, accomplice)}
    assert out == dict.fromkeys((ATTACKER, ATTACKER + 1), (2 * BAD,) * rig.elements)
