# SPDX-License-Identifier: Apache-2.0
"""A hostile tenant's host beside real workers: exact sums, each refusal counted and told, nothing leaked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.entities import insert
from controller.p4runtime import SwitchClient
from controller.program.admission import Pool, Sender
from controller.program.refusals import MAX_REPORTS_PER_S, Refusal
from controller.setup import seat
from tests.dataplane.attacks import ATTACKS, Scene, against_hosts
from tests.dataplane.frames import Frame
from tests.network.net import JOB, LIMIT_S, Net, Sums
from tests.network.tensors import Call
from tests.network.test_all_reduce import assert_exact
from topologies import processes
from topologies.ranks import Ranks
from topologies.targets import choose
from wire.constants import job_port
from wire.membership import Membership
from wire.verdicts import REPORTED, Verdict

pytestmark = pytest.mark.root

VICTIMS = ["h1", "h2", "h3"]
ATTACKER, ITS_PORT = "h4", 4
ATTACKERS_JOB = 9
OWN_PORT, SECOND_PORT, FORMER_PORT = 5000, 5001, 5999
RATE = {"embedded": 5_000_000, "bmv2": 200_000}
"""What the attacker's job may send, bit/s: the flood of its admitted frames is many times that."""
PER_S = {"embedded": 20_000, "bmv2": 1_500}
"""Hostile frames a second."""
BYTES = {"embedded": 1 << 20, "bmv2": 1 << 16}
SEED = 31
FLOOD_S = 3.0
SHORTEST = 14
"""A packet socket sends no frame without a whole Ethernet header."""


