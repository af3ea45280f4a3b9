# SPDX-License-Identifier: Apache-2.0
"""Changes of epoch as decided: all stop before an epoch begins, nothing known is lost, all arrive."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.changes import FETCH_SECONDS, STOP_SECONDS, Group, Lost, Session, Status, without
from wire.membership import Membership

chunks = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(chunks, max_size=6), st.integers(0, 45), st.lists(chunks, max_size=6))
def test_without_is_a_difference_of_sets(
    wanted: list[tuple[int, int]], first: int, have: list[tuple[int, int]]
) -> None:
    def numbers(ranges: list[tuple[int, int]]) -> set[int]:
        return {n for low, high in ranges for n in range(low, high + 1)}

    found = without(wanted, first, have)
    assert numbers(found) == {n for n in numbers(wanted) - numbers(have) if n >= first}
    assert all(low <= high for low, high in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


def member(rank: int, n: int, epoch: int, port: int, g0: int = 0, t0: int = 0, window: int = 8) -> Membership:
    return Membership(
        job=1,
        rank=rank,
        n=n,
        switch_ip="10.0.255.1",
        switch_mac="02:01:0a:00:ff:01",
        own_ip=f"10.0.0.{rank + 1}",
        own_mac=f"02:00:0a:00:00:{rank + 1:02x}",
        own_port=port,
        window=window,
        lead=2,
        epoch=epoch,
        elements=64,
        g0=g0,
        t0=t0,
    )


def session(rank: int, port: int, sid: str = "") -> Session:
    status = Status(udp_port=port)
    return Session(sid or f"s{rank}", rank, f"h{rank + 1}", f"10.0.0.{rank + 1}", 1e9, status)


def running(n: int = 3) -> Group:
    """A group in epoch 10, entered by all its workers."""
    group = Group([f"h{r + 1}" for r in range(n)])
    group.start_change("rendezvous", True, 0.0)
    for rank in range(n):
        group.sessions[rank] = session(rank, 5000 + rank)
    assert group.step(0.0)
    group.enter(10, [member(r, n, 10, 5000 + r) for r in range(n)])
    group.installed = True
    for rank in range(n):
        told = group.instruction(group.sessions[rank])
        assert told is not None
        assert (told["do"], told["resume"]) == ("go", False)
        group.sessions[rank].status = Status(epoch=10)
    assert [group.instruction(s) for s in group.sessions.values()] == [None] * n
    return group


def says(group: Group, rank: int, **changes: object) -> None:
    now = group.sessions[rank].status
    group.sessions[rank].status = replace(now, **changes)  # type: ignore[arg-type]


def told(group: Group, rank: int) -> str | None:
    instruction = group.instruction(group.sessions[rank])
    return None if instruction is None else str(instruction["do"])


def test_nobody_begins_before_all_are_there() -> None:
    group = Group(["h1", "h2"])
    group.start_change("rendezvous", True, 0.0)
    group.sessions[0] = session(0, 5000)
    assert not group.step(0.0)
    assert group.absent == [1]
    assert told(group, 0) is None
    group.sessions[1] = session(1, 5001)
    assert group.step(0.0)


def test_a_window_changes_at_the_least_missing_chunk_and_all_carry_on() -> None:
    group = running()
    change = group.start_change("its window becomes 4 slots", False, 0.0)
    assert [told(group, r) for r in range(3)] == ["stop"] * 3
    for rank, first in enumerate((17, 12, 15)):
        assert not group.step(0.0)
        says(group, rank, stopped=change.id, udp_port=6000 + rank, first_missing=first, next_chunk=20)
        assert told(group, rank) is None
    assert group.step(0.0)
    assert change.g0 == 12
    group.enter(11, [member(r, 3, 11, 6000 + r, g0=12) for r in range(3)])
    assert [told(group, r) for r in range(3)] == [None] * 3  # not before the switch has it
    group.installed = True
    for rank in range(3):
        instruction = group.instruction(group.sessions[rank])
        assert instruction is not None
        assert (instruction["do"], instruction["resume"]) == ("go", True)
        assert instruction["membership"]["g0"] == 12


def test_a_change_while_some_have_not_entered_yet() -> None:
    group = running()
    first = group.start_change("window", False, 0.0)
    for rank in range(3):
        says(group, rank, stopped=first.id, udp_port=6000 + rank, first_missing=30 + rank)
    assert group.step(0.0)
    group.enter(11, [member(r, 3, 11, 6000 + r, g0=30) for r in range(3)])
    group.installed = True
    says(group, 0, epoch=11, stopped=0, udp_port=0, first_missing=30)  # the others have not asked yet
    second = group.start_change("switch s1 lost its state", False, 1.0)
    assert [told(group, r) for r in range(3)] == ["stop"] * 3
    for rank in range(3):
        says(group, rank, stopped=second.id, udp_port=7000 + rank)
    assert group.step(1.0)
    assert second.g0 == 30  # nobody can have a result of epoch 11
    group.enter(12, [member(r, 3, 12, 7000 + r, g0=30) for r in range(3)])
    group.installed = True
    for rank in range(3):
        instruction = group.instruction(group.sessions[rank])
        assert instruction is not None
        assert instruction["resume"]


def test_survivors_fetch_what_any_of_them_has_then_fail_together() -> None:
    group = running()
    group.lose(group.sessions[2], "it said nothing for 10 s", 0.0)
    change = group.change
    assert change is not None
    assert change.members
    says(group, 0, stopped=change.id, udp_port=6000, first_missing=5, have=((7, 8),), next_chunk=12, begun=3)
    assert not group.step(0.0)
    says(group, 1, stopped=change.id, udp_port=6001, first_missing=6, have=((9, 9),), next_chunk=11, begun=2)
    assert not group.step(0.0)
    fetch = [group.instruction(group.sessions[r]) for r in range(2)]
    assert fetch[0] == {"do": "fetch", "change": change.id, "chunks": [(5, 5), (9, 9)]}
    assert fetch[1] == {"do": "fetch", "change": change.id, "chunks": [(7, 8)]}
    says(group, 0, fetched=True, first_missing=6, have=((7, 9),))
    says(group, 1, fetched=True)
    assert not group.step(0.0)
    fail = group.instruction(group.sessions[0])
    assert fail == {
        "do": "fail",
        "change": change.id,
        "begun": 3,
        "lost": [{"rank": 2, "host": "h3", "why": "it said nothing for 10 s"}],
    }
    says(group, 0, failed=change.id)
    says(group, 1, failed=change.id)
    assert not group.step(0.0)  # rank 2 is missing
    group.sessions[2] = session(2, 7002, "again")
    assert group.step(0.0)
    assert (group.next_chunk, group.begun) == (12, 3)
    group.enter(11, [member(r, 3, 11, p, g0=12, t0=3) for r, p in enumerate((6000, 6001, 7002))])
    group.installed = True
    again = [group.instruction(group.sessions[r]) for r in range(3)]
    assert [i is not None and (i["do"], i["resume"]) for i in again] == [("go", False)] * 3


def test_who_does_not_stop_or_fetch_in_time_is_lost() -> None:
    group = running()
    change = group.start_change("window", False, 0.0)
    says(group, 0, stopped=change.id, udp_port=6000, first_missing=4)
    says(group, 1, stopped=change.id, udp_port=6001, first_missing=6)
    group.step(STOP_SECONDS / 2)
    assert group.absent == []
    group.step(STOP_SECONDS)
    assert group.absent == [2]
    again = group.change
    assert again is not None
    assert again.members
    assert again.id != change.id  # who had stopped is asked once more: now for what it has
    for rank, first in enumerate((4, 6)):
        says(group, rank, stopped=again.id, first_missing=first)
    group.step(STOP_SECONDS)
    assert told(group, 0) == "fetch"
    group.step(STOP_SECONDS + FETCH_SECONDS)
    assert group.absent == [0, 2]
    assert [who.rank for who in again.lost] == [2, 0]


def test_a_port_that_cannot_be_had_is_asked_for_again() -> None:
    group = running(2)
    change = group.start_change("window", False, 0.0)
    for rank in range(2):
        says(group, rank, stopped=change.id, udp_port=6000 + rank)
    assert group.step(0.0)
    group.sessions[1].refused_port = 6001
    group.ask_again(0.0)
    assert [told(group, r) for r in range(2)] == ["stop", "stop"]
    assert group.change is not None
    for rank in range(2):
        says(group, rank, stopped=group.change.id)
    assert not group.step(0.0)
    says(group, 1, udp_port=6009)
    assert group.step(0.0)


def test_a_fresh_worker_whose_port_is_refused_is_told_to_stop() -> None:
    group = Group(["h1"])
    group.start_change("rendezvous", True, 0.0)
    group.sessions[0] = session(0, 5000)
    assert group.step(0.0)
    group.sessions[0].refused_port = 5000
    group.ask_again(0.0)
    assert not group.step(0.0)
    assert told(group, 0) == "stop"
    assert group.change is not None
    says(group, 0, stopped=group.change.id, udp_port=5007)
    assert group.step(0.0)


@pytest.mark.parametrize(("why", "lost"), [("mismatch", []), ("interrupted", [0])])
def test_a_rank_that_ends_its_call_asks_for_new_members(why: str, lost: list[int]) -> None:
    group = running(2)
    says(group, 0, left=why)
    group.heed(group.sessions[0], 0.0)
    assert group.change is not None
    assert group.change.members
    assert [who.rank for who in group.change.lost] == lost
    group.heed(group.sessions[0], 0.0)
    assert [who.rank for who in group.change.lost] == lost
    assert group.absent == []


def test_drain_is_told_when_all_have_stopped_and_before_they_go_on() -> None:
    group = running(2)
    group.draining = 0
    change = group.start_change("it is being drained", False, 0.0)
    for rank, begun in enumerate((4, 3)):
        assert told(group, rank) == "stop"
        says(group, rank, stopped=change.id, udp_port=6000 + rank, begun=begun, first_missing=20)
        assert group.step(0.0) == (rank == 1)
    assert [group.instruction(s) for s in group.sessions.values()] == [{"do": "drain", "begun": 4}] * 2
    assert [told(group, r) for r in range(2)] == [None] * 2  # once
    group.enter(11, [member(r, 2, 11, 6000 + r, g0=20) for r in range(2)])
    group.installed = True
    assert [told(group, r) for r in range(2)] == ["go"] * 2


def test_what_a_rank_had_that_left_is_fetched_too() -> None:
    group = running(2)
    says(group, 1, stopped=0, first_missing=9, have=((11, 12),), next_chunk=14)
    group.lose(group.sessions[1], "it left the job", 0.0)
    assert group.change is not None
    says(group, 0, stopped=group.change.id, udp_port=6000, first_missing=7, next_chunk=14)
    assert not group.step(0.0)
    assert group.instruction(group.sessions[0]) == {
        "do": "fetch",
        "change": group.change.id,
        "chunks": [(7, 8), (11, 12)],
    }


def test_who_has_not_entered_yet_has_begun_all_the_same() -> None:
    group = running(2)
    first = group.start_change("window", False, 0.0)
    for rank in range(2):
        says(group, rank, stopped=first.id, udp_port=6000 + rank, first_missing=9, next_chunk=12, begun=1)
    assert group.step(0.0)
    group.enter(11, [member(r, 2, 11, 6000 + r, g0=9) for r in range(2)])
    group.installed = True
    says(group, 0, epoch=11, stopped=0, udp_port=0)
    says(group, 1, next_chunk=15, begun=2)  # told of the new epoch a moment later
    group.lose(group.sessions[0], "killed", 0.0)
    assert group.change is not None
    says(group, 1, stopped=group.change.id, udp_port=7001)
    group.step(0.0)
    fail = group.instruction(group.sessions[1])
    assert fail is not None
    assert (fail["do"], fail["begun"], group.next_chunk) == ("fail", 2, 15)


@dataclass
class Puppet:
    """A worker as the protocol has it: what it says, and what it does when it is told."""

    rank: int
    port: int
    epoch: int = 0
    stopped: int = 0
    failed: int = 0
    fetched: bool = False
    results: set[int] = field(default_factory=set)
    g0: int = 0
    next_chunk: int = 0
    begun: int = 0
    window: int = 8

    def status(self) -> Status:
        first = self.g0
        while first in self.results:
            first += 1
        above = sorted(g for g in self.results if g > first)
        return Status(
            epoch=self.epoch,
            begun=self.begun,
            next_chunk=self.next_chunk,
            first_missing=first,
            stopped=self.stopped,
            udp_port=self.port,
            have=tuple((g, g) for g in above) if self.stopped else (),
            fetched=self.fetched,
            failed=self.failed,
        )


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_losses_and_late_answers(seed: int) -> None:
    """Statuses and instructions are delayed, repeated and lost; workers die and come again."""
    draw = random.Random(seed)
    n = draw.randint(1, 5)
    group = Group([f"h{r + 1}" for r in range(n)])
    group.start_change("rendezvous", True, 0.0)
    ports = iter(range(5000, 60000))
    puppets: dict[int, Puppet] = {}
    epochs = iter(range(1, 10000))
    sums: dict[tuple[int, int], frozenset[int]] = {}  # (epoch, chunk): who contributed
    quiet_from, now = 3000, 0.0
    for step in range(6000):
        now += 0.01
        rank = draw.randrange(n)
        puppet = puppets.get(rank)
        calm = step >= quiet_from
        if puppet is None:
            if calm or draw.random() < 0.1:
                puppets[rank] = Puppet(rank, next(ports))
                group.sessions[rank] = session(rank, puppets[rank].port, f"{rank}/{step}")
        elif not calm and draw.random() < 0.003:  # killed, and noticed by its lease
            del puppets[rank]
            if rank in group.sessions:
                group.lose(group.sessions[rank], "killed", now)
        elif draw.random() < 0.5:  # data: within the send rule; a chunk is summed when all contributed
            if puppet.epoch and not puppet.stopped:
                first = puppet.status().first_missing
                if puppet.next_chunk < first + puppet.window:
                    puppet.next_chunk += 1
                    puppet.begun = max(puppet.begun, puppet.next_chunk // 16 + 1)
                g = draw.randrange(puppet.g0, puppet.next_chunk) if puppet.next_chunk > puppet.g0 else None
                if g is not None:
                    key = (puppet.epoch, g)
                    sums[key] = sums.get(key, frozenset()) | {rank}
                    if len(sums[key]) == n and draw.random() < 0.7:
                        puppet.results.add(g)
        else:
            live = group.sessions.get(rank)
            if live is None:  # told that it is over: it starts again
                del puppets[rank]
                continue
            if draw.random() < 0.8:
                live.status = puppet.status()
            instruction = group.instruction(live)
            if instruction is not None and draw.random() < 0.8:
                do = instruction["do"]
                if do == "stop" and puppet.stopped != instruction["change"]:
                    puppet.stopped, puppet.fetched, puppet.port = instruction["change"], False, next(ports)
                elif do == "fetch" and puppet.stopped == instruction["change"]:
                    for low, high in instruction["chunks"]:
                        for g in range(low, high + 1):
                            assert len(sums[puppet.epoch, g]) == n  # it is in the old epoch's slot
                            assert g < puppet.next_chunk
                            puppet.results.add(g)
                    puppet.fetched = True
                elif do == "fail":
                    puppet.failed = instruction["change"]
                    puppet.begun = max(puppet.begun, instruction["begun"])
                elif do == "go" and instruction["membership"]["own_port"] == puppet.port:
                    m = instruction["membership"]
                    if m["epoch"] == puppet.epoch:
                        continue  # an answer to a status of before
                    if instruction["resume"]:
                        assert m["g0"] <= puppet.status().first_missing
                    else:
                        assert m["g0"] >= puppet.next_chunk
                        assert m["t0"] >= puppet.begun
                        puppet.next_chunk, puppet.begun = m["g0"], m["t0"]
                    puppet.results.clear()
                    puppet.next_chunk = max(m["g0"], puppet.next_chunk) if instruction["resume"] else m["g0"]
                    puppet.g0, puppet.epoch, puppet.window = m["g0"], m["epoch"], m["window"]
                    puppet.stopped = puppet.failed = 0
                    puppet.fetched = False
        if not calm and group.running and draw.random() < 0.004:
            group.start_change("window", False, now)
        if group.step(now):
            change = group.change
            assert change is not None
            for r, one in puppets.items():  # nobody who lives may still send in the old epoch
                assert one.epoch != group.epoch or one.stopped == change.id or not group.epoch, (r, one)
            survivors = [p for p in puppets.values() if p.epoch and p.epoch == group.epoch]
            if change.members:
                g0, t0 = group.next_chunk, group.begun
                assert len({frozenset(p.results) for p in survivors}) <= 1
                assert all(p.next_chunk <= g0 and p.begun <= t0 for p in survivors)
            else:
                g0, t0 = change.g0, group.memberships[0].t0
                assert g0 <= min((p.status().first_missing for p in survivors), default=g0)
            epoch = next(epochs)
            used = [group.sessions[r].status.udp_port for r in range(n)]
            group.enter(epoch, [member(r, n, epoch, used[r], g0, t0, draw.randint(2, 8)) for r in range(n)])
            group.installed = True
        arrived = [p for p in puppets.values() if p.epoch == group.epoch]
        if calm and group.running and len(arrived) == n:
            return
    raise AssertionError(f"stuck: {group.change} {puppets}")


def test_lost_are_named_once() -> None:
    group = running(3)
    group.lose(group.sessions[1], "killed", 0.0)
    group.start_change("again", True, 0.0, [Lost(1, "h2", "killed")])
    assert group.change is not None
    assert [who.rank for who in group.change.lost] == [1]


def test_when_all_have_gone_the_job_waits_for_workers_whatever_ended_it() -> None:
    group = running(2)
    for rank in range(2):
        group.lose(group.sessions[rank], "it left the job", 0.0)
    assert group.change is not None
    assert group.change.why == "the job waits for its workers"
