# SPDX-License-Identifier: Apache-2.0
"""Violations planted into captures of correct runs are found, and the packets named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from switch.device import SwitchDevice
from tests.dataplane.frames import checksum, ones_complement
from tests.traces.captures import Capture, Captured
from tests.traces.test_explain import Made
from tests.traces.test_verify import checked
from tests.traces.worlds import CapturedWorld, captured_run
from tests.worker.world import Tensors
from traces.verify_findings import Rule

W = 4
CHUNK = 9
"""In the middle of the run."""
Plant = Callable[[Capture], Captured]
"""Changes a capture, and returns the packet at fault."""


def some(
    capture: Capture, result: bool, host: int | None = None, chunk: int = CHUNK, end: str = ""
) -> list[Captured]:
    """Contributions, or results, of a chunk: of one host, at both ends of its link, in the order of time."""
    return [
        each
        for each in capture.packets
        if (each.frame[42] >> 4 == 2) is result
        and int.from_bytes(each.frame[44:48], "big") == chunk
        and (host is None or f"h{host}" in each.end)
        and each.end.startswith(end)
    ]


def change(capture: Capture, packets: list[Captured], **changes: object) -> Captured:
    """Change packets in place; return the first."""
    new = {id(each): each.but(**changes) for each in packets}
    capture.packets[:] = [new.get(id(each), each) for each in capture.packets]
    return new[id(packets[0])]


def add(capture: Capture, packet: Captured, **changes: object) -> Captured:
    capture.packets.append(replace(packet, **changes))  # type: ignore[arg-type]
    return capture.packets[-1]


def wrong_sum(capture: Capture) -> Captured:
    packets = some(capture, True)
    first, *others = packets[0].parsed().values
    return change(capture, packets, values=(first ^ 1, *others))


def wrong_sum_beyond_31_bits(capture: Capture) -> Captured:
    packets = some(capture, True)
    *others, last = packets[0].parsed().values
    return change(capture, packets, values=(*others, last ^ -(2**31)))


def wrong_exponent(capture: Capture) -> Captured:
    packets = some(capture, True)
    return change(capture, packets, e0=packets[0].parsed().e0 + 1)


def results_differ(capture: Capture) -> Captured:
    packets = some(capture, True, host=3)
    return change(capture, packets, values=(7, *packets[0].parsed().values[1:]))


def contributions_differ(capture: Capture) -> Captured:
    sent = some(capture, False, host=2)[-1]
    return add(capture, sent.but(values=(7, *sent.parsed().values[1:])), time=sent.time + 1)


def copies_differ_in_tensor(capture: Capture) -> Captured:
    sent = some(capture, False, host=2)[-1]
    return change(capture, [sent], tensor=sent.parsed().tensor + 1)


def copies_differ_in_flag(capture: Capture) -> Captured:
    sent = some(capture, False, host=2)[-1]
    return change(capture, [sent], flag=1 - sent.parsed().flag)


def extra_result(capture: Capture) -> Captured:
    return add(capture, some(capture, True, host=2, end="h")[-1])


def contribution_missing(capture: Capture) -> Captured:
    gone = {id(each) for each in some(capture, False, host=2)}
    capture.packets[:] = [each for each in capture.packets if id(each) not in gone]
    return some(capture, True)[0]


def result_too_early(capture: Capture) -> Captured:
    """The last contribution comes two milliseconds after it."""
    time = max(each.time for each in some(capture, True)) + 2_000_000
    for each in some(capture, False, host=3):
        capture.packets.remove(each)
        add(capture, each, time=time)
    return some(capture, True)[0]


def send_rule(capture: Capture) -> Captured:
    """Host 1 gets no result of the chunk, and goes on."""
    gone = {id(each) for each in some(capture, True, host=1)}
    capture.packets[:] = [each for each in capture.packets if id(each) not in gone]
    return some(capture, False, host=1, chunk=CHUNK + W, end="h")[0]


def window(capture: Capture) -> Captured:
    """Host 1 sends W + 1 chunks before any has a result."""
    for chunk in range(W + 1):
        for each in some(capture, False, host=1, chunk=chunk):
            capture.packets.remove(each)
            add(capture, each, time=chunk)
    return some(capture, False, host=1, chunk=W, end="h")[0]


def wrong_slot(capture: Capture) -> Captured:
    packets = some(capture, False, host=2)
    return change(capture, packets, slot=(packets[0].parsed().slot + 1) % W)


def slot_beyond_pool(capture: Capture) -> Captured:
    return change(capture, some(capture, False, host=2), slot=W)


def wrong_version(capture: Capture) -> Captured:
    packets = some(capture, True, host=2)
    return change(capture, packets, version=1 - packets[0].parsed().version)


def result_on_a_foreign_link(capture: Capture) -> Captured:
    return add(capture, some(capture, True, host=2, end="s")[0], end="s1-h1")


def contribution_on_a_foreign_link(capture: Capture) -> Captured:
    return add(capture, some(capture, False, host=2, end="h")[0], end="h3-s1")


def contribution_going_down(capture: Capture) -> Captured:
    return add(capture, some(capture, False, host=2, end="s")[0], way=2)


def contribution_of_a_stranger(capture: Capture) -> Captured:
    return add(capture, some(capture, False, host=2, end="s")[0].but(ip_src="10.0.0.9"), end="s1-h9")


def contribution_of_a_strange_port(capture: Capture) -> Captured:
    return add(capture, some(capture, False, host=2, end="s")[0].but(udp_src=1234))


def result_for_a_stranger(capture: Capture) -> Captured:
    return add(capture, some(capture, True, host=2, end="s")[0].but(ip_dst="10.0.0.9"), end="s1-h9")


def forged_result(capture: Capture) -> Captured:
    return add(capture, some(capture, True, host=2, end="h")[0].but(ip_src="10.0.0.1"))


def contribution_to_another_switch(capture: Capture) -> Captured:
    return change(capture, some(capture, False, host=2)[:1], ip_dst="10.0.255.7")


def wrong_tensor(capture: Capture) -> Captured:
    packets = some(capture, True, host=2)
    return change(capture, packets, tensor=packets[0].parsed().tensor ^ 1)


def wrong_flag(capture: Capture) -> Captured:
    packets = some(capture, True, host=2)
    return change(capture, packets, flag=1 - packets[0].parsed().flag)


def chunk_before_the_epoch(capture: Capture) -> Captured:
    packet = some(capture, False, host=1, chunk=0, end="h")[0]
    return add(capture, packet.but(chunk=2**32 - 1, slot=W - 1, version=1), time=packet.time + 1)


PLANTS: dict[Plant, Rule] = {
    wrong_sum: Rule.SUM,
    wrong_sum_beyond_31_bits: Rule.SUM,
    wrong_exponent: Rule.EXPONENT,
    results_differ: Rule.COPIES,
    contributions_differ: Rule.COPIES,
    copies_differ_in_tensor: Rule.COPIES,
    copies_differ_in_flag: Rule.COPIES,
    extra_result: Rule.COUNT,
    contribution_missing: Rule.EARLY,
    result_too_early: Rule.EARLY,
    send_rule: Rule.SEND,
    window: Rule.WINDOW,
    wrong_slot: Rule.PLACE,
    slot_beyond_pool: Rule.PLACE,
    wrong_version: Rule.PLACE,
    result_on_a_foreign_link: Rule.LINKS,
    contribution_on_a_foreign_link: Rule.LINKS,
    contribution_going_down: Rule.LINKS,
    contribution_of_a_stranger: Rule.MEMBERS,
    contribution_of_a_strange_port: Rule.MEMBERS,
    result_for_a_stranger: Rule.MEMBERS,
    forged_result: Rule.ADDRESSES,
    contribution_to_another_switch: Rule.ADDRESSES,
    wrong_tensor: Rule.ECHO,
    wrong_flag: Rule.ECHO,
    chunk_before_the_epoch: Rule.EPOCH,
}
ALONG: dict[Plant, set[Rule]] = {
    result_too_early: {Rule.COUNT},
    contribution_missing: {Rule.COUNT},
    contribution_to_another_switch: {Rule.COUNT},
}
"""Rules that are broken with it."""


def named(capture: Capture, packet: Captured) -> tuple[str, int]:
    """A packet's file and number."""
    numbers = [each is packet for each in capture.in_file(packet.end)]
    return f"{packet.end}.pcapng", numbers.index(True) + 1


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(device: SwitchDevice, plant: Plant) -> None:
    capture = captured_run(device, window=W)
    assert not checked(capture).total
    fault = plant(capture)
    found = checked(capture)
    first = next(each for each in found.violations if each.rule is PLANTS[plant])
    packets = {(packet.source.path.name, packet.number) for packet in first.packets}
    assert named(capture, fault) in packets
    assert {each.rule for each in found.violations} <= {PLANTS[plant], *ALONG.get(plant, ())}


