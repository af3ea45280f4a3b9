# SPDX-License-Identifier: Apache-2.0
"""Jobs over leaves and spines, whatever happens to switches, cables and the controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller import looks, p4runtime, service, watch
from controller.errors import PoolFullError, SwitchClientError, UnreachableError
from controller.explain import standing, stuck
from controller.fabric import Cable, Dead
from controller.metrics import exposition
from controller.program.rates import Rates
from controller.requests import JobChange, NewJob, QuotaError, RequestError
from controller.service import Controller
from controller.switches import SwitchLink
from controller.watch import Watch
from tests.controller.racks import LEAVES, SPINES, Racks, Workers, racks, relay
from tests.controller.test_service import run
from topologies.record import with_switch
from wire.constants import MSG_CONTRIBUTION, SIZE_CODES
from wire.membership import Membership
from wire.packet import frames_to_switch, payload_dtype
from wire.verdicts import Verdict

ALL = ["h1", "h2", "h3", "h4"]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Racks]:
    with racks(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.1)


def cut(monkeypatch: pytest.MonkeyPatch, *cables: Cable) -> None:
    monkeypatch.setattr(watch, "cut_cables", lambda record: frozenset(cables))


async def until(ready: Any) -> None:
    while not ready():
        await asyncio.sleep(0.02)


def events(controller: Controller, job: str = "a") -> list[str]:
    return [event.text for event in controller.store.events() if event.job == job]


def test_a_job_over_two_racks_from_add_to_rm(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            empty = {name: net.held(name) for name in (*LEAVES, *SPINES)}
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16, rate_bps=8 * 10**6))
            assert {name: rent.window for name, rent in job.rents.items()} == {"s3": 16, "s1": 16, "s2": 16}
            workers = Workers.join(controller, "a")
            members = await workers.follow()
            epoch = members[0]["epoch"]
            assert [m["switch_ip"] for m in members] == ["10.0.255.1"] * 2 + ["10.0.255.2"] * 2
            assert net.admitted("s1") == dict.fromkeys(("10.0.0.1", "10.0.0.2", "10.0.255.3"), epoch)
            assert net.admitted("s2") == dict.fromkeys(("10.0.1.1", "10.0.1.2", "10.0.255.3"), epoch)
            assert net.admitted("s3") == dict.fromkeys(("10.0.255.1", "10.0.255.2"), epoch)
            assert net.admitted("s4") == {}
            # Two of four workers and a parent's results pass a leaf, two partials the spine.
            assert [job.share(name) for name in ("s1", "s3", "s4")] == [
                (6 * 10**6, 3),
                (4 * 10**6, 2),
                (None, 1),
            ]
            # In the other rack alone.
            await controller.change("a", JobChange(workers=["h3", "h4"]))
            workers.sids, workers.status = workers.sids[2:], workers.status[2:]
            workers.memberships = [{}, {}]
            members = await workers.follow()
            assert [(m["rank"], m["n"], m["switch_ip"]) for m in members] == [
                (0, 2, "10.0.255.2"),
                (1, 2, "10.0.255.2"),
            ]
            assert job.tree.switches == ("s2",)
            assert [len(net.admitted(name)) for name in (*LEAVES, *SPINES)] == [0, 2, 0, 0]
            assert {name: rent.window for name, rent in job.rents.items()} == {"s2": 16}
            await controller.remove("a")
            await until(lambda: all(link.in_line for link in controller.links.values()))
            assert {name: net.held(name) for name in empty} == empty
            assert {link.jobs.pool.free for link in controller.links.values()} == {1024}

    run(work())


def test_a_resize_is_the_same_at_all_switches(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            await workers.follow()
            workers.first_missing = 40
            await controller.change("a", JobChange(slots=32))
            members = await workers.follow()
            assert {(m["window"], m["g0"]) for m in members} == {(32, 40)}
            assert {rent.window for rent in job.rents.values()} == {32}
            controller.drain("a")
            for rank in range(4):
                stop = await workers.tell(rank)
                assert stop["do"] == "stop"

    run(work())


def test_a_killed_controller_finds_its_trees_running(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="a", workers=ALL, slots=16, rate_bps=10**8))
            workers = Workers.join(controller, "a")
            members = await workers.follow()
            before = {name: net.held(name) for name in net.served}
            row = controller.job("a").row()
        async with net.controlled() as controller:
            assert {name: net.held(name) for name in net.served} == before
            assert sorted(event.text for event in controller.store.events()[-4:]) == [
                f"switch {name}: in line" for name in net.served
            ]
            job = controller.job("a")
            assert job.row() == row
            assert (job.status, job.group.epoch) == ("running", members[0]["epoch"])
            assert not controller.sites.changed(job)
            workers.controller = controller
            await controller.change("a", JobChange(slots=8))
            assert (await workers.follow())[0]["window"] == 8

    run(work())


@pytest.mark.parametrize("at", ["s3", "s1"])
def test_killed_when_some_switches_have_the_new_epoch(
    net: Racks, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    swap, bring_up = SwitchLink.swap, SwitchLink.bring_up

    def fails_there(self: SwitchLink, *args: Any) -> Any:
        if self.name == at:
            raise UnreachableError(at, "cut")
        return swap(self, *args)

    def stays_away(self: SwitchLink, *args: Any) -> Any:
        if self.name == at:
            raise UnreachableError(at, "cut")
        return bring_up(self, *args)

    async def work() -> None:
        async with net.controlled() as controller:
            controller.sessions.lease = 1e9
            await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            old = (await workers.follow())[0]["epoch"]
            cut(monkeypatch)
            with monkeypatch.context() as patched:
                patched.setattr(SwitchLink, "swap", fails_there)
                patched.setattr(SwitchLink, "bring_up", stays_away)
                patched.setattr(Watch, "look_at_fabric", lambda self: None)
                await controller.change("a", JobChange(slots=8))
                while controller.job("a").group.epoch == old:
                    with pytest.raises(AssertionError, match="did not begin"):
                        await workers.follow(8)
        async with net.controlled() as controller:
            workers.controller = controller
            members = await workers.follow()
            assert {m["epoch"] for m in members} == {controller.job("a").group.epoch}
            for name in ("s3", "s1", "s2"):
                assert set(net.admitted(name).values()) == {members[0]["epoch"]}

    run(work())


def test_a_spine_that_dies_loses_its_jobs_to_the_other(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            other = await controller.add(NewJob(name="b", workers=ALL, slots=16))
            assert (job.tree.root.switch, other.tree.root.switch) == ("s3", "s4")
            workers = Workers.join(controller, "a")
            first = (await workers.follow())[0]["epoch"]
            workers.first_missing = 7
            net.kill("s3")
            members = await workers.follow()
            assert {m["g0"] for m in members} == {7}
            assert job.tree.switches == ("s4", "s1", "s2")
            assert net.admitted("s4") == dict.fromkeys(("10.0.255.1", "10.0.255.2"), members[0]["epoch"])
            assert net.admitted("s1")["10.0.255.4"] == members[0]["epoch"] > first
            assert "switch s3 is down" in events(controller, "")
            assert "it is summed at s4, s1, s2 from now on" in events(controller)
            net.start("s3")
            await until(lambda: controller.sites.dead == Dead())
            await until(lambda: all(link.in_line for link in controller.links.values()))
            assert net.admitted("s3") == {}
            assert controller.links["s3"].jobs.pool.free == 1024
            assert job.group.epoch == members[0]["epoch"]
            assert "switch s3 is back" in events(controller, "")

    run(work())


def test_a_spine_that_hangs_is_left_and_holds_nothing_up(net: Racks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers nothing and ends no connection; what waits for it goes on, and it is cleared afterwards."""
    monkeypatch.setattr(watch, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(p4runtime, "ALIVE_SECONDS", 0.6)

    async def work() -> None:
        address = net.record.switch("s3").grpc
        assert address is not None
        async with relay(address) as (relayed, carries):
            net.record = with_switch(net.record, "s3", grpc=relayed)
            async with net.controlled() as controller:
                job = await controller.add(NewJob(name="a", workers=ALL, slots=16, rate_bps=10**7))
                await controller.add(NewJob(name="b", workers=ALL, slots=16, switches=["s3", *LEAVES]))
                workers = Workers.join(controller, "a")
                before = (await workers.follow())[0]["epoch"]
                assert job.tree.root.switch == "s3"
                carries.clear()
                # A call that waits for it ends long before its own limit, and others after it.
                with pytest.raises(SwitchClientError):
                    await asyncio.wait_for(controller.change("a", JobChange(rate_bps=2 * 10**7)), 15)
                members = await workers.follow()
                assert (job.tree.switches, job.rate_bps) == (("s4", "s1", "s2"), 10**7)
                assert members[0]["epoch"] > before
                told = [event.text for event in controller.store.events()]
                assert any("s3 is not in line" in text and "say that it is there" in text for text in told)
                assert "switch s3 is down" in told
                await asyncio.wait_for(controller.remove("b"), 15)
                carries.set()
                await until(lambda: controller.links["s3"].in_line and not controller.sites.dead.switches)
                assert await asyncio.to_thread(net.admitted, "s3") == {}  # the relay needs this thread
                pools = {name: link.jobs.pool.free for name, link in controller.links.items()}
                assert pools == {"s1": 1008, "s2": 1008, "s3": 1024, "s4": 1008}
                await controller.remove("a")
                for name in net.served:
                    held = await asyncio.to_thread(net.held, name)
                    assert [key for key in held if key[0] == "meter"] == []

    run(work())


def test_a_controller_that_dies_with_a_spine(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            first = (await workers.follow())[0]["epoch"]
            workers.first_missing = 5
        net.kill("s3")
        async with net.controlled() as controller:
            workers.controller = controller
            members = await workers.follow()
            assert {(m["epoch"] > first, m["g0"]) for m in members} == {(True, 5)}
            assert controller.job("a").tree.switches == ("s4", "s1", "s2")
            assert controller.links["s3"].jobs.pool.free == 1024

    run(work())


def test_what_a_lost_switch_holds_goes_when_it_is_reached_again(
    net: Racks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only its server was away, it still has the entries of the epoch that moved."""
    reach = SwitchLink.reach

    def away(self: SwitchLink) -> bool:
        if self.name == "s3":
            raise UnreachableError("s3", "away")
        return reach(self)

    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            first = (await workers.follow())[0]["epoch"]
            with monkeypatch.context() as patched:
                patched.setattr(SwitchLink, "reach", away)
                controller.links["s3"].close()
                await workers.follow()
                assert net.admitted("s3") == dict.fromkeys(("10.0.255.1", "10.0.255.2"), first)
            await until(lambda: controller.links["s3"].in_line)
            assert net.admitted("s3") == {}

    run(work())


def test_a_cable_that_is_cut_and_mended(net: Racks, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            await workers.follow()
            cut(monkeypatch, frozenset({("s1", 3), ("s3", 1)}))
            await workers.follow()
            assert job.tree.switches == ("s4", "s1", "s2")
            assert "the link from s1 port 3 to s3 port 1 is down" in events(controller, "")
            cut(monkeypatch, frozenset({("s1", 3), ("s3", 1)}), frozenset({("s2", 4), ("s4", 2)}))
            while "no epoch can begin: nothing can sum for h1, h2, h3, h4" not in (
                standing(controller, job) or ""
            ):
                with pytest.raises(AssertionError, match="did not begin"):
                    await workers.follow(8)
            cut(monkeypatch, frozenset({("s2", 4), ("s4", 2)}))
            await workers.follow()
            assert job.tree.switches == ("s3", "s1", "s2")
            epoch = job.group.epoch
            cut(monkeypatch)
            await until(lambda: controller.sites.dead == Dead())
            await until(lambda: all(link.in_line for link in controller.links.values()))
            assert (job.group.epoch, job.status) == (epoch, "running")

    run(work())


def test_routes_are_right_though_what_is_dead_changes_meanwhile(
    net: Racks, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up = SwitchLink.bring_up
    begun: list[str] = []

    def slowly(self: SwitchLink, *args: Any) -> Any:
        begun.append(self.name)
        time.sleep(0.2)
        return bring_up(self, *args)

    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            await workers.follow()
            with monkeypatch.context() as patched:
                patched.setattr(SwitchLink, "bring_up", slowly)
                cut(monkeypatch, frozenset({("s1", 3), ("s3", 1)}))
                await until(lambda: len(begun) >= 4)
                cut(monkeypatch, frozenset({("s2", 3), ("s3", 2)}))
                await until(lambda: controller.sites.dead.cables == {frozenset({("s2", 3), ("s3", 2)})})
            await workers.follow()
            await until(lambda: all(link.in_line for link in controller.links.values()))
            held = {name: net.held(name) for name in net.served}

            def told() -> list[str]:
                return [e.text for e in controller.store.events() if e.kind == "switch"]

            before = len(told())
            for link in controller.links.values():  # all is compared
                link.distrust()
            right = {f"switch {name}: in line" for name in ("s1", "s2", "s3", "s4")}
            await until(lambda: right <= {*told()[before:]})
            assert {name: net.held(name) for name in net.served} == held

    run(work())


def test_a_leaf_that_is_away_is_waited_for(net: Racks, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            first = (await workers.follow())[0]["epoch"]
            net.kill("s1")
            await until(lambda: controller.links["s1"].complaint is not None)
            told = standing(controller, job)
            assert told is not None
            assert "Job a runs on switch s1, which is not reached now" in told
            assert job.group.epoch == first
            net.start("s1")
            workers.first_missing = 3
            members = await workers.follow()
            assert (members[0]["epoch"] > first, members[0]["g0"]) == (True, 3)
            assert job.tree.switches == ("s3", "s1", "s2")
            assert len(net.admitted("s1")) == 3

    run(work())


def test_a_full_leaf_is_left_out_and_full_switches_are_named(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="big", workers=["h1", "h2"], slots=1020))
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            assert [(n.switch, n.hosts, n.leaves) for n in job.tree.nodes] == [
                ("s3", ("h1", "h2"), ("s2",)),
                ("s2", ("h3", "h4"), ()),
            ]
            workers = Workers.join(controller, "a")
            members = await workers.follow()
            assert [m["switch_ip"] for m in members] == ["10.0.255.3"] * 2 + ["10.0.255.2"] * 2
            for number, switch in enumerate(("s2", "s3", "s4")):
                await controller.add(
                    NewJob(name=f"c{number}", workers=ALL, slots=1000, switches=[switch], tenant="c")
                )
            with pytest.raises(PoolFullError, match="30 slots do not fit: 24 are free"):
                await controller.add(NewJob(name="b", workers=ALL, slots=30))
            net.kill("s3")
            net.kill("s4")
            await until(lambda: {"s3", "s4"} <= controller.sites.dead.switches)
            with pytest.raises(RequestError, match="no switch of s1 that lives"):
                await controller.add(NewJob(name="b", workers=ALL, slots=4, switches=["s1"]))
            controller.set_quota("d", 20)
            with pytest.raises(QuotaError):
                await controller.add(NewJob(name="b", workers=ALL, slots=21, tenant="d"))

    run(work())


def test_no_switch_is_left_and_the_job_says_so(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            await workers.follow()
            net.kill("s3")
            net.kill("s4")
            while not job.homeless:
                with pytest.raises(AssertionError, match="did not begin"):
                    await workers.follow(15)
            told = standing(controller, job)
            assert told is not None
            assert "not reached now" in told or "no epoch can begin" in told
            net.start("s4")
            members = await workers.follow()
            assert job.tree.root.switch == "s4"
            assert members[0]["epoch"] == job.group.epoch
            assert not job.homeless
            # Once, not with each try.
            assert len([text for text in events(controller) if "no epoch can begin" in text]) <= 2

    run(work())


def test_counts_stay_with_the_ranks_when_a_job_moves(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            await workers.follow()
            tally = job.tallies.of("s1")
            assert tally.known == 2
            assert (await looks.count(job)).workers == {}
            net.kill("s3")
            await workers.follow()
            assert sorted(job.tallies.at) == ["s1", "s2", "s4"]
            assert (await looks.count(job)).workers == {}

    run(work())


def test_nothing_is_counted_twice_when_a_job_moves_meanwhile(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=4))
            other = await controller.add(NewJob(name="b", workers=ALL, slots=4))
            await controller.add(NewJob(name="big", workers=["h1", "h2"], slots=1012))
            workers = Workers.join(controller, "a")
            contribute(net, (await workers.follow())[0], 2)
            assert (job.tree.switches, other.tree.root.switch) == (("s3", "s1", "s2"), "s4")
            async with controller.links["s4"].lock:
                counting = asyncio.create_task(looks.counts([job, other]))
                await until(lambda: {"s1", "s2", "s3"} <= job.tallies.at.keys())
                await asyncio.sleep(0.2)  # all but s4 has been read
                await controller.change("a", JobChange(slots=16))
                await workers.follow()
                assert job.tree.switches == ("s3", "s2")
            found = {each.name: counts for each, counts in await counting}
            assert found.keys() == {"b"}  # half of what was read of the other is of its former tree
            expected = {0: {Verdict.ABSORBED: (2, 616)}}
            assert (await looks.count(job)).workers == expected

    run(work())


def test_a_rate_is_the_same_everywhere_or_nowhere(net: Racks, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Rates.set

    def fails_at_s2(self: Rates, link: Any, *args: Any) -> None:
        if link.name == "s2":
            raise UnreachableError("s2", "cut")
        put(self, link, *args)

    async def work() -> None:
        async with net.controlled() as controller:
            await controller.add(NewJob(name="a", workers=ALL, slots=16))
            with monkeypatch.context() as patched:
                patched.setattr(Rates, "set", fails_at_s2)
                with pytest.raises(UnreachableError):
                    await controller.change("a", JobChange(rate_bps=10**7))
            assert controller.job("a").rate_bps is None
            await until(lambda: all(link.in_line for link in controller.links.values()))
            for name in net.served:
                assert [key for key in net.held(name) if key[0] == "meter"] == []

    run(work())


def test_no_rate_is_left_where_a_job_was_to_be(net: Racks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number becomes another job's, which would be held to it."""

    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16, rate_bps=10**7))
            assert job.tree.root.switch == "s3"
            cut(monkeypatch, frozenset({("s1", 3), ("s3", 1)}))
            await until(lambda: controller.sites.dead.cables)
            await Workers.join(controller, "a").follow()
            assert job.tree.root.switch == "s4"
            rated = [name for name in net.served if any(key[0] == "meter" for key in net.held(name))]
            assert rated == ["s1", "s2", "s4"]

    run(work())


def contribute(net: Racks, member: dict[str, Any], chunks: int) -> list[tuple[int, bytes]]:
    """Send the first chunks of a rank to its switch; return what that sends."""
    membership = Membership(**member)
    packets = np.zeros(chunks, payload_dtype(64))
    packets["kind"] = MSG_CONTRIBUTION << 4 | SIZE_CODES[64]
    packets["chunk"] = packets["place"] = np.arange(chunks)
    raw = frames_to_switch(packets, membership).tobytes()
    size = len(raw) // chunks
    switch = net.record.peers(net.record.hosts[membership.rank].name)[0]
    frames = [(switch.port, raw[at : at + size]) for at in range(0, len(raw), size)]
    return net.served[switch.node].process(frames)


def test_a_partial_that_does_not_come_is_told(net: Racks) -> None:
    async def work() -> None:
        async with net.controlled() as controller:
            job = await controller.add(NewJob(name="a", workers=ALL, slots=16))
            workers = Workers.join(controller, "a")
            members = await workers.follow()
            for rank in range(4):
                assert await workers.tell(rank) == {"do": "nothing"}
            assert contribute(net, members[0], 2) == []
            partials = contribute(net, members[1], 2)
            assert {port for port, _ in partials} == {3}
            contribute(net, members[2], 1)
            first, second = await looks.slots(job)
            assert (first.chunk, first.seen, first.missing, first.lacking) == (0, [0, 1, 2], [3], ["s1"])
            assert (second.chunk, second.seen, second.missing, second.lacking) == (1, [0, 1], [2, 3], ["s1"])
            silent: list[int] = []
            text = stuck(controller, job, [first, second], {}, silent, first.age_seconds)
            assert "the partial of switch s1 for chunk 0 has not come to its parent" in text
            # The first of them arrives: s1 lacks nothing any more, and s2 as before.
            net.served["s3"].process([(1, partials[0][1])])
            first, _ = await looks.slots(job)
            assert (first.seen, first.lacking) == ([0, 1, 2], [])
            counts = await looks.count(job)
            packets = {rank: sum(n for n, _ in of.values()) for rank, of in counts.workers.items()}
            assert packets == {0: 2, 1: 2, 2: 1}
            assert counts.leaves == {"s1": {Verdict.ABSORBED: (1, 308)}}
            told = [
                (one.name, one.labels, one.value)
                for family in text_string_to_metric_families((await exposition(controller))[0])
                for one in family.samples
                if "leaf" in one.labels
            ]
            of = {"job": "a", "leaf": "s1", "verdict": "absorbed"}
            assert told == [("p4reduce_leaf_packets_total", of, 1), ("p4reduce_leaf_bytes_total", of, 308)]

    run(work())
