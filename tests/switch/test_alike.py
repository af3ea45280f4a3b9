# SPDX-License-Identifier: Apache-2.0
"""One segment in place of all: what leaves and what is counted is what each would have given singly."""

from __future__ import annotations

import ctypes
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch.device import Exact, Lpm, SwitchDevice
from switch.ports import io_library
from tests.switch.flows import ACK, CWR, DONT_FRAGMENT, ECE, FIN, PSH, TCP, Flow
from tests.switch.programs import META, Builder, J, assign, call, const, expr, extract, field, key, value
from tests.switch.supers import MOST, TCPV4, TCPV6, Cut, Header, Run, cut
from tests.switch.test_process_ports import EMIT, Packet, Sink

IP = [("version", 4), ("ihl", 4), ("tos", 8), ("length", 16), ("id", 16), ("fragment", 16), ("ttl", 8),
      ("protocol", 8), ("sum", 16), ("src", 32), ("dst", 32)]  # fmt: skip
IP6 = [("version", 4), ("class", 28), ("length", 16), ("next", 8), ("hops", 8), ("src", 128), ("dst", 128)]
TCP_FIELDS = [("src", 16), ("dst", 16), ("seq", 32), ("ack", 32), ("offset", 8), ("flags", 8), ("window", 16),
              ("sum", 16), ("urgent", 16)]  # fmt: skip
LENGTH = "packet_length"
OUT = 2

# ---- a program of everything


def look(at: int, width: int) -> J:
    return {"type": "lookahead", "value": [at, width]}


def when(condition: J, error: int = 1) -> J:
    return {"op": "verify", "parameters": [condition, const(error)]}


def put(header: str, name: str, what: J) -> J:
    return {"op": "set", "parameters": [field(header, name), what]}


TAKE_IP, TAKE_TCP = extract("ip"), extract("tcp")


def seldom(after: str) -> list[J]:
    return [{"type": "hexstr", "value": "0x00", "mask": "0x01", "next_state": after}]


# what the parser does behind Ethernet, by the sender's number: operations, a key to select on, where to go
PATHS: dict[str, tuple[list[J], list[J], str | None]] = {
    "both": ([TAKE_IP, TAKE_TCP], [], None),
    "neither": ([], [], None),
    "ip": ([TAKE_IP], [], None),
    "more": ([TAKE_IP, TAKE_TCP, extract("more")], [], None),
    "blob": ([extract("blob")], [], None),
    "look_at_port": ([TAKE_IP], [look(16, 16)], "tcp_0"),
    "verify_ttl": ([TAKE_IP, when(expr(">", field("ip", "ttl"), const(3))), TAKE_TCP], [], None),
    "verify_never": ([TAKE_IP, when(expr("==", field("ip", "ttl"), const(3))), TAKE_TCP], [], None),
    "set_ttl": ([TAKE_IP, put("m", "x", field("ip", "ttl")), TAKE_TCP], [], None),
    "look_at_payload": ([TAKE_IP], [look(160, 8)], "tcp_0"),
    "look_at_sequence": ([TAKE_IP], [look(56, 8)], "tcp_0"),
    "select_sequence": ([TAKE_IP, TAKE_TCP], [field("tcp", "seq")], "more_0"),
    "select_ident": ([TAKE_IP], [field("ip", "id")], "tcp_0"),
    "select_blob": ([extract("blob")], [field("blob", "b")], "more_0"),
    "skip": ([TAKE_IP, {"op": "advance", "parameters": [const(64)]}], [], None),
    "verify_ident": ([TAKE_IP, when(expr("!=", field("ip", "id"), const(5))), TAKE_TCP], [], None),
    "set_sum": ([TAKE_IP, put("m", "x", field("ip", "sum")), TAKE_TCP], [], None),
    "set_ident": ([TAKE_IP, put("ip", "id", const(0)), TAKE_TCP], [], None),
    "twice": ([TAKE_IP, TAKE_IP], [], None),
    "set_in_look": ([TAKE_IP, put("m", "x", look(0, 64)), TAKE_TCP], [], None),
}
PATHS_ALIKE = list(PATHS)[:9]

HASHED = ["hash_flow", "hash_payload", "hash_ident", "hash_header"]


