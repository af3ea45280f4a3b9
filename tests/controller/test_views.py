# SPDX-License-Identifier: Apache-2.0
"""What the API tells of running jobs: slots, explanations, counts, and what a switch holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.explain import standing
from controller.looks import arrived
from controller.program.verdicts import JobVerdicts
from controller.tally import OTHERS, JobCounts, JobTally
from tests.controller.office import Member, Office
from tests.controller.served import Served
from tests.worker.jobs import begin
from wire.control import RefusedError
from wire.verdicts import Verdict
from worker.memory import reduce_together

HEADER, ELEMENTS = 52, 64
FRAME = HEADER + 4 * ELEMENTS


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(1)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def office(served: Served, tmp_path: Path) -> Iterator[Office]:
    with Office(tmp_path, served) as made:
        yield made
        for name in list(made.controller.jobs):
            made.run(made.controller.remove(name))


def get(office: Office, path: str) -> Any:
    with office.client() as client:
        return client.call("GET", path)


def reduce(office: Office, members: list[Member], length: int) -> None:
    """One all-reduce of `length` int32, its sums checked; then all ranks tell how they stand."""
    inputs = [np.arange(length, dtype=np.int32) + member.rank for member in members]
    found = reduce_together(office.fabric, [member.worker for member in members], inputs)
    for result in found:
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, sum(inputs))
    tell(office, members)


def tell(office: Office, members: list[Member]) -> None:
    with office.client() as client:
        for member in members:
            member.tell(client)


def send(member: Member, length: int) -> int:
    """Begin an all-reduce of `length` values at one worker, and send what it may; returns the packets."""
    engine = member.worker.engine
    begin(engine, np.ones(length, np.int32))
    packets = engine.poll(0.0)
    member.worker.transport.send(packets)
    return len(packets)


def samples(office: Office) -> dict[tuple[str, ...], float]:
    """/metrics as {(name, labels' values by the labels' names...): value}."""
    with office.client() as client:
        text = client.text("/metrics")
    return {
        (sample.name.removeprefix("p4reduce_"), *dict(sorted(sample.labels.items())).values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_slots(office: Office) -> None:
    office.add("first", [7001], slots=5)  # so that the next pool begins at slot 5
    members = office.add("a", [7011, 7012, 7013], slots=8)
    assert get(office, "/v1/jobs/a/slots") == []
    reduce(office, members, ELEMENTS * 12)  # 13 chunks with the header packet
    told = get(office, "/v1/jobs/a/slots")
    assert [slot["chunk"] for slot in told] == list(range(13))
    assert [(slot["slot"], slot["version"]) for slot in told] == [(c % 8, c // 8 % 2) for c in range(13)]
    assert all(slot["done"] and slot["seen"] == [0, 1, 2] and slot["missing"] == [] for slot in told)
    assert {slot["epoch"] for slot in told} == {members[0].worker.membership.epoch}
    assert send(members[1], ELEMENTS) == 2
    send(members[2], ELEMENTS)
    tell(office, members)
    first, again = get(office, "/v1/jobs/a/slots"), get(office, "/v1/jobs/a/slots")
    waiting = [slot for slot in first if not slot["done"]]
    assert [(s["chunk"], s["seen"], s["missing"]) for s in waiting] == [(13, [1, 2], [0]), (14, [1, 2], [0])]
    ages = {slot["chunk"]: slot["age_seconds"] for slot in again}
    assert all(ages[slot["chunk"]] > slot["age_seconds"] for slot in first)
    assert all(slot["age_seconds"] == 0 for slot in waiting)


def chunks(office: Office, *numbers: Any) -> Any:
    with office.client() as client:
        return client.call("GET", "/v1/jobs/a/chunks", chunk=list(numbers))


def test_chunks_say_who_has_not_contributed(office: Office) -> None:
    office.add("first", [7001], slots=5)
    members = office.add("a", [7011, 7012, 7013], slots=8)
    nobody = [{"rank": rank, "host": f"h{rank + 1}"} for rank in range(3)]
    assert chunks(office, 3) == [{"chunk": 3, "missing": nobody}]
    reduce(office, members, ELEMENTS * 12)  # 13 chunks with the header packet
    send(members[1], ELEMENTS)
    assert chunks(office, 15, 13, 12, 14, 14) == [
        {"chunk": 12, "missing": []},
        {"chunk": 13, "missing": [nobody[0], nobody[2]]},
        {"chunk": 14, "missing": [nobody[0], nobody[2]]},
        {"chunk": 15, "missing": nobody},
    ]
    # Slots 5 and 6 of version 1 hold chunks 13 and 14 and never those of 16 before.
    assert chunks(office, 29) == [{"chunk": 29, "missing": nobody}]
    for member in (members[0], members[2]):
        send(member, ELEMENTS)
    for member in members:
        member.worker.engine.on_results(member.worker.transport.receive(0.0), 0.1)
    reduce(office, members, ELEMENTS * 20)  # chunks 15 to 35: slots are used anew
    assert chunks(office, 13, 30) == [{"chunk": 30, "missing": []}]


@pytest.mark.parametrize("numbers", [[], [-1], ["x"], [1] * 9])
def test_chunks_are_few(office: Office, numbers: list[Any]) -> None:
    office.add("a", [7015], slots=8)
    with pytest.raises(RefusedError, match="chunk") as caught:
        chunks(office, *numbers)
    assert caught.value.status == 422


def test_chunks_between_two_epochs(office: Office) -> None:
    with office.client() as client:
        client.call("POST", "/v1/jobs", {"name": "a", "workers": ["h1"], "slots": 8})
    with pytest.raises(RefusedError, match="job a is between two epochs"):
        chunks(office, 1)


def test_tags_are_unwrapped_beyond_32_bits(office: Office) -> None:
    (member,) = office.add("a", [7021], slots=4)
    job = office.controller.job("a")
    g0 = (5 << 32) - 3
    job.group.next_chunk = g0  # as if the job had run for long
    office.run(_new_epoch(office, "a"))
    with office.client() as client:
        again = Member(office, "a", 0, 7022)
        again.join(client)
        again.enter(client)
    assert again.worker.membership.g0 == g0
    reduce(office, [again], ELEMENTS * 5)
    told = get(office, "/v1/jobs/a/slots")
    assert [slot["chunk"] for slot in told] == list(range(g0, g0 + 6))
    assert [slot["slot"] for slot in told] == [c % 4 for c in range(g0, g0 + 6)]
    assert member.sid != again.sid


async def _new_epoch(office: Office, name: str) -> None:
    """Let the only worker of a job go, so that the next one begins an epoch of its own."""
    job = office.controller.job(name)
    office.controller.sessions.leave(job.group.sessions[0].sid)


def explain(office: Office, name: str = "a") -> str:
    text: str = get(office, f"/v1/jobs/{name}/explain")["text"]
    assert "\n" not in text
    return text


def test_explain_says_who_is_awaited(office: Office) -> None:
    with office.client() as client:
        client.call("POST", "/v1/jobs", {"name": "a", "workers": ["h1", "h2", "h3"], "slots": 8})
        Member(office, "a", 1, 7031).join(client)
    assert explain(office) == (
        "Job a waits for worker 0 on h1 and worker 2 on h3 to join: 1 of its 3 workers are there."
    )


def test_explain_of_a_job_that_stands(office: Office) -> None:
    members = office.add("a", [7041, 7042, 7043], slots=8)
    office.attend(members)
    for session in office.controller.job("a").group.sessions.values():
        session.moved -= 1000  # they joined long ago, and wait for nothing since
    nothing = "Job a runs, and no chunk was completed in the last 0.5 s: "
    assert explain(office) == nothing + "no rank has begun an all-reduce yet."
    reduce(office, members, 100)
    idle = "it is idle, since all ranks have finished all-reduce 1 and none has begun a further one."
    assert explain(office) == nothing + idle
    send(members[0], 100)
    send(members[1], 100)
    text = explain(office)
    assert text.startswith(nothing + "worker 2 on h3 has not contributed to chunk 3 for ")
    assert float(text.split(" chunk 3 for ")[1].split(" s ")[0]) < 500
    assert "(it has begun 1 all-reduces, others 2); none of its packets came in the last 0.5 s." in text
    send(members[2], 100)  # now it has contributed, and nobody takes the results in
    text = explain(office)
    assert text.startswith(nothing + "worker 0 on h1 has not received the result of chunk 3 for ")
    assert "though the switch has it; none of its packets came in the last 0.5 s; and worker 1 on h2" in text


def test_explain_tells_who_does_not_answer(office: Office) -> None:
    members = office.add("a", [7045, 7046], slots=4)
    office.attend(members[:1])
    reduce(office, members, 64 * 6)
    members[1].worker.engine.stop("paused")  # it hears nothing of the next all-reduce
    send(members[0], 64 * 6)
    text = explain(office)
    assert "worker 1 on h2 has not contributed to chunk 7 for " in text
    assert " Worker 1 on h2 does not answer, and counts as lost in " in text
    assert "Worker 0" not in text


def test_explain_tells_of_refused_packets(office: Office) -> None:
    members = office.add("a", [7051, 7052], slots=8)
    former = members[1].worker
    with office.client() as client:
        client.call("DELETE", f"/v1/sessions/{members[1].sid}")
        client.call("DELETE", f"/v1/sessions/{members[0].sid}")
        again = [Member(office, "a", 0, 7061), Member(office, "a", 1, 7062)]
        for member in again:
            member.join(client)
        for member in again:
            member.enter(client)
    send(again[0], 64)
    tell(office, again)
    begin(former.engine, np.ones(64, np.int32))
    former.transport.send(former.engine.poll(0.0))
    office.run(_told_of_refusal(office))
    text = explain(office)
    assert "worker 1 on h2 has not contributed to chunk " in text
    assert " s ago: not admitted (sent from UDP port 7052, and its port of this epoch is 7062)" in text


async def _told_of_refusal(office: Office) -> None:
    while ("10.0.0.2", 7052) not in office.controller.refused.latest:
        await office.controller.noted.wait(1.0)


def test_explain_tells_of_losses_on_purpose(office: Office) -> None:
    members = office.add("a", [7071, 7072], slots=8)
    with office.client() as client:
        faults = {"port": 2, "direction": "in", "drop": 1.0}
        client.call("PUT", "/v1/switches/s1/faults", faults)
        send(members[0], 64)
        send(members[1], 64)
        tell(office, members)
        try:
            assert "; 100 % of the packets from it are lost on purpose" in explain(office)
        finally:
            client.call("PUT", "/v1/switches/s1/faults", faults | {"drop": 0.0})


def test_explain_of_a_job_that_drains(office: Office) -> None:
    members = office.add("a", [7081, 7082], slots=8)
    reduce(office, members, 10)
    with office.client() as client:
        client.call("POST", "/v1/jobs/a/drain", {})
    begin = "Job a is in a change of epoch, because it is being drained"
    assert explain(office).startswith(begin)
    live = office.controller.job("a")
    assert live.group.change is not None
    stopped = live.group.change.id
    with office.client() as client:
        for rank, member in enumerate(members):
            member.tell(client, stopped=stopped, udp_port=7083 + rank)
    begin = "Job a is being drained after all-reduce 1 and waits for worker 0 on h1 and worker 1 on h2"
    assert explain(office).startswith(begin + " to finish and leave.")


def test_explain_while_the_switch_is_away(office: Office) -> None:
    office.add("a", [7091], slots=8)
    job = office.controller.job("a")

    async def work() -> str | None:
        async with job.links[0].lock:  # so that it does not come back at once
            await asyncio.to_thread(job.links[0].close)
            job.links[0].complaint = "waited 10 s"
            return standing(office.controller, job)

    text = office.run(work())
    assert text is not None
    assert text.startswith("Job a runs on switch s1, which is not reached now (waited 10 s).")


def test_counts(office: Office) -> None:
    """13 chunks of three workers: two of each chunk's packets are absorbed, and one completes it."""
    members = office.add("a", [7101, 7102, 7103], slots=8)
    number = get(office, "/v1/jobs/a")["number"]
    reduce(office, members, ELEMENTS * 12)
    told = get(office, "/v1/jobs/a/counters")
    assert [(rank["rank"], rank["host"]) for rank in told["ranks"]] == [(0, "h1"), (1, "h2"), (2, "h3")]
    total = {"absorbed": [0, 0], "completed": [0, 0]}
    for rank in told["ranks"]:
        for verdict, (packets, octets) in rank["verdicts"].items():
            assert octets == packets * FRAME
            total[verdict][0] += packets
            total[verdict][1] += octets
    assert total == {"absorbed": [26, 26 * FRAME], "completed": [13, 13 * FRAME]}
    assert told["refused"] == {}
    page = samples(office)
    for rank in "012":
        assert page["worker_goodput_bytes_total", "a", rank] == 13 * 4 * ELEMENTS
        assert sum(v for k, v in page.items() if k[:3] == ("worker_packets_total", "a", rank)) == 13
        assert sum(v for k, v in page.items() if k[:3] == ("worker_bytes_total", "a", rank)) == 13 * FRAME
    assert page["job_workers", "a"] == 3
    assert page["switch_slots_used", "s1"] == page["job_slots", "a"] == 8
    assert page["switch_slots_free", "s1"] == 1024 - 8
    members_table = "SwitchIngress.handle.aggregation.admission.members"
    assert page["switch_table_entries", "s1", members_table] == 3
    assert page["switch_reached", "s1"] == 1
    former = members[0].worker
    office.run(office.controller.remove("a"))
    page = samples(office)
    assert page["switch_table_entries", "s1", members_table] == 0
    assert not [key for key in page if key[1:2] == ("a",)]

    # A job of the same number begins at 0, also for what comes to its port from the former life.
    begin(former.engine, np.ones(64, np.int32))
    former.transport.send(former.engine.poll(0.0))
    members = office.add("b", [7111, 7112, 7113, 7114], slots=8)
    assert get(office, "/v1/jobs/b")["number"] == number
    told = get(office, "/v1/jobs/b/counters")
    assert [rank["verdicts"] for rank in told["ranks"]] == [{}] * 4
    assert told["refused"] == {}
    reduce(office, members, 10)
    assert samples(office)["worker_goodput_bytes_total", "b", "3"] == 2 * 4 * ELEMENTS
    former.transport.send(former.engine.poll(5.0))
    told = get(office, "/v1/jobs/b/counters")
    assert list(told["refused"]) == ["not_admitted"]
    packets = told["refused"]["not_admitted"][0]
    assert packets > 0
    assert samples(office)["job_refused_packets_total", "b", "not_admitted"] == packets


