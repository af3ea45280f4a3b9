# SPDX-License-Identifier: Apache-2.0
"""A switch served over gRPC in this process, and a small P4Runtime client that knows ids by name."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4
from p4.v1 import p4runtime_pb2_grpc

from switch.device import SwitchDevice
from switch.p4runtime.dataplane import InlineDataplane
from switch.p4runtime.server import P4RuntimeServer
from switch.p4runtime.service import P4RuntimeService

FIXTURES = Path(__file__).parent / "fixtures"
CPU_PORT = 510
DEVICE_ID = 7
LIMIT = 30.0
INSERT, MODIFY, DELETE = p4.Update.INSERT, p4.Update.MODIFY, p4.Update.DELETE


def p4info(name: str = "forward") -> p4info_pb2.P4Info:
    return text_format.Parse((FIXTURES / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


def program(name: str = "forward") -> bytes:
    return (FIXTURES / f"{name}.json").read_bytes()


class Served:
    """The server, and the packets that left on ports other than the CPU port."""

    def __init__(self) -> None:
        self.out: list[tuple[int, bytes]] = []
        self.dataplane = InlineDataplane(CPU_PORT, lambda port, frame: self.out.append((port, frame)))
        self.service = P4RuntimeService(
            DEVICE_ID, lambda json: SwitchDevice.load(json, cpu_port=CPU_PORT), self.dataplane
        )
        self.server = P4RuntimeServer(self.service, "127.0.0.1:0")
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"

    def receive(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Let a frame arrive; return what left (the CPU port aside)."""
        before = len(self.out)
        self.dataplane.receive(port, frame)
        return self.out[before:]

    def close(self) -> None:
        self.server.stop()
        self.dataplane.close()


class Controller:
    """One client: its channel, its stream once arbitrated, and ids by name."""

    def __init__(self, address: str, election: int = 0, device_id: int = DEVICE_ID, role: str = "") -> None:
        self.device_id = device_id
        self.role = role
        self.election = p4.Uint128(high=election >> 64, low=election & (2**64 - 1)) if election else None
        self.channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self._requests: queue.Queue[Any] = queue.Queue()
        self._stream: Any = None
        self.info = p4info()

    def close(self) -> None:
        self._requests.put(None)
        if self._stream is not None:
            self._stream.cancel()
        self.channel.close()

    # ---- the stream
    def send(self, **message: Any) -> None:
        if self._stream is None:
            self._stream = self.stub.StreamChannel(iter(self._requests.get, None), timeout=60)
        self._requests.put(p4.StreamMessageRequest(**message))

    def receive(self) -> Any:
        """The next message of the stream; raises grpc.RpcError when the server closed it."""
        return next(self._stream)

    def arbitrate(self) -> Any:
        update = p4.MasterArbitrationUpdate(device_id=self.device_id)
        if self.election is not None:
            update.election_id.CopyFrom(self.election)
        if self.role:
            update.role.name = self.role
        self.send(arbitration=update)
        return self.receive().arbitration

    def half_close(self) -> None:
        self._requests.put(None)

    # ---- calls
    def set_pipeline(self, action: str = "VERIFY_AND_COMMIT", *, cookie: int = 0, **config: Any) -> None:
        request = p4.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            action=p4.SetForwardingPipelineConfigRequest.Action.Value(action),
            election_id=self.election,
            role=self.role,
        )
        if action != "COMMIT" or config:
            request.config.p4info.CopyFrom(config.get("p4info", p4info()))
            request.config.p4_device_config = config.get("json", program())
        if cookie:
            request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request, timeout=60)

    def get_pipeline(self, kind: str = "ALL") -> Any:
        request = p4.GetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            response_type=p4.GetForwardingPipelineConfigRequest.ResponseType.Value(kind),
        )
        return self.stub.GetForwardingPipelineConfig(request, timeout=LIMIT).config

    def write(self, *updates: p4.Update, atomicity: int = 0) -> None:
        self.stub.Write(
            p4.WriteRequest(
                device_id=self.device_id,
                role=self.role,
                election_id=self.election,
                updates=updates,
                atomicity=atomicity,
            ),
            timeout=LIMIT,
        )

    def refused(self, *updates: p4.Update) -> list[tuple[str, str]]:
        """Write, expect that some of it is refused, and return (canonical code, message) for each update."""
        with pytest.raises(grpc.RpcError) as caught:
            self.write(*updates)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN, caught.value
        details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        errors = []
        for packed in status_pb2.Status.FromString(details).details:
            one = p4.Error()
            assert packed.Unpack(one)
            errors.append((code_name(one.canonical_code), one.message))
        return errors

    def read(self, *entities: p4.Entity) -> list[Any]:
        return list(self.chunks(*entities))

    def chunks(self, *entities: p4.Entity) -> Iterator[Any]:
        request = p4.ReadRequest(device_id=self.device_id, entities=entities)
        for response in self.stub.Read(request, timeout=LIMIT):
            yield from response.entities

    # ---- names
    def id(self, kind: str, alias: str) -> int:
        for entry in getattr(self.info, kind):
            if entry.preamble.alias == alias:
                return int(entry.preamble.id)
        raise KeyError(alias)

    def action(self, alias: str, *values: int) -> p4.TableAction:
        action = p4.TableAction()
        action.action.action_id = self.id("actions", alias)
        for number, value in enumerate(values, start=1):
            action.action.params.add(param_id=number, value=octets(value))
        return action

    def entry(
        self,
        table: str,
        match: dict[int, Any] | None = None,
        action: p4.TableAction | None = None,
        **rest: Any,
    ) -> p4.TableEntry:
        """A TableEntry; match maps a field id to (kind, value...) such as ("lpm", 0x0A000000, 8)."""
        entry = p4.TableEntry(table_id=self.id("tables", table), **rest)
        if action is not None:
            entry.action.CopyFrom(action)
        for field_id, (kind, *values) in (match or {}).items():
            field = entry.match.add(field_id=field_id)
            if kind in ("exact", "optional"):
                getattr(field, kind).value = octets(values[0])
            elif kind == "lpm":
                field.lpm.value, field.lpm.prefix_len = octets(values[0]), values[1]
            elif kind == "ternary":
                field.ternary.value, field.ternary.mask = octets(values[0]), octets(values[1])
            else:
                field.range.low, field.range.high = octets(values[0]), octets(values[1])
        return entry