def actions() -> dict[str, list[J]]:
    """What tables can be set to do; those up to `no_more` treat segments alike."""
    f = field
    first = expr("==", f(META, "instance_type"), const(0))
    return {
        "nothing": [],
        "tos": [assign(f("ip", "tos"), const(0xB8)), assign(f("m", "u"), const(1))],
        "ttl": [assign(f("ip", "ttl"), expr("-", f("ip", "ttl"), const(1))), assign(f("m", "u"), const(1))],
        "mac": [assign(f("eth", "source"), f("eth", "dst"))],
        "length": [assign(f("eth", "source"), f(META, "packet_length"))],
        "ip_length": [assign(f("eth", "source"), f("ip", "length"))],
        "flags": [assign(f("eth", "source"), f("tcp", "flags"))],
        "window": [assign(f("m", "x"), f("tcp", "window"))],
        "count": [call("count", value("counter_array", "c"), expr("&", f("ip", "ttl"), const(7)))],
        "count_length": [call("count", value("counter_array", "c"), expr("&", f(META, LENGTH), const(7)))],
        "read": [call("register_read", f("m", "x"), value("register_array", "r"), const(1)),
                 assign(f("eth", "source"), f("m", "x"))],
        "hash_flow": [],
        "drop": [call("mark_to_drop", value("header", META))],
        "sure": [call("assert", expr("==", f("eth", "dst"), f("eth", "dst")))],
        "copies": [assign(f(META, "mcast_grp"), const(1))],
        "sum_seen": [assign(f("eth", "source"), f(META, "checksum_error"))],
        "error_seen": [assign(f("eth", "source"), f(META, "parser_error"))],
        "leave": [call("exit")],
        "no_more": [],
        "twice": [assign(f(META, "mcast_grp"), const(2))],
        "ttl_alone": [assign(f("ip", "ttl"), expr("-", f("ip", "ttl"), const(1)))],
        "port": [assign(f("tcp", "dst"), expr("+", f("tcp", "dst"), const(1)))],
        "urgent": [assign(f("tcp", "urgent"), const(1))],
        "push": [assign(f("tcp", "flags"), const(ACK | PSH))],
        "protocol": [assign(f("ip", "protocol"), const(17)), assign(f("m", "u"), const(1))],
        "kind": [assign(f("eth", "type"), const(0x1234))],
        "fragment": [assign(f("ip", "fragment"), const(0x2000)), assign(f("m", "u"), const(1))],
        "offset": [assign(f("tcp", "offset"), const(0x60))],
        "ident": [assign(f("ip", "id"), const(7)), assign(f("m", "u"), const(1))],
        "ident_seen": [assign(f("eth", "source"), f("ip", "id"))],
        "sequence": [assign(f("tcp", "seq"), const(0))],
        "sequence_seen": [assign(f("m", "x"), expr("+", f("m", "x"), f("tcp", "seq")))],
        "sum": [assign(f("ip", "sum"), const(0))],
        "tcp_sum": [assign(f("tcp", "sum"), const(0))],
        "tcp_update": [assign(f("m", "t"), const(1))],
        "more_seen": [assign(f("m", "x"), f("more", "a"))],
        "more_set": [assign(f("more", "a"), const(0))],
        "blob_seen": [assign(f("m", "x"), f("blob", "b"))],
        "hash_payload": [],
        "hash_ident": [],
        "hash_header": [],
        "write": [call("register_read", f("m", "x"), value("register_array", "r"), const(1)),
                  assign(f("m", "x"), expr("+", f("m", "x"), const(1))),
                  call("register_write", value("register_array", "r"), const(1), f("m", "x")),
                  assign(f("eth", "source"), f("m", "x"))],
        "meter": [call("execute_meter", value("meter_array", "meter"), const(0), f("m", "x"))],
        "random": [call("modify_field_rng_uniform", f("m", "x"), const(0), const(9))],
        "digest": [call("generate_digest", const(0), const(1))],
        "truncate": [call("truncate", const(80))],
        "no_tcp": [call("remove_header", value("header", "tcp"))],
        "add": [call("add_header", value("header", "extra"))],
        "copy": [call("assign_header", value("header", "copy"), value("header", "ip"))],
        "message": [call("log_msg", value("string", "seen"), value("parameters_vector", []))],
        "unsure": [call("assert", expr("!=", f("eth", "dst"), f("eth", "dst")))],
        "mirror": [call("_jump_if_zero", expr("b2d", None, first), const(2)),
                   call("clone_ingress_pkt_to_egress", const(5), const(0))],
        "mirror_out": [call("_jump_if_zero", expr("b2d", None, first), const(2)),
                       call("clone_egress_pkt_to_egress", const(5), const(0))],
        "again": [call("_jump_if_zero", expr("b2d", None, first), const(2)), call("resubmit", const(0))],
        "around": [call("_jump_if_zero", expr("b2d", None, first), const(2)), call("recirculate", const(0))],
    }  # fmt: skip