def test_counts_go_on_over_a_restart_of_the_controller(served: Served, tmp_path: Path) -> None:
    with Office(tmp_path, served) as office:
        reduce(office, office.add("a", [7121], slots=8), ELEMENTS * 5)
        office.run(office.controller.remove("a"))
        reduce(office, office.add("b", [7122], slots=8), ELEMENTS * 3)
        before = samples(office)["worker_goodput_bytes_total", "b", "0"]
    assert before == 4 * 4 * ELEMENTS
    (tmp_path / "t").rename(tmp_path / "kept")
    with Office(tmp_path, served, state=tmp_path / "kept" / "controller.db") as office:
        assert samples(office)["worker_goodput_bytes_total", "b", "0"] == before
        office.run(office.controller.remove("b"))


def test_what_a_switch_holds(office: Office) -> None:
    members = office.add("a", [7131, 7132], slots=8, rate_bps=100_000_000)
    told = get(office, "/v1/switches/s1/entries")
    epoch = members[0].worker.membership.epoch
    number = get(office, "/v1/jobs/a")["number"]
    held = told["tables"]["SwitchIngress.handle.aggregation.admission.members"]
    assert [row["key"] for row in sorted(held, key=lambda row: row["key"]["port"])] == [
        {
            "port": str(r + 1),
            "ip_src": f"10.0.0.{r + 1}",
            "udp_src": str(7131 + r),
            "udp_dst": str(0xBE00 + number),
        }
        for r in range(2)
    ]
    assert {row["args"]["epoch"] for row in held} == {str(epoch)}
    routes = told["tables"]["SwitchIngress.handle.routing.routes"]
    assert {row["key"]["prefix"] for row in routes} == {f"10.0.0.{h}/32" for h in range(1, 6)}
    neighbors = told["tables"]["SwitchIngress.handle.arp.neighbors"]
    assert {"key": {"ip": "10.0.0.1"}, "action": "known", "args": {"mac_": "02:00:0a:00:00:01"}} in neighbors
    (copies,) = told["groups"].values()
    assert sorted(port for port, _ in copies) == [1, 2]
    assert told["rates"] == {str(number): 100_000_000}