def octets(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def code_name(number: int) -> str:
    return str(next(code.name for code in grpc.StatusCode if code.value[0] == number))


def table(kind: int, entry: p4.TableEntry) -> p4.Update:
    return p4.Update(type=kind, entity=p4.Entity(table_entry=entry))


def update(kind: int, **entity: Any) -> p4.Update:
    return p4.Update(type=kind, entity=p4.Entity(**entity))


def read_table(client: Controller, name: str, **filters: Any) -> list[p4.TableEntry]:
    entry = client.entry(name, **filters)
    return [entity.table_entry for entity in client.read(p4.Entity(table_entry=entry))]


def group(number: int, replicas: Iterable[tuple[int, int]]) -> p4.PacketReplicationEngineEntry:
    entry = p4.PacketReplicationEngineEntry()
    entry.multicast_group_entry.multicast_group_id = number
    for port, instance in replicas:
        entry.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
    return entry


def session(number: int, replicas: Iterable[tuple[int, int]], **rest: Any) -> p4.PacketReplicationEngineEntry:
    entry = p4.PacketReplicationEngineEntry(
        clone_session_entry=p4.CloneSessionEntry(session_id=number, **rest)
    )
    for port, instance in replicas:
        entry.clone_session_entry.replicas.add(port=octets(port), instance=instance)
    return entry


def ethernet(dst: int, src: int = 0x0200_0000_0099, kind: int = 0x1234, payload: bytes = b"payload") -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


def ipv4(dst: int, src: int = 0x0A00_0001, protocol: int = 17, total: int = 60, tos: int = 0) -> bytes:
    header = bytes([0x45, tos]) + total.to_bytes(2, "big") + bytes(4) + bytes([64, protocol]) + bytes(2)
    return ethernet(
        2, kind=0x0800, payload=header + src.to_bytes(4, "big") + dst.to_bytes(4, "big") + bytes(40)
    )


def eventually(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Wait for what a thread of the switch does."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.01)