ACTIONS = list(actions())
ALIKE = ACTIONS[: ACTIONS.index("no_more") + 1]
IN_EGRESS = [
    a for a in ACTIONS if a not in ("copies", "twice", "again", "mirror", "digest", "around", "mirror_out")
]
IN_INGRESS = [a for a in ACTIONS if a not in ("around", "mirror_out")]


def program() -> str:
    b = Builder()
    b.header("eth", [("dst", 48), ("source", 40), ("who", 8), ("type", 16)])
    b.header("extra", [("a", 16)])
    b.header("blob", [("a", 32), ("b", 64), ("c", 224)])
    b.header("ip", IP)
    b.header("ip6", IP6)
    b.header("tcp", TCP_FIELDS)
    b.header("more", [("a", 80)])
    b.instance("copy", "ip_t")
    b.header("m", [("x", 64), ("u", 8), ("t", 8)], metadata=True)
    chosen = [{"type": "hexstr", "value": "0x0086dd", "mask": "0x00ffff", "next_state": "v6"}]
    for n, name in enumerate(PATHS):
        chosen.append({"type": "hexstr", "value": f"{n << 16:#x}", "mask": "0xff0000", "next_state": name})
    b.state("start", [extract("eth")], [field("eth", "who"), field("eth", "type")], chosen)
    b.state("v6", [extract("ip6"), TAKE_TCP])
    b.state("tcp_0", [TAKE_TCP])
    b.state("more_0", [extract("more")])
    for name, (ops, keys, after) in PATHS.items():
        end = {"type": "default", "value": None, "mask": None, "next_state": None}
        b.state(name, ops, keys, [*seldom(after), end] if after else [end])
    covered = [field("ip", name) for name, _ in IP if name != "sum"]
    b.calculation("ip_sum", "csum16", covered)
    b.calculation("tcp_sum", "csum16", [*covered[:1], field("tcp", "seq"), value("payload", None)])
    b.calculation("hash_flow", "crc32", [field("ip", "src"), field("tcp", "dst")])
    b.calculation("hash_payload", "crc32", [value("payload", None)])
    b.calculation("hash_ident", "crc32", [field("ip", "dst"), field("ip", "id")])
    b.calculation("hash_header", "crc32", [value("header", "tcp")])
    b.counter("c", 8)
    b.register("r", 32, 4)
    b.meter("meter", 1)
    b.root["learn_lists"].append({"id": 1, "name": "news", "elements": [field("ip", "src")]})
    b.run("route", [assign(field(META, "egress_spec"), const(OUT))])
    for pipeline, table in enumerate(("first", "second")):
        numbers = []
        for name, body in actions().items():
            if name in HASHED:
                hashed = [field("m", "x"), const(0), value("calculation", name), const(1 << 32)]
                body = [
                    call("modify_field_with_hash_based_offset", *hashed),
                    assign(field("eth", "source"), field("m", "x")),
                ]
            numbers.append(b.action(f"{table}.{name}", body))
        b.table(
            table, [key("exact", "eth", "dst")], numbers, numbers[0], pipeline=pipeline, with_counters=True
        )

    def checksum(number: int, header: str, flag: str, **more: bool) -> J:
        return {
            "name": f"{header}{number}",
            "id": number,
            "target": [header, "sum"],
            "type": "generic",
            "calculation": f"{header}_sum",
            "if_cond": expr("==", field("m", flag), const(int("update" in more))),
            "verify": False,
            "update": False,
            **more,
        }

    b.root["checksums"] = [
        checksum(0, "ip", "u", verify=True),
        checksum(1, "ip", "u", update=True),
        checksum(2, "tcp", "t", update=True),
    ]
    return b.json


# ---- one for all


AGREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
PROCESS_ALIKE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Packet), ctypes.c_uint32, ctypes.POINTER(Sink), AGREE
)


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(io_library()))
    pointer, u32 = ctypes.POINTER, ctypes.c_uint32
    lib.super_cut_begin.argtypes = [pointer(Cut), ctypes.c_char_p, u32, ctypes.c_uint8, ctypes.c_uint16]
    lib.super_cut_next.argtypes = [pointer(Cut), pointer(u32)]
    lib.super_cut_next.restype = ctypes.c_void_p
    lib.super_uniform.argtypes = [pointer(Cut)]
    lib.super_uniform.restype = u32
    lib.super_like.argtypes = [pointer(Cut), ctypes.c_char_p, ctypes.c_char_p, u32]
    lib.super_run_whole.argtypes = [pointer(Run), pointer(Cut), u32]
    lib.super_run_whole.restype = None
    lib.super_run_end.argtypes = [pointer(Run), ctypes.c_char_p, pointer(Header)]
    lib.super_run_end.restype = None
    return lib


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[SwitchDevice, SwitchDevice]]:
    text = program()
    with SwitchDevice.load(text, clock=lambda: 7) as one, SwitchDevice.load(text, clock=lambda: 7) as other:
        yield one, other


def set_up(device: SwitchDevice, first: str, second: str) -> None:
    device.reset()
    device.table_set_default("first", f"first.{first}")
    device.table_set_default("second", f"second.{second}")
    device.multicast_set(1, [(3, 1), (4, 2)])
    device.multicast_set(2, [(3, 1), (3, 2)])
    device.clone_session_set(5, [(6, 0)])
    device.register_write("r", 1, 77)


def state(device: SwitchDevice) -> Any:
    counters = [device.counter_read("c", i) for i in range(8)]
    direct = [device.direct_counter_read(table, None) for table in ("first", "second")]
    registers = [device.register_read("r", i) for i in range(4)]
    return (
        counters,
        direct,
        registers,
        device.digests(),
        device.log(),
        device.stats(),
        device.meter_colors("meter", 0),
    )


Ports = dict[int, list[bytes]]


def by_port(frames: list[tuple[int, bytes]]) -> Ports:
    found: Ports = defaultdict(list)
    for port, frame in frames:
        found[port].append(frame)
    return found


def all_at_once(
    lib: ctypes.CDLL, device: SwitchDevice, flow: Flow, payload: bytes, size: int
) -> tuple[bool, Ports]:
    """What leaves when a super-packet comes, and whether its first segment stood for all but the last."""
    kind = TCPV6 if flow.v6 else TCPV4
    frame = flow.frame(payload, partial=True)
    segments = cut(lib, frame, kind, size)
    state, room = Cut(), ctypes.create_string_buffer(1 << 16)
    assert segments is not None
    assert lib.super_cut_begin(ctypes.byref(state), frame, len(frame), kind, size) == 0
    count = lib.super_uniform(ctypes.byref(state))
    if not count:
        return False, by_port(device.process((1, one) for one in segments))
    assert count == len(segments) - 1
    out: list[tuple[int, bytes]] = []
    first = segments[0]

    def emit(context: int, port: int, data: int, length: int, known: int) -> None:
        out.append((port, ctypes.string_at(data, length)))

    def agree(context: int) -> int:
        single = len({port for port, _ in out}) == len(out)
        return int(
            single and all(lib.super_like(ctypes.byref(state), first, one, len(one)) for _, one in out)
        )

    keep = ctypes.create_string_buffer(first, len(first))
    packet = Packet(ctypes.cast(keep, ctypes.c_void_p), len(first), 1)
    run_alike = PROCESS_ALIKE(device.c_alike)
    sink = Sink(None, EMIT(emit), None)
    alike = run_alike(device.c_handle, ctypes.byref(packet), count, ctypes.byref(sink), AGREE(agree))
    found = by_port(out)
    if alike:
        for port, (one,) in found.items():
            run, header = Run(), Header()
            lib.super_run_whole(ctypes.byref(run), ctypes.byref(state), count)
            start = len(first) - size
            whole = one[:start] + payload[: count * size]
            assert run.len == len(whole) <= MOST
            ctypes.memmove(room, whole, len(whole))
            lib.super_run_end(ctypes.byref(run), room, ctypes.byref(header))
            apart = cut(lib, room.raw[: len(whole)], header.gso_type, header.gso_size)
            assert apart is not None
            found[port] = apart
    for port, frames in by_port(
        device.process((1, one) for one in segments[count if alike else 1 :])
    ).items():
        found[port] += frames
    return bool(alike), found


