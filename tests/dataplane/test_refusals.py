# SPDX-License-Identifier: Apache-2.0
"""Everything from a port is hostile until admitted: each refusal, its verdict, and that nothing changed."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from tests.dataplane.frames import Frame, checksum, ip, mac, ones_complement
from tests.dataplane.rig import (
    AGGREGATION,
    JOB,
    JOB_PORT,
    SWITCH_IP,
    SWITCH_MAC,
    Rig,
    host_ip,
    host_mac,
    udp_port,
)
from wire.verdicts import Verdict

REFUSED: dict[str, tuple[dict[str, object], Verdict]] = {
    "another source address": ({"ip_src": host_ip(2)}, Verdict.NOT_ADMITTED),
    "another UDP source port": ({"udp_src": 5000}, Verdict.NOT_ADMITTED),
    "an unknown job": ({"udp_dst": 0xBE08}, Verdict.NOT_ADMITTED),
    "two job ports": ({"udp_src": 0xBE09}, Verdict.TWO_JOB_PORTS),
    "a forged result": ({"udp_src": JOB_PORT, "udp_dst": 5000, "msg_type": 2}, Verdict.NOT_ADMITTED),
    "a result from a worker": ({"msg_type": 2}, Verdict.WRONG_TYPE),
    "no message type": ({"msg_type": 0}, Verdict.WRONG_TYPE),
    "a slot beyond the pool": ({"slot": 4}, Verdict.SLOT_BEYOND_POOL),
    "the last slot number": ({"slot": 2**15 - 1}, Verdict.SLOT_BEYOND_POOL),
    "the size of no packet": ({"size": 7}, Verdict.WRONG_SIZE),
    "SwitchML's 128 elements": ({"size": 2}, Verdict.WRONG_SIZE),
    "trailing bytes": ({"trailer": b"\0\0\0\0"}, Verdict.BAD_LENGTH),
    "a UDP length that is too small": ({"udp_length": 100}, Verdict.BAD_LENGTH),
    "a UDP length that is too large": ({"udp_length": 9000}, Verdict.BAD_LENGTH),
    "an IPv4 length that is too small": ({"ip_length": 100}, Verdict.BAD_LENGTH),
    "an IPv4 length that is too large": ({"ip_length": 9000}, Verdict.MALFORMED),
    "a first fragment": ({"fragment": 0x2000}, Verdict.FRAGMENT),
    "a later fragment": ({"fragment": 0x0007}, Verdict.FRAGMENT),
    "IPv4 options": ({"options": b"\x01\x01\x01\x01"}, Verdict.IP_OPTIONS),
    "a bad IPv4 checksum": ({"ip_checksum": 0x1234}, Verdict.BAD_IP_CHECKSUM),
    "a bad UDP checksum": ({"udp_checksum": 0x1234}, Verdict.BAD_UDP_CHECKSUM),
    "a broadcast MAC": ({"eth_dst": "ff:ff:ff:ff:ff:ff"}, Verdict.NOT_FOR_SWITCH),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_dropped_and_counted(rig: Rig, what: str) -> None:
    changes, verdict = REFUSED[what]
    good = rig.contribution(0, 0, [41])
    assert rig.send(0, good.but(**changes)) == []
    assert rig.verdicts(1) == {verdict: 1}
    # Nothing of it reached the slot.
    rig.send(0, good)
    out = rig.send(1, rig.contribution(1, 0, [1]))
    assert {Frame.parse(data).values[0] for _, data in out} == {42}


def test_refused_after_admission_counts_for_the_worker_before_it_for_the_job(rig: Rig) -> None:
    frame = rig.contribution(1, 0, [])
    rig.send(1, frame.but(slot=9))
    rig.send(1, frame.but(udp_src=5000))
    rig.send(1, frame.but(udp_dst=0xBEFF))
    rig.send(0, frame)  # worker 1's packet, by worker 0's port
    assert rig.worker_verdicts(1) == {Verdict.SLOT_BEYOND_POOL: 1}
    assert rig.job_verdicts() == {Verdict.NOT_ADMITTED: 2}
    assert rig.job_verdicts(0xFF) == {Verdict.NOT_ADMITTED: 1}


def test_the_right_packet_by_the_wrong_port(rig: Rig) -> None:
    assert rig.device.process([(2, rig.contribution(0, 0, []).pack())]) == []
    assert rig.verdicts(2) == {Verdict.NOT_ADMITTED: 1}


def test_a_port_that_is_not_in_use(rig: Rig) -> None:
    assert rig.device.process([(200, rig.contribution(0, 0, []).pack())]) == []
    assert rig.verdicts(200) == {Verdict.UNKNOWN_PORT: 1}


@pytest.mark.parametrize("length", [0, 1, 13])
def test_less_than_an_ethernet_header(rig: Rig, length: int) -> None:
    assert rig.send(0, rig.contribution(0, 0, []).pack()[:length]) == []
    assert rig.verdicts(1) == {Verdict.MALFORMED: 1}


def test_cut_anywhere_it_is_refused(rig: Rig) -> None:
    whole = rig.contribution(0, 0, [1]).pack()
    for length in range(len(whole)):
        assert rig.send(0, whole[:length]) == []
    assert rig.worker_verdicts(0).keys() <= {Verdict.BAD_LENGTH}
    refused = rig.verdicts(1)
    assert sum(refused.values()) == len(whole)
    assert refused.keys() == {Verdict.NOT_IPV4, Verdict.MALFORMED} or refused.keys() == {Verdict.MALFORMED}


def test_every_single_bit_flip_behind_ethernet_is_noticed(rig: Rig) -> None:
    """Of the frame's 16-bit words each is under a checksum, or decides who may contribute."""
    whole = rig.contribution(0, 0, [3]).pack()
    rng = np.random.default_rng(3)
    bits = [
        *range(14 * 8, 60 * 8),
        *rng.choice(np.arange(60 * 8, len(whole) * 8), 200, replace=False).tolist(),
    ]
    for bit in bits:
        if 40 * 8 <= bit < 42 * 8:
            continue  # the UDP checksum itself: flips of it are below
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        assert rig.send(0, bytes(flipped)) == []
    assert Verdict.ABSORBED not in rig.verdicts(1)


