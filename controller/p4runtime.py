# SPDX-License-Identifier: Apache-2.0
"""SwitchClient: one switch over P4Runtime. Every call has a limit, and every failure names the switch.

1. Election ids are (microseconds since 1970, random): unique, and a later client outranks an earlier one.
   Those of daemons (`standby_election_id`) outrank these, and among themselves the earlier one does.
2. A partly failed Write is decoded here: the library's iterator over the batch's errors never ends.
3. Without arbitration (`primary=False`) a client only reads, and takes nothing from the one that writes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2

from controller import cells
from controller.errors import (
    FieldError,
    NotPrimaryError,
    RpcFailedError,
    SwitchClientError,
    TimedOutError,
    UnreachableError,
    UpdateFailure,
    WriteError,
)
from controller.p4info import Entity, P4Info, Update
from controller.session import Session

RPC_SECONDS = 20.0
"""Limit of one call; bmv2 with a full CPU takes seconds for what takes milliseconds."""
CONNECT_SECONDS = 10.0
ALIVE_SECONDS = 3.0
"""Limit of each of the two calls that a switch must leave unanswered to count as hanging."""
PIPELINE_SECONDS = 300.0
"""Limit of a pipeline push: the embedded switch compiles the program the first time."""
PACKET_SECONDS = 5.0
READ_FACTOR = 6
"""A read may take so much longer than other calls: one entity may ask for a table of 16,384 entries."""
ENTITIES = 4096
"""Most entities of one ReadRequest: far below gRPC's 4 MB."""
UPDATES = 2048
"""Most updates of one WriteRequest: the same, and within the limit of a call."""


def new_election_id() -> tuple[int, int]:
    """Return an election id (high, low) above those drawn before on this machine."""
    return time.time_ns() // 1000, secrets.randbits(63) + 1


def standby_election_id() -> tuple[int, int]:
    """Return an election id (high, low) below those drawn so before on this machine, above all others.

    Of clients with such ids the first is primary; when its stream ends, the next oldest becomes it.
    """
    return (1 << 63) - time.time_ns() // 1000, secrets.randbits(63) + 1


@dataclass(frozen=True)
class Standing:
    """How a client and its stream stand."""

    primary: bool
    """Whether the switch last told that this client is its primary; False once the stream has ended."""
    primary_id: tuple[int, int] | None
    """Election id of the primary, as far as the switch told."""
    answers: int
    """How often the switch has told who is primary: it grows where that was lost and won again meanwhile."""
    ended: str | None
    """Why the stream has ended, None while it runs. A client whose stream has ended is of no more use."""


@dataclass(frozen=True)
class News:
    """What came on the stream since the last news."""

    standing: Standing
    digests: tuple[tuple[float, Any], ...]
    """(Unix time of arrival, p4.v1.DigestList), acknowledged already."""
    lost: int
    """Lists lost so far in the stream's life, because nobody asked for news while many came."""


def decode_failures(
    details: bytes | None, batch: Sequence[Update], p4info: P4Info | None
) -> list[UpdateFailure]:
    """Return the refused updates of a batch from the serialized google.rpc.Status (P4Runtime spec 1.4, 12.3).

    Empty where there are no details, or they do not match the batch.
    """
    status = status_pb2.Status()
    errors = []
    try:
        status.ParseFromString(details or b"")
        for packed in status.details:
            errors.append(p4runtime_pb2.Error())
            if not packed.Unpack(errors[-1]):
                return []
    except DecodeError:
        return []
    if len(errors) != len(batch):
        return []
    failures: list[UpdateFailure] = []
    for index, error in enumerate(errors):
        if error.canonical_code != code_pb2.OK:
            known = error.canonical_code in code_pb2.Code.values()
            name = code_pb2.Code.Name(error.canonical_code) if known else str(error.canonical_code)
            words = p4info.describe(batch[index]) if p4info else "update"
            failures.append(UpdateFailure(index, name, error.message, words))
    return failures


