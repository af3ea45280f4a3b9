# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime service of one device: every RPC, as simple_switch_grpc serves it.

It differs where simple_switch_grpc falls short of the spec: COMMIT swaps in what VERIFY_AND_SAVE prepared and
what was written to it since; registers can be read and written; wildcard writes and reads of counters and
meters work everywhere; reads are filtered and answered in several messages; a PacketOut that cannot be sent
is answered by a StreamError; clone sessions truncate to packet_length_bytes. Like it, they have no
class_of_service.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switch.device import SwitchDevice
from switch.errors import BuildError, SwitchError
from switch.p4runtime import packetio
from switch.p4runtime.arbitration import Arbiter, Client
from switch.p4runtime.chores import Chores
from switch.p4runtime.dataplane import Dataplane
from switch.p4runtime.errors import (
    RpcError,
    abort,
    batch_status,
    batch_summary,
    denied,
    exhausted,
    invalid,
    not_found,
    precondition,
    unimplemented,
)
from switch.p4runtime.p4info import P4InfoView
from switch.p4runtime.target import Target

log = logging.getLogger("switch.p4runtime")

API_VERSION = "1.3.0"
"""What simple_switch_grpc reports."""
LOCK_LIMIT_S = 0.3
MAX_READS = 64
"""Reads answered at once: one whose client does not take the answer holds a thread until it goes away."""
READ_CHUNK = 1000
"""Entities in one ReadResponse: far below gRPC's 4 MB."""

Request = p4runtime_pb2.SetForwardingPipelineConfigRequest


