# SPDX-License-Identifier: Apache-2.0
"""What may happen to a controller that is not its doing: a full disk, a long stop, rows that do not fit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller import service
from controller.errors import StateError, UnreachableError
from controller.live import LiveJob
from controller.program.rates import Rates
from controller.readback import read_all
from controller.requests import JobChange, NewJob
from controller.service import Controller
from controller.store import SessionRow, Store
from tests.controller.served import Served
from tests.controller.test_service import admitted, controlled, join, record, run, served, told
from topologies.record import NetRecord

__all__ = ["record", "served"]  # fixtures
ALICE = NewJob(name="alice", workers=["h1", "h2"], slots=16)


@contextmanager
def full_disk() -> Iterator[None]:
    """No transaction can be made."""

    def fails(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite3, "connect", fails)
        yield


class Killed(BaseException):
    """The controller's end."""


def fails(*_: Any) -> None:
    raise Killed


async def running(controller: Controller) -> tuple[LiveJob, list[str], int]:
    """A job alice with its sessions and epoch."""
    job = await controller.add(ALICE)
    sids = await join(controller, "alice", [5001, 5002])
    go = [await told(controller, sid, udp_port=5001 + rank) for rank, sid in enumerate(sids)]
    return job, sids, int(go[0]["membership"]["epoch"])


def test_who_stands_still_itself_loses_no_worker(record: NetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)

    async def work() -> None:
        async with controlled(record, lease=1.5) as controller:
            job, _, _ = await running(controller)
            time.sleep(2)  # nothing runs, as while the process is stopped
            await asyncio.sleep(0.1)
            assert sorted(job.group.sessions) == [0, 1]
            while job.group.sessions:  # they are still watched
                await asyncio.sleep(0.05)

    run(work())


