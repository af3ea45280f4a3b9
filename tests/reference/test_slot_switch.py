# SPDX-License-Identifier: Apache-2.0
"""The reference switch itself: each verdict of docs/protocol.md's slot state machine, once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.slot_switch import SlotSwitch, newer
from tests.worker.jobs import SWITCH_IP, SWITCH_MAC, memberships
from wire.packet import build_frames, frame_dtype, frames_are_sound, frames_to_switch, kind, payload_dtype
from wire.verdicts import Verdict


@pytest.fixture
def members():
    return memberships(2, window=4)


@pytest.fixture
def switch(members):
    model = SlotSwitch(64, SWITCH_IP, SWITCH_MAC)
    model.add_job(members, [1, 2], base=100)
    return model


def contribution(member, chunk, value, *, slot=0, version=0, e0=-128, **changes):
    payload = np.zeros(1, payload_dtype(64))
    payload["kind"] = kind(1, 0, 64)
    payload["chunk"], payload["place"] = chunk, version << 15 | slot
    payload["e0"], payload["e1"] = e0, -128
    payload["values"] = value
    for name, changed in changes.items():
        payload[name] = changed
    return frames_to_switch(payload, member).tobytes()


def test_one_slot_through_its_life(switch, members):
    a, b = members

    def step(port, frame):
        verdict, out = switch.handle(port, frame)
        frames = [np.frombuffer(f, frame_dtype(64))[0] for _, f in out]
        assert frames_are_sound(np.array(frames, frame_dtype(64))).all()
        return verdict, [p for p, _ in out], [int(f["payload"]["values"][5]) for f in frames]

    assert step(1, contribution(a, 8, 2**31 - 1)) == (Verdict.ABSORBED, [], [])
    assert step(1, contribution(a, 8, 2**31 - 1)) == (Verdict.DUPLICATE, [], [])
    assert step(2, contribution(b, 8, 1, e0=3)) == (Verdict.COMPLETED, [1, 2], [-(2**31)] * 2)
    assert step(1, contribution(a, 8, 77)) == (Verdict.REPLAYED, [1], [-(2**31)])
    assert step(1, contribution(a, 16, 5)) == (Verdict.ABSORBED, [], [])
    assert step(2, contribution(b, 8, 1)) == (Verdict.STALE, [], [])
    assert step(2, contribution(b, 16, -7)) == (Verdict.COMPLETED, [1, 2], [-2, -2])
    assert (100, 0) in switch.slots
    assert switch.counts[1, Verdict.ABSORBED] == 2

    later = memberships(2, window=4, epoch=8)
    switch.add_job(later, [1, 2], base=100)
    assert step(1, contribution(later[0], 8, 3)) == (Verdict.ABSORBED, [], [])
    assert step(1, contribution(a, 24, 3)) == (Verdict.OLD_EPOCH, [], [])


def test_result_is_addressed_to_its_receiver(switch, members):
    a, b = members
    switch.handle(1, contribution(a, 3, 1, slot=3, version=1, e0=-5, tensor=9))
    _, out = switch.handle(2, contribution(b, 3, 2, slot=3, version=1, e0=4, tensor=8))
    for member, (_, raw) in zip(members, out, strict=True):
        expected = np.frombuffer(raw, frame_dtype(64))["payload"].copy()
        expected["kind"], expected["tensor"], expected["e0"] = kind(2, 0, 64), 8, 4
        expected["chunk"], expected["place"], expected["values"] = 3, 1 << 15 | 3, 3
        rebuilt = build_frames(
            expected,
            eth_src=SWITCH_MAC,
            eth_dst=member.own_mac,
            ip_src=SWITCH_IP,
            ip_dst=member.own_ip,
            udp_src=member.port,
            udp_dst=member.own_port,
        )
        assert raw == rebuilt.tobytes()


def test_refusals(switch, members):
    a = members[0]
    good = contribution(a, 1, 1)
    swapped = bytearray(good)
    swapped[60] ^= 1
    no_checksum = good[:40] + b"\0\0" + good[42:]
    cases = {
        Verdict.NOT_ADMITTED: [(2, good), (1, contribution(members[1], 1, 1))],
        Verdict.BAD_UDP_CHECKSUM: [(1, bytes(swapped))],
        Verdict.BAD_LENGTH: [(1, good + b"\0"), (1, good + bytes(8))],
        Verdict.MALFORMED: [(1, good[:-1]), (1, good[:30])],
        Verdict.SLOT_BEYOND_POOL: [(1, contribution(a, 1, 1, slot=4))],
        Verdict.WRONG_TYPE: [(1, contribution(a, 1, 1, kind=kind(2, 0, 64)))],
        Verdict.WRONG_SIZE: [(1, contribution(a, 1, 1, kind=kind(1, 0, 256)))],
        Verdict.BAD_IP_CHECKSUM: [(1, good[:22] + b"\0" + good[23:])],
        Verdict.NOT_IPV4: [(1, good[:12] + b"\x86\xdd" + good[14:])],
        Verdict.ABSORBED: [(1, no_checksum)],
    }
    for verdict, frames in cases.items():
        for port, frame in frames:
            assert switch.handle(port, frame) == (verdict, [])


def test_serial_numbers_wrap():
    assert newer(0, 2**32 - 1)
    assert not newer(2**32 - 1, 0)
    assert not newer(7, 7)
    assert newer(2**31 - 1, 0)
    assert not newer(2**31, 0)
