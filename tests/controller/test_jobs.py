# SPDX-License-Identifier: Apache-2.0
"""JobController on a switch that only keeps entries: what is installed, in which order, and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.epochs import EpochStore
from controller.errors import BindAgainError, FieldError, JobError, PoolFullError, RollbackError, WriteError
from controller.jobs import JobController, SwitchSite, WorkerSeat
from tests.controller.fakes import DELETE, INSERT, FakeSwitch
from wire.membership import MembershipError

SITE = SwitchSite("10.0.255.1", "02:01:0a:00:ff:01", 64, 1024)
MEMBERS = "SwitchIngress.handle.aggregation.admission.members"
RECEIVERS = "SwitchEgress.receivers.receivers"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(switch: FakeSwitch, tmp_path: Path, clock: Clock) -> JobController:
    return JobController(switch, SITE, EpochStore(tmp_path / "state.db", clock))


def seats(n: int, first_port: int = 40000, hosts: int = 1) -> list[WorkerSeat]:
    return [
        WorkerSeat(f"h{h}", f"10.0.0.{h}", f"02:00:0a:00:00:{h:02x}", h, first_port + h)
        for h in range(hosts, hosts + n)
    ]


def ip(text: str) -> int:
    return int.from_bytes(bytes(map(int, text.split("."))), "big")


def test_what_a_job_is_on_the_switch(switch: FakeSwitch, jobs: JobController) -> None:
    memberships = jobs.add_job(7, seats(3), 64)
    job = jobs.job(7)
    assert [m.rank for m in memberships] == [0, 1, 2]
    for m, seat in zip(memberships, seats(3), strict=True):
        assert (m.job, m.n, m.switch_ip, m.switch_mac) == (7, 3, SITE.ip, SITE.mac)
        assert (m.own_ip, m.own_mac, m.own_port) == (seat.ip, seat.mac, seat.udp_port)
        assert (m.window, m.lead, m.epoch, m.elements, m.g0, m.t0) == (64, 16, 1_000_000, 64, 0, 0)
    assert switch.groups() == {job.group: [(s.port, r) for s, r in zip(seats(3), job.rids, strict=True)]}
    assert sorted(tuple(row.key.values()) for row in switch.rows(MEMBERS)) == [
        (s.port, ip(s.ip), s.udp_port, 0xBE07) for s in seats(3)
    ]
    for bit, row in enumerate(switch.rows(MEMBERS)):
        assert row.args == {
            "bit_index": bit,
            "mask": 1 << bit,
            "full": 0b111,
            "base": 0,
            "window": 64,
            "epoch": 1_000_000,
            "group": job.group,
        }
    for rid, seat, row in zip(job.rids, seats(3), switch.rows(RECEIVERS), strict=True):
        assert row.key == {"rid": rid}
        assert row.args["dst_ip"] == ip(seat.ip)
        assert (row.args["src_port"], row.args["dst_port"]) == (0xBE07, seat.udp_port)
    jobs.remove_job(7)
    assert switch.held == {}
    assert (jobs.pool.free, jobs.jobs) == (1024, {})


def test_order_of_levels(switch: FakeSwitch, jobs: JobController) -> None:
    def kinds() -> list[str]:
        return [words.split("[")[0].rpartition(".")[2].split(" of")[0] for words in switch.log]

    jobs.add_job(1, seats(2), 8)
    assert kinds() == ["INSERT multicast group 1", *["receivers"] * 2, *["members"] * 2]
    switch.log.clear()
    jobs.new_epoch(1, seats(2, 50000), g0=9, t0=2)
    assert [words.split()[0] for words in switch.log] == ["DELETE"] * 5 + ["INSERT"] * 5
    assert kinds() == [
        *["members"] * 2,
        *["receivers"] * 2,
        "DELETE multicast group 1",
        "INSERT multicast group 2",
        *["receivers"] * 2,
        *["members"] * 2,
    ]


def test_a_new_epoch_shares_nothing_with_the_old_one(switch: FakeSwitch, jobs: JobController) -> None:
    jobs.add_job(1, seats(3), 8, lead=3)
    old = jobs.job(1)
    new_members = jobs.new_epoch(1, seats(3, 50000), g0=2**40, t0=5)
    new = jobs.job(1)
    assert new.epoch > old.epoch
    assert new.group != old.group
    assert not set(new.rids) & set(old.rids)
    assert (new.base, new.window, new.lead) == (old.base, 8, 3)
    assert {(m.g0, m.t0, m.epoch, m.lead) for m in new_members} == {(2**40, 5, new.epoch, 3)}
    assert {row.args["epoch"] for row in switch.rows(MEMBERS)} == {new.epoch}
    assert len(switch.held) == 7


def test_window_and_members_change(switch: FakeSwitch, jobs: JobController) -> None:
    jobs.add_job(2, seats(2, hosts=10), 100)
    jobs.add_job(1, seats(2), 600, lead=10)
    grown = jobs.new_epoch(1, seats(3, 50000), g0=0, t0=0, window=700, lead=20)
    assert [(m.n, m.window, m.lead) for m in grown] == [(3, 700, 20)] * 3
    assert jobs.job(1).base == 100  # 700 slots fit only where its own old ones are free again
    with pytest.raises(JobError, match="its lead is 20 and changes only where its members change"):
        jobs.new_epoch(1, seats(3, 51000), g0=0, t0=0, lead=5)
    with pytest.raises(JobError, match=r"its lead is 1\.\.10, its window, not 20"):
        jobs.new_epoch(1, seats(3, 51000), g0=0, t0=0, window=10)


def test_a_refused_change_leaves_the_old_epoch(switch: FakeSwitch, jobs: JobController) -> None:
    jobs.add_job(1, seats(2), 500)
    jobs.add_job(2, seats(2, hosts=10), 500)
    old, held, log = jobs.job(1), dict(switch.held), len(switch.log)
    with pytest.raises(PoolFullError, match="600 slots do not fit: 524 are free, 500 of them in one run"):
        jobs.new_epoch(1, seats(2, 50000), g0=0, t0=0, window=600)
    with pytest.raises(BindAgainError, match="in use by a job"):
        jobs.new_epoch(1, seats(2), g0=0, t0=0)
    with pytest.raises(MembershipError, match="g0"):
        jobs.new_epoch(1, seats(2, 50100), g0=-1, t0=0)
    assert jobs.job(1) is old
    assert switch.held == held
    assert len(switch.log) == log
    assert jobs.pool.free == 24
    jobs.new_epoch(1, seats(2, 50200), g0=0, t0=0)


@pytest.mark.parametrize("fail_at", range(7))
def test_what_fails_is_taken_back(switch: FakeSwitch, jobs: JobController, fail_at: int) -> None:
    jobs.add_job(1, seats(2), 8)
    held = dict(switch.held)
    inserts = iter(range(100))

    def refuse(update: Any) -> str | None:
        return "RESOURCE_EXHAUSTED" if update.type == INSERT and next(inserts) == fail_at else None

    switch.refuse = refuse
    with pytest.raises(WriteError, match="RESOURCE_EXHAUSTED"):
        jobs.add_job(2, seats(3, hosts=10), 8)
    assert switch.held == held
    assert (list(jobs.jobs), jobs.pool.free) == ([1], 1016)
    switch.refuse = lambda update: None
    jobs.add_job(2, seats(3, 50000, hosts=10), 8)
    assert jobs.job(2).base == 8


def test_what_somebody_else_installed_is_not_taken_back(
    switch: FakeSwitch, jobs: JobController, tmp_path: Path, clock: Clock
) -> None:
    jobs.add_job(1, seats(2), 8)
    held = dict(switch.held)
    stranger = JobController(switch, SITE, EpochStore(tmp_path / "other.db", clock))
    with pytest.raises(WriteError, match="INSERT multicast group 1 of 1: ALREADY_EXISTS"):
        stranger.add_job(2, seats(1, hosts=9), 8)
    assert switch.held == held


def test_taking_back_fails_too(switch: FakeSwitch, jobs: JobController) -> None:
    members = switch.p4info.table(MEMBERS).id

    def refuse(update: Any) -> str | None:
        if update.type == DELETE:
            return "INTERNAL"
        return "RESOURCE_EXHAUSTED" if update.entity.table_entry.table_id == members else None

    switch.refuse = refuse
    with pytest.raises(
        RollbackError, match=r"job 2: .*RESOURCE_EXHAUSTED.*taking it back failed too.*INTERNAL"
    ):
        jobs.add_job(2, seats(1), 8)
    switch.refuse = lambda update: None
    jobs.add_job(3, seats(1, 50000), 8)
    assert jobs.job(3).base == 8  # what the switch may still use is not rented out
    assert jobs.job(3).group == 2


def test_a_job_that_cannot_be_withdrawn_is_still_known(switch: FakeSwitch, jobs: JobController) -> None:
    jobs.add_job(1, seats(2), 8)
    old = jobs.job(1)
    switch.refuse = lambda update: "INTERNAL" if update.type == DELETE else None
    with pytest.raises(WriteError):
        jobs.remove_job(1)
    with pytest.raises(WriteError):
        jobs.new_epoch(1, seats(2, 50000), g0=0, t0=0)
    assert (jobs.job(1), jobs.pool.free) == (old, 1016)
    switch.refuse = lambda update: None
    jobs.new_epoch(1, seats(2, 50100), g0=0, t0=0)
    jobs.remove_job(1)
    assert (switch.held, jobs.pool.free) == ({}, 1024)


def test_a_switch_that_lost_everything(switch: FakeSwitch, jobs: JobController) -> None:
    jobs.add_job(1, seats(2), 8)
    switch.held.clear()
    jobs.new_epoch(1, seats(2, 50000), g0=4, t0=1)
    assert len(switch.held) == 5


@pytest.mark.parametrize(
    ("job", "n", "window", "lead", "says"),
    [
        (256, 1, 8, None, "job numbers are 0..255"),
        (-1, 1, 8, None, "job numbers are 0..255"),
        (1, 0, 8, None, "1..64 workers on one switch, not 0"),
        (1, 65, 8, None, "1..64 workers on one switch, not 65"),
        (1, 1, 0, None, "window is 1..1024, the switch's slots, not 0"),
        (1, 1, 1025, None, "window is 1..1024, the switch's slots, not 1025"),
        (1, 1, 8, 9, "lead is 1..8, its window, not 9"),
        (1, 1, 8, 0, "lead is 1..8, its window, not 0"),
    ],
)
def test_arguments(
    jobs: JobController, switch: FakeSwitch, job: int, n: int, window: int, lead: int | None, says: str
) -> None:
    with pytest.raises(JobError, match=says.replace(".", r"\.")):
        jobs.add_job(job, seats(n), window, lead)
    assert switch.log == []


def test_unknown_and_known_jobs(jobs: JobController) -> None:
    with pytest.raises(JobError, match="job 4: there is no such job, nor any other"):
        jobs.remove_job(4)
    jobs.add_job(3, seats(1), 8)
    with pytest.raises(JobError, match="job 4: there is no such job; there is 3"):
        jobs.new_epoch(4, seats(1), g0=0, t0=0)
    with pytest.raises(JobError, match="job 3: is already there"):
        jobs.add_job(3, seats(1), 8)


def test_a_seat_that_cannot_be(jobs: JobController, switch: FakeSwitch) -> None:
    good = seats(1)[0]
    for bad, kind in (
        (WorkerSeat("h1", "10.0.0.300", good.mac, 1, 4000), FieldError),
        (WorkerSeat("h1", good.ip, good.mac, 512, 4001), FieldError),
        (WorkerSeat("h1", good.ip, "02:00:0A:00:00:01", 1, 4002), MembershipError),
    ):
        with pytest.raises(kind):
            jobs.add_job(1, [bad], 8)
    assert (switch.log, jobs.jobs, jobs.pool.free) == ([], {}, 1024)


@given(st.data())
def test_live_jobs_never_share(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Over random adds, removals and epochs: slots, groups, replication ids and epochs are each one job's."""
    clock = Clock()
    switch = FakeSwitch()
    jobs = JobController(
        switch,
        SwitchSite(SITE.ip, SITE.mac, 64, 40),
        EpochStore(tmp_path_factory.mktemp("jobs") / "s", clock),
    )
    port, epochs = 20000, []
    for _ in range(data.draw(st.integers(1, 12))):
        number, n, window = (data.draw(st.integers(*r)) for r in ((0, 3), (1, 3), (1, 20)))
        port += 10
        action = data.draw(st.sampled_from(["add", "remove", "epoch"]))
        try:
            if action == "add":
                jobs.add_job(number, seats(n, port, hosts=number * 10 + 1), window)
            elif action == "remove":
                jobs.remove_job(number)
            else:
                jobs.new_epoch(number, seats(n, port, hosts=number * 10 + 1), g0=0, t0=0, window=window)
        except (JobError, PoolFullError):
            continue
        if number in jobs.jobs:
            epochs.append(jobs.job(number).epoch)
        live = list(jobs.jobs.values())
        slots = [s for job in live for s in range(job.base, job.base + job.window)]
        rids = [rid for job in live for rid in job.rids]
        assert len(slots) == len(set(slots)) == 40 - jobs.pool.free
        assert len(rids) == len(set(rids))
        assert len(switch.groups()) == len(live)
        assert len(switch.held) == sum(1 + 2 * len(job.seats) for job in live)
    assert epochs == sorted(set(epochs))