def test_what_ports_counted(office: Office) -> None:
    before = get(office, "/v1/switches/s1/counters")["ports"]
    frame = bytes(14) + b"\x45" + bytes(30)
    office.served.process([(3, frame), (3, frame)])
    after = get(office, "/v1/switches/s1/counters")["ports"]
    assert set(after) == {"1", "2", "3", "4", "5"}
    (changed,) = {
        verdict: (count, before["3"]["in"].get(verdict, [0, 0]))
        for verdict, count in after["3"]["in"].items()
        if count != before["3"]["in"].get(verdict)
    }.values()
    assert [new - old for new, old in zip(*changed, strict=True)] == [2, 2 * len(frame)]
    refused = {
        k[2]: v
        for k, v in samples(office).items()
        if k[0] == "switch_port_refused_packets_total" and (k[1], k[3]) == ("3", "s1")
    }
    assert refused == {verdict: count[0] for verdict, count in after["3"]["in"].items() if verdict in refused}
    assert refused


def verdicts(others: int = 0, **ranks: int) -> JobVerdicts:
    """Counts of OLD_EPOCH packets of others, and ABSORBED ones by rank as r0=…, each of 10 bytes."""
    return JobVerdicts(
        {int(rank[1:]): {Verdict.ABSORBED: (n, 10 * n)} for rank, n in ranks.items() if n},
        {Verdict.OLD_EPOCH: (others, 10 * others)} if others else {},
    )


