# SPDX-License-Identifier: Apache-2.0
"""The packet format as struct, numpy and Scapy see it, and the membership record."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.frames import Frame, checksum
from wire.constants import EXPONENT_UNUSED, frame_bytes, is_job_port, job_port
from wire.membership import Membership, MembershipError
from wire.packet import build_frames, frame_dtype, frames_are_sound, internet_checksum, kind, payload_dtype
from wire.verdicts import PASSED, VERDICTS, Verdict, job_counter, port_counter, worker_counter

FRAME = Frame(
    eth_src="02:00:00:00:00:01", eth_dst="02:00:00:00:ff:01", ip_src="10.0.0.1", ip_dst="10.0.255.1",
    udp_src=4001, udp_dst=0xBE07, values=(), flag=1, tensor=200, chunk=2**32 - 2, version=1, slot=300, e0=-5,
)  # fmt: skip


@pytest.mark.parametrize("elements", [64, 256])
def test_numpy_builds_the_frame_that_struct_builds(elements: int) -> None:
    values = np.random.default_rng(1).integers(-(2**31), 2**31, elements)
    want = FRAME.but(values=tuple(values.tolist()))
    payload = np.zeros(1, payload_dtype(elements))
    payload["kind"] = kind(1, 1, elements)
    payload["tensor"], payload["chunk"], payload["place"] = 200, 2**32 - 2, 1 << 15 | 300
    payload["e0"], payload["e1"], payload["values"] = -5, EXPONENT_UNUSED, values
    frames = build_frames(
        payload, eth_src=want.eth_src, eth_dst=want.eth_dst, ip_src=want.ip_src, ip_dst=want.ip_dst,
        udp_src=4001, udp_dst=0xBE07,
    )  # fmt: skip
    assert frames[0].tobytes() == want.pack()
    assert frame_dtype(elements).itemsize == frame_bytes(elements) == len(want.pack())
    assert frames_are_sound(frames).all()


def test_scapy_reads_and_builds_the_same_bytes() -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    from wire.scapy_layers import Agg

    want = FRAME.but(values=tuple(range(-32, 32)))
    read = Ether(want.pack())
    agg = read[Agg]
    assert (agg.msg_type, agg.flag, agg.size, agg.tensor, agg.chunk) == (1, 1, 1, 200, 2**32 - 2)
    assert (agg.version, agg.slot, agg.e0, agg.e1, agg.values) == (1, 300, -5, -128, list(range(-32, 32)))
    built = (
        Ether(src=want.eth_src, dst=want.eth_dst)
        / IP(src=want.ip_src, dst=want.ip_dst, id=0, flags="DF")
        / UDP(sport=4001, dport=0xBE07)
        / Agg(
            flag=1,
            size=1,
            tensor=200,
            chunk=2**32 - 2,
            version=1,
            slot=300,
            e0=-5,
            values=list(range(-32, 32)),
        )
    )
    assert bytes(built) == want.pack()


def test_a_scapy_shell_names_everything() -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    shell: dict[str, Any] = {}
    exec("from wire.scapy_layers import *", shell)
    agg, job_port = shell["Agg"], shell["job_port"]
    head = Ether() / IP(src="10.0.0.1", dst="10.0.255.1")
    up = head / UDP(sport=4001, dport=job_port(3))
    up /= agg(flag="header", tensor=200, chunk=1000, version=1, slot=44, e0=7, values=[5] * 64)
    down = head / UDP(sport=job_port(3), dport=4001)
    down /= agg(msg_type="result", size="256 elements", e1=0, values=[5] * 256)
    shown = [Ether(bytes(packet))[agg].show(dump=True) for packet in (up, down)]
    told = [dict(re.findall(r"^ *(\w+) += (.*)$", text, re.MULTILINE)) for text in shown]
    assert told[0] | {"values": "..."} == {
        "job": "3 (of UDP port 48643)",
        "msg_type": "contribution",
        "flag": "header",
        "size": "64 elements",
        "tensor": "200",
        "chunk": "1000",
        "version": "1",
        "slot": "44",
        "e0": "7 (a later chunk is below 2^7)",
        "e1": "-128 (unused)",
        "values": "...",
    }
    assert told[1]["values"] == str([5] * 256)
    assert {name: told[1][name] for name in ("job", "msg_type", "flag", "size", "e0", "e1")} == {
        "job": "3 (of UDP port 48643)",
        "msg_type": "result",
        "flag": "values",
        "size": "256 elements",
        "e0": "-128 (unused, or of zeros)",
        "e1": "0 (a later chunk has NaN, infinity or |x| >= 2^127)",
    }
    assert Ether(bytes(up))[agg].job == 3
    assert up.summary().endswith(
        "job 3 contribution of header, all-reduce 200, chunk 1000, slot 44 version 1"
    )
    alone = agg(values=[1] * 64)
    assert alone.job is None
    assert "job       = none" in alone.show(dump=True)
    assert bytes(UDP(sport=4001, dport=53) / alone)[2:4] == b"\x00\x35"  # a port that is given stays


@given(st.binary(max_size=70), st.integers(1, 4))
def test_internet_checksum_of_rows(data: bytes, rows: int) -> None:
    array = np.tile(np.frombuffer(data, np.uint8), (rows, 1))
    assert internet_checksum(array).tolist() == [checksum(data)] * rows


def test_a_damaged_frame_is_not_sound() -> None:
    frames = np.frombuffer(FRAME.but(values=(1,) * 64).pack() * 3, frame_dtype(64)).copy()
    frames["payload"]["values"][1, 5] += 1
    frames["ip_ttl"][2] = 3
    assert frames_are_sound(frames).tolist() == [True, False, False]
    frames["udp_checksum"][1] = 0  # none: accepted
    assert frames_are_sound(frames).tolist() == [True, True, False]


def test_verdicts_and_counters_have_their_places() -> None:
    assert max(Verdict) < VERDICTS
    assert set(Verdict) > PASSED
    assert port_counter(3, Verdict.ROUTED) == 3 * 64 + 40
    assert job_counter(255, Verdict.NOT_ADMITTED) == 255 * 64 + 16
    assert worker_counter(255, 63, Verdict.BAD_LENGTH) == 256 * 64 * 16 - 1
    with pytest.raises(ValueError, match="NOT_ADMITTED is given before admission"):
        worker_counter(0, 0, Verdict.NOT_ADMITTED)


def test_job_ports() -> None:
    assert job_port(255) == 0xBEFF
    assert [is_job_port(p) for p in (0xBDFF, 0xBE00, 0xBEFF, 0xBF00)] == [False, True, True, False]
    with pytest.raises(ValueError, match="job 256"):
        job_port(256)


GOOD = {
    "job": 7, "rank": 1, "n": 4, "switch_ip": "10.0.255.1", "switch_mac": "02:00:00:00:ff:01",
    "own_ip": "10.0.0.2", "own_mac": "02:00:00:00:00:02", "own_port": 4000, "window": 64,
    "lead": 16, "epoch": 5, "elements": 256, "g0": 2**63, "t0": 3,
}  # fmt: skip


def test_membership_travels_as_json() -> None:
    membership = Membership(**GOOD)  # type: ignore[arg-type]
    assert Membership.from_json(membership.to_json()) == membership
    assert membership.port == 0xBE07


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", 256), ("job", "7"), ("job", True), ("rank", 4), ("rank", -1), ("n", 0), ("n", 257),
        ("epoch", 0), ("epoch", 2**32), ("own_port", 0xBE10), ("own_port", 0), ("window", 0),
        ("lead", 65), ("lead", 0),
        ("elements", 128), ("switch_ip", "10.0.0"), ("own_mac", "02:00:00:00:00"),
        ("own_mac", "02:00:00:00:00:0G"),
        ("g0", 2**64), ("t0", -1),
    ],
)  # fmt: skip
def test_a_wrong_membership_names_the_field(field: str, value: object) -> None:
    with pytest.raises(MembershipError, match=f"field {field} ") as caught:
        Membership.from_json(json.dumps(GOOD | {field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({**GOOD, "extra": 1}), json.dumps({"job": 1})])
def test_what_is_no_membership_is_refused(text: str) -> None:
    with pytest.raises(MembershipError):
        Membership.from_json(text)