class SwitchClient:
    """One switch. Use it as a context manager, or `close` it: its stream makes it the switch's primary."""

    def __init__(
        self,
        name: str,
        device_id: int,
        address: str,
        *,
        primary: bool = True,
        standby: bool = False,
        election_id: tuple[int, int] | None = None,
        seconds: float = RPC_SECONDS,
    ) -> None:
        """Connect to HOST:PORT and become primary (with `primary=False`: read only).

        With `standby`, another client that outranks this one is no error: `is_primary` tells, and `wait_news`
        when that changes.

        `seconds` limits each call, and connecting with arbitration to CONNECT_SECONDS at most.
        Raises UnreachableError, TimedOutError, or NotPrimaryError when another client outranks this one.
        """
        self.name = name
        self.address = address
        self.device_id = device_id
        self._seconds = seconds
        self._connect_seconds = min(seconds, CONNECT_SECONDS)
        self._p4info: P4Info | None = None
        self._closed = False
        try:
            self._session = Session(device_id, address, election_id or new_election_id())
        except SystemExit as error:  # the library's answer to an address that gRPC refuses
            raise UnreachableError(name, f"{address} is no gRPC address") from error
        try:
            self._connect()
            if primary:
                self._arbitrate(standby)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the switch: end the stream, its thread and the channel. Idempotent."""
        if not self._closed:
            self._closed = True
            self._session.tear_down()

    def __enter__(self) -> SwitchClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- primary and backup
    @property
    def is_primary(self) -> bool:
        """Whether the switch last told us that we are its primary."""
        return self.standing.primary

    @property
    def standing(self) -> Standing:
        """How this client and its stream stand now."""
        session = self._session
        with session.changed:
            primary = session.primary is True and session.ended is None
            return Standing(primary, session.primary_id, session.answers, session.ended)

    def wait_news(self, seconds: float) -> News | None:
        """Wait until something came on the stream since the last call: word of the primary, digests, its end.

        None when time is up. For one thread; the first call returns at once with the standing. Raises
        nothing: that the stream has ended is news, told once.
        """
        digests = self._session.wait_news(seconds)
        if digests is None:
            return None
        return News(self.standing, tuple(digests), self._session.lost)

    def take_over(self) -> None:
        """Become primary with an election id above that of whoever is. Raises as the constructor."""
        known = self._session.primary_id or (0, 0)
        self._session.election_id = max(new_election_id(), (known[0] + 1, 1))
        self._arbitrate()

    def _connect(self) -> None:
        """Wait for the server; where nothing listens that is told at once, as whoever asks may try again.

        By a call: gRPC's way to watch a channel is a thread, which fails if the channel is closed soon after.
        """
        try:
            self._ask_capabilities(self._connect_seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                why = f"nothing answers at {self.address}, where its P4Runtime server should be"
            elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                why = f"waited {self._connect_seconds:g} s for its P4Runtime server at {self.address}"
            else:  # an answer too
                return
            raise UnreachableError(self.name, f"{why}; see whether the switch runs, and its log") from error

    def _ask_capabilities(self, seconds: float) -> None:
        self._session.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=seconds)

    def _arbitrate(self, standby: bool = False) -> None:
        session = self._session
        before = session.answers
        session.handshake()
        if not session.wait(lambda: session.answers > before, self._connect_seconds):
            raise TimedOutError(self.name, "its answer to our arbitration", self._connect_seconds)
        self._check_stream()
        if not session.primary and not standby:
            raise NotPrimaryError(self.name, session.primary_id, session.arbitration_text)

    def _check_stream(self) -> None:
        if self._session.ended is not None:
            raise UnreachableError(
                self.name, f"its stream has ended ({self._session.ended}); connect again when it runs"
            )

    def _check_primary(self) -> None:
        session = self._session
        if session.stream is None:
            raise NotPrimaryError(self.name, None, "this client was opened to read only")
        self._check_stream()
        if not session.primary:
            raise NotPrimaryError(self.name, session.primary_id, session.arbitration_text)

    def check_alive(self) -> None:
        """Raise TimedOutError if the server, asked twice, answers nothing; UnreachableError if it has gone.

        Twice, as this process may have been stopped itself meanwhile.
        """
        for last in (False, True):
            try:
                self._call(
                    lambda: self._ask_capabilities(ALIVE_SECONDS), "to say that it is there", ALIVE_SECONDS
                )
            except TimedOutError:
                if last:
                    raise
            except RpcFailedError:  # an answer too
                return
            else:
                return

    # ---- the pipeline
    @property
    def p4info(self) -> P4Info:
        """P4Info of the program that the switch runs, asked for once."""
        if self._p4info is None:
            kind = p4runtime_pb2.GetForwardingPipelineConfigRequest
            request = kind(device_id=self.device_id, response_type=kind.P4INFO_AND_COOKIE)
            what = "to tell its program's P4Info"
            response = self._call(
                lambda: self._session.stub.GetForwardingPipelineConfig(request, timeout=self._seconds), what
            )
            self._p4info = P4Info(response.config.p4info)
        return self._p4info

    def push_pipeline(self, p4info: P4Info, program: bytes, seconds: float = PIPELINE_SECONDS) -> None:
        """Load the program (bmv2 JSON) in place of what runs; all entries and registers start empty.

        Raises RpcFailedError with the switch's reason, and as `write`.
        """
        self._check_primary()
        kind = p4runtime_pb2.SetForwardingPipelineConfigRequest
        request = kind(device_id=self.device_id, action=kind.VERIFY_AND_COMMIT)
        request.election_id.high, request.election_id.low = self._session.election_id
        request.config.p4info.CopyFrom(p4info.message)
        request.config.p4_device_config = program
        self._call(
            lambda: self._session.stub.SetForwardingPipelineConfig(request, timeout=seconds),
            "to load the program",
            seconds,
        )
        self._p4info = p4info

    # ---- entities
    def write(self, updates: Sequence[Update]) -> None:
        """Apply all updates in order, going on past refused ones.

        Raises WriteError with each refused update, NotPrimaryError, UnreachableError, TimedOutError (then it
        is unknown which were applied) or RpcFailedError.
        """
        self._check_primary()
        failures: list[UpdateFailure] = []
        for start in range(0, len(updates), UPDATES):
            failures += self._write_part(updates[start : start + UPDATES], start)
        if failures:
            raise WriteError(self.name, len(updates), failures)

    def _write_part(self, part: Sequence[Update], start: int) -> list[UpdateFailure]:
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id, updates=part)
        request.election_id.high, request.election_id.low = self._session.election_id
        try:
            self._session.stub.Write(request, timeout=self._seconds)
        except ValueError as error:
            raise self._left(error) from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNKNOWN:
                trailing = dict(error.trailing_metadata() or ())
                details = trailing.get("grpc-status-details-bin")
                failures = decode_failures(details, part, self._p4info)
                if failures:
                    return [replace(failure, index=start + failure.index) for failure in failures]
            raise self._failure(error, f"to write {len(part)} updates", self._seconds) from error
        return []

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """Return what the entities select, in the switch's order. Raises as `write`, but for WriteError."""
        found: list[Entity] = []
        for start in range(0, len(entities), ENTITIES):
            request = p4runtime_pb2.ReadRequest(
                device_id=self.device_id, entities=entities[start : start + ENTITIES]
            )

            def collect(request: Any = request) -> None:
                for response in self._session.stub.Read(request, timeout=READ_FACTOR * self._seconds):
                    found.extend(response.entities)

            what = f"to read {len(request.entities)} entities"
            self._call(collect, what, READ_FACTOR * self._seconds)
        return found

    def counts(self, counter: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return (packets, bytes) of cells of a counter array by index. Raises as `read`, and FieldError."""
        known = self.p4info.counter(counter)
        wrong = next((index for index in indexes if not 0 <= index < known.size), None)
        if wrong is not None:
            raise FieldError(counter, wrong, f"the array has the cells 0..{known.size - 1}")
        found: dict[int, tuple[int, int]] = {}
        ask = self._session.channel.unary_stream("/p4.v1.P4Runtime/Read")  # bytes there and back
        for start in range(0, len(indexes), ENTITIES):
            some = indexes[start : start + ENTITIES]

            def collect(some: Sequence[int] = some) -> None:
                for response in ask(cells.request(self.device_id, known.id, some), timeout=self._seconds):
                    found.update(cells.counts(response))

            what = f"to read {len(some)} cells of {counter}"
            try:
                self._call(collect, what)
            except ValueError as error:
                raise RpcFailedError(self.name, what, "DATA_LOSS", str(error)) from error
        return found

    # ---- packets
    def exchange(self, packet: Any, wanted: Callable[[Any], bool], seconds: float = PACKET_SECONDS) -> Any:
        """Send a p4.v1.PacketOut and return the first p4.v1.PacketIn that is wanted; others are dropped.

        Raises TimedOutError without one, RpcFailedError when the switch refuses to send the packet.
        """
        self._check_primary()
        self._session.stream_out_q.put(p4runtime_pb2.StreamMessageRequest(packet=packet))
        answer = self._session.wait_packet(wanted, seconds)
        if answer is None:
            self._check_stream()
            raise TimedOutError(self.name, "the answer to a PacketOut", seconds)
        if isinstance(answer, p4runtime_pb2.StreamError):
            code = code_pb2.Code.Name(answer.canonical_code)
            raise RpcFailedError(self.name, "a PacketOut", code, answer.message)
        return answer

    # ---- failures
    def _call(self, call: Callable[[], Any], what: str, seconds: float | None = None) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise self._failure(error, what, seconds or self._seconds) from error
        except ValueError as error:
            raise self._left(error) from error

    def _left(self, error: ValueError) -> Exception:
        """Return what to raise: gRPC's word for a channel that was closed meanwhile is a ValueError."""
        return UnreachableError(self.name, "we have left it") if self._closed else error

    def _failure(self, error: Any, what: str, seconds: float) -> SwitchClientError:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOutError(self.name, f"it {what}", seconds)
        if code is grpc.StatusCode.UNAVAILABLE:
            return UnreachableError(
                self.name, f"its P4Runtime server at {self.address} went away when it was {what}"
            )
        if code is grpc.StatusCode.PERMISSION_DENIED and "primary" in (error.details() or "").lower():
            return NotPrimaryError(self.name, self._session.primary_id, error.details())
        return RpcFailedError(self.name, what, code.name, error.details())