@pytest.mark.parametrize("plant", [wrong_sum, wrong_exponent, results_differ, wrong_slot, wrong_tensor])
def test_what_holds_of_values_needs_no_memberships(device: SwitchDevice, plant: Plant) -> None:
    capture = captured_run(device, window=W)
    plant(capture)
    found = checked(capture, memberships=False)
    assert {each.rule for each in found.violations} == {PLANTS[plant]}


def test_an_old_epochs_packet_is_answered(device: SwitchDevice) -> None:
    world = CapturedWorld(device, 1, loss=0.0, duplicate=0.0)
    world.start(3, Tensors(1, 3, 6), 3, 6, window=W, lead=1, g0=0)
    world.run(lambda: world.steps > 200)
    old = {rank.member.own_port for rank in world.ranks}
    world.same_members(W, wipe=False)
    world.catch_up()
    world.run()
    capture = world.capture
    assert not checked(capture).total
    sent = next(
        each for each in reversed(capture.packets) if each.parsed().udp_src in old and each.end == "h2-s1"
    )
    answer = next(
        each for each in reversed(capture.packets) if each.parsed().udp_dst in old and each.end == "h2-s1"
    )
    for again in (sent, answer):
        for end in ("h2-s1", "s1-h2"):
            late = add(capture, again, time=capture.packets[-1].time + 5_000_000, end=end, way=0)
    found = checked(capture)
    assert {each.rule for each in found.violations} == {Rule.EPOCH}
    assert late.parsed().udp_dst in old