class P4RuntimeService(p4runtime_pb2_grpc.P4RuntimeServicer):
    """Serves one device. `load` makes a device of bmv2 JSON; `dataplane` forwards with it."""

    def __init__(self, device_id: int, load: Callable[[bytes], SwitchDevice], dataplane: Dataplane) -> None:
        self._device_id = device_id
        self._load = load
        self._dataplane = dataplane
        self._arbiter = Arbiter(device_id)
        self._lock = threading.RLock()
        """Serializes changes of the pipeline, writes and reads; packets never take it."""
        self._pushing = threading.Lock()
        """Serializes pushes, which compile without holding up writes and reads."""
        self._reads = threading.BoundedSemaphore(MAX_READS)
        self._running: Target | None = None
        self._saved: Target | None = None
        self._down: set[int] = set()
        """Ports whose link is down."""
        self._ports_changed = False
        self.packet_in_lost = 0
        """Frames for the controller that no primary took: there was none, or it did not read its stream."""
        self._chores = Chores(self._do_chores)
        dataplane.on_packet_in(self._packet_in)
        dataplane.on_port(self._port_changed)

    def stop(self) -> None:
        """End all streams and close what was saved and not committed; the dataplane closes what runs."""
        self._arbiter.stop()
        self._chores.stop()
        # The end of the process does not wait for whoever holds the lock.
        if self._lock.acquire(timeout=LOCK_LIMIT_S):
            try:
                if self._saved is not None:
                    self._saved.device.close()
                self._saved = self._running = None
            finally:
                self._lock.release()

    # ---- RPCs
    def Capabilities(  # noqa: N802
        self, request: p4runtime_pb2.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.CapabilitiesResponse:
        """Tell the API version."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline."""
        try:
            self._check_device(request.device_id)
            self._arbiter.check_writer(request)
            with self._pushing:
                self._set_pipeline(request)
        except RpcError as error:
            abort(context, error)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        """Give back the config that was set last."""
        kind = p4runtime_pb2.GetForwardingPipelineConfigRequest
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        try:
            self._check_device(request.device_id)
            with self._lock:
                config = self._target().config
                if request.response_type not in kind.ResponseType.values():
                    raise invalid(f"Invalid response_type {request.response_type}")
                if request.response_type in (kind.ALL, kind.P4INFO_AND_COOKIE):
                    response.config.p4info.CopyFrom(config.p4info)
                if request.response_type in (kind.ALL, kind.DEVICE_CONFIG_AND_COOKIE):
                    response.config.p4_device_config = config.p4_device_config
                if config.HasField("cookie"):
                    response.config.cookie.CopyFrom(config.cookie)
        except RpcError as error:
            abort(context, error)
        return response

    def Write(  # noqa: N802
        self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.WriteResponse:
        """Apply every update, whatever becomes of the others; answer with one error each if any failed."""
        results: list[RpcError | None] = []
        try:
            self._check_device(request.device_id)
            self._arbiter.check_writer(request)
            with self._lock:
                target = self._target()
                if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                    raise unimplemented("Only the atomicity CONTINUE_ON_ERROR is supported")
                for update in request.updates:
                    try:
                        target.write(update)
                        results.append(None)
                    except RpcError as error:
                        results.append(error)
            self._chores.wake()
        except RpcError as error:
            abort(context, error)
        if any(result is not None for result in results):
            log.debug("%s", batch_summary(results))
            if (status := batch_status(results)) is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", status),))
            context.abort(grpc.StatusCode.UNKNOWN, batch_summary(results))
        return p4runtime_pb2.WriteResponse()

    def Read(  # noqa: N802
        self, request: p4runtime_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Send what the entities select, READ_CHUNK at a time; writes may come in between.

        Yields serialized ReadResponses.
        """
        if not self._reads.acquire(blocking=False):
            abort(context, exhausted(f"Too many reads: {MAX_READS} are under way; take their answers first"))
        try:
            yield from self._read(request, context)
        finally:
            self._reads.release()

    def _read(self, request: p4runtime_pb2.ReadRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        found: Iterator[bytes] | None = None
        chunk: list[bytes] = []
        while found is None or len(chunk) == READ_CHUNK:
            try:
                with self._lock:
                    if found is None:
                        self._check_device(request.device_id)
                        target = self._target()
                        found = itertools.chain.from_iterable(map(target.read, request.entities))
                    chunk = list(itertools.islice(found, READ_CHUNK))
            except RpcError as error:
                abort(context, error)
            yield b"".join(chunk)

    def StreamChannel(  # noqa: N802
        self, request_iterator: Iterator[p4runtime_pb2.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        """Serve one client's stream until it ends it, goes away, or breaks the rules of arbitration."""
        client = Client()
        try:
            self._arbiter.open(client)
            if not context.add_callback(client.close):
                return
            # A stream is read and written at once, and gRPC gives a handler one thread.
            threading.Thread(
                target=self._read_stream,
                args=(client, request_iterator),
                name="p4runtime-stream",
                daemon=True,
            ).start()
            while (message := client.get()) is not None:
                yield message
        except RpcError as error:
            abort(context, error)
        finally:
            client.close()
            self._arbiter.leave(client)

    # ---- the stream
    def _read_stream(self, client: Client, requests: Iterator[p4runtime_pb2.StreamMessageRequest]) -> None:
        try:
            for request in requests:
                kind = request.WhichOneof("update")
                if kind == "arbitration":
                    self._check_device(request.arbitration.device_id)
                    self._arbiter.arbitrate(client, request.arbitration)
                elif kind == "packet":
                    self._packet_out(client, request.packet)
                elif kind == "digest_ack":
                    self._digest_ack(client, request.digest_ack)
        except RpcError as error:
            client.close(error)
        except grpc.RpcError:
            pass  # the client is gone
        finally:
            client.close()

    def _packet_out(self, client: Client, packet: p4runtime_pb2.PacketOut) -> None:
        try:
            if not self._arbiter.is_primary(client):
                raise denied("PacketOut: Not primary")
            running = self._running
            if running is None:
                raise precondition("PacketOut: No forwarding pipeline config set for this device")
            self._dataplane.inject(packetio.packet_out(running.view.packet_out, packet))
        except RpcError as error:
            client.put(packetio.stream_error(error, packet))

    def _digest_ack(self, client: Client, ack: p4runtime_pb2.DigestListAck) -> None:
        try:
            if not self._arbiter.is_primary(client):
                raise denied("DigestListAck: Not primary")
            with self._lock:
                if self._running is not None:
                    self._running.digests.acknowledge(ack)
        except RpcError as error:
            message = packetio.error_message(error)
            message.error.digest_list_ack.digest_list_ack.CopyFrom(ack)
            client.put(message)

    def _packet_in(self, frame: bytes) -> None:
        running = self._running
        message = None if running is None else packetio.packet_in(running.view.packet_in, frame)
        if message is None or not self._arbiter.send_to_primary(message):
            self.packet_in_lost += 1

    # ---- what happens by itself
    def _port_changed(self, port: int, up: bool) -> None:
        (self._down.discard if up else self._down.add)(port)
        self._ports_changed = True
        self._chores.wake()

    def _port_up(self, port: int) -> bool:
        return port not in self._down

    def _do_chores(self) -> float | None:
        with self._lock:
            for target in (self._running, self._saved):
                if target is not None and self._ports_changed:
                    target.profiles.ports_changed()
            self._ports_changed = False
            messages, after = self._running.poll(time.monotonic_ns()) if self._running else ([], None)
        for message in messages:
            self._arbiter.send_to_primary(message)
        return None if after is None else after / 1e9

    # ---- pipelines
    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise not_found(f"Invalid device id {device_id}: this is device {self._device_id}")

    def _target(self) -> Target:
        target = self._saved or self._running
        if target is None:
            raise precondition("No forwarding pipeline config set for this device")
        return target

    def _set_pipeline(self, request: Any) -> None:
        action = request.action
        if action == Request.COMMIT:
            if request.config.p4_device_config or request.config.HasField("p4info"):
                raise invalid("COMMIT takes no config: it commits what VERIFY_AND_SAVE saved")
            with self._lock:
                if self._saved is None:
                    raise not_found(
                        "COMMIT: no config was saved; use VERIFY_AND_SAVE first, or VERIFY_AND_COMMIT"
                    )
                saved, self._saved = self._saved, None
                self._commit(saved)
        elif action == Request.VERIFY:
            self._make(request.config).device.close()
        elif action == Request.VERIFY_AND_SAVE:
            self._save(self._make(request.config))
        elif action == Request.VERIFY_AND_COMMIT:
            self._commit(self._make(request.config))
        elif action == Request.RECONCILE_AND_COMMIT:
            target = self._make(request.config)
            with self._lock:
                if self._running is not None:
                    _replay(self._running, target)
                self._commit(target)
        else:
            raise invalid("Invalid SetForwardingPipelineConfig action")

    def _make(self, config: p4runtime_pb2.ForwardingPipelineConfig) -> Target:
        if not config.HasField("p4info"):
            raise invalid("The config has no P4Info")
        text: bytes = config.p4_device_config
        if not text.lstrip().startswith(b"{"):
            raise invalid(
                "p4_device_config must be the bmv2 JSON that p4c-bm2-ss writes; it does not start with '{'"
            )
        with contextlib.ExitStack() as undo:
            try:
                view = P4InfoView(config.p4info)
                device = self._load(text.lstrip())
                undo.callback(device.close)
                target = Target(config, view, device, self._port_up)
            except RpcError:
                raise
            except (BuildError, OSError, MemoryError) as error:
                raise RpcError(grpc.StatusCode.INTERNAL, str(error)) from error
            except SwitchError as error:
                raise invalid(str(error)) from error
            except Exception as error:
                # P4Info and JSON are the client's: what no check foresaw is still wrong with them
                log.exception("a pipeline config that no check refused")
                raise invalid(
                    f"The config is not what p4c makes ({type(error).__name__}: {error}); "
                    "take P4Info and JSON from the same run of p4c"
                ) from error
            undo.pop_all()
        return target

    def _save(self, target: Target) -> None:
        with self._lock:
            if self._saved is not None:
                self._saved.device.close()
            self._saved = target

    def _commit(self, target: Target) -> None:
        with self._lock:
            try:
                self._dataplane.attach(target.device)
            except SwitchError as error:
                target.device.close()
                raise RpcError(grpc.StatusCode.INTERNAL, str(error)) from error
            self._running = target
            if self._saved is not None:
                self._saved.device.close()
                self._saved = None
        self._chores.wake()
        log.info("the pipeline is now %s: %d tables", target.device.program.name, len(target.view.tables))


def _replay(old: Target, new: Target) -> None:
    """Bring the new pipeline to the old one's forwarding state, or close it and say what did not fit."""
    try:
        for update in old.state():
            try:
                new.write(update)
            except RpcError as error:
                if error.code is not grpc.StatusCode.ALREADY_EXISTS:
                    raise
                update.type = p4runtime_pb2.Update.MODIFY  # an initial entry of the program
                new.write(update)
    except RpcError as error:
        new.device.close()
        raise invalid(f"The forwarding state cannot be kept with this config: {error}") from error
