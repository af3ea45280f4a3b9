# SPDX-License-Identifier: Apache-2.0
"""What becomes of a packet: ports, drops, multicast, clones, resubmit, recirculate, truncation, limits."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from switch.device import SwitchDevice
from switch.errors import BadIndex, DeviceError, NoSuchObject
from tests.switch.programs import META, Builder, J, assign, call, const, expr, extract, field, simple, to_port

TYPE = field(META, "instance_type")


def when(b: Builder, name: str, condition: J, then: list[J], *, pipeline: int = 0) -> None:
    """`if (condition) { then }` at the end of a pipeline that holds nothing else."""
    action = b.action(name, then)
    b.table(f"tbl_{name}", [], [action], action, pipeline=pipeline)
    p = b.root["pipelines"][pipeline]
    p["conditionals"].append(
        {
            "name": f"if_{name}",
            "id": 0,
            "expression": condition,
            "true_next": f"tbl_{name}",
            "false_next": None,
        }
    )
    assert len(p["tables"]) == 1
    p["init_table"] = f"if_{name}"


def mark(b: Builder) -> None:
    """Egress writes instance type, ingress port, egress port and replication id into h."""
    seen = [
        assign(field("h", n), field(META, m))
        for n, m in (
            ("type", "instance_type"),
            ("in", "ingress_port"),
            ("out", "egress_port"),
            ("rid", "egress_rid"),
        )
    ]
    b.run("mark", seen, pipeline=1)


H = [("type", 8), ("in", 8), ("out", 8), ("rid", 8), ("m", 8)]


def test_ports_and_drops() -> None:
    b = simple([("port", 16)], [assign(field(META, "egress_spec"), field("h", "port"))])
    with SwitchDevice.load(b.json) as d:
        out = d.process([(0, n.to_bytes(2, "big")) for n in (0, 5, 510, 511, 512 + 7)])
    assert [p for p, _ in out] == [0, 5, 510, 7]  # egress_spec has 9 bits; 511 drops


def test_another_drop_port() -> None:
    b = simple([("port", 16)], [assign(field(META, "egress_spec"), field("h", "port"))])
    with SwitchDevice.load(b.json, drop_port=5) as d:
        assert [p for p, _ in d.process([(0, n.to_bytes(2, "big")) for n in (5, 511)])] == [511]


def test_mark_to_drop_in_ingress_and_egress() -> None:
    drop = call("mark_to_drop", {"type": "header", "value": META})
    with SwitchDevice.load(simple([("a", 8)], [to_port(1), drop]).json) as d:
        assert d.process([(0, b"x")]) == []
    with SwitchDevice.load(simple([("a", 8)], [drop, to_port(1)]).json) as d:
        assert d.process([(0, b"x")]) == [(1, b"x")]  # a later assignment revives
    b = simple([("a", 8)], [to_port(1)])
    b.run("late", [drop], pipeline=1)
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"x")]) == []


def test_multicast() -> None:
    b = simple(H, [assign(field(META, "mcast_grp"), const(3))])
    mark(b)
    with SwitchDevice.load(b.json) as d:
        assert d.process([(9, bytes(5))]) == []  # no such group
        d.multicast_set(3, [(1, 10), (2, 20), (1, 30)])
        want = [(p, bytes([5, 9, p, r, 0])) for p, r in ((1, 10), (2, 20), (1, 30))]
        assert d.process([(9, bytes(5))]) == want
        assert d.multicast_groups() == {3: [(1, 10), (2, 20), (1, 30)]}
        d.multicast_delete(3)
        assert d.process([(9, bytes(5))]) == []
        with pytest.raises(NoSuchObject):
            d.multicast_delete(3)
        with pytest.raises(BadIndex):
            d.multicast_set(0, [])


def test_a_clone_session_is_a_multicast_group_too() -> None:
    """As in simple_switch_grpc, whose sessions are groups from 2^15 on (PI, pre_clone_mgr.cpp)."""
    b = simple(H, [assign(field(META, "mcast_grp"), const(0x8000 + 7))])
    mark(b)
    with SwitchDevice.load(b.json) as d:
        assert d.process([(9, bytes(5))]) == []
        d.clone_session_set(7, [(1, 10), (2, 20)], truncate=3)  # of clones alone
        assert d.process([(9, bytes(5))]) == [(p, bytes([5, 9, p, r, 0])) for p, r in ((1, 10), (2, 20))]
        d.multicast_set(0x8000 + 7, [(3, 30)])
        assert d.process([(9, bytes(5))]) == [(3, bytes([5, 9, 3, 30, 0]))]


def test_ingress_clone_starts_from_the_original_bytes() -> None:
    b = simple(H)
    b.field_list(1, [field("meta", "kept")])
    b.header("meta", [("kept", 8), ("lost", 8)], metadata=True)
    body = [
        assign(field("h", "m"), const(0xEE)),
        assign(field("meta", "kept"), const(7)),
        assign(field("meta", "lost"), const(8)),
        call("clone_ingress_pkt_to_egress", const(5), const(1)),
        to_port(1),
    ]
    b.run("body", body)
    mark(b)
    tables = [assign(field("h", "rid"), expr("|", field("meta", "kept"), field("meta", "lost")))]
    b.run("show", tables, pipeline=1)
    with SwitchDevice.load(b.json) as d:
        plain = (1, bytes([0, 9, 1, 15, 0xEE]))
        assert d.process([(9, bytes(5))]) == [plain]  # no such session
        d.clone_session_set(5, [(2, 0)])
        assert d.process([(9, bytes(5))]) == [(2, bytes([1, 0, 2, 7, 0])), plain]
        d.clone_session_set(5, [(2, 0), (3, 0)], truncate=3)
        assert d.process([(9, bytes(5))]) == [(2, bytes([1, 0, 2])), (3, bytes([1, 0, 3])), plain]
        d.clone_session_delete(5)
        assert d.process([(9, bytes(5))]) == [plain]


def test_egress_clone_carries_the_headers() -> None:
    b = simple(H, [to_port(1)])
    clone = [call("clone_egress_pkt_to_egress", const(0), const(0)), assign(field("h", "m"), const(0xEE))]
    when(b, "clone", expr("==", TYPE, const(0)), clone, pipeline=1)
    with SwitchDevice.load(b.json) as d:
        d.clone_session_set(0, [(2, 0)])
        assert d.process([(9, bytes(5))]) == [(1, bytes([0, 0, 0, 0, 0xEE])), (2, bytes([0, 0, 0, 0, 0xEE]))]


def test_resubmit_and_recirculate() -> None:
    b = simple(H)
    b.header("meta", [("kept", 8)], metadata=True)
    b.field_list(1, [field("meta", "kept")])
    again = [
        assign(field("meta", "kept"), const(7)),
        assign(field("h", "m"), const(1)),
        call("resubmit", const(1)),
    ]
    action = b.action("again", again)
    done = b.action(
        "done",
        [assign(field("h", "rid"), field("meta", "kept")), assign(field("h", "type"), TYPE), to_port(1)],
    )
    b.table("tbl_again", [], [action], action)
    b.table("tbl_done", [], [done], done)
    p = b.root["pipelines"][0]
    p["tables"][0]["next_tables"] = {"again": None}
    p["conditionals"].append(
        {
            "name": "c",
            "id": 0,
            "expression": expr("==", TYPE, const(0)),
            "true_next": "tbl_again",
            "false_next": "tbl_done",
        }
    )
    p["init_table"] = "c"
    with SwitchDevice.load(b.json) as d:
        assert d.process([(9, bytes(5))]) == [(1, bytes([6, 0, 0, 7, 0]))]  # the original bytes, m is 0 again
    p["tables"][0]["next_tables"] = {"again": "tbl_done"}
    b.root["actions"][action]["primitives"][2] = call("recirculate", const(1))
    with SwitchDevice.load(b.json) as d:
        assert d.process([(9, bytes(5))]) == [(1, bytes([4, 0, 0, 7, 1]))]  # deparsed bytes, m stays


def test_endless_packets_are_cut_off() -> None:
    for loop in (call("resubmit", const(1)), call("recirculate", const(1))):
        b = simple([("a", 8)], [to_port(1), loop])
        b.field_list(1, [])
        with SwitchDevice.load(b.json) as d:
            assert d.process([(0, b"x")] * 3) == []
            assert d.stats().over_budget == 3
    b = simple([("a", 8)], [to_port(1)])
    b.run("clone", [call("clone_egress_pkt_to_egress", const(1), const(0))], pipeline=1)
    with SwitchDevice.load(b.json) as d:
        d.clone_session_set(1, [(2, 0)] * 3)
        assert 0 < len(d.process([(0, b"x")])) <= 8192
        assert d.stats().over_budget > 0


def test_a_loop_in_an_action_is_stopped() -> None:
    b = simple([("a", 8)], [to_port(1), call("_jump", const(1), line=5)])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"x")]) == []
        assert d.log() == ["packet dropped: a loop in an action ran too long at test.p4:5"]


def test_a_loop_that_ends() -> None:
    i, total = field("m", "i"), field("m", "total")
    b = simple([("n", 8), ("sum", 16)])
    b.header("m", [("i", 8), ("total", 16)], metadata=True)
    body = [
        call("_jump_if_zero", expr("b2d", None, expr("<", i, field("h", "n"))), const(4)),
        assign(i, expr("+", i, const(1))),
        assign(total, expr("+", total, i)),
        call("_jump", const(0)),
        assign(field("h", "sum"), total),
        to_port(1),
    ]
    b.run("loop", body)
    with SwitchDevice.load(b.json) as d:
        for n in (0, 1, 10, 200):
            assert d.process([(0, bytes([n, 0, 0]))]) == [
                (1, bytes([n]) + (n * (n + 1) // 2).to_bytes(2, "big"))
            ]


def test_truncate_and_exit() -> None:
    b = simple([("a", 8)], [to_port(1), call("truncate", const(4)), call("truncate", const(9))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"abcdefgh"), (0, b"ab")]) == [(1, b"abcd"), (1, b"ab")]
    b = simple([("a", 8)], [to_port(1), call("exit"), assign(field("h", "a"), const(1))])
    b.run("never", [to_port(2)])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"x")]) == [(1, b"\x01")]  # the action ends, the pipeline does not go on


def test_truncate_does_not_reach_copies() -> None:
    body = [call("truncate", const(2)), assign(field(META, "mcast_grp"), const(3)), to_port(1)]
    body.append(call("clone_ingress_pkt_to_egress", const(5), const(0)))
    with SwitchDevice.load(simple([("a", 8)], body).json) as d:
        d.multicast_set(3, [(2, 0), (3, 1)])
        d.clone_session_set(5, [(4, 0)])
        assert d.process([(0, b"abcd")]) == [(4, b"abcd"), (2, b"abcd"), (3, b"abcd")]
    b = simple([("a", 8)], [to_port(1)])
    again = [call("truncate", const(2)), assign(field("h", "a"), const(1)), call("recirculate", const(1))]
    again.append(call("clone_egress_pkt_to_egress", const(5), const(0)))
    when(b, "again", expr("==", field("h", "a"), const(0)), again, pipeline=1)
    b.field_list(1, [])
    with SwitchDevice.load(b.json) as d:
        d.clone_session_set(5, [(4, 0)])
        assert d.process([(0, b"\0bcd")]) == [(4, b"\1bcd"), (1, b"\1bcd")]


def test_assertions_and_division() -> None:
    holds = expr("!=", field("h", "a"), const(0))
    b = simple([("a", 8)], [call("assert", holds, line=3), to_port(1)])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x00"), (0, b"\x01")]) == [(1, b"\x01")]
        assert d.log() == ["packet dropped: assertion failed at test.p4:3"]
    b = simple([("a", 8)], [to_port(1), assign(field("h", "a"), expr("/", const(100), field("h", "a")))])
    with SwitchDevice.load(b.json) as d:
        assert d.process([(0, b"\x00"), (0, b"\x07")]) == [(1, bytes([14]))]
        assert d.stats().faults == 1


def test_log_msg() -> None:
    text = {"type": "string", "value": "a is {}, 100% {}"}
    values = {"type": "parameters_vector", "value": [field("h", "a"), const(-3)]}
    with SwitchDevice.load(simple([("a", 8)], [call("log_msg", text, values)]).json) as d:
        d.process([(0, b"\x2a")])
        assert d.log() == ["a is 42, 100% -3"]
        d.process([(0, b"\x01")] * 1000)
        assert len(d.log()) == 256  # the queue is bounded


@pytest.mark.parametrize("none", [[], {}], ids=["list", "as p4c writes it"])
def test_log_msg_without_values(none: object) -> None:
    text = {"type": "string", "value": "seen"}
    values = {"type": "parameters_vector", "value": none}
    with SwitchDevice.load(simple([("a", 8)], [call("log_msg", text, values)]).json) as d:
        d.process([(0, b"\x2a")])
        assert d.log() == ["seen"]


def test_digests() -> None:
    b = simple([("a", 8), ("w", 72)], [call("generate_digest", const(1), const(4)), to_port(1)])
    b.root["learn_lists"].append({"id": 4, "name": "seen", "elements": [field("h", "a"), field("h", "w")]})
    with SwitchDevice.load(b.json) as d:
        d.process([(0, bytes(range(n, n + 10))) for n in (1, 50)])
        got = d.digests()
        assert [g.name for g in got] == ["seen", "seen"]
        assert got[1].values == (50, int.from_bytes(bytes(range(51, 60)), "big"))
        d.process([(0, bytes(10))] * 5000)
        assert len(d.digests(10000)) == 4096
        assert d.stats().digests_lost == 5000 - 4096


def test_timestamps_come_from_the_clock() -> None:
    now = [77]
    b = simple([("t", 48)], [assign(field("h", "t"), field(META, "ingress_global_timestamp")), to_port(1)])
    with SwitchDevice.load(b.json, clock=lambda: now[0]) as d:
        assert d.process([(0, bytes(6))]) == [(1, (77).to_bytes(6, "big"))]
        now[0] = 1 << 40
        assert d.process([(0, bytes(6))]) == [(1, (1 << 40).to_bytes(6, "big"))]


def test_random_stays_in_its_range() -> None:
    b = simple(
        [("a", 8)], [call("modify_field_rng_uniform", field("h", "a"), const(10), const(13)), to_port(1)]
    )
    with SwitchDevice.load(b.json) as d:
        assert {out[0] for _, out in d.process([(0, b"\x00")] * 500)} == {10, 11, 12, 13}


def test_batches_and_packets_agree() -> None:
    b = simple([("a", 8), ("b", 8)], [assign(field(META, "mcast_grp"), field("h", "a"))])
    rng = np.random.default_rng(3)
    with SwitchDevice.load(b.json) as d:
        d.multicast_set(1, [(1, 0), (2, 0)])
        d.multicast_set(2, [(3, 0)])
        lengths = rng.integers(2, 40, 300).astype(np.uint32)
        data = rng.integers(0, 256, (300, 40)).astype(np.uint8)
        data[:, 0] = rng.integers(0, 4, 300)
        ports = rng.integers(0, 500, 300).astype(np.uint16)
        want = d.process([(int(p), r[:n].tobytes()) for p, n, r in zip(ports, lengths, data, strict=True)])
        out_ports, out_lengths, out = d.process_batch(ports, lengths, data)
    assert [(int(p), r[:n].tobytes()) for p, n, r in zip(out_ports, out_lengths, out, strict=True)] == want
    assert out.shape == (len(want), max(len(x) for _, x in want))


def test_fields_without_bits_take_nothing_from_a_packet_and_put_nothing_in() -> None:
    fields = [
        ("before", 0),
        ("a", 8),
        ("w", 70),
        ("inside", 0),
        ("y", 2),
        ("c", 3),
        ("part", 0),
        ("d", 5),
        ("z", 0),
    ]
    empty = [f for f, width in fields if width == 0]
    body = [to_port(1), *(assign(field("h", "a"), expr("+", field("h", "a"), field("h", f))) for f in empty)]
    b = simple(fields, body)
    b.header("following", [("f", 8)])
    b.root["parsers"][0]["parse_states"][0]["parser_ops"].append(extract("following"))
    with SwitchDevice.load(b.json) as d:
        for data in (b"\xff" * 12, bytes(range(12)), b"\xee" * 60):
            assert d.process([(0, data)] * 2) == [(1, data)] * 2


def test_batches_that_do_not_fit() -> None:
    with SwitchDevice.load(simple([("a", 8)], [to_port(1)]).json) as d:
        with pytest.raises(ValueError, match="length of 9"):
            d.process_batch(np.zeros(2, np.uint16), np.array([8, 9], np.uint32), np.zeros((2, 8), np.uint8))
        assert d.stats().received == 0
        with pytest.raises(ValueError, match="expected n ports"):
            d.process_batch(np.zeros(2, np.uint16), np.full(1, 8, np.uint32), np.zeros((1, 8), np.uint8))
        ports, lengths, data = d.process_batch(
            np.zeros(0, np.uint16), np.zeros(0, np.uint32), np.zeros((0, 8), np.uint8)
        )
        assert (ports.shape, lengths.shape, data.shape) == ((0,), (0,), (0, 0))


def test_a_batch_gets_memory_for_its_own_size() -> None:
    """It was for as many rows as one batch had, as long as another's: 61 GiB here."""
    wide = 60_000
    with SwitchDevice.load(simple([("a", 8, False)], [to_port(1)]).json) as d:
        for rows, size in ((1_000_000, 8), (1, wide), (1_000_000, 8), (0, 0), (1, wide)):
            _, lengths, data = d.process_batch(
                np.zeros(rows, np.uint16), np.full(rows, size, np.uint32), np.ones((rows, size), np.uint8)
            )
            assert lengths.tolist() == [size] * rows
            assert data.sum() == rows * size


def test_a_closed_device_says_so() -> None:
    d = SwitchDevice.load(simple([("a", 8)], [to_port(1)]).json)
    d.close()
    d.close()
    with pytest.raises(DeviceError, match="closed"):
        d.process([(0, b"x")])
    with pytest.raises(DeviceError, match="closed"):
        d.stats()


def test_control_calls_get_their_turn() -> None:
    """Packets flow from two threads without a pause; a hundred control calls come through meanwhile."""
    b = simple([("a", 8)], [call("count", {"type": "counter_array", "value": "c"}, const(0)), to_port(1)])
    b.counter("c", 1)
    sent = []
    with SwitchDevice.load(b.json) as d:
        stop = threading.Event()

        def flood() -> None:
            n = 0
            while not stop.is_set():
                n += len(d.process([(0, b"x")] * 200))
            sent.append(n)

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for t in threads:
            t.start()
        for i in range(100):
            d.multicast_set(1 + i, [(1, 0)])
        stop.set()
        for t in threads:
            t.join(timeout=30)
            assert not t.is_alive()
        assert d.counter_read("c", 0)[0] == sum(sent) == d.stats().sent