def test_packets_with_wrong_checksums_are_counted_and_not_judged(device: SwitchDevice) -> None:
    capture = captured_run(device, window=W)
    sent = some(capture, True, host=2, end="h")[0]
    for values in ((1, *sent.parsed().values[1:]), sent.parsed().values[::-1]):
        frame = bytearray(sent.but(values=values).frame)
        frame[40] ^= 1
        add(capture, replace(sent, frame=bytes(frame)))
    found = checked(capture)
    assert not found.total
    assert found.ignored["packets with a wrong UDP checksum"] == 2


def test_a_link_that_lost_packets_shows_no_absence(device: SwitchDevice) -> None:
    capture = captured_run(device, window=W)
    contribution_missing(capture)
    capture.dropped = {"h2-s1": 1}
    found = checked(capture)
    assert not found.total
    assert found.unchecked["sums of chunks whose contributions are not known"]


@pytest.mark.parametrize("snap", [100, 50, 40])
@pytest.mark.parametrize("told", [True, False])
def test_packets_that_were_not_captured_whole(device: SwitchDevice, snap: int, told: bool) -> None:
    capture = captured_run(device, window=W)
    wrong_sum(capture)
    found = checked(capture, snap=snap, memberships=told)
    assert not found.total
    assert not found.checked["sums"]
    if snap == 100:  # headers are there
        wrong_version(capture)
        found = checked(capture, snap=snap, memberships=told)
        assert {each.rule for each in found.violations} == {Rule.PLACE}


def test_checksums_that_the_network_card_would_finish(device: SwitchDevice) -> None:
    """As tcpdump in a host sees what the host sends: only the pseudo-header is summed."""
    capture = captured_run(device, window=W)
    for each in list(capture.packets):
        if each.end.startswith("h") and each.frame[42] >> 4 == 1:
            frame = each.frame
            pseudo = ones_complement(frame[26:34] + b"\0\x11" + frame[38:40])
            capture.packets.remove(each)
            add(capture, each, frame=frame[:40] + pseudo.to_bytes(2, "big") + frame[42:])
    ends = ["h1-s1", "h2-s1", "h3-s1"]
    found = checked(capture, ends=ends)
    assert not found.total
    chunks = {each.parsed().chunk for each in capture.packets if each.end == "s1-h1"}
    assert found.checked["sums"] == len(chunks)
    wrong_sum(capture)
    assert {each.rule for each in checked(capture, ends=ends).violations} == {Rule.SUM}


