# SPDX-License-Identifier: Apache-2.0
"""What the controller relies on, alike on every target: promotion, read-back, rates, reports of refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.entities import INSERT, Switch, updates
from controller.errors import NotPrimaryError
from controller.p4info import P4Info
from controller.p4runtime import SwitchClient, standby_election_id
from controller.program import Program
from controller.program.refusals import Refusal
from controller.readback import difference, read_all
from p4src.forms import form
from tests.controller.direct import DirectSwitch
from tests.dataplane.frames import Frame
from tests.dataplane.rig import load
from tests.network.site import JOB, describe, install, running, udp_port
from tests.switch.veth import Link
from topologies.targets import Target
from wire.constants import FEW_SLOTS, job_port
from wire.verdicts import Verdict, port_counter

pytestmark = pytest.mark.root

LIMIT_S = 60.0
Running = tuple[SwitchClient, dict[int, Link]]


@pytest.fixture(scope="module")
def switch(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("control")
    with running(target, 64, folder) as (client, links):
        install(client, describe(64), folder / "state")
        yield client, links


def test_the_oldest_standby_is_promoted_when_the_primary_ends(switch: Running) -> None:
    address = switch[0].address
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(
                SwitchClient("s1", 1, address, standby=True, election_id=standby_election_id())
            )
            for _ in range(3)
        )
        assert [c.is_primary for c in (first, second, third)] == [True, False, False]
        with pytest.raises(NotPrimaryError):
            SwitchClient("s1", 1, address)
        news = switch[0].wait_news(LIMIT_S)
        while news is not None and news.standing.primary:
            news = switch[0].wait_news(LIMIT_S)
        assert news is not None  # the one that had been primary until then is told, too
        for client in (second, third):
            assert client.wait_news(0) is not None
        first.close()
        promoted, told = second.wait_news(LIMIT_S), third.wait_news(LIMIT_S)
        assert promoted is not None
        assert told is not None
        assert (promoted.standing.primary, told.standing.primary) == (True, False)
        second.write(updates(INSERT, [Program(second.p4info).ports.host(99)]))
    news = switch[0].wait_news(LIMIT_S)
    while news is not None and not news.standing.primary:
        news = switch[0].wait_news(LIMIT_S)
    assert news is not None
    held = read_all(switch[0])
    stray = ("table", "SwitchIngress.receive.ports", 99)
    for batch in difference(switch[0].p4info, [], {stray: held[stray]}).batches():
        switch[0].write(batch)


def test_what_it_holds_reads_alike(switch: Running, tmp_path: Path) -> None:
    client = switch[0]

    def write(to: Switch) -> None:
        program = Program(to.p4info)
        for rate, job in ((123_456_789, 7), (999_999_000, 8), (1000, 255)):
            program.rates.set(to, job, rate, 3)
        program.rates.set(to, 8, None, 1)
        program.refusals.subscribe(to)
        program.refusals.subscribe(to)

    with load(64, FEW_SLOTS) as device:
        direct = DirectSwitch(device, P4Info.from_file(form(64, FEW_SLOTS).p4info_path))
        install(direct, describe(64), tmp_path / "direct")
        assert _values(client) == _values(direct)
        for to in (client, direct):
            write(to)
        assert _values(client) == _values(direct)
        assert Program(client.p4info).rates.read(client) == {7: 123_457_000, 255: 1000}
        wanted = [one.entity for one in read_all(direct).values()]
    assert difference(client.p4info, wanted, read_all(client)).batches() == []
    lost = [one.entity for one in read_all(client).values()][::3]
    kept = [entity for entity in wanted if entity not in lost]
    for batch in difference(client.p4info, kept, read_all(client)).batches():
        client.write(batch)
    for batch in difference(client.p4info, wanted, read_all(client)).batches():
        client.write(batch)
    assert difference(client.p4info, wanted, read_all(client)).batches() == []


def _values(switch: Switch) -> dict[object, object]:
    return {key: one.value for key, one in read_all(switch).items()}


def test_a_flood_is_reported_at_a_bounded_rate(switch: Running) -> None:
    client, links = switch
    record, program = describe(64), Program(client.p4info)
    host, here = record.host("h1"), record.switch("s1")
    program.refusals.subscribe(client)
    forged = Frame(
        eth_src=host.mac, eth_dst=here.mac, ip_src=host.ip, ip_dst=here.ip,
        udp_src=udp_port(0) + 1000, udp_dst=job_port(JOB), values=(1,) * 64,
    )  # fmt: skip
    client.wait_news(0)
    cell = client.p4info.cell("SwitchIngress.port_verdicts", port_counter(1, Verdict.NOT_ADMITTED))
    started, sent = time.monotonic(), 0
    while time.monotonic() - started < 1.0 or sent < 1000:
        for _ in range(20):
            links[1].send(forged.but(chunk=sent).pack())
            sent += 1
        time.sleep(0.005)
    found: list[Refusal] = []
    while (counted := int(client.read([cell])[0].counter_entry.data.packet_count)) < sent or len(found) < 2:
        news = client.wait_news(0.3)
        for arrived, digests in news.digests if news else ():
            found += program.refusals.decode(arrived, digests)
        assert time.monotonic() < started + LIMIT_S
    took = time.monotonic() - started
    assert counted == sent
    assert 2 <= len(found) <= 10 * took + 1 < sent
    assert {refusal.verdict for refusal in found} == {Verdict.NOT_ADMITTED}
    assert {(r.port, r.eth_src, r.ip_src, r.udp_src, r.job, r.worker) for r in found} == {
        (1, host.mac, host.ip, udp_port(0) + 1000, JOB, None)
    }
    assert len({refusal.chunk for refusal in found}) == len(found)