def test_a_tally_takes_off_what_was_there_before() -> None:
    tally = JobTally()
    assert tally.take(verdicts(5, r0=7)) == verdicts()  # nothing is known yet: nothing counts
    tally.begin(verdicts(5), 0)
    assert tally.take(verdicts(6, r0=7)) == verdicts(1)
    tally.begin(verdicts(9, r0=7), 1)  # what is known already stays
    assert tally.take(verdicts(9, r0=8, r1=3)) == verdicts(4, r0=1)
    tally.begin(verdicts(9, r0=8, r1=3), 2)
    assert tally.take(verdicts(9, r0=8, r1=5)) == verdicts(4, r0=1, r1=2)
    again = JobTally(tally.known, tally.rows)
    assert again.take(verdicts(9, r0=8, r1=5)) == verdicts(4, r0=1, r1=2)
    assert {row[0] for row in tally.rows} == {OTHERS, 0, 1}


def test_a_tally_never_goes_back() -> None:
    tally = JobTally()
    tally.begin(verdicts(5, r0=7), 1)
    assert tally.take(verdicts(6, r0=9)) == verdicts(1, r0=2)
    tally.lost()
    assert tally.take(verdicts()) == verdicts(1, r0=2)
    assert tally.take(verdicts(2, r0=1, r1=4)) == verdicts(3, r0=3, r1=4)
    tally.lost()
    again = JobTally(tally.known, tally.rows)
    assert again.take(verdicts(1)) == verdicts(4, r0=3, r1=4)


