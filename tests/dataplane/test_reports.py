# SPDX-License-Identifier: Apache-2.0
"""Refused packets are reported to the controller, of each port one in a tenth of a second."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from p4src.compile import SOURCES
from p4src.forms import form
from switch.device import SwitchDevice
from tests.dataplane.frames import ip, mac
from tests.dataplane.rig import JOB, JOB_PORT, SWITCH_IP, SWITCH_MAC, Rig, host_ip, host_mac, number, udp_port
from tests.dataplane.test_refusals import REFUSED
from wire.constants import FEW_SLOTS
from wire.verdicts import REPORTED, Verdict

STRUCT = (SOURCES / "refusals.p4").read_text().partition("}")[0]
FIELDS = re.findall(r"^ +bit<\d+> +(\w+);", STRUCT, re.MULTILINE)
INTERVAL_US = 100_000


class Clock:
    """Microseconds since the switch started."""

    def __init__(self) -> None:
        self.now = 50

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def clocked() -> Iterator[tuple[SwitchDevice, Clock]]:
    clock = Clock()
    with SwitchDevice.load(form(64, FEW_SLOTS).json_path, cpu_port=510, clock=clock) as device:
        yield device, clock


@pytest.fixture
def rig(clocked: tuple[SwitchDevice, Clock]) -> Rig:
    return Rig(clocked[0], 64, FEW_SLOTS)


@pytest.fixture
def clock(clocked: tuple[SwitchDevice, Clock]) -> Clock:
    return clocked[1]


def reports(rig: Rig) -> list[dict[str, int]]:
    samples = rig.device.digests()
    assert {sample.name for sample in samples} <= {"refusal_t"}
    return [dict(zip(FIELDS, sample.values, strict=True)) for sample in samples]


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_packet_is_reported(rig: Rig, what: str) -> None:
    changes, verdict = REFUSED[what]
    rig.send(0, rig.contribution(0, 0, [41]).but(**changes))
    (report,) = reports(rig)
    assert (report["port"], report["verdict"]) == (1, verdict)
    assert verdict in REPORTED


def test_what_a_report_says(rig: Rig) -> None:
    rig.send(1, rig.contribution(1, 5, [1], slot=rig.window))
    assert reports(rig) == [
        {
            "port": 2,
            "verdict": Verdict.SLOT_BEYOND_POOL,
            "eth_src": number(mac(host_mac(2))),
            "ipv4": 1,
            "ip_src": number(ip(host_ip(2))),
            "ip_dst": number(ip(SWITCH_IP)),
            "udp": 1,
            "udp_src": udp_port(2),
            "udp_dst": JOB_PORT,
            "for_job": 1,
            "job": JOB,
            "admitted": 1,
            "worker": 1,
            "epoch": rig.epoch,
            "agg": 1,
            "chunk": 5,
            "version": 1,
            "slot": rig.window,
        }
    ]
    # Nothing of that packet is said of one that has no such headers.
    rig.send(2, mac(SWITCH_MAC) + mac(host_mac(3)) + b"\x86\xdd" + bytes(40))
    (report,) = reports(rig)
    assert {name: value for name, value in report.items() if value} == {
        "port": 3,
        "verdict": Verdict.NOT_IPV4,
        "eth_src": number(mac(host_mac(3))),
    }
    # ... nor of a frame that is too short for any.
    rig.send(3, b"\x01\x02")
    (report,) = reports(rig)
    assert {name: value for name, value in report.items() if value} == {
        "port": 4,
        "verdict": Verdict.MALFORMED,
    }


def test_an_old_epoch_is_reported(rig: Rig) -> None:
    late = rig.contribution(0, 0, [3])
    rig.send(0, rig.contribution(0, 0, [3]))
    rig.leave()
    rig.join(rig.epoch + 1)
    rig.send(0, rig.contribution(0, 0, [3]))
    rig.leave()
    rig.join(rig.epoch - 1)
    rig.send(0, late)
    (report,) = reports(rig)
    assert (report["verdict"], report["epoch"], report["chunk"]) == (Verdict.OLD_EPOCH, rig.epoch, 0)


def test_loss_and_reordering_are_not_reported(rig: Rig) -> None:
    first, later = rig.contribution(0, 0, [1]), rig.contribution(0, 8, [2])
    for worker, frame in ((0, first), (0, first), (1, rig.contribution(1, 0, [1])), (0, first), (0, later)):
        rig.send(worker, frame)
    rig.send(0, first)
    assert rig.worker_verdicts(0) == {
        Verdict.ABSORBED: 2,
        Verdict.DUPLICATE: 1,
        Verdict.REPLAYED: 1,
        Verdict.STALE: 1,
    }
    rig.add("SwitchIngress.receive.faults.shares", [1], "inject", [1, 2**32 - 1, 0, 0])
    rig.send(0, first.but(udp_src=1))
    assert rig.verdicts(1)[Verdict.FAULT_DROPPED] == 1
    assert reports(rig) == []


def test_a_flood_is_reported_once_in_a_tenth_of_a_second_for_each_port(rig: Rig, clock: Clock) -> None:
    forged = [rig.contribution(0, chunk, [1], udp_src=9).pack() for chunk in range(8)]
    started = clock.now
    for step in range(40):
        clock.now = started + step * INTERVAL_US // 4
        rig.device.process([(port, frame) for port in (1, 2) for frame in forged])
    found = reports(rig)
    assert [report["port"] for report in found] == [1, 2] * 10
    assert {report["chunk"] for report in found} == {0}
    assert rig.verdicts(1) == {Verdict.NOT_ADMITTED: 320}
    # Another reason does not come sooner.
    rig.send(0, rig.contribution(0, 0, [1], size=7))
    assert reports(rig) == []
    clock.now += INTERVAL_US
    rig.send(0, rig.contribution(0, 0, [1], size=7))
    assert [report["verdict"] for report in reports(rig)] == [Verdict.WRONG_SIZE]


def test_a_duplicate_made_by_the_fault_table_is_not_reported_twice(rig: Rig) -> None:
    rig.add("SwitchIngress.receive.faults.shares", [1], "inject", [1, 0, 2**32 - 1, 0])
    rig.device.clone_session_set(512, [(3, 0)])
    rig.send(0, rig.contribution(0, 0, [1], udp_src=9))
    assert rig.verdicts(1) == {Verdict.NOT_ADMITTED: 2}
    assert len(reports(rig)) == 1
