# SPDX-License-Identifier: Apache-2.0
"""The controller, the embedded switch's P4Runtime server and workers in one process: jobs really reduce."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.entities import INSERT, delete, insert, multicast_group, updates
from controller.epochs import EpochStore
from controller.errors import FieldError, NotPrimaryError, RpcFailedError, TimedOutError, WriteError
from controller.jobs import JobController, SwitchSite, WorkerSeat
from controller.p4info import P4Info
from controller.p4runtime import SwitchClient, standby_election_id
from controller.program import Program
from controller.program.faults import Shares
from controller.program.peek import SlotState
from controller.program.refusals import Refusal
from controller.readback import difference, read_all
from controller.setup import connect, job_controller, network_entities, prepare, seat
from p4src.forms import form
from switch.device import SwitchDevice
from tests.controller.direct import DirectSwitch
from tests.controller.served import Served
from tests.worker.jobs import begin
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import star
from wire.constants import CPU_PORT
from wire.membership import Membership
from wire.verdicts import Verdict
from worker import Worker
from worker.memory import MemoryFabric, MemoryTransport, reduce_together

HOSTS = 4
JOB = 9
WINDOW = 16
SITE = SwitchSite("10.0.255.1", "02:01:0a:00:ff:01", 64, 1024)
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(1)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def record(served: Served, tmp_path: Path) -> NetRecord:
    """A star of four on the served switch, with the program freshly loaded."""
    made = new_record(
        "t", star(HOSTS), target="embedded", elements=64, slots=1024, root=tmp_path, interfaces=tmp_path
    )
    made = with_switch(made, "s1", grpc=served.address)
    prepare(made)
    return made


@pytest.fixture
def client(record: NetRecord) -> Iterator[SwitchClient]:
    with connect(record, "s1") as made:
        yield made


@pytest.fixture
def program(client: SwitchClient) -> Program:
    return Program(client.p4info)


@pytest.fixture
def jobs(record: NetRecord, client: SwitchClient, tmp_path: Path) -> JobController:
    return job_controller(record, client, EpochStore(tmp_path / "state.db"))


def seats(record: NetRecord, n: int, first_port: int = 40000) -> list[WorkerSeat]:
    return [seat(record, f"h{h}", first_port + h) for h in range(1, n + 1)]


def workers(served: Served, members: list[Membership], **faults: Any) -> tuple[MemoryFabric, list[Worker]]:
    fabric = MemoryFabric(served.process, **faults)
    return fabric, [Worker(m, MemoryTransport(m, fabric, m.rank + 1), timeout=30.0) for m in members]


def arrays(n: int, length: int, seed: int = 1) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [draw.integers(-(2**31), 2**31, length, dtype=np.int32) for _ in range(n)]


def exact_sum(inputs: list[Any]) -> Any:
    return np.sum(np.stack(inputs).astype(np.int64), axis=0).astype(np.int32)


def check(results: list[Any], inputs: list[Any]) -> None:
    for result in results:
        np.testing.assert_array_equal(result, exact_sum(inputs))


def test_a_job_reduces_and_every_packet_is_counted(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    n, length = 3, 1000
    fabric, team = workers(served, jobs.add_job(JOB, seats(record, n), WINDOW))
    inputs = arrays(n, length)
    check(reduce_together(fabric, team, inputs), inputs)

    chunks = 1 + -(-length // 64)  # a header packet (4 values of 3 ranks), and the values
    counted = program.verdicts.of_jobs(client, {JOB: n, 10: 1})
    assert counted[10].workers == {}
    assert counted[JOB].others == {}
    assert set(counted[JOB].workers) == set(range(n))
    for counts in counted[JOB].workers.values():
        assert set(counts) <= {Verdict.ABSORBED, Verdict.COMPLETED}
        assert sum(packets for packets, _ in counts.values()) == chunks
        assert all(octets == packets * (52 + 256) for packets, octets in counts.values())
    total = {
        v: sum(c.get(v, (0, 0))[0] for c in counted[JOB].workers.values())
        for v in (Verdict.ABSORBED, Verdict.COMPLETED)
    }
    assert total == {Verdict.ABSORBED: chunks * (n - 1), Verdict.COMPLETED: chunks}
    ports = program.verdicts.of_ports(client, range(1, HOSTS + 1))
    assert {port: ports.ingress[port] for port in range(1, n + 1)} == {
        bit + 1: counts for bit, counts in counted[JOB].workers.items()
    }
    assert HOSTS not in ports.ingress
    assert (ports.egress, ports.ingress_faults, ports.egress_faults) == ({}, {}, {})


def test_floats(served: Served, record: NetRecord, jobs: JobController) -> None:
    fabric, team = workers(served, jobs.add_job(JOB, seats(record, 4), WINDOW))
    inputs = [np.random.default_rng(r).standard_normal((7, 31)).astype(np.float32) for r in range(4)]
    for result in reduce_together(fabric, team, inputs):
        assert isinstance(result, np.ndarray)
        np.testing.assert_allclose(result, np.sum(inputs, axis=0), rtol=0, atol=1e-6)


def test_a_removed_job_admits_nothing(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    members = jobs.add_job(JOB, seats(record, 2), WINDOW)
    jobs.remove_job(JOB)
    fabric, team = workers(served, members)
    begin(team[0].engine, arrays(1, 64)[0])
    sent = team[0].engine.poll(0.0)
    team[0].transport.send(sent)
    assert fabric.receive(1, 0) == fabric.receive(2, 0) == []
    refused = {Verdict.NOT_ADMITTED: (len(sent), len(sent) * (52 + 256))}
    assert program.verdicts.of_ports(client, [1]).ingress == {1: refused}
    counted = program.verdicts.of_jobs(client, {JOB: 2})[JOB]
    assert (counted.workers, counted.others) == ({}, refused)


def test_two_jobs_side_by_side(served: Served, record: NetRecord, jobs: JobController) -> None:
    first = workers(served, jobs.add_job(1, seats(record, 4), 8))
    second = workers(served, jobs.add_job(2, seats(record, 4, 50000), 32))
    for seed in range(3):
        for (fabric, team), length in ((first, 700), (second, 900)):
            inputs = arrays(4, length, seed)
            check(reduce_together(fabric, team, inputs), inputs)


def test_a_new_epoch_on_dirty_slots(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    members = jobs.add_job(JOB, seats(record, 3), WINDOW)
    fabric, team = workers(served, members)
    inputs = arrays(3, 3000)
    check(reduce_together(fabric, team, inputs), inputs)
    g0, t0 = team[0].engine.next_chunk, team[0].engine.begun
    again = jobs.new_epoch(JOB, seats(record, 2, 50000), g0=g0, t0=t0, window=8, lead=2)
    fabric, two = workers(served, again)
    inputs = arrays(2, 2000, seed=5)
    check(reduce_together(fabric, two, inputs), inputs)
    begin(team[0].engine, arrays(1, 64)[0])
    team[0].transport.send(team[0].engine.poll(0.0))  # of the former life
    assert Verdict.NOT_ADMITTED in program.verdicts.of_ports(client, [1]).ingress[1]
    inputs = arrays(2, 2000, seed=6)
    check(reduce_together(fabric, two, inputs), inputs)


def test_peek(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    jobs.add_job(1, seats(record, 1, 50000), 5)  # so that the next pool begins at slot 5
    members = jobs.add_job(JOB, seats(record, 3), 8)
    assert program.peek.slot(client, 5, 0) == SlotState(0, 0, 0, False)
    fabric, team = workers(served, members)
    inputs = arrays(3, 64 * 12)
    check(reduce_together(fabric, team, inputs), inputs)  # chunks 0..12: the header packet and 12 more
    for slot in range(8):
        for version in range(2):
            chunk = slot + 8 * version
            expected = (
                SlotState(members[0].epoch, chunk, 0b111, True) if chunk < 13 else SlotState(0, 0, 0, False)
            )
            assert program.peek.slot(client, 5 + slot, version) == expected
    with pytest.raises(TimedOutError, match=r"switch s1: waited .* for the answer to a PacketOut"):
        client.exchange(program.peek.question(1024, 0, b"x"), lambda packet: True, seconds=0.2)
    cpu = program.verdicts.of_ports(client, [CPU_PORT]).ingress[CPU_PORT]
    assert cpu[Verdict.PEEKED][0] == 17
    assert cpu[Verdict.BAD_PACKET_OUT][0] == 1


def test_faults_are_injected_counted_and_removed(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    fabric, team = workers(served, jobs.add_job(JOB, seats(record, 3), WINDOW))
    shares = Shares(drop=0.1, duplicate=0.1, corrupt=0.1, seed=3)
    for port in (1, 2, 3):
        program.ingress_faults.set(client, port, Shares(drop=1.0))
        program.ingress_faults.set(client, port, shares)  # changes the entry in place
        program.egress_faults.set(client, port, shares)
    inputs = arrays(3, 5000)
    check(reduce_together(fabric, team, inputs), inputs)
    counted = program.verdicts.of_ports(client, (1, 2, 3))
    for port in (1, 2, 3):
        faults = counted.ingress_faults[port]
        assert set(faults) == {Verdict.FAULT_DROPPED, Verdict.FAULT_DUPLICATED, Verdict.FAULT_CORRUPTED}
        assert counted.ingress[port][Verdict.FAULT_DROPPED] == faults[Verdict.FAULT_DROPPED]
        assert set(counted.egress_faults[port]) == set(faults)
    retransmitted = sum(w.engine.stats.retransmissions for w in team)
    assert retransmitted > 0
    for port in (1, 2, 3):
        program.ingress_faults.set(client, port, Shares())
        program.ingress_faults.set(client, port, Shares())
        program.egress_faults.set(client, port, Shares())
    inputs = arrays(3, 5000, seed=2)
    check(reduce_together(fabric, team, inputs), inputs)
    after = program.verdicts.of_ports(client, (1, 2, 3))
    assert (after.ingress_faults, after.egress_faults) == (counted.ingress_faults, counted.egress_faults)
    assert sum(w.engine.stats.retransmissions for w in team) == retransmitted


def test_a_partly_failed_batch(client: SwitchClient, program: Program) -> None:
    batch = [program.ports.host(1), program.ports.host(100), program.ports.switch(2)]
    with pytest.raises(WriteError) as raised:
        client.write(updates(INSERT, batch))
    assert [(f.index, f.code) for f in raised.value.failures] == [
        (0, "ALREADY_EXISTS"),
        (2, "ALREADY_EXISTS"),
    ]
    assert "ports[port=1] -> host_port()" in str(raised.value)
    assert client.read([client.p4info.key(program.ports.TABLE, {"port": 100})]) == [program.ports.host(100)]


def test_a_later_client_takes_over(record: NetRecord, client: SwitchClient, program: Program) -> None:
    with connect(record, "s1") as later:
        later.write(updates(INSERT, [program.ports.host(101)]))
        client._session.wait(lambda: client._session.primary is False, LIMIT_S)
        with pytest.raises(NotPrimaryError, match=r"switch s1: another controller .*Is backup"):
            client.write(updates(INSERT, [program.ports.host(102)]))
        client.take_over()
        client.write(updates(INSERT, [program.ports.host(102)]))
        with connect(record, "s1", primary=False) as reader:
            assert len(reader.read([reader.p4info.all_entries(program.ports.TABLE)])) == HOSTS + 2
        assert client.is_primary


def test_the_oldest_standby_is_promoted_when_the_primary_ends(record: NetRecord) -> None:
    address = record.switch("s1").grpc or ""
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(
                SwitchClient("s1", 1, address, standby=True, election_id=standby_election_id())
            )
            for _ in range(3)
        )
        assert [c.is_primary for c in (first, second, third)] == [True, False, False]
        with pytest.raises(NotPrimaryError):
            connect(record, "s1")
        for client in (second, third):
            assert client.wait_news(0) is not None
        first.close()
        promoted, told = second.wait_news(LIMIT_S), third.wait_news(LIMIT_S)
        assert promoted is not None
        assert told is not None
        assert (promoted.standing.primary, told.standing.primary) == (True, False)
        assert told.standing.primary_id == second._session.election_id
        second.write([])


def test_refusals_are_told_at_once_and_again(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    program.refusals.subscribe(client)
    program.refusals.subscribe(client)
    members = jobs.add_job(JOB, seats(record, 2), WINDOW)
    client.wait_news(0)
    frame = bytearray(2000)
    served.process([(4, bytes(frame))])
    _, team = workers(served, members)
    begin(team[0].engine, arrays(1, 64)[0])
    packet = team[0].engine.poll(0.0)[:1]
    jobs.remove_job(JOB)
    found: list[Refusal] = []
    deadline = time.monotonic() + LIMIT_S
    # The same packet is told again, within the second that a server would keep it back without our answer.
    while sum(refusal.port == 1 for refusal in found) < 3:
        team[0].transport.send(packet)
        news = client.wait_news(0.02)
        for arrived, digests in news.digests if news else ():
            found += program.refusals.decode(arrived, digests)
        assert time.monotonic() < deadline
    garbage, *others = sorted(found, key=lambda refusal: refusal.port != 4)
    assert garbage == Refusal(garbage.time, 4, Verdict.NOT_IPV4, "00:00:00:00:00:00")
    host = record.host("h1")
    for refusal in others:
        assert refusal == Refusal(
            *(refusal.time, 1, Verdict.NOT_ADMITTED, host.mac, host.ip, SITE.ip),
            *(members[0].own_port, 0xBE00 + JOB, JOB, None, None, 0, 0, 0),
        )
    assert str(others[0]) == (
        f"not admitted: from {host.mac}, {host.ip}:40001 to {SITE.ip}:{0xBE00 + JOB}, "
        f"job {JOB}, chunk 0, slot 0, by port 1"
    )


def test_rates(client: SwitchClient, program: Program) -> None:
    program.rates.set(client, 3, 200_000_000, 2)
    program.rates.set(client, 255, 1_234_567_499, 64)
    assert program.rates.read(client) == {3: 200_000_000, 255: 1_234_567_000}
    program.rates.set(client, 3, None, 2)
    assert program.rates.read(client) == {255: 1_234_567_000}
    for rate, workers_ in ((999, 1), (10**12 + 1, 1), (10**6, 0), (10**6, 65)):
        with pytest.raises(FieldError):
            program.rates.rate(0, rate, workers_)
    with pytest.raises(FieldError):
        program.rates.rate(256, 10**6, 1)


def test_a_job_held_to_its_rate(
    served: Served, record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    members = jobs.add_job(JOB, seats(record, 2), WINDOW)
    program.rates.set(client, JOB, 1_000, 2)
    frames = 2 * 65536 // (52 + 256)  # the burst of two workers; at 125 bytes a second nothing comes after it
    _, team = workers(served, members)
    begin(team[0].engine, arrays(1, 64)[0])
    packet = team[0].engine.poll(0.0)[:1]
    for _ in range(frames + 10):
        team[0].transport.send(packet)
    counts = program.verdicts.of_jobs(client, {JOB: 2})[JOB].workers[0]
    assert {verdict: packets for verdict, (packets, _) in counts.items()} == {
        Verdict.ABSORBED: 1,
        Verdict.DUPLICATE: frames - 1,
        Verdict.OVER_RATE: 10,
    }


def test_what_a_switch_holds_is_what_was_written(
    record: NetRecord, client: SwitchClient, program: Program, jobs: JobController
) -> None:
    wanted = [*network_entities(record, "s1", program), program.rates.rate(JOB, 123_456_000, 3)]
    assert difference(client.p4info, wanted[:-1], read_all(client)).batches() == []
    jobs.add_job(JOB, seats(record, 3), WINDOW)
    wanted += [entity for level in jobs.job(JOB).levels for entity in level]
    wanted.append(program.refusals.subscription())
    [batch] = difference(client.p4info, wanted, read_all(client)).batches()
    client.write(batch)
    assert difference(client.p4info, wanted, read_all(client)).batches() == []

    held = read_all(client)
    stray_group = multicast_group(77, [(1, 900), (2, 901)])
    insert(client, [stray_group, program.ports.host(99)])
    jobs.add_job(JOB + 1, seats(record, 2, 50000), WINDOW)  # its five are strays, too
    program.rates.set(client, 9, 5000, 1)
    program.rates.set(client, 10, 5000, 1)
    members = jobs.job(JOB).levels[2]
    delete(client, members[:2])
    program.ingress_faults.set(client, 2, Shares(drop=0.5))
    found = difference(client.p4info, wanted, read_all(client))
    assert len(found.strays) == 2 + 5 + 1 + 1
    assert [item.entity for item in found.missing] == list(members[:2])
    assert [item.key[0] for item in found.changed] == ["meter"]
    for batch in found.batches():
        client.write(batch)
    assert {key: item.value for key, item in read_all(client).items()} == {
        key: item.value for key, item in held.items()
    }
    assert program.rates.read(client) == {JOB: 123_456_000}


def test_a_program_that_cannot_be_loaded(client: SwitchClient) -> None:
    with pytest.raises(RpcFailedError, match="switch s1: refused to load the program: INVALID_ARGUMENT"):
        client.push_pipeline(client.p4info, b"{}")


def test_as_many_workers_as_a_slot_has_bits(
    client: SwitchClient, record: NetRecord, jobs: JobController
) -> None:
    one = seat(record, "h1", 1)
    many = [WorkerSeat(one.host, one.ip, one.mac, one.port, 1000 + r) for r in range(64)]
    members = jobs.add_job(JOB, many, 512)
    assert [m.own_port for m in members] == list(range(1000, 1064))
    rows = [
        client.p4info.row(e)
        for e in client.read(
            [client.p4info.all_entries("SwitchIngress.handle.aggregation.admission.members")]
        )
    ]
    assert sorted(row.args["mask"] for row in rows) == [1 << bit for bit in range(64)]
    assert {row.args["full"] for row in rows} == {2**64 - 1}
    jobs.remove_job(JOB)


def test_without_grpc_it_is_the_same(
    served: Served, record: NetRecord, client: SwitchClient, jobs: JobController, tmp_path: Path
) -> None:
    """The same classes on a device in hand leave the same entries, counters and answers."""
    chosen = form(64, 1024)
    with SwitchDevice.load(chosen.json_path, cpu_port=CPU_PORT) as device:
        direct = DirectSwitch(device, P4Info.from_file(chosen.p4info_path))
        program = Program(direct.p4info)
        insert(direct, network_entities(record, "s1", program))
        alone = JobController(direct, SITE, EpochStore(tmp_path / "direct.db", lambda: 5.0))
        members = alone.add_job(JOB, seats(record, 3), WINDOW)
        fabric = MemoryFabric(device.process)
        team = [Worker(m, MemoryTransport(m, fabric, m.rank + 1), timeout=30.0) for m in members]
        inputs = arrays(3, 500)
        check(reduce_together(fabric, team, inputs), inputs)
        assert program.peek.slot(direct, 3, 0) == SlotState(5, 3, 0b111, True)

        jobs.add_job(JOB, seats(record, 3), WINDOW)
        jobs.remove_job(JOB)
        alone.remove_job(JOB)
        for name in direct.p4info.tables:
            wanted = [direct.p4info.all_entries(name)]
            assert sorted(map(str, direct.read(wanted))) == sorted(map(str, client.read(wanted)))
        with pytest.raises(WriteError, match="ALREADY_EXISTS"):
            insert(direct, [program.ports.host(1)])
        with pytest.raises(TimedOutError):
            program.peek.slot(direct, 1024, 0)