flows = st.builds(
    Flow,
    protocol=st.just(TCP),
    v6=st.sampled_from([False, False, False, True]),
    tos=st.sampled_from([0, 1, 0xB8]),
    ident=st.sampled_from([0, 4, 5, 7, 65534]),
    fragment=st.sampled_from([0, DONT_FRAGMENT]),
    ttl=st.sampled_from([0, 1, 3, 4, 64]),
    seq=st.sampled_from([0, 1, 7, 2**32 - 50, 0x12345678]),
    flags=st.sampled_from([ACK, ACK | PSH, ACK | FIN | PSH]),
    tcp_options=st.sampled_from([b"", b"\1\1\1\1"]),
)
steps = st.tuples(st.sampled_from(IN_INGRESS), st.sampled_from(IN_EGRESS))


def check(
    lib: ctypes.CDLL,
    devices: tuple[SwitchDevice, SwitchDevice],
    path: str,
    step: tuple[str, str],
    flow: Flow,
    payload: bytes,
    size: int,
) -> bool:
    """Whether one stood for all, after what left and what was counted is found to be the same either way."""
    one, other = devices
    for device in devices:
        set_up(device, *step)
    flow = replace(flow, source=list(PATHS).index(path))
    segments = cut(lib, flow.frame(payload, partial=True), TCPV6 if flow.v6 else TCPV4, size)
    assert segments is not None
    alike, found = all_at_once(lib, one, flow, payload, size)
    wanted = by_port(other.process((1, frame) for frame in segments))
    if "random" not in step:
        assert found == wanted
    assert state(one) == state(other)
    return alike


payloads = st.tuples(st.integers(20, 90), st.integers(2, 9), st.integers(1, 90), st.integers(0, 2**32))


@given(path=st.sampled_from(list(PATHS)), step=steps, flow=flows, shape=payloads)
def test_one_for_all_is_as_each_for_itself(
    lib: ctypes.CDLL,
    devices: tuple[SwitchDevice, SwitchDevice],
    path: str,
    step: tuple[str, str],
    flow: Flow,
    shape: tuple[int, int, int, int],
) -> None:
    size, count, rest, seed = shape
    rng = random.Random(seed)
    # often zeroes, so that what depends on the payload would not show in the first segment
    payload = bytes(size) + b"".join(rng.choice([bytes(size), rng.randbytes(size)]) for _ in range(count))
    check(lib, devices, path, step, flow, payload + bytes(min(rest, size)), size)


PLAIN = Flow(protocol=TCP, ident=4, seq=9, ttl=64)
TEXT = bytes(range(100)) * 3


@pytest.mark.parametrize("path", PATHS)
def test_what_the_parser_may_look_at(
    lib: ctypes.CDLL, devices: tuple[SwitchDevice, SwitchDevice], path: str
) -> None:
    assert check(lib, devices, path, ("nothing", "nothing"), PLAIN, TEXT, 90) is (path in PATHS_ALIKE)


@pytest.mark.parametrize("action", ACTIONS)
def test_what_actions_may_do(
    lib: ctypes.CDLL, devices: tuple[SwitchDevice, SwitchDevice], action: str
) -> None:
    path = "more" if action.startswith("more") else "blob" if action.startswith("blob") else "both"
    if action in IN_INGRESS:
        assert check(lib, devices, path, (action, "nothing"), PLAIN, TEXT, 90) is (action in ALIKE)
    if action in IN_EGRESS:
        assert check(lib, devices, path, ("copies", action), PLAIN, TEXT, 90) is (action in ALIKE)


def test_counters_count_every_segment(lib: ctypes.CDLL, devices: tuple[SwitchDevice, SwitchDevice]) -> None:
    before = devices[0].stats()
    assert check(lib, devices, "both", ("count", "nothing"), PLAIN, bytes(10 * 100 + 30), 100)
    frames, octets = 11, 10 * (54 + 100) + 54 + 30
    assert devices[0].counter_read("c", 64 & 7) == (frames, octets)
    assert devices[0].direct_counter_read("first", None) == (frames, octets)
    now = devices[0].stats()
    assert (now.received - before.received, now.sent - before.sent) == (frames, frames)


OTHERS: list[tuple[dict[str, Any], int, int]] = [
    ({"flags": ACK | CWR}, 300, 90),
    ({"flags": ACK | ECE}, 300, 90),
    ({"flags": ACK | 2}, 300, 90),
    ({"flags": 0}, 300, 90),
    ({"urgent": 3}, 300, 90),
    ({"ip_options": bytes(4)}, 300, 90),
    ({"tags": (b"\x81\x00\x00\x05",)}, 300, 90),
    ({"fragment": 0x8000}, 300, 90),
    ({}, 180, 90),
    ({}, 90, 90),
]


