# SPDX-License-Identifier: Apache-2.0
"""What a traced device says of its packets, and that tracing changes nothing else."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import p4src
from p4src.forms import form
from switch import build
from switch.device import Exact, Lpm, MatchValue, Range, SwitchDevice, Ternary
from switch.device_log import TRACE, DeviceLog
from switch.emit import emit_program
from switch.errors import DeviceError
from switch.load import load_program
from switch.stf import StfRunner
from switch.trace import ActionRun, Cloned, ConditionTested, Dropped, Event, Kind, Lost, Sent, TableApplied
from tests.dataplane.rig import Rig
from tests.switch.programs import assign, const, field, pack, simple
from tests.switch.test_conformance import PROGRAMS, some_programs
from wire import native

FORWARD = Path(__file__).parent / "fixtures" / "forward.json"
ETHERNET = bytes.fromhex("0000000000aa0000000000bb")
IPV4 = bytes.fromhex("4520001400000000401100000a0000010a000002")


@pytest.fixture(scope="module")
def traced() -> Iterator[SwitchDevice]:
    with SwitchDevice.load(FORWARD, trace=True, cpu_port=510) as d:
        yield d


@pytest.fixture
def forward(traced: SwitchDevice) -> SwitchDevice:
    traced.reset()
    return traced


def lines(events: list[Event]) -> list[str]:
    """Their texts and the source lines, without the packet's number."""
    return [str(e).partition(": ")[2].replace("forward.p4:", "") for e in events]


def test_a_routed_packet_with_a_clone(forward: SwitchDevice) -> None:
    forward.table_insert("ingress.routes", [Lpm(0x0A000000, 8)], "ingress.forward", [3])
    acl: list[MatchValue] = [Ternary(0, 0), Ternary(17, 255), Range(0, 100)]
    handle = forward.table_insert("ingress.acl", acl, "ingress.mirror", [7], 5)
    forward.clone_session_set(7, [(510, 0)])
    out, events = forward.process_traced([(1, ETHERNET + b"\x08\x00" + IPV4)])
    assert [port for port, _ in out] == [510, 3]
    parsed = [
        "parser state start",
        "parser state ethernet",
        "extracted ethernet, 14 bytes",
        "parser state ipv4",
        "extracted ipv4, 20 bytes",
    ]
    # the numbers of const entries and routes depend on what was there before
    assert [re.sub(r"entry \d+", "entry N", line) for line in lines(events)] == [
        "received on port 1, 34 bytes",
        *parsed,
        "action forward185() (185)",
        "if (hdr.packet_out.isValid()) is false (187)",
        "action forward191() (191)",
        "if (meta.color == 2) is false (192)",
        "if (hdr.ipv4.isValid()) is true (194)",
        "table ingress.classes [0x20]: hit entry N [0x20&&&0xe0] (169)",
        "action ingress.set_ttl(ttl=0x64) (109)",
        "table ingress.routes [0xa000002]: hit entry N [0xa000000/8] (131)",
        "action ingress.forward(port=0x3) (95)",
        "table ingress.flows [0xa000001, 0xa000002]: miss (157)",
        "action NoAction()",
        "if (meta.flow_color == 2) is false (198)",
        "table ingress.acl [0xa000001, 0x11, 0x14]: hit entry N [0x0&&&0x0, 0x11&&&0xff, 0x0..0x64] (142)",
        "action ingress.mirror(session=0x7) (105)",
        "cloned to session 7, 1 copies",
        *parsed,
        "egress to port 510, replica 0, ingress clone",
        "if (std.egress_port == CPU_PORT) is true (212)",
        "action forward213() (213)",
        "if (std.mcast_grp != 0) is false (218)",
        "sent on port 510, 36 bytes",
        "egress to port 3, replica 0, normal",
        "if (std.egress_port == CPU_PORT) is false (212)",
        "if (std.mcast_grp != 0) is false (218)",
        "sent on port 3, 34 bytes",
    ]
    (applied,) = [e for e in events if isinstance(e, TableApplied) and e.table == "ingress.acl"]
    assert (applied.handle, applied.entry) == (handle, forward.table_entry("ingress.acl", handle))


def test_a_packet_that_is_too_short_is_dropped_where_the_program_says(forward: SwitchDevice) -> None:
    out, events = forward.process_traced([(1, ETHERNET[:6])])
    assert out == []
    assert lines(events) == [
        "received on port 1, 6 bytes",
        "parser state start",
        "parser state ethernet",
        "parser error PacketTooShort",
        "action forward185() (185)",
        "if (hdr.packet_out.isValid()) is false (187)",
        "action forward191() (191)",
        "if (meta.color == 2) is false (192)",
        "if (hdr.ipv4.isValid()) is false (194)",
        "action ingress.drop() (92)",
        "table ingress.l2 [0x0]: miss (115)",
        "action NoAction()",
        "dropped: at the end of ingress (92)",
    ]
    assert isinstance(events[-1], Dropped)


def test_multicast_and_an_entry_that_has_gone(forward: SwitchDevice) -> None:
    handle = forward.table_insert("ingress.l2", [Exact(0xAA)], "ingress.flood", [1])
    forward.trace()
    assert forward.process([(1, ETHERNET + b"\x12\x34")]) == []
    forward.table_delete("ingress.l2", handle)
    events = forward.trace()
    (applied,) = [e for e in events if isinstance(e, TableApplied)]
    assert (applied.hit, applied.handle, applied.entry, applied.key) == (True, handle, None, (0xAA,))
    assert lines(events)[-2:] == [
        "multicast to group 1, 0 copies",
        "dropped: the multicast group has no members",
    ]
    forward.table_insert("ingress.l2", [Exact(0xAA)], "ingress.flood", [1])
    forward.multicast_set(1, [(4, 5), (6, 7)])
    events = forward.process_traced([(1, ETHERNET + b"\x12\x34")])[1]
    assert [text for text in lines(events) if text.startswith(("multicast", "egress", "sent"))] == [
        "multicast to group 1, 2 copies",
        "egress to port 4, replica 5, replicated",
        "sent on port 4, 14 bytes",
        "egress to port 6, replica 7, replicated",
        "sent on port 6, 14 bytes",
    ]