def test_arrivals() -> None:
    before, after = (
        JobCounts(found.workers, {}, {}) for found in (verdicts(r0=3, r1=2), verdicts(r0=3, r1=7, r2=1))
    )
    assert arrived(before, after) == {1: {"absorbed": 5}, 2: {"absorbed": 1}}


def test_counts_go_on_after_the_switch_has_lost_its_state(tmp_path: Path) -> None:
    first = Served(1)
    with Office(tmp_path, first) as office:
        members = office.add("a", [7141, 7142], slots=8)
        reduce(office, members, ELEMENTS * 4)
        first.process([(3, bytes(60))])  # refused: no IPv4
        before = samples(office)
        assert before["worker_goodput_bytes_total", "a", "0"] == 5 * 4 * ELEMENTS
        assert before["switch_port_refused_packets_total", "3", "not_ipv4", "s1"] == 1
        first.close()
        second = Served(1, first.address)
        try:
            office.run(_in_line_again(office))
            after = samples(office)
            names = ("worker_packets_total", "worker_bytes_total", "worker_goodput_bytes_total")
            refused = "switch_port_refused_packets_total"
            counted = {key: value for key, value in before.items() if key[0] in (*names, refused)}
            assert {key: value for key, value in after.items() if key in counted} == counted
            second.process([(3, bytes(60)), (3, bytes(60))])
            assert samples(office)[refused, "3", "not_ipv4", "s1"] == 3
        finally:
            office.run(office.controller.remove("a"))
            second.close()


async def _in_line_again(office: Office) -> None:
    link = office.controller.links["s1"]
    while link.in_line:
        await asyncio.sleep(0.05)
    while not link.in_line:
        await asyncio.sleep(0.05)
