# SPDX-License-Identifier: Apache-2.0
"""What one host can do to another: reach it, and nothing else."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.epochs import EpochStore
from controller.jobs import Job
from controller.p4runtime import SwitchClient
from controller.program import Program
from controller.program.peek import SlotState
from controller.setup import job_controller, seat
from tests.dataplane.frames import Frame
from tests.network.net import LIMIT_S, Net, RawHost
from topologies import processes
from wire.constants import job_port
from wire.verdicts import Verdict

pytestmark = pytest.mark.root

JOB = 3
WORKER_PORT = 4001


def test_all_pairs_and_the_switch_answer_a_ping(net: Net) -> None:
    hosts = [host.name for host in net.record.hosts]
    addresses = [h.ip for h in net.record.hosts] + [s.ip for s in net.record.switches]
    for host, ip in itertools.product(hosts, addresses):
        done = subprocess.run(
            processes.host_argv(net.record, host, ["ping", "-n", "-c", "1", "-W", "10", ip]),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{host} to {ip}: {done.stdout}{done.stderr}"


@contextmanager
def job_of_h1_and_h3(net: Net, folder: Path) -> Iterator[tuple[SwitchClient, Job]]:
    """A job without workers, at the switch itself."""
    with net.direct() as client:
        jobs = job_controller(net.record, client, EpochStore(folder / "controller.db"))
        seats = [seat(net.record, host, WORKER_PORT) for host in ("h1", "h3")]
        jobs.add_job(JOB, seats, 4)
        yield client, jobs.job(JOB)
        jobs.remove_job(JOB)


def counted(client: SwitchClient, net: Net, verdict: Verdict) -> int:
    by_port = Program(client.p4info).verdicts.of_ports(client, net.record.peers("s1")).ingress
    return sum(counts.get(verdict, (0, 0))[0] for counts in by_port.values())


def test_forged_results_and_contributions_do_not_get_through(net: Net, tmp_path: Path) -> None:
    victim, attacker, switch = net.record.host("h1"), net.record.host("h2"), net.record.switch("s1")
    contribution = Frame(
        eth_src=victim.mac,
        eth_dst=switch.mac,
        ip_src=victim.ip,
        ip_dst=switch.ip,
        udp_src=WORKER_PORT,
        udp_dst=job_port(JOB),
        values=(0x600D,) * net.record.elements,
    )
    result = contribution.but(
        eth_src=switch.mac,
        eth_dst=victim.mac,
        ip_src=switch.ip,
        ip_dst=victim.ip,
        udp_src=job_port(JOB),
        udp_dst=WORKER_PORT,
        msg_type=2,
        values=(0xBAD,) * net.record.elements,
    )
    own = {"eth_src": attacker.mac, "ip_src": attacker.ip}
    spoofed = [
        result.but(eth_dst=switch.mac),
        result.but(eth_dst=switch.mac, eth_src=attacker.mac),
        result,
        result.but(ip_src=net.record.host("h3").ip, eth_src=attacker.mac),
    ]
    not_admitted = [
        contribution,
        contribution.but(eth_src=attacker.mac),
        contribution.but(**own),
        result.but(eth_dst=switch.mac, ip_dst=switch.ip),
    ]
    kinds = (Verdict.SPOOFED_SOURCE, Verdict.NOT_ADMITTED)
    with (
        job_of_h1_and_h3(net, tmp_path) as (client, job),
        RawHost(net.record, "h1") as h1,
        RawHost(net.record, "h2") as h2,
    ):
        peek = Program(client.p4info).peek
        before = [counted(client, net, kind) for kind in kinds]
        for frame in itertools.chain(spoofed, not_admitted):
            h2.send(frame.pack())
        # What h2 may send takes the same way, so it arrives after anything that got through.
        last = b"the last one"
        honest = contribution.but(**own, ip_dst=victim.ip, udp_dst=7000, values=tuple(last))
        h2.send(honest.pack())
        (arrived,) = h1.until(last_bytes(last))
        assert Frame.parse(arrived).ip_src == attacker.ip
        after = [counted(client, net, kind) for kind in kinds]
        assert [b - a for a, b in zip(before, after, strict=True)] == [len(spoofed), len(not_admitted)]
        assert peek.slot(client, job.base, 0).seen == 0
        # The same bytes from whom they name are taken: it is the sender that was refused.
        h1.send(contribution.pack())
        answer = b"the answer"  # the last one comes back too, quoted in an ICMP error
        back = {"eth_src": victim.mac, "ip_src": victim.ip, "ip_dst": attacker.ip}
        h1.send(honest.but(**back, values=tuple(answer)).pack())
        h2.until(last_bytes(answer))
        assert peek.slot(client, job.base, 0) == SlotState(job.epoch, 0, 0b01, False)


def last_bytes(text: bytes) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in text)
