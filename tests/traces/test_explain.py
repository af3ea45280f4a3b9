# SPDX-License-Identifier: Apache-2.0
"""What limited runs that were made for it: every packet's time is known."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.dataplane.frames import Frame
from tests.traces.captures import Capture, Captured, epoch_of
from traces.explain import Finding, explain
from wire.membership import Membership

MS = 1_000_000
N = 3


class Made:
    """A run whose packets come when the test says."""

    def __init__(self, *, window: int = 16, job: int = 3, ends: str = "hs") -> None:
        self.capture, self.window, self.ends = Capture(), window, ends
        self.members = [
            Membership(
                job=job,
                rank=rank,
                n=N,
                switch_ip="10.0.255.1",
                switch_mac="02:00:00:00:ff:01",
                own_ip=f"10.0.0.{rank + 1}",
                own_mac=f"02:00:00:00:00:0{rank + 1}",
                own_port=20000 + 100 * job + rank,
                window=window,
                lead=1,
                epoch=100 + job,
                elements=64,
            )
            for rank in range(N)
        ]
        self.capture.epochs = [epoch_of(self.members, 0)]

    def packet(self, time: float, end: str, rank: int, chunk: int, result: bool) -> None:
        """One at an end, h or s, of a rank's link; time in ms."""
        if end not in self.ends:
            return
        m = self.members[rank]
        frame = Frame(
            eth_src=m.own_mac,
            eth_dst=m.switch_mac,
            ip_src=m.switch_ip if result else m.own_ip,
            ip_dst=m.own_ip if result else m.switch_ip,
            udp_src=m.port if result else m.own_port,
            udp_dst=m.own_port if result else m.port,
            values=(0,) * 64,
            msg_type=2 if result else 1,
            chunk=chunk,
            slot=chunk % self.window,
            version=chunk // self.window % 2,
        )
        name = f"h{rank + 1}-s1" if end == "h" else f"s1-h{rank + 1}"
        self.capture.packets.append(Captured(name, round(time * MS), frame.pack()))

    def chunk(
        self,
        chunk: int,
        sent: Sequence[float],
        *,
        way: float = 0.1,
        switch: float = 0.01,
        lost_up: Sequence[int] = (),
        lost_down: Sequence[int] = (),
        again: float = 5.0,
    ) -> float:
        """A chunk's life, times in ms; what is lost is sent again after `again`. Returns when it ends."""
        complete = 0.0
        for rank, time in enumerate(sent):
            self.packet(time, "h", rank, chunk, False)
            if rank in lost_up:
                time += again
                self.packet(time, "h", rank, chunk, False)
            self.packet(time + way, "s", rank, chunk, False)
            complete = max(complete, time + way)
        ends = []
        for rank in range(N):
            out = complete + switch
            self.packet(out, "s", rank, chunk, True)
            if rank in lost_down:
                for end, time in (("h", out + way + again), ("s", out + 2 * way + again)):
                    self.packet(time, end, rank, chunk, False)
                out += 2 * way + again + switch
                self.packet(out, "s", rank, chunk, True)
            self.packet(out + way, "h", rank, chunk, True)
            ends.append(out + way)
        return max(ends)

    def explained(self) -> list[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            return explain([self.capture.write(Path(folder))]).findings


def limit(findings: list[Finding]) -> dict[str, Any]:
    assert findings[0].kind == "limit"
    assert findings[0].limits
    return findings[0].numbers


def of_kind(findings: list[Finding], kind: str) -> list[dict[str, Any]]:
    return [finding.numbers for finding in findings if finding.kind == kind]


def test_a_straggler() -> None:
    run = Made()
    for chunk in range(100):
        last = 2 if chunk % 10 else 0
        sent = [chunk / 2 + (2.0 if rank == last else 0.0) for rank in range(N)]
        run.chunk(chunk, sent)
    found = run.explained()
    assert limit(found)["by"] == "stragglers"
    (straggler,) = of_kind(found, "straggler")
    assert "waiting for other members, " in found[0].text
    assert (straggler["member"], straggler["last"], straggler["chunks"]) == ("h3", 90, 100)
    assert straggler["behind_ms"] == straggler["most_behind_ms"] == 2.0
    # Two of three wait 2 ms of a life of 2.21 ms, the last lives 0.21 ms.
    assert limit(found)["chunk_life_ms"] == 2.21
    assert limit(found)["wait_share"] == round(4 / (2 * 2.21 + 0.21), 3)


def test_a_full_window() -> None:
    run = Made(window=4)
    for round_ in range(25):
        for part in range(4):
            run.chunk(4 * round_ + part, [10.0 * round_ + 0.001 * part] * N, way=4.9)
    found = run.explained()
    numbers = limit(found)
    assert numbers["by"] == "window"
    assert (numbers["most_under_way"], numbers["window"]) == (4, 4)
    assert numbers["chunk_life_ms"] == 9.81
    assert not of_kind(found, "loss")


def test_members_that_are_late_in_turn_are_no_stragglers() -> None:
    run = Made(window=4)
    for round_ in range(30):  # two wait 0.6 ms of 0.81 ms, the last one lives 0.21 ms
        sent = [1.0 * round_ + (0.6 if rank == round_ % N else 0.0) for rank in range(N)]
        for part in range(4):
            run.chunk(4 * round_ + part, [time + 0.001 * part for time in sent])
    found = run.explained()
    numbers = limit(found)
    assert not of_kind(found, "straggler")
    assert (numbers["by"], numbers["wait_share"]) == ("window", round(1.2 / (2 * 0.81 + 0.21), 3))
    assert "the window W was full, 4 chunks, after 100% of a member's sends; " in found[0].text
    assert "66% waiting for other members (none of them is a straggler), " in found[0].text


def test_a_link_with_a_queue() -> None:
    run = Made(window=64)
    for chunk in range(200):
        # 20 at once; each is on the wire for 0.3 ms.
        burst, place = divmod(chunk, 20)
        run.chunk(chunk, [20.0 * burst] * N, way=0.05 + 0.3 * place)
    assert limit(run.explained())["by"] == "link"


def test_a_way_that_is_nearly_nothing_has_no_queue() -> None:
    run = Made(window=64)
    for chunk in range(200):  # each member in turn is 3 ms late, the way is a tenth of that
        sent = [0.1 * chunk + 3.0 * (rank == chunk % N) for rank in range(N)]
        run.chunk(chunk, sent, way=0.3 if chunk % 5 else 0.01)
    numbers = limit(run.explained())
    assert numbers["queued"] >= 2
    assert numbers["way_share"] < 0.25
    assert numbers["by"] != "link"


def test_a_shaped_link() -> None:
    """What waits in a shaper is not seen: the rate that memberships tell of is."""
    run = Made(window=4)
    for chunk in range(200):  # 308 bytes each ms: 2.46 Mbit/s
        run.chunk(chunk, [1.0 * chunk] * N, way=0.1)
    unshaped = limit(run.explained())
    (epoch,) = run.capture.epochs
    shaped = [replace(member, up_mbit=2.6 if member.rank == 1 else 10.0) for member in epoch.members]
    run.capture.epochs = [replace(epoch, members=tuple(shaped))]
    told = run.explained()
    assert (unshaped["by"], limit(told)["by"]) == ("senders", "link")
    assert "h2-s1 is shaped to 2.6 Mbit/s" in told[0].text
    run.capture.epochs = [replace(epoch, members=tuple(replace(m, down_mbit=10.0) for m in epoch.members))]
    assert limit(run.explained())["by"] == "senders"  # a quarter of what the links could do


def test_a_slow_switch() -> None:
    for ends in ("hs", "s"):
        run = Made(ends=ends)
        for chunk in range(50):
            run.chunk(chunk, [chunk * 1.0] * N, switch=7.0)
        numbers = limit(run.explained())
        assert numbers["by"] == "switch"
        assert numbers["switch_share"] == round(7.0 / (7.2 if ends == "hs" else 7.0), 3)


def test_members_that_the_switch_waits_for() -> None:
    """Only the switch's ends are captured, and 0.01 ms of each ms it has something to do."""
    run = Made(ends="s")
    for chunk in range(50):
        run.chunk(chunk, [chunk * 1.0] * N)
    numbers = limit(run.explained())
    assert numbers["by"] == "members"
    seconds = (49 + 0.01) / 1e3
    assert numbers["seconds"] == seconds
    assert numbers["switch_busy"] == round(50 * 0.01e-3 / seconds, 3)
    assert numbers["mbit_s"] == round(50 * 308 * 8 / seconds / 1e6, 3)


def test_idle_workers() -> None:
    run = Made()
    for burst in range(5):
        for part in range(10):
            run.chunk(10 * burst + part, [100.0 * burst + part] * N)
    found = run.explained()
    assert limit(found)["by"] == "idle"
    (gaps,) = of_kind(found, "gaps")
    busy = 9 + 0.21
    assert gaps["gaps"] == 4
    assert gaps["longest_ms"] == [round(100 - busy, 3)] * 4
    assert gaps["idle_share"] == round(4 * (100 - busy) / (400 + busy), 3)
    assert gaps["stalled_share"] == 0


def test_loss_where_it_happened() -> None:
    run = Made()
    for chunk in range(60):
        lost_up = [0] if chunk in (7, 20, 33) else []
        lost_down = [1] if chunk in (12, 40) else []
        run.chunk(chunk, [chunk * 0.5] * N, lost_up=lost_up, lost_down=lost_down)
    losses = {numbers["member"]: numbers for numbers in of_kind(run.explained(), "loss")}
    assert set(losses) == {"h1", "h2"}
    assert (losses["h1"]["up"], losses["h1"]["down"], losses["h1"]["retransmitted"]) == (3, 0, 3)
    assert (losses["h2"]["up"], losses["h2"]["down"], losses["h2"]["lost"]) == (0, 2, 2)
    # From the first sending to the result: 5 ms, and two times the usual way and the switch's time.
    assert losses["h2"]["recovery_ms"] == round(0.1 + 0.01 + 0.1 + 5 + 0.1 + 0.01 + 0.1, 3)


def test_loss_inside_the_switch() -> None:
    """Its fault table drops what both ends of h1's link have seen, and results to h3 that neither has."""
    run = Made(ends="s")
    for chunk in range(60):
        sent = [chunk * 0.5] * N
        if chunk in (7, 20, 33):
            for rank in range(N):  # all had sent, and send again: h2 and h3 for nothing
                run.packet(sent[rank] + 0.1, "s", rank, chunk, False)
                run.packet(sent[rank] + (4.0, 2.0, 3.0)[rank], "s", rank, chunk, False)
            for rank in range(N):
                run.packet(sent[0] + 4.01, "s", rank, chunk, True)
        elif chunk in (12, 40):
            for rank in range(N):
                run.packet(sent[rank] + 0.1, "s", rank, chunk, False)
            for rank in (0, 1):
                run.packet(sent[0] + 0.11, "s", rank, chunk, True)
            run.packet(sent[2] + 5, "s", 2, chunk, False)
            run.packet(sent[2] + 5.01, "s", 2, chunk, True)
        else:
            run.chunk(chunk, sent)
    findings = [finding for finding in run.explained() if finding.kind == "loss"]
    found = {each.numbers["member"]: each for each in findings}
    told = {name: (f.numbers["dropped_up"], f.numbers["dropped_down"]) for name, f in found.items()}
    assert told == {"h1": (3, 0), "h2": (0, 0), "h3": (0, 2)}
    assert "dropped at least 3 of its contributions and 0 results to it (its fault table" in found["h1"].text
    assert "dropped" not in found["h2"].text


def test_a_slow_switch_and_a_late_result_are_no_loss_inside_it() -> None:
    """All send again: once while a switch that stands still has not looked at it, once behind a shaper."""
    run = Made(ends="s")
    for chunk in range(60):
        time = chunk * 0.5
        if 10 <= chunk < 20:  # nothing is done from 5 to 15 ms
            for rank in range(N):
                run.packet(time + 0.1, "s", rank, chunk, False)
                run.packet(time + 4, "s", rank, chunk, False)
                run.packet(15 + chunk / 1000, "s", rank, chunk, True)
        elif chunk == 40:  # h2 gets both the late one and the answer to what it sent again
            for rank in range(N):
                run.packet(time + 0.1, "s", rank, chunk, False)
            for rank, late in enumerate((0.11, 6.0, 0.11)):
                run.packet(time + late, "s", rank, chunk, True)
            run.packet(time + 3, "s", 1, chunk, False)
            run.packet(time + 6.1, "s", 1, chunk, True)
        else:
            run.chunk(chunk, [time] * N)
    found = of_kind(run.explained(), "loss")
    assert [numbers["member"] for numbers in found] == ["h1", "h2", "h3"]
    assert [(numbers["dropped_up"], numbers["dropped_down"]) for numbers in found] == [(0, 0)] * N


def test_without_all_switches_ends_nothing_is_said_of_what_is_inside() -> None:
    run = Made(ends="h")
    for chunk in range(60):
        run.chunk(chunk, [chunk * 0.5] * N, lost_down=[1] if chunk == 12 else [])
    (numbers,) = of_kind(run.explained(), "loss")
    assert "dropped_up" not in numbers


def test_a_run_that_waits_for_what_was_lost() -> None:
    run = Made(window=4)
    time = 0.0
    for chunk in range(30):
        time = run.chunk(chunk, [time] * N, lost_down=[chunk % N], again=20.0)
    found = run.explained()
    assert limit(found)["by"] == "loss"
    assert limit(found)["stalled_share"] > 0.9


def test_what_is_sent_again_too_early_is_no_loss() -> None:
    """Nothing is lost: two ranks send again while they wait for the third."""
    run = Made(window=4)
    for chunk in range(30):
        begin = 11.0 * chunk
        run.chunk(chunk, [begin, begin, begin + 10])
        for rank in (0, 1):
            for end, later in (("h", 5.0), ("s", 5.1)):
                run.packet(begin + later, end, rank, chunk, False)
    findings = run.explained()
    assert limit(findings)["by"] in ("stragglers", "members")
    assert sum(f.numbers["waiting"] for f in findings if f.kind == "loss") == 60


def test_unequal_shares() -> None:
    run, other = Made(job=3), Made(job=4)
    for chunk in range(90):
        run.chunk(chunk, [chunk * 1.0] * N)
    for chunk in range(30):
        other.chunk(chunk, [chunk * 3.0] * N)
    run.capture.packets += other.capture.packets
    run.capture.epochs += other.capture.epochs
    (unfair,) = of_kind(run.explained(), "unfair")
    assert set(unfair["mbit_s"]) == {3, 4}
    assert np.isclose(unfair["mbit_s"][3] / unfair["mbit_s"][4], 3, rtol=0.05)