def test_a_checksum_of_all_ones_is_valid_and_none_at_all_is_accepted(rig: Rig) -> None:
    """v1model's verify_checksum takes 0xFFFF for wrong: a chunk in 65,535 would hang for ever."""
    plain = rig.contribution(0, 0, [0, 0])
    # Chosen so that the sum of all else is 0xFFFF: the checksum computes to 0, which is sent as 0xFFFF.
    pseudo = ip(plain.ip_src) + ip(plain.ip_dst) + struct.pack("!BBH", 0, 17, 8 + len(plain.payload()))
    udp = struct.pack("!HHHH", plain.udp_src, plain.udp_dst, 8 + len(plain.payload()), 0)
    sum_of_rest = ones_complement(pseudo + udp + plain.payload())
    frame = plain.but(values=(0xFFFF - sum_of_rest, *plain.values[1:]))
    assert frame.pack()[40:42] == b"\xff\xff"
    rig.send(0, frame)
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 1}
    rig.send(0, rig.contribution(0, 1, [5], udp_checksum=0))
    assert rig.worker_verdicts(0) == {Verdict.ABSORBED: 2}


def test_a_result_whose_checksum_computes_to_0_is_sent_with_all_ones(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(workers=1)
    result = rig.result(0, rig.contribution(0, 0, []), [0] * rig.elements)
    pseudo = ip(result.ip_src) + ip(result.ip_dst) + struct.pack("!BBH", 0, 17, 8 + len(result.payload()))
    udp = struct.pack("!HHHH", result.udp_src, result.udp_dst, 8 + len(result.payload()), 0)
    value = 0xFFFF - ones_complement(pseudo + udp + result.payload())
    ((_, data),) = rig.send(0, rig.contribution(0, 0, [value]))
    assert data[40:42] == b"\xff\xff"
    assert Frame.parse(data).values[0] == value


def test_an_over_rate_job_is_refused(rig: Rig) -> None:
    from switch.device import MeterRates

    rig.device.meter_set(f"{AGGREGATION}.rates", JOB, MeterRates(cir=1, cburst=2000, pir=1, pburst=2000))
    for chunk in range(8):
        rig.send(0, rig.contribution(0, chunk, []))
    verdicts = rig.worker_verdicts(0)
    size = 52 + 4 * rig.elements
    assert verdicts == {Verdict.ABSORBED: min(8, 2000 // size), Verdict.OVER_RATE: 8 - min(8, 2000 // size)}


def test_garbage_never_leaves(rig: Rig) -> None:
    rng = np.random.default_rng(5)
    packets = [(int(rng.integers(1, 65)), rng.bytes(int(rng.integers(0, 200)))) for _ in range(2000)]
    head = mac(SWITCH_MAC) + mac(host_mac(1)) + b"\x08\x00"
    packets += [(1, head + rng.bytes(int(rng.integers(0, 200)))) for _ in range(2000)]
    assert rig.device.process(packets) == []


def test_addresses_in_the_frames_are_what_the_rig_says() -> None:
    """The rig's own frame: a check by hand of the builder that all tests here rest on."""
    frame = Frame(
        eth_src=host_mac(1), eth_dst=SWITCH_MAC, ip_src=host_ip(1), ip_dst=SWITCH_IP,
        udp_src=udp_port(1), udp_dst=JOB_PORT, values=(1, -1),
    )  # fmt: skip
    data = frame.pack()
    assert data[:14].hex() == "02000000ff010200000000010800"
    assert data[14:24].hex() == "4500002e000040004011"
    assert checksum(data[14:34]) == 0
    assert data[26:38].hex() == "0a0000010a00ff010fa1be07"
    assert data[42:].hex() == "1000000000000000808000000001ffffffff"


@pytest.mark.parametrize(
    "what",
    [
        "a bad IPv4 checksum",
        "a broadcast MAC",
        "an IPv4 length that is too large",
        "a first fragment",
        "IPv4 options",
        "two job ports",
        "an unknown job",
    ],
)
def test_what_is_refused_early_counts_for_the_job_that_its_udp_port_names(rig: Rig, what: str) -> None:
    changes, verdict = REFUSED[what]
    rig.send(0, rig.contribution(0, 0, [], **changes))
    job = 0xFF & int(changes.get("udp_dst", JOB_PORT))  # type: ignore[call-overload]
    assert rig.job_verdicts(job) == {verdict: 1}
    assert rig.worker_verdicts(0) == {}


def test_a_cut_aggregation_frame_counts_for_its_job(rig: Rig) -> None:
    rig.send(0, rig.contribution(0, 0, []).pack()[:100])
    assert rig.job_verdicts() == {Verdict.MALFORMED: 1}


def test_job_ports_of_ordinary_traffic_count_for_no_job(rig: Rig) -> None:
    rig.send(0, rig.contribution(0, 0, [], ip_dst=host_ip(2)))
    rig.send(0, rig.contribution(0, 0, [], ip_dst="10.9.9.9"))
    assert rig.verdicts(1) == {Verdict.ROUTED: 1, Verdict.NO_ROUTE: 1}
    assert rig.job_verdicts() == {}


@pytest.mark.parametrize(("ihl", "length"), [(5, 0), (5, 5), (5, 19), (6, 23)])
def test_an_ipv4_length_shorter_than_its_header_is_malformed(rig: Rig, ihl: int, length: int) -> None:
    options = b"\x01" * 4 * (ihl - 5)
    frame = rig.contribution(0, 0, [], ip_dst=host_ip(2), ip_length=length, options=options)
    assert rig.send(0, frame) == []
    assert rig.verdicts(1) == {Verdict.MALFORMED: 1}