@pytest.mark.parametrize(("more", "length", "size"), OTHERS)
def test_super_packets_that_are_cut_up(
    lib: ctypes.CDLL, more: dict[str, Any], length: int, size: int
) -> None:
    flow = Flow(protocol=TCP, **more)
    frame, state = flow.frame(bytes(length), partial=True), Cut()
    assert lib.super_cut_begin(ctypes.byref(state), frame, len(frame), TCPV4, size) == 0
    assert lib.super_uniform(ctypes.byref(state)) == 0


# ---- the program of this project: what it routes

AGGREGATION = Path(__file__).parents[2] / "p4src/compiled/p4reduce_64x1024.json"
HANDLE, ROUTED, HOST, NEXT = "SwitchIngress.handle", 40, 0x020202020202, 0x02000000AB01
FAULTS = "SwitchIngress.receive.faults.inject"
GROUP, WAYS = 5, 3


@pytest.fixture(scope="module")
def routers() -> Iterator[tuple[SwitchDevice, SwitchDevice]]:
    with SwitchDevice.load(AGGREGATION) as one, SwitchDevice.load(AGGREGATION) as other:
        for device in (one, other):
            device.table_insert("SwitchIngress.receive.ports", [Exact(1)], "SwitchIngress.receive.host_port")
            source = [Exact(1), Exact(HOST - 1), Exact(0x0A0A0A01)]
            device.table_insert(f"{HANDLE}.sources.sources", source, "NoAction")
            routing = f"{HANDLE}.routing"
            spread = [Lpm(0x0A0A0A00, 24)], f"{routing}.spread", [GROUP, WAYS, 1]
            device.table_insert(f"{routing}.routes", *spread)
            for way in range(WAYS):
                hop = [Exact(GROUP), Exact(way)], f"{routing}.forward", [2 + way, HOST, NEXT]
                device.table_insert(f"{routing}.next_hops", *hop)
        yield one, other


def test_flows_of_our_own_program_take_several_ways_and_each_one(
    lib: ctypes.CDLL, routers: tuple[SwitchDevice, SwitchDevice]
) -> None:
    one, other = routers
    ways = set()
    for port in range(4000, 4040):
        flow, payload, size = Flow(protocol=TCP, ports=(port, 5201)), bytes(20 * 1448 + 7), 1448
        alike, found = all_at_once(lib, one, flow, payload, size)
        assert alike
        segments = cut(lib, flow.frame(payload, partial=True), TCPV4, size)
        assert segments is not None
        assert found == by_port(other.process((1, frame) for frame in segments))
        ((way, frames),) = found.items()
        assert len(frames) == 21
        ways.add(way)
    assert ways == set(range(2, 2 + WAYS))


@pytest.mark.parametrize("faulty", [False, True])
def test_what_our_own_program_routes_passes_whole(
    lib: ctypes.CDLL, routers: tuple[SwitchDevice, SwitchDevice], faulty: bool
) -> None:
    if faulty:
        for device in routers:
            shares = [1, 1 << 30, 0, 0]  # a seed; drops a quarter, which it chooses packet by packet
            device.table_insert("SwitchIngress.receive.faults.shares", [Exact(1)], FAULTS, shares)
    one, other = routers
    before = one.counter_read("SwitchIngress.port_verdicts", 1 << 6 | ROUTED)
    flow, payload, size = Flow(protocol=TCP), random.Random(1).randbytes(40 * 1448 + 7), 1448
    alike, found = all_at_once(lib, one, flow, payload, size)
    assert alike is not faulty
    segments = cut(lib, flow.frame(payload, partial=True), TCPV4, size)
    assert segments is not None
    assert found == by_port(other.process((1, frame) for frame in segments))
    counted = [device.counter_read_all("SwitchIngress.port_verdicts").tolist() for device in routers]
    assert counted[0] == counted[1]
    if not faulty:
        packets, octets = one.counter_read("SwitchIngress.port_verdicts", 1 << 6 | ROUTED)
        assert (packets - before[0], octets - before[1]) == (41, 41 * 54 + len(payload))
        ((way, frames),) = found.items()
        assert 2 <= way < 2 + WAYS
        assert [frame[:12].hex() for frame in frames] == [f"{NEXT:012x}{HOST:012x}"] * 41