def doubled(frame: bytes) -> bytes:
    """Its payload twice in one packet, as the kernel has it before it cuts packets up."""
    payload, ip = 2 * frame[42:], bytearray(frame[14:34])
    ip[2:4] = (28 + len(payload)).to_bytes(2, "big")
    ip[10:12] = bytes(2)
    ip[10:12] = checksum(bytes(ip)).to_bytes(2, "big")
    return frame[:14] + bytes(ip) + frame[34:38] + (8 + len(payload)).to_bytes(2, "big") + bytes(2) + payload


def test_super_packets_hide_what_is_in_them(device: SwitchDevice) -> None:
    """As tcpdump in a host sees them: the contributions are in there, which nobody can tell."""
    capture = captured_run(device, window=W)
    for each in list(capture.packets):
        if each.end == "h2-s1" and each.frame[42] >> 4 == 1:
            capture.packets.remove(each)
            add(capture, each, frame=doubled(each.frame))
    found = checked(capture, ends=["h1-s1", "h2-s1", "h3-s1"])
    assert not found.total, found.violations[0]
    assert found.ignored["malformed packets to job ports: super packet"]


def test_a_member_away_from_its_switch(device: SwitchDevice) -> None:
    """Host 2's packets pass other switches, up by one link and down by another, which sees only some."""
    capture = captured_run(device, window=W)
    for each in list(capture.packets):
        if each.end in ("s1-h2", "h2-s1"):
            capture.packets.remove(each)
            result = each.frame[42] >> 4 == 2
            if each.end == "s1-h2" and not (result and each.parsed().chunk % 3):
                add(capture, each, end="s1-s9" if result else "s1-s8")
    (epoch,) = capture.epochs
    members = tuple(replace(each, link="") if each.host == "h2" else each for each in epoch.members)
    capture.epochs[:] = [replace(epoch, members=members)]
    assert not checked(capture).total
    wrong_sum(capture)
    assert {each.rule for each in checked(capture).violations} == {Rule.SUM}


def test_jobs_are_told_apart() -> None:
    made, other = Made(window=4, job=3), Made(window=8, job=4)
    for chunk in range(30):
        made.chunk(chunk, [chunk * 1.0] * 3)
        other.chunk(chunk, [chunk * 1.0 + 0.2] * 3)
    both = Capture(made.capture.packets + other.capture.packets, made.capture.epochs + other.capture.epochs)
    found = checked(both)
    assert (found.total, found.checked["sums"]) == (0, 60)
    packets = [each for each in some(both, True) if each.parsed().udp_src == 0xBE04]
    fault = change(both, packets, values=(1,) * 64)
    (violation,) = checked(both).violations
    assert (violation.rule, violation.job, violation.epoch) == (Rule.SUM, 4, 104)
    assert violation.packets[0].number == named(both, fault)[1]


def test_a_gap_shows_no_absence() -> None:
    """Both halves are judged, what is between them is not there."""
    made = Made(window=4)
    for chunk in (*range(50), *range(9000, 9050)):
        made.chunk(chunk, [chunk * 1.0] * 3)
    found = checked(made.capture)
    assert not found.total
    assert found.unchecked["gaps in the capture: what was under way at one"] == 1
    assert found.checked["sums"] == 100


def test_links_that_were_not_captured_show_no_absence(device: SwitchDevice) -> None:
    capture = captured_run(device, window=W)
    found = checked(capture, ends=["h1-s1", "h3-s1"])
    assert not found.total
    assert found.unchecked["sums of chunks whose contributions are not known"]
    send_rule(capture)
    found = checked(capture, ends=["h1-s1", "h3-s1"])
    assert {each.rule for each in found.violations} == {Rule.SEND}
