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

import pytest

from controller.entities import insert
from controller.epochs import EpochStore
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.admission import Pool, Sender
from controller.program.refusals import MAX_REPORTS_PER_S, Refusal
from controller.setup import job_controller, seat
from tests.dataplane.attacks import ATTACKS, Scene, against_hosts
from tests.dataplane.frames import Frame
from tests.network.net import LIMIT_S, Net, Sums, load, wait_for
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
JOB, ATTACKERS_JOB = 3, 9
VICTIMS_PORT = 4001
OWN_PORT, SECOND_PORT, FORMER_PORT = 5000, 5001, 5999
RATE = {"embedded": 5_000_000, "bmv2": 200_000}
"""What the attacker's job may send, bit/s: the flood of its admitted frames is many times that."""
PER_S = {"embedded": 20_000, "bmv2": 1_500}
"""Hostile frames a second."""
BYTES = {"embedded": 1 << 20, "bmv2": 1 << 16}
SEED = 31
FLOOD_S = 4.0
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
    """The victims' job and the attacker's, at the switch itself, and the attacker in its host."""

    client: SwitchClient
    program: Program
    members: list[Membership]
    scene: Scene
    hostile: Hostile

    def counted(self) -> Counter[Verdict]:
        """What the attacker's port was given."""
        found = self.program.verdicts.of_ports(self.client, [ITS_PORT]).ingress.get(ITS_PORT, {})
        return Counter({verdict: packets for verdict, (packets, _) in found.items()})


@contextmanager
def stage(net: Net, folder: Path) -> Iterator[Stage]:
    record = net.record
    hostile = Hostile(net)
    try:
        with net.direct() as client:
            program = Program(client.p4info)
            jobs = job_controller(record, client, EpochStore(folder / "controller.db"))
            seats = [seat(record, host, VICTIMS_PORT) for host in VICTIMS]
            members = jobs.add_job(JOB, seats, choose(record.target).default_window)
            own = [seat(record, ATTACKER, port) for port in (OWN_PORT, SECOND_PORT)]
            attacker, _ = jobs.add_job(ATTACKERS_JOB, own, 4)
            job = jobs.job(ATTACKERS_JOB)
            former = Sender(ITS_PORT, attacker.own_ip, FORMER_PORT, attacker.port)
            pool = Pool(job.base, 4, job.epoch - 1, job.group)
            # What is not removed here, the controller removes when it is primary again.
            insert(client, [program.admission.worker(former, 0, 2, pool)])
            program.rates.set(client, ATTACKERS_JOB, RATE[record.target], 2)
            program.refusals.subscribe(client)
            yield Stage(client, program, members, _scene(attacker, members[0]), hostile)
    finally:
        hostile.close()


def _scene(attacker: Membership, victim: Membership) -> Scene:
    v = victim
    captured = Frame(
        eth_src=v.own_mac, eth_dst=v.switch_mac, ip_src=v.own_ip, ip_dst=v.switch_ip,
        udp_src=v.own_port, udp_dst=v.port, values=(3,) * v.elements, chunk=1, slot=1,
    )  # fmt: skip
    return Scene(attacker, FORMER_PORT, victim, captured)


def reports(client: SwitchClient, program: Any, seconds: float) -> list[Refusal]:
    """What is told until that time has passed without news."""
    found = []
    while (news := client.wait_news(seconds)) is not None:
        assert news.lost == 0
        for arrived, digests in news.digests:
            found += program.refusals.decode(arrived, digests)
    return found


def arguments(members: list[Membership], calls: list[Call], results: list[Path]) -> list[list[str]]:
    told = json.dumps([vars(call) for call in calls])
    return [
        [
            *("--membership", member.to_json(), "--seed", str(SEED), "--calls", told),
            *("--results", str(path)),
        ]
        for member, path in zip(members, results, strict=True)
    ]


def test_a_hostile_host_beside_a_job(net: Net, tmp_path: Path) -> None:
    size = BYTES[net.record.target] // 4
    calls = [Call("int32", size), Call("float32", size)] * 3
    results = [tmp_path / f"rank{rank}.npz" for rank in range(len(VICTIMS))]
    with stage(net, tmp_path) as on:
        scene = on.scene
        attacks = [make(scene) for make in ATTACKS.values()]
        attacks = [attack for attack in attacks if len(attack.data) >= SHORTEST]
        # Its slots are used in its present life before its former one comes.
        used = [scene.own(slot=c % 4, version=c // 4, chunk=c).pack() for c in range(8)]
        once_a_slot = on.hostile.send(used, 500).result(LIMIT_S)
        assert once_a_slot["sent"] == 8
        reports(on.client, on.program, 0.5)

        before = on.counted()
        on.hostile.send([attack.data for attack in attacks], 500).result(LIMIT_S)
        expected = Counter(attack.verdict for attack in attacks)
        wait_for(
            f"the verdicts {expected}",
            lambda: {v: n for v, n in (on.counted() - before).items() if v in expected} == expected,
        )
        assert wait_for("a report", lambda: reports(on.client, on.program, 0.5))
        # The last of them goes with the meter of a flood, beside the victims at work.
        flood = [attack.data for attack in attacks] + [used[0]] * len(attacks) + against_hosts(scene)
        before, started = on.counted(), time.monotonic()
        flooding = on.hostile.send(flood, PER_S[net.record.target], seconds=FLOOD_S)
        with Ranks(net.record, VICTIMS, "tests.network.rank", arguments(on.members, calls, results)) as ranks:
            for _ in ranks.heard(LIMIT_S):
                pass
        outcome = flooding.result(LIMIT_S)
        told = reports(on.client, on.program, 0.5)
        took = time.monotonic() - started
        got = on.counted() - before
        verdicts = on.program.verdicts.of_jobs(on.client, {JOB: len(VICTIMS), ATTACKERS_JOB: 2})

    assert_exact(Sums([load(path) for path in results], []), calls, SEED, net.record.elements)
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
