# SPDX-License-Identifier: Apache-2.0
"""The controller with a real P4Runtime server: the switch holds what the books say, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.changes import Status
from controller.daemon import DaemonError, make_token
from controller.entities import delete, insert, multicast_group
from controller.epochs import EpochStore
from controller.errors import BindAgainError, PoolFullError, UnreachableError
from controller.program.faults import Shares
from controller.program.refusals import Refusal
from controller.readback import read_all
from controller.requests import (
    JobChange,
    JobExistsError,
    NewJob,
    NoSuchJobError,
    NoSuchSessionError,
    QuotaError,
    RankTakenError,
    RequestError,
)
from controller.service import Controller
from controller.setup import connect
from controller.store import Store
from controller.switches import SwitchLink
from tests.controller.served import Served
from topologies.record import NetRecord, new_record, with_switch
from topologies.spec import star
from wire.constants import TOKEN_VARIABLE
from wire.control import WITHDRAWN
from wire.verdicts import Verdict

HOSTS = 5
MEMBERS = "SwitchIngress.handle.aggregation.admission.members"
LIMIT_S = 60.0


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(1)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def record(served: Served, tmp_path: Path) -> NetRecord:
    made = new_record(
        "t", star(HOSTS), target="embedded", elements=64, slots=1024, root=tmp_path, interfaces=tmp_path
    )
    made.directory.mkdir()
    return with_switch(made, "s1", grpc=served.address)


@asynccontextmanager
async def controlled(record: NetRecord, lease: float = 60.0) -> AsyncIterator[Controller]:
    """A controller of the network, stopped as if it were killed: what it knows is on disk."""
    path = record.directory / "controller.db"
    epochs, store = EpochStore(path), Store(path)
    controller = Controller(record, store, epochs, [SwitchLink(record, "s1")], lease)
    try:
        await controller.start()
        yield controller
    finally:
        await controller.stop()
        store.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


async def join(controller: Controller, job: str, ports: list[int]) -> list[str]:
    """Join all ranks; return their sessions."""
    live = controller.job(job)
    return [
        controller.sessions.join(live, rank, f"10.0.0.{rank + 1}", port).sid
        for rank, port in enumerate(ports)
    ]


async def told(controller: Controller, sid: str, wait: float = 30.0, **status: Any) -> dict[str, Any]:
    return await controller.sessions.sync(sid, Status(**status), wait)


def admitted(record: NetRecord) -> dict[int, int]:
    """What the switch admits: UDP source port → epoch."""
    with connect(record, "s1", primary=False) as client:
        held = read_all(client)
    found: dict[int, int] = {}
    for key, item in held.items():
        if key[:2] == ("table", MEMBERS):
            value: Any = item.value
            port: Any = key[4]
            found[port] = dict(value[1])["epoch"]
    return found


def test_a_job_from_add_to_rm(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            job = await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16))
            assert (job.status, job.rent.base, job.lead) == ("waiting", 0, 4)
            assert admitted(record) == {}
            sids = await join(controller, "alice", [5001, 5002])
            go = [await told(controller, sid, udp_port=5001 + r) for r, sid in enumerate(sids)]
            assert [m["do"] for m in go] == ["go", "go"]
            assert [m["membership"]["rank"] for m in go] == [0, 1]
            assert {m["membership"]["window"] for m in go} == {16}
            epoch = go[0]["membership"]["epoch"]
            assert admitted(record) == {5001: epoch, 5002: epoch}
            assert job.status == "running"
            await controller.remove("alice")
            assert admitted(record) == {}
            over = await told(controller, sids[0], epoch=epoch)
            assert (over["do"], over["kind"]) == ("end", "JobRemovedError")
            assert controller.links["s1"].jobs.pool.free == 1024
            with pytest.raises(NoSuchJobError):
                controller.job("alice")

    run(work())


def test_a_controller_that_is_killed_finds_its_jobs_running(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16, rate_bps=10**8))
            await controller.add(NewJob(name="bob", workers=["h3"], slots=32, tenant="b"))
            await controller.set_faults("s1", 2, "in", Shares(drop=0.25))
            sids = await join(controller, "alice", [5001, 5002])
            first = await told(controller, sids[0], udp_port=5001)
            await told(controller, sids[1], udp_port=5002)
            epoch = first["membership"]["epoch"]
            with connect(record, "s1", primary=False) as client:
                before = {key: item.value for key, item in read_all(client).items()}
        async with controlled(record) as controller:
            with connect(record, "s1", primary=False) as client:
                assert {key: item.value for key, item in read_all(client).items()} == before
            assert [e.text for e in controller.store.events()][-1] == "switch s1: in line"
            alice = controller.job("alice")
            assert (alice.status, alice.group.epoch, alice.rent.base) == ("running", epoch, 0)
            assert controller.job("bob").rent.base == 16
            assert (await told(controller, sids[0], wait=0.0, epoch=epoch))["do"] == "nothing"
            # One that had not heard of its epoch yet hears of it now.
            again = await told(controller, sids[1], udp_port=5002)
            assert (again["do"], again["membership"]["epoch"]) == ("go", epoch)
            with pytest.raises(BindAgainError):
                controller.sessions.join(controller.job("bob"), 0, "10.0.0.3", 0xBE05)
            live = controller.job("bob")
            with pytest.raises(RequestError, match=r"rank 0 of job bob runs on h3 \(10.0.0.3\)"):
                controller.sessions.join(live, 0, "10.0.0.1", 6000)

    run(work())


def test_strays_go_and_what_is_missing_comes(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16))
            sids = await join(controller, "alice", [5001, 5002])
            for rank, sid in enumerate(sids):
                await told(controller, sid, udp_port=5001 + rank)
            epoch = controller.job("alice").epoch
        assert epoch is not None
        job = epoch.root
        with connect(record, "s1") as client:
            before = {key: item.value for key, item in read_all(client).items()}
            insert(client, [multicast_group(77, [(1, 999)])])
            delete(client, [job.levels[2][1], job.levels[1][0]])
        async with controlled(record) as controller:
            assert controller.store.events()[-1].text == "switch s1: 2 entries added, 1 removed, 0 changed"
            with connect(record, "s1", primary=False) as client:
                assert {key: item.value for key, item in read_all(client).items()} == before

    run(work())


def test_killed_between_its_plan_and_the_switch(record: NetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise UnreachableError("s1", "cut")

    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16))
            sids = await join(controller, "alice", [5001, 5002])
            for rank, sid in enumerate(sids):
                await told(controller, sid, udp_port=5001 + rank)
            old = controller.job("alice").group.epoch
            controller.sessions.lease = 1e9
            with monkeypatch.context() as patched:
                patched.setattr(SwitchLink, "swap", fails)
                patched.setattr(SwitchLink, "bring_up", fails)
                await controller.change("alice", JobChange(slots=8))
                for rank, sid in enumerate(sids):
                    stop = await told(controller, sid, epoch=old)
                    assert stop["do"] == "stop"
                    status = {"epoch": old, "stopped": stop["change"], "udp_port": 6001 + rank}
                    await told(controller, sid, wait=0.2, first_missing=40 + rank, **status)
                while (planned := controller.store.jobs()[0].epoch) is None or planned.epoch == old:
                    await asyncio.sleep(0.02)
            assert admitted(record) == {5001: old, 5002: old}
        async with controlled(record) as controller:
            group = controller.job("alice").group
            assert group.epoch > old
            assert admitted(record) == {6001: group.epoch, 6002: group.epoch}
            for rank, sid in enumerate(sids):
                go = await told(controller, sid, epoch=old, stopped=stop["change"], udp_port=6001 + rank)
                assert (go["do"], go["resume"]) == ("go", True)
                membership = go["membership"]
                assert (membership["g0"], membership["window"], membership["lead"]) == (40, 8, 4)

    run(work())


def test_a_switch_that_lost_its_state_gets_it_again(record: NetRecord, served: Served) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1"], slots=16))
            [sid] = await join(controller, "alice", [5001])
            go = await told(controller, sid, udp_port=5001)
            epoch = go["membership"]["epoch"]
            address = served.address
            served.close()
            while controller.links["s1"].in_line:
                await asyncio.sleep(0.05)
            again = Served(1, address)
            try:
                stop = await told(controller, sid, epoch=epoch)
                assert (stop["do"], stop["why"]) == ("stop", "switch s1 lost its state")
                status = {"epoch": epoch, "stopped": stop["change"], "udp_port": 6001, "first_missing": 9}
                go = await told(controller, sid, **status)
                assert (go["do"], go["resume"], go["membership"]["g0"]) == ("go", True, 9)
                assert admitted(record) == {6001: go["membership"]["epoch"]}
            finally:
                again.close()

    run(work())


def test_a_silent_worker_is_lost_and_refused_and_may_return(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record, lease=1.0) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16))
            sids = await join(controller, "alice", [5001, 5002])
            go = [await told(controller, sid, udp_port=5001 + r) for r, sid in enumerate(sids)]
            epoch = go[0]["membership"]["epoch"]
            with pytest.raises(RankTakenError):
                controller.sessions.join(controller.job("alice"), 1, "10.0.0.2", 7000)
            stop: dict[str, Any] = {"do": "nothing"}
            while stop["do"] == "nothing":
                stop = await told(controller, sids[0], wait=0.3, epoch=epoch)
            controller.sessions.lease = 60.0  # for what follows, however long it takes here
            assert await told(controller, sids[0], epoch=epoch) == stop
            assert stop["do"] == "stop"
            while 5002 in admitted(record):
                await asyncio.sleep(0.02)
            status = {"epoch": epoch, "stopped": stop["change"], "udp_port": 6001, "begun": 2}
            fail = await told(controller, sids[0], **status)
            assert (fail["do"], fail["begun"]) == ("fail", 2)
            [lost] = fail["lost"]
            assert (lost["rank"], lost["host"]) == (1, "h2")
            over = await told(controller, sids[1], epoch=epoch)
            assert (over["do"], over["kind"]) == ("end", "LeaseExpiredError")
            with pytest.raises(NoSuchSessionError):
                await told(controller, "nobody")
            new = controller.sessions.join(controller.job("alice"), 1, "10.0.0.2", 7002)
            back = await told(controller, sids[0], failed=stop["change"], **status)
            assert (back["do"], back["resume"], back["membership"]["t0"]) == ("go", False, 2)
            assert (await told(controller, new.sid, udp_port=7002))["membership"]["t0"] == 2

    run(work())


def test_workers_change_and_those_who_stay_keep_their_sessions(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2", "h3"], slots=16))
            sids = await join(controller, "alice", [5001, 5002, 5003])
            go = [await told(controller, sid, udp_port=5001 + r) for r, sid in enumerate(sids)]
            epoch = go[0]["membership"]["epoch"]
            await controller.change("alice", JobChange(workers=["h3", "h1"]))
            assert (await told(controller, sids[1], epoch=epoch))["do"] == "end"
            for sid, port in ((sids[0], 6001), (sids[2], 6003)):
                stop = await told(controller, sid, epoch=epoch)
                await told(controller, sid, wait=0.0, epoch=epoch, stopped=stop["change"], udp_port=port)
            status = {"epoch": epoch, "stopped": stop["change"]}
            fail = await told(controller, sids[0], udp_port=6001, **status)
            assert fail["lost"] == [{"rank": 1, "host": "h2", "why": WITHDRAWN}]
            for sid, port in ((sids[0], 6001), (sids[2], 6003)):
                status = {"epoch": epoch, "stopped": stop["change"], "failed": stop["change"]}
                await told(controller, sid, wait=0.0, udp_port=port, **status)
            for sid, port, rank in ((sids[0], 6001, 1), (sids[2], 6003, 0)):
                go2 = await told(controller, sid, udp_port=port, **status)
                membership = go2["membership"]
                assert (membership["rank"], membership["n"]) == (rank, 2)

    run(work())


def test_what_does_not_fit_is_refused_and_nothing_changes(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1"], slots=1000))
            with pytest.raises(JobExistsError):
                await controller.add(NewJob(name="alice", workers=["h2"]))
            with pytest.raises(PoolFullError, match="24 are free, 24 of them in one run; alice holds 1000"):
                await controller.add(NewJob(name="bob", workers=["h2"], slots=25))
            with pytest.raises(RequestError, match="host h2 is named twice"):
                await controller.add(NewJob(name="bob", workers=["h2", "h2"], slots=1))
            controller.set_quota("b", 20)
            with pytest.raises(QuotaError, match=r"its other jobs have 0: 24 are .* at most 20"):
                await controller.add(NewJob(name="bob", workers=["h2"], slots=24, tenant="b"))
            await controller.add(NewJob(name="bob", workers=["h2"], slots=20, tenant="b"))
            with pytest.raises(QuotaError):
                await controller.change("bob", JobChange(slots=21))
            with pytest.raises(PoolFullError):
                await controller.change("alice", JobChange(slots=1005))
            assert [job.slots for job in controller.jobs.values()] == [1000, 20]

    run(work())


def test_a_drained_job_ends_when_its_workers_have_left(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1"], slots=16))
            [sid] = await join(controller, "alice", [5001])
            go = await told(controller, sid, udp_port=5001)
            epoch = go["membership"]["epoch"]
            await told(controller, sid, wait=0.0, epoch=epoch, begun=7)
            controller.drain("alice")
            stop = await told(controller, sid, epoch=epoch, begun=7)
            status = {"epoch": epoch, "begun": 8, "stopped": stop["change"], "udp_port": 6001}
            assert await told(controller, sid, **status) == {"do": "drain", "begun": 8}
            assert (await told(controller, sid, **status))["do"] == "go"
            with pytest.raises(RequestError, match="is being drained"):
                controller.sessions.join(controller.job("alice"), 0, "10.0.0.1", 6000)
            controller.sessions.leave(sid)
            while "alice" in controller.jobs:
                await asyncio.sleep(0.05)
            assert admitted(record) == {}

    run(work())


def test_barriers(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16))
            sids = await join(controller, "alice", [5001, 5002])
            first = await controller.sessions.barrier(sids[0], 1, 0.0)
            assert first == {"passed": False, "missing": [1]}
            waiting = asyncio.create_task(controller.sessions.barrier(sids[0], 1, 5.0))
            assert (await controller.sessions.barrier(sids[1], 1, 5.0))["passed"]
            assert (await waiting)["passed"]

    run(work())


def test_a_flood_of_refused_packets_is_a_few_events(record: NetRecord) -> None:
    def refusal(port: int, verdict: Verdict, source: int) -> Refusal:
        return Refusal(0.0, port, verdict, "02:00:0a:00:00:01", "10.0.0.1", "10.0.255.1", source, 0xBE00, 0)

    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1"], slots=16))
            for source in range(5000, 6000):
                controller.refused.take("s1", refusal(1, Verdict.NOT_ADMITTED, source))
            controller.refused.take("s1", refusal(1, Verdict.BAD_LENGTH, 7))
            controller.refused.take("s1", refusal(2, Verdict.NOT_ADMITTED, 8))
            told = [e for e in controller.store.events() if e.kind == "refused"]
            assert [e.job for e in told] == ["alice"] * 3
            assert "10.0.0.1:5000" in told[0].text
            _, last = controller.refused.latest["10.0.0.1", 5999]
            assert last.verdict is Verdict.NOT_ADMITTED

    run(work())


def test_a_token_is_the_environment_s_or_the_file_s_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    first = make_token(path)
    assert len(first) >= 32
    assert (path.read_text(), path.stat().st_mode & 0o777) == (first + "\n", 0o600)
    assert make_token(path) == first
    monkeypatch.setenv(TOKEN_VARIABLE, "mine")
    assert make_token(path) == "mine"
    assert path.read_text() == "mine\n"
    with pytest.raises(DaemonError, match="the token cannot be kept"):
        make_token(tmp_path / "absent" / "token")


def test_a_new_state_file_never_meets_old_sums(record: NetRecord, tmp_path: Path) -> None:
    """Without its memory a controller could give out an epoch again that the slots still hold."""

    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1"], slots=4))
            [sid] = await join(controller, "alice", [5001])
            await told(controller, sid, udp_port=5001)
        for file in record.directory.glob("controller.db*"):
            file.unlink()
        async with controlled(record) as controller:
            assert controller.store.events()[-1].text.startswith("switch s1: its program was loaded; ")
            await controller.add(NewJob(name="alice", workers=["h1"], slots=4))
            [sid] = await join(controller, "alice", [5001])
            await told(controller, sid, udp_port=5001)
        async with controlled(record) as controller:
            assert controller.store.events()[-1].text == "switch s1: in line"

    run(work())


def test_a_rate_s_burst_follows_the_number_of_workers(record: NetRecord) -> None:
    def burst() -> int:
        with connect(record, "s1", primary=False) as client:
            [item] = [item for key, item in read_all(client).items() if key[0] == "meter"]
        value: Any = item.value
        return int(value[1])

    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(NewJob(name="alice", workers=["h1", "h2"], slots=16, rate_bps=80_000_000))
            assert burst() == 80_000_000 // 8 // 20 + 2 * 65536  # 50 ms, and a super-packet a worker
            await controller.change("alice", JobChange(workers=["h1", "h2", "h3"]))
            for rank, sid in enumerate(await join(controller, "alice", [5001, 5002, 5003])):
                await told(controller, sid, udp_port=5001 + rank)
            assert burst() == 80_000_000 // 8 // 20 + 3 * 65536
        async with controlled(record) as controller:
            assert controller.job("alice").rate_bps == 80_000_000

    run(work())
