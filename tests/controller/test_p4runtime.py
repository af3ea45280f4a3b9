# SPDX-License-Identifier: Apache-2.0
"""SwitchClient against a server that misbehaves: every failure is an error that names the switch, in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from controller.entities import DELETE, INSERT, delete, insert, updates
from controller.errors import (
    NotPrimaryError,
    RpcFailedError,
    SwitchClientError,
    TimedOutError,
    UnreachableError,
    WriteError,
)
from controller.p4runtime import (
    UPDATES,
    SwitchClient,
    decode_failures,
    new_election_id,
    standby_election_id,
)
from controller.program import Program
from controller.session import DIGESTS
from tests.controller.fakes import FakeServer, our_p4info, status_details

SHORT = 0.4
LIMIT_S = 60.0
"""Seconds: the limit where a test waits for it to pass."""


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    left = [t for t in threading.enumerate() if t.name == "p4runtime-stream"]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()]


def connect(server: FakeServer, **kwargs: Any) -> SwitchClient:
    return SwitchClient("s1", 3, server.address, **kwargs)


def ports_updates(program: Program, *ports: int, kind: int = INSERT) -> list[Any]:
    return updates(kind, [program.ports.host(port) for port in ports])


def test_it_becomes_primary_writes_and_reads(server: FakeServer, program: Program) -> None:
    with connect(server) as client:
        assert client.is_primary
        client.write(ports_updates(program, 1, 2))
        request = server.servicer.writes[0]
        assert request.device_id == 3
        assert (request.election_id.high, request.election_id.low) == server.servicer.ids[0]
        assert [client.p4info.row(u.entity).key["port"] for u in request.updates] == [1, 2]
        wanted = [program.ports.host(port) for port in range(300)]
        assert client.read(wanted) == wanted
    assert not client.is_primary
    client.close()


def test_election_ids_grow(server: FakeServer) -> None:
    ids = [new_election_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert [high for high, _ in ids] == sorted(high for high, _ in ids)
    assert all(0 < high < 2**64 and 0 < low < 2**64 for high, low in ids)
    with connect(server), connect(server):
        assert server.servicer.ids[0] < server.servicer.ids[1]


def test_without_arbitration_it_only_reads(server: FakeServer, program: Program) -> None:
    with connect(server, primary=False) as client:
        assert client.read([program.ports.host(1)]) == [program.ports.host(1)]
        with pytest.raises(NotPrimaryError, match=r"switch s1: .*opened to read only"):
            client.write(ports_updates(program, 1))
    assert server.servicer.ids == []


def test_no_answer_to_arbitration(server: FakeServer) -> None:
    server.servicer.arbitrate = False
    with pytest.raises(TimedOutError, match=r"switch s1: waited 0\.4 s for its answer to our arbitration"):
        connect(server, seconds=SHORT)


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=rf"nothing answers at {address}"):
            SwitchClient("s1", 3, address)
        held.listen()  # and now it takes connections and says nothing
        with pytest.raises(UnreachableError, match=rf"waited 0\.4 s for its P4Runtime server at {address}"):
            SwitchClient("s1", 3, address, seconds=SHORT)


class Interrupt(BaseException):
    """As Ctrl-C."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], object]]:
    """What interrupts this thread some seconds from now."""

    def handler(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_while_it_closes_does_not_leave_it_half_closed(
    server: FakeServer, interrupt: Callable[[float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(server)
    close, closed, waits = client._session.channel.close, threading.Event(), threading.Event()

    def slow() -> None:
        waits.wait(LIMIT_S)
        close()
        closed.set()

    monkeypatch.setattr(client._session.channel, "close", slow)
    interrupt(0.2)
    with pytest.raises(Interrupt):
        client.close()
    assert not closed.is_set()
    waits.set()
    assert closed.wait(LIMIT_S)


ALONE = """
import signal, sys, threading, time
from controller.p4runtime import SwitchClient
client = SwitchClient("s1", 3, sys.argv[1], primary=False)
print([thread.name for thread in threading.enumerate()])
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    client.close()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_no_thread_watches_a_channel(server: FakeServer) -> None:
    """gRPC's failed with a traceback where the channel was closed, and made the close wait.

    An interrupt meanwhile left it half closed, and the interpreter waited for the other half without limit.
    """
    run = subprocess.run(
        [sys.executable, "-c", ALONE, server.address], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "['MainThread']\ninterrupted\n", "")


def test_a_backup_says_so_and_takes_over(server: FakeServer, program: Program) -> None:
    servicer = server.servicer
    servicer.primary = False
    servicer.rival = (2**63, 5)
    with pytest.raises(NotPrimaryError, match=rf"another controller \(election id {2**63}:5\).*Is backup"):
        connect(server)
    servicer.rival = (7, 9)
    with connect(server, election_id=(7, 10)) as client:
        servicer.rival = (2**63, 5)
        with pytest.raises(NotPrimaryError):
            client._arbitrate()
        with pytest.raises(NotPrimaryError, match="switch s1"):
            client.write(ports_updates(program, 1))
        client.take_over()
        assert servicer.ids[-1] == (2**63 + 1, 1)
        assert client.is_primary
        client.write(ports_updates(program, 1))


def test_a_partly_failed_batch(server: FakeServer, program: Program) -> None:
    server.servicer.write_codes = [
        (code_pb2.OK, ""),
        (code_pb2.ALREADY_EXISTS, "it is there"),
        (code_pb2.OK, ""),
        (code_pb2.RESOURCE_EXHAUSTED, "full"),
    ]
    with connect(server) as client:
        assert client.p4info
        with pytest.raises(WriteError) as raised:
            client.write(ports_updates(program, 1, 2, 3, 4))
    error = raised.value
    assert (error.switch, error.total) == ("s1", 4)
    assert [(f.index, f.code, f.message) for f in error.failures] == [
        (1, "ALREADY_EXISTS", "it is there"),
        (3, "RESOURCE_EXHAUSTED", "full"),
    ]
    assert str(error) == (
        "switch s1: refused 2 of 4 updates: "
        "#1 INSERT SwitchIngress.receive.ports[port=2] -> host_port(): ALREADY_EXISTS: it is there; "
        "#3 INSERT SwitchIngress.receive.ports[port=4] -> host_port(): RESOURCE_EXHAUSTED: full"
    )


def test_deleting_what_is_not_there_is_no_error(server: FakeServer, program: Program) -> None:
    entities = [program.ports.host(1), program.ports.host(2)]
    with connect(server) as client:
        insert(client, [])
        delete(client, [])
        assert server.servicer.writes == []
        server.servicer.write_codes = [(code_pb2.NOT_FOUND, "no"), (code_pb2.OK, "")]
        delete(client, entities)
        assert [u.type for u in server.servicer.writes[0].updates] == [DELETE, DELETE]
        server.servicer.write_codes = [(code_pb2.NOT_FOUND, "no"), (code_pb2.INTERNAL, "broken")]
        with pytest.raises(WriteError) as raised:
            delete(client, entities)
        assert [f.index for f in raised.value.failures] == [1]


def test_details_that_are_none(program: Program) -> None:
    batch = ports_updates(program, 1)
    assert decode_failures(None, batch, our_p4info()) == []
    assert decode_failures(b"\xff\xff\xff", batch, our_p4info()) == []
    two = status_details([(code_pb2.OK, ""), (code_pb2.INTERNAL, "x")])
    assert decode_failures(two, batch, our_p4info()) == []
    assert decode_failures(b"\x1a\x02\x0a\x00", batch, our_p4info()) == []  # an Any of no type
    [failure] = decode_failures(status_details([(77, "x")]), batch, None)
    assert (failure.code, failure.update) == ("77", "update")


@pytest.mark.parametrize(
    ("code", "details", "kind", "says"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "Not primary", NotPrimaryError, "Not primary"),
        (grpc.StatusCode.UNAVAILABLE, "gone", UnreachableError, "went away"),
        (grpc.StatusCode.INVALID_ARGUMENT, "no good", RpcFailedError, "INVALID_ARGUMENT: no good"),
        (grpc.StatusCode.UNKNOWN, "what", RpcFailedError, "UNKNOWN: what"),
    ],
)
@pytest.mark.parametrize("call", ["write", "read", "push", "p4info"])
def test_a_refused_call(
    server: FakeServer,
    program: Program,
    call: str,
    code: grpc.StatusCode,
    details: str,
    kind: type[SwitchClientError],
    says: str,
) -> None:
    server.servicer.abort = (code, details)
    with connect(server) as client:
        calls: dict[str, Callable[[], Any]] = {
            "write": lambda: client.write(ports_updates(program, 1)),
            "read": lambda: client.read([program.ports.host(1)]),
            "push": lambda: client.push_pipeline(our_p4info(), b"{}"),
            "p4info": lambda: client.p4info,
        }
        with pytest.raises(kind, match=f"switch s1: .*{says}") as raised:
            calls[call]()
        assert raised.value.switch == "s1"


def test_many_updates_go_in_several_requests(server: FakeServer, program: Program) -> None:
    with connect(server) as client:
        client.write(ports_updates(program, 1) * UPDATES * 2 + ports_updates(program, 1, 2, 3))
        assert [len(request.updates) for request in server.servicer.writes] == [UPDATES, UPDATES, 3]
        server.servicer.write_codes = [(0, "")] * (UPDATES - 1) + [(code_pb2.ALREADY_EXISTS, "it is")]
        with pytest.raises(WriteError, match=f"refused 2 of {2 * UPDATES} updates") as raised:
            client.write(ports_updates(program, 1) * UPDATES * 2)
        assert [failure.index for failure in raised.value.failures] == [UPDATES - 1, 2 * UPDATES - 1]


def test_a_hanging_switch(server: FakeServer, program: Program) -> None:
    with connect(server, seconds=SHORT) as client:
        server.servicer.hanging = True
        with pytest.raises(TimedOutError, match=r"switch s1: waited 0\.4 s for it to write 1 updates"):
            client.write(ports_updates(program, 1))
        with pytest.raises(TimedOutError, match=r"waited 2\.4 s for it to read 1 entities"):
            client.read([program.ports.host(1)])
        with pytest.raises(TimedOutError, match=r"waited 0\.4 s for it to load the program"):
            client.push_pipeline(our_p4info(), b"{}", seconds=SHORT)


def test_the_server_dies_while_we_wait_for_a_packet(server: FakeServer, program: Program) -> None:
    with connect(server) as client:
        threading.Timer(0.2, server.stop).start()
        with pytest.raises(UnreachableError, match="switch s1: its stream has ended"):
            client.exchange(program.peek.question(0, 0, b"x"), lambda packet: True)
        with pytest.raises(UnreachableError):
            client.write(ports_updates(program, 1))


def test_the_server_ends_the_stream(server: FakeServer, program: Program) -> None:
    server.servicer.end_stream_after_arbitration = True

    def use() -> None:
        with connect(server) as client:  # which may notice already
            client._session.wait(lambda: False, LIMIT_S)
            client.write(ports_updates(program, 1))

    with pytest.raises(UnreachableError, match="the switch ended the stream"):
        use()


def test_the_first_of_daemons_stays_primary() -> None:
    first, second = standby_election_id(), standby_election_id()
    assert first > second > new_election_id()
    assert all(0 < high < 2**64 and 0 < low < 2**64 for high, low in (first, second))


def test_a_standby_is_told_that_it_is_one(server: FakeServer, program: Program) -> None:
    server.servicer.rival = (2**63, 5)
    server.servicer.primary = False
    with connect(server, standby=True, election_id=standby_election_id()) as client:
        news = client.wait_news(LIMIT_S)
        assert news is not None
        assert (news.standing.primary, news.standing.primary_id, news.digests) == (False, (2**63, 5), ())
        with pytest.raises(NotPrimaryError):
            client.write(ports_updates(program, 1))
        assert client.wait_news(0) is None
        server.servicer.primary = True
        client._session.handshake()
        news = client.wait_news(LIMIT_S)
        assert news is not None
        assert (news.standing.primary, news.standing.answers) == (True, 2)
        assert client.is_primary
        server.stop()
        news = client.wait_news(LIMIT_S)
        assert news is not None
        assert (news.standing.primary, client.is_primary) == (False, False)
        assert news.standing.ended
        assert client.wait_news(0) is None


def test_digests_that_nobody_takes_are_lost_and_counted(server: FakeServer, program: Program) -> None:
    def told(packet: Any) -> list[Any]:
        lists = [p4runtime_pb2.DigestList(list_id=number) for number in range(1, DIGESTS + 4)]
        return [*(p4runtime_pb2.StreamMessageResponse(digest=one) for one in lists), packet_in(b"last")]

    server.servicer.on_packet_out = told
    with connect(server) as client:
        client.exchange(program.peek.question(0, 0, b"x"), lambda packet: packet.payload == b"last")
        news = client.wait_news(LIMIT_S)
        assert news is not None
        assert [digests.list_id for _, digests in news.digests] == list(range(4, DIGESTS + 4))
        assert news.lost == 3


def packet_in(payload: bytes) -> Any:
    return p4runtime_pb2.StreamMessageResponse(packet=p4runtime_pb2.PacketIn(payload=payload))


def test_packets_are_told_apart(server: FakeServer, program: Program) -> None:
    server.servicer.on_packet_out = lambda p: [packet_in(b"other"), packet_in(p.payload), packet_in(b"x")]
    with connect(server, seconds=SHORT) as client:
        question = program.peek.question(0, 0, b"mine")
        assert client.exchange(question, lambda p: p.payload == b"mine").payload == b"mine"
        server.servicer.on_packet_out = lambda p: [packet_in(b"other")]
        with pytest.raises(TimedOutError, match="the answer to a PacketOut"):
            client.exchange(question, lambda p: p.payload == b"mine", seconds=SHORT)


def test_a_refused_packet_out(server: FakeServer, program: Program) -> None:
    error = p4runtime_pb2.StreamMessageResponse()
    error.error.canonical_code, error.error.message = code_pb2.FAILED_PRECONDITION, "no CPU port"
    server.servicer.on_packet_out = lambda p: [error]
    with connect(server) as client:
        with pytest.raises(RpcFailedError, match="refused a PacketOut: FAILED_PRECONDITION: no CPU port"):
            client.exchange(program.peek.question(0, 0, b"x"), lambda packet: True)


def test_a_forgotten_client_holds_nobody_up(server: FakeServer) -> None:
    """The library's receiver would keep this process alive; and a proxy of the environment is not asked."""
    script = f"from controller.p4runtime import SwitchClient; c = SwitchClient('s1', 1, {server.address!r})"
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "grpc_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        timeout=30,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
