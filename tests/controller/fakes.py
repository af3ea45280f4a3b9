# SPDX-License-Identifier: Apache-2.0
"""A switch without a data plane, as an object and as a P4Runtime server that misbehaves on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.errors import UpdateFailure, WriteError
from controller.p4info import P4Info
from p4src.forms import form

INSERT, MODIFY, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE


@cache
def our_p4info() -> P4Info:
    return P4Info.from_file(form(64, 1024).p4info_path)


def key_of(entity: Any) -> bytes:
    """What tells two entities apart: table and match, group, or session."""
    key = p4runtime_pb2.Entity()
    if entity.HasField("table_entry"):
        key.table_entry.table_id = entity.table_entry.table_id
        key.table_entry.match.extend(entity.table_entry.match)
    else:
        engine = entity.packet_replication_engine_entry
        out = key.packet_replication_engine_entry
        if engine.HasField("multicast_group_entry"):
            out.multicast_group_entry.multicast_group_id = engine.multicast_group_entry.multicast_group_id
        else:
            out.clone_session_entry.session_id = engine.clone_session_entry.session_id
    serialized: bytes = key.SerializeToString(deterministic=True)
    return serialized


class FakeSwitch:
    """Keeps what is written, in order; `refuse` decides over each update (a code, or None to take it)."""

    name = "s1"

    def __init__(self) -> None:
        self.p4info = our_p4info()
        self.held: dict[bytes, Any] = {}
        self.log: list[str] = []
        self.refuse: Callable[[Any], str | None] = lambda update: None

    def write(self, updates: Sequence[Any]) -> None:
        failures = []
        for index, update in enumerate(updates):
            words = self.p4info.describe(update)
            self.log.append(words)
            key = key_of(update.entity)
            code = self.refuse(update)
            if code is None and update.type == INSERT and key in self.held:
                code = "ALREADY_EXISTS"
            if code is None and update.type != INSERT and key not in self.held:
                code = "NOT_FOUND"
            if code is not None:
                failures.append(UpdateFailure(index, code, "refused", words))
            elif update.type == DELETE:
                del self.held[key]
            else:
                self.held[key] = update.entity
        if failures:
            raise WriteError(self.name, len(updates), failures)

    def read(self, entities: Sequence[Any]) -> list[Any]:
        return [self.held[key_of(entity)] for entity in entities if key_of(entity) in self.held]

    def counts(self, counter: str, indexes: Sequence[int]) -> dict[int, tuple[int, int]]:
        raise NotImplementedError

    def exchange(self, packet: Any, wanted: Callable[[Any], bool]) -> Any:
        raise NotImplementedError

    def rows(self, table: str) -> list[Any]:
        table_id = self.p4info.table(table).id
        return [
            self.p4info.row(entity)
            for entity in self.held.values()
            if entity.HasField("table_entry") and entity.table_entry.table_id == table_id
        ]

    def groups(self) -> dict[int, list[tuple[int, int]]]:
        found = {}
        for entity in self.held.values():
            group = entity.packet_replication_engine_entry.multicast_group_entry
            if group.multicast_group_id:
                found[group.multicast_group_id] = [(r.egress_port, r.instance) for r in group.replicas]
        return found


def status_details(codes: Sequence[tuple[int, str]]) -> bytes:
    """google.rpc.Status of a partly failed batch, as a server sends it: an Error for each update."""
    status = status_pb2.Status(code=2, message="partly failed")
    for code, message in codes:
        packed = any_pb2.Any()
        packed.Pack(p4runtime_pb2.Error(canonical_code=code, message=message, space="test"))
        status.details.append(packed)
    serialized: bytes = status.SerializeToString()
    return serialized


class FakeServicer(p4runtime_pb2_grpc.P4RuntimeServicer):
    """Answers as told by its attributes."""

    def __init__(self) -> None:
        self.arbitrate = True
        self.primary = True
        self.rival = (7, 9)
        """Election id of the primary that we report while `primary` is False."""
        self.write_codes: list[tuple[int, str]] | None = None
        self.abort: tuple[grpc.StatusCode, str] | None = None
        self.hang = threading.Event()
        self.hanging = False
        self.end_stream_after_arbitration = False
        self.ids: list[tuple[int, int]] = []
        self.writes: list[Any] = []
        self.on_packet_out: Callable[[Any], list[Any]] = lambda packet: []

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            if request.HasField("arbitration"):
                election = request.arbitration.election_id
                self.ids.append((election.high, election.low))
                if not self.arbitrate:
                    continue
                response = p4runtime_pb2.StreamMessageResponse()
                update = response.arbitration
                primary = self.primary or self.ids[-1] > self.rival
                update.status.code = code_pb2.OK if primary else code_pb2.ALREADY_EXISTS
                update.status.message = "Is primary" if primary else "Is backup"
                high, low = self.ids[-1] if primary else self.rival
                update.election_id.high, update.election_id.low = high, low
                yield response
                if self.end_stream_after_arbitration:
                    return
            elif request.HasField("packet"):
                yield from self.on_packet_out(request.packet)

    def _maybe_fail(self, context: Any) -> None:
        if self.hanging:
            self.hang.wait(30)
        if self.abort is not None:
            context.abort(*self.abort)

    def Write(self, request: Any, context: Any) -> Any:
        self._maybe_fail(context)
        self.writes.append(request)
        if self.write_codes is not None:
            details = status_details(self.write_codes)
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
            context.abort(grpc.StatusCode.UNKNOWN, "Error(s) during Write")
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        self._maybe_fail(context)
        for entity in request.entities:
            yield p4runtime_pb2.ReadResponse(entities=[entity])

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        self._maybe_fail(context)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        self._maybe_fail(context)
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        response.config.p4info.CopyFrom(our_p4info().message)
        return response


class FakeServer:
    """Serves a FakeServicer on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.servicer = FakeServicer()
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool)
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self.servicer, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self.servicer.hang.set()
        self._server.stop(0).wait(5)
        self._pool.shutdown(wait=True)