class Hostile:
    """The process in the attacker's host."""

    def __init__(self, net: Net) -> None:
        interface = net.record.host(ATTACKER).interface
        self._child = processes.host_popen(
            net.record,
            ATTACKER,
            [sys.executable, "-m", "tests.network.hostile", interface],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(self._line).result(LIMIT_S)

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the attacker ended with {self._child.wait(LIMIT_S)}"
        return dict(json.loads(line))

    def send(self, frames: Sequence[bytes], per_s: float, seconds: float = 0) -> Future[dict[str, Any]]:
        """Send each frame once, or any of them for so long."""
        assert self._child.stdin is not None
        told = {"frames": [frame.hex() for frame in frames], "per_s": per_s, "seconds": seconds}
        self._child.stdin.write(json.dumps(told).encode() + b"\n")
        self._child.stdin.flush()
        return self._pool.submit(self._line)

    def close(self) -> None:
        self._child.terminate()
        self._child.communicate(timeout=LIMIT_S)
        self._pool.shutdown()


@dataclass
class Stage:
    """The victims' ranks, waiting for their memberships, and the attacker in its host."""

    net: Net
    ranks: Ranks
    members: list[Membership]
    scene: Scene
    hostile: Hostile


@contextmanager
def stage(net: Net, calls: list[Call], folder: Path) -> Iterator[Stage]:
    record, jobs = net.record, net.jobs()
    arguments = []
    for rank, host in enumerate(VICTIMS):
        told = json.dumps([vars(call) for call in calls])
        words = ["--ip", record.host(host).ip, "--seed", str(SEED), "--calls", told]
        arguments.append([*words, "--results", str(folder / f"rank{rank}.npz")])
    hostile = Hostile(net)
    try:
        with Ranks(record, VICTIMS, "tests.network.rank", arguments) as ranks:
            window = choose(record.target).default_window
            seats = [seat(record, host, port) for host, port in zip(VICTIMS, ranks.ports(), strict=True)]
            members = jobs.add_job(JOB, seats, window)
            own = [seat(record, ATTACKER, port) for port in (OWN_PORT, SECOND_PORT)]
            try:
                attacker, _ = jobs.add_job(ATTACKERS_JOB, own, 4)
                job = jobs.job(ATTACKERS_JOB)
                former = Sender(ITS_PORT, attacker.own_ip, FORMER_PORT, attacker.port)
                pool = Pool(job.base, 4, job.epoch - 1, job.group)
                entry = net.program.admission.worker(former, 0, 2, pool)
                insert(net.client, [entry])
                net.program.rates.set(net.client, ATTACKERS_JOB, RATE[record.target], 2)
                net.program.refusals.subscribe(net.client)
                yield Stage(net, ranks, members, _scene(attacker, members[0]), hostile)
                net.program.rates.set(net.client, ATTACKERS_JOB, None, 2)
            finally:
                for number in list(jobs.jobs):
                    jobs.remove_job(number)
    finally:
        hostile.close()


def _scene(attacker: Membership, victim: Membership) -> Scene:
    v = victim
    captured = Frame(
        eth_src=v.own_mac, eth_dst=v.switch_mac, ip_src=v.own_ip, ip_dst=v.switch_ip,
        udp_src=v.own_port, udp_dst=v.port, values=(3,) * v.elements, chunk=1, slot=1,
    )  # fmt: skip
    return Scene(attacker, FORMER_PORT, victim, captured)


def counted(net: Net) -> Counter[Verdict]:
    found = net.program.verdicts.of_ports(net.client, [ITS_PORT]).ingress.get(ITS_PORT, {})
    return Counter({verdict: packets for verdict, (packets, _) in found.items()})


def reports(client: SwitchClient, program: Any, seconds: float) -> list[Refusal]:
    """What is told until that time has passed without news."""
    found = []
    while (news := client.wait_news(seconds)) is not None:
        assert news.lost == 0
        for arrived, digests in news.digests:
            found += program.refusals.decode(arrived, digests)
    return found


def test_a_hostile_host_beside_a_job(net: Net, tmp_path: Path) -> None:
    size = BYTES[net.record.target] // 4
    calls = [Call("int32", size), Call("float32", size)] * 3
    with stage(net, calls, tmp_path) as on:
        scene = on.scene
        attacks = [make(scene) for make in ATTACKS.values()]
        attacks = [attack for attack in attacks if len(attack.data) >= SHORTEST]
        # Its slots are used in its present life before its former one comes.
        used = [scene.own(slot=c % 4, version=c // 4, chunk=c).pack() for c in range(8)]
        once_a_slot = on.hostile.send(used, 500).result(LIMIT_S)
        assert once_a_slot["sent"] == 8
        reports(net.client, net.program, 0.5)

        before = counted(net)
        on.hostile.send([attack.data for attack in attacks], 500).result(LIMIT_S)
        expected = Counter(attack.verdict for attack in attacks)
        assert {v: n for v, n in (counted(net) - before).items() if v in expected} == expected
        assert reports(net.client, net.program, 0.5)
        # The last of them goes with the meter of a flood, beside the victims at work.
        flood = [attack.data for attack in attacks] + [used[0]] * len(attacks) + against_hosts(scene)
        before, started = counted(net), time.monotonic()
        flooding = on.hostile.send(flood, PER_S[net.record.target], seconds=FLOOD_S)
        for rank, membership in enumerate(on.members):
            on.ranks.tell(rank, membership.to_json())
        for _ in on.ranks.heard(LIMIT_S):
            pass
        outcome = flooding.result(LIMIT_S)
        told = reports(net.client, net.program, 0.5)
        took = time.monotonic() - started
        got = counted(net) - before
        verdicts = net.program.verdicts.of_jobs(net.client, {JOB: len(VICTIMS), ATTACKERS_JOB: 2})

    results = []
    for rank in range(len(VICTIMS)):
        with np.load(tmp_path / f"rank{rank}.npz") as loaded:
            results.append([loaded[name] for name in loaded.files])
    assert_exact(Sums(results, []), calls, SEED, net.record.elements)
    # Nothing of the victims' job came to the attacker.
    for data in map(bytes.fromhex, outcome["received"]):
        assert data[34:36] != job_port(JOB).to_bytes(2, "big") or data[12:14] != b"\x08\x00", data.hex()
    # Its job was held to its rate; the victims' had nothing refused but what others forged in its name.
    assert got[Verdict.OVER_RATE] > 0
    assert not {v for counts in verdicts[JOB].workers.values() for v in counts} & REPORTED
    assert set(verdicts[JOB].others) <= REPORTED
    assert set(expected) <= set(got)
    # Told at a bounded rate, of its port alone.
    assert 2 <= len(told) <= MAX_REPORTS_PER_S * took + 1
    assert {refusal.port for refusal in told} == {ITS_PORT}