def test_a_full_disk_refuses_what_is_asked_and_changes_nothing(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            job, sids, epoch = await running(controller)
            pool = controller.links["s1"].jobs.pool
            with full_disk():
                with pytest.raises(StateError, match=r"disk is full.*make room"):
                    await controller.add(NewJob(name="bob", workers=["h3"], slots=16))
                for asked in (JobChange(slots=32), JobChange(workers=["h1", "h3"])):
                    with pytest.raises(StateError):
                        await controller.change("alice", asked)
                with pytest.raises(StateError):
                    controller.drain("alice")
                with pytest.raises(StateError):
                    await controller.remove("alice")
                assert (await told(controller, sids[0], wait=0.0, epoch=epoch))["do"] == "nothing"
            assert (job.status, job.slots, job.group.hosts) == ("running", 16, ["h1", "h2"])
            assert list(controller.jobs) == ["alice"]
            assert pool.free == 1024 - 16
            await controller.add(NewJob(name="bob", workers=["h3"], slots=16))
            await controller.remove("alice")
        async with controlled(record) as controller:
            assert list(controller.jobs) == ["bob"]

    run(work())


def test_leases_end_while_the_disk_is_full(record: NetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)

    async def work() -> None:
        async with controlled(record, lease=60) as controller:
            job, sids, epoch = await running(controller)
            with full_disk():
                job.group.sessions[1].deadline = 0.0
                while 1 in job.group.sessions:
                    await asyncio.sleep(0.02)
            stop = await told(controller, sids[0], epoch=epoch)
            assert stop["do"] == "stop"
            assert "said nothing" in stop["why"]
            new = controller.sessions.join(job, 1, "10.0.0.2", 7002)
            # The row of the session that ended went with that: whoever starts next finds one of each rank.
            assert {row.sid for row in controller.store.sessions()} == {sids[0], new.sid}
            status = {"epoch": epoch, "stopped": stop["change"], "udp_port": 6001}
            await told(controller, sids[0], wait=0.2, **status)
            go = await told(controller, sids[0], failed=stop["change"], **status)
            assert go["do"] == "go"
        async with controlled(record) as controller:
            assert {row.sid for row in controller.store.sessions()} == {sids[0], new.sid}

    run(work())


def test_an_epoch_that_cannot_be_kept_does_not_begin(
    record: NetRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, full = Store.put_job, [False]

    def sometimes(self: Store, job: Any, sessions: Any = ()) -> None:
        if full[0] and job.epoch is not None and job.epoch.window == 32:
            full[0] = False
            raise StateError(record.directory, "database or disk is full")
        put(self, job, sessions)

    monkeypatch.setattr(Store, "put_job", sometimes)

    async def work() -> None:
        async with controlled(record) as controller:
            job, sids, old = await running(controller)
            await controller.add(NewJob(name="bob", workers=["h3"], slots=16))
            await controller.change("alice", JobChange(slots=32))
            full[0] = True
            ports = iter(range(6000, 7000))
            used = [next(ports), next(ports)]
            rents = set()
            while job.group.epoch == old:
                rents.add((job.rent.base, job.rent.window))
                for rank, sid in enumerate(sids):
                    change = job.group.change
                    if change is None:
                        break
                    if job.group.sessions[rank].refused_port == used[rank]:
                        used[rank] = next(ports)
                    await told(controller, sid, wait=0.0, epoch=old, stopped=change.id, udp_port=used[rank])
                await asyncio.sleep(0.02)
            assert not full[0]
            assert rents == {(0, 16)}  # what the old epoch had, until the new one was there
            assert (job.rent.base, job.rent.window) == (32, 32)
            assert controller.store.jobs()[0].epoch is not None

    run(work())


def test_a_port_that_is_refused_leaves_a_job_its_slots(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            job, sids, old = await running(controller)
            await controller.add(NewJob(name="bob", workers=["h3"], slots=16))
            await controller.change("alice", JobChange(slots=32))
            assert job.group.change is not None
            for sid in sids:  # 5001 and 5002 are in use
                status = {"epoch": old, "stopped": job.group.change.id, "udp_port": 5001}
                await told(controller, sid, wait=0.0, **status)
            while job.group.sessions[0].refused_port != 5001:
                await asyncio.sleep(0.02)
            assert (job.rent.base, job.rent.window) == (0, 16)
            await controller.add(NewJob(name="carol", workers=["h4"], slots=32))
        async with controlled(record) as controller:
            rents = [(job.name, job.rent.base) for job in controller.jobs.values()]
            assert rents == [("alice", 0), ("bob", 16), ("carol", 32)]

    run(work())


def test_sessions_that_fit_no_job_are_dropped(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await running(controller)
            rows = controller.store.sessions()
            controller.store.put_sessions(
                [
                    SessionRow("a", "gone", 0, "10.0.0.1", 5),
                    SessionRow("b", "alice", 7, "10.0.0.8", 6),
                    SessionRow("c", "alice", 1, "10.0.0.3", 7),
                ]
            )
        async with controlled(record) as controller:
            assert sorted(controller.job("alice").group.sessions) == [0, 1]
            assert controller.store.sessions() == rows

    run(work())


def test_the_lost_stay_withdrawn_whatever_their_rank_becomes(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record, lease=60) as controller:
            job, sids, epoch = await running(controller)
            await controller.change("alice", JobChange(workers=["h2", "h1"]))
            session = job.group.sessions[0]
            assert (session.sid, session.host) == (sids[1], "h2")
            session.deadline = 0.0
            while 5002 in admitted(record):
                await asyncio.sleep(0.02)
            assert admitted(record) == {5001: epoch}
        async with controlled(record) as controller:
            # Nothing is to be added, not for a moment either.
            assert [e.text for e in controller.store.events()][-1] == "switch s1: in line"
            assert admitted(record) == {5001: epoch}

    run(work())


@pytest.mark.parametrize("in_between", [False, True])
def test_a_switch_and_its_controller_are_lost_at_once(
    record: NetRecord, served: Served, monkeypatch: pytest.MonkeyPatch, in_between: bool
) -> None:
    """Ranks have results that the new switch knows nothing of: only a new epoch brings them to the others.

    Also where yet another controller was killed when it had loaded the program.
    """

    async def work() -> None:
        async with controlled(record) as controller:
            _, sids, epoch = await running(controller)
        served.close()
        again = Served(1, served.address)
        try:
            if in_between:
                with monkeypatch.context() as patched:
                    patched.setattr("controller.switches.read_all", fails)
                    with pytest.raises(Killed):
                        async with controlled(record):
                            pass
            async with controlled(record) as controller:
                stop = [await told(controller, sid, epoch=epoch) for sid in sids]
                assert [(m["do"], m["why"]) for m in stop] == [("stop", "switch s1 lost its state")] * 2
                for rank, sid in enumerate(sids):
                    status = {"epoch": epoch, "stopped": stop[0]["change"], "udp_port": 6001 + rank}
                    first_missing = 40 + rank
                    go = await told(controller, sid, first_missing=first_missing, wait=rank * 30.0, **status)
                assert (go["do"], go["resume"], go["membership"]["g0"]) == ("go", True, 40)
        finally:
            again.close()

    run(work())


def test_a_rate_that_may_have_been_written_is_looked_for(
    record: NetRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Rates.set

    def late(*args: Any) -> None:
        put(*args)
        raise UnreachableError("s1", "waited 20 s")

    async def work() -> None:
        async with controlled(record) as controller:
            link = controller.links["s1"]
            with monkeypatch.context() as patched:
                patched.setattr(Rates, "set", late)
                with pytest.raises(UnreachableError):
                    await controller.add(NewJob(name="bob", workers=["h3"], slots=16, rate_bps=10**6))
            assert not link.in_line
            while not link.in_line:
                await asyncio.sleep(0.02)
            assert [key for key in read_all(link) if key[0] == "meter"] == []

    run(work())


def test_rows_that_are_none_are_told_as_that(record: NetRecord) -> None:
    async def work() -> None:
        async with controlled(record) as controller:
            await controller.add(ALICE)
        with sqlite3.connect(record.directory / "controller.db") as database:
            database.execute("UPDATE jobs SET row = '{\"name\": 1}'")
        database.close()
        with pytest.raises(StateError, match=r"controller\.db: the state file cannot be used"):
            async with controlled(record):
                pass

    run(work())