def test_no_room_is_said_and_bounded(forward: SwitchDevice) -> None:
    forward.trace()
    forward.process([(1, ETHERNET + b"\x12\x34")] * 5000)
    *_, last = forward.trace()
    assert isinstance(last, Lost)
    assert last.events > 0
    assert not isinstance(forward.process_traced([(1, ETHERNET)])[1][-1], Lost)


def test_a_plain_device_has_no_trace() -> None:
    with SwitchDevice.load(FORWARD) as d, pytest.raises(DeviceError, match="trace=True"):
        d.trace()


@pytest.mark.parametrize("trace", [False, True])
def test_only_the_traced_variant_has_code_for_it(tmp_path: Path, *, trace: bool) -> None:
    source = tmp_path / "program.c"
    source.write_text(emit_program(load_program(FORWARD.read_bytes()), trace=trace))
    command = [*native.compiler(), "-std=gnu11", "-E", "-P", f"-I{build.RUNTIME}", str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert ("sw_trace(" in text) == trace


def test_the_kinds_are_those_of_the_runtime() -> None:
    header = (build.RUNTIME / "trace.h").read_text()
    names = re.findall(r"\bSW_T_(\w+),?(?: +/\*.*)?$", header, re.MULTILINE)
    assert names == [k.name for k in sorted(Kind)]


def test_a_fault_is_told_with_its_place() -> None:
    b = simple([("a", 8)])
    b.run("divide", [assign(field("h", "a"), {"type": "expression", "value": {
        "op": "/", "left": const(7), "right": field("h", "a")}})])  # fmt: skip
    with SwitchDevice.load(b.json, trace=True) as d:
        out, events = d.process_traced([(1, pack([("a", 8)], [0]))])
    assert out == []
    assert "division by zero" in str(events[-1])


def test_a_contribution_to_the_aggregation() -> None:
    with SwitchDevice.load(form(64, 1024).json_path, cpu_port=510, trace=True) as d:
        rig = Rig(d, 64, 1024)
        first, second = (rig.contribution(w, 0, [w + 1] * 64).pack() for w in (0, 1))
        absorbed = d.process_traced([(1, first)])[1]
        out, completed = d.process_traced([(2, second)])
    told = [str(e) for e in absorbed if not isinstance(e, ActionRun | ConditionTested)]
    assert [re.sub(r" entry \d+ .*", "", line.removeprefix("packet 1: ")) for line in told] == [
        "received on port 1, 308 bytes",
        "parser state start",
        "parser state parse_ethernet",
        "extracted ethernet, 14 bytes",
        "parser state parse_ipv4",
        "extracted ipv4, 20 bytes",
        "parser state parse_payload",
        "parser state parse_udp",
        "extracted udp, 8 bytes",
        "parser state parse_lengths",
        "parser state parse_agg",
        "extracted agg, 8 bytes",
        "extracted exponents, 2 bytes",
        "extracted values, 256 bytes",
        f"checksum ipv4.checksum is right ({line_of('checksums.p4', 'verify_checksum')})",
        "table SwitchIngress.receive.ports [0x1]: hit",
        "table SwitchIngress.receive.addresses [0xa00ff01]: hit",
        f"table SwitchIngress.receive.faults.shares [0x1]: miss ({line_of('faults.p4', 'table shares')})",
        "table SwitchIngress.handle.aggregation.admission.members [0x1, 0xa000001, 0xfa1, 0xbe07]: hit",
        f"dropped: at the end of ingress ({line_of('slots.p4', 'mark_to_drop')})",
    ]
    members = [e for e in absorbed if isinstance(e, TableApplied) and e.table.endswith("admission.members")]
    assert [e.hit for e in members] == [True]
    args = next(dict(e.args) for e in absorbed if isinstance(e, ActionRun) and e.action.endswith(".worker"))
    assert list(args.values())[:5] == [0, 1, 3, rig.base, rig.window]
    assert [port for port, _ in out] == [1, 2]
    assert [e.port for e in completed if isinstance(e, Sent)] == [1, 2]
    assert not any(isinstance(e, Cloned) for e in completed)


def line_of(name: str, text: str) -> str:
    """Where a text first stands in a source of the aggregation program."""
    source = (Path(p4src.__file__).parent / name).read_text().splitlines()
    return f"{name}:{next(i for i, line in enumerate(source, 1) if text in line)}"


@some_programs
def test_tracing_changes_no_packet(name: str) -> None:
    folder = PROGRAMS / name
    with SwitchDevice.load(folder / f"{name}.json", trace=True) as device:
        result = StfRunner(device).run((folder / f"{name}.stf").read_text())
        events = device.trace()
    assert result.passed, result.failures
    assert len([e for e in events if isinstance(e, Sent)]) == len(result.received)


def test_the_log_has_lines_and_forgets_closed_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "switch.trace")
    log = DeviceLog(trace=True)
    try:
        with SwitchDevice.load(FORWARD, trace=True) as d:
            log.add(d)
            d.process([(1, ETHERNET)])
            log.stop()
            assert "packet 1: received on port 1, 12 bytes" in caplog.messages
        log.stop()
    finally:
        log.stop()
    assert "log" not in [t.name for t in threading.enumerate()]
