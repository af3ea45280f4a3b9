# SPDX-License-Identifier: Apache-2.0
"""One P4Runtime stream: p4runtime-shell's client with a receiver that ends, tells and keeps within limits.

The library's own receiver is a thread that holds up the interpreter until `tear_down`, whose queues grow
without limit and do not tell a stream that the server ended; its handshake leaves the process after 2 s.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4runtime_sh.p4runtime import P4RuntimeClient

PACKETS = 1024
"""PacketIns that wait for a reader; the oldest are lost."""
ERRORS = 16
"""StreamErrors (refused PacketOuts) kept."""
DIGESTS = 256
"""DigestLists that wait for a reader; the oldest are lost, and counted."""
MAX_MESSAGE = 256 * 1024 * 1024
"""Bytes of the largest answer; gRPC's 4 MB is less than all counters of a switch."""
MAX_METADATA = 4 * 1024 * 1024
"""Bytes of the details of a refused batch."""
GRACE_SECONDS = 1.0
"""How long a server may take to end a stream that we ended, before it is cancelled."""


class Session(P4RuntimeClient):  # type: ignore[misc]
    """The library's client: its channel, stub and message formats; the stream is ours. `tear_down` always."""

    channel: Any
    stub: Any

    def __init__(self, device_id: int, address: str, election_id: tuple[int, int]) -> None:
        self.changed = threading.Condition()
        self.answers = 0
        """Arbitration messages so far."""
        self.primary: bool | None = None
        self.primary_id: tuple[int, int] | None = None
        """Election id of the primary, as far as the server told."""
        self.arbitration_text = ""
        self.ended: str | None = None
        """Why the stream has ended, None while it runs."""
        self.lost = 0
        """DigestLists lost so far because nobody took them."""
        self._packets: deque[Any] = deque(maxlen=PACKETS)
        self._errors: deque[Any] = deque(maxlen=ERRORS)
        self._digests: deque[tuple[float, Any]] = deque(maxlen=DIGESTS)
        self._told: tuple[object, ...] = ()
        self._address = address
        super().__init__(device_id, address, election_id)

    def set_up_stream(self) -> None:
        """Replace the library's channel by one with options; the stream starts with `handshake`."""
        self.channel.close()
        # A proxy of the environment is not for switches on this machine.
        self.channel = grpc.insecure_channel(
            self._address,
            options=[
                ("grpc.enable_http_proxy", 0),
                # Else a channel begins with the failures of another, and in its pause after them.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                # A batch's refusals come as metadata, which gRPC would cut off at 16 KB: 380 updates.
                ("grpc.max_metadata_size", MAX_METADATA),
                ("grpc.absolute_max_metadata_size", MAX_METADATA),
            ],
        )
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.stream_out_q: queue.Queue[Any] = queue.Queue()
        self.stream: Any = None
        self._receiver: threading.Thread | None = None

    def handshake(self) -> None:
        """Send our election id; the answer comes to `changed`."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        if self.stream is None:
            self.stream = self.stub.StreamChannel(iter(self.stream_out_q.get, None))
            self._receiver = threading.Thread(target=self._receive, name="p4runtime-stream", daemon=True)
            self._receiver.start()
        self.stream_out_q.put(request)

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until `ready` or the stream's end (then `ended` is set); False when time is up."""
        with self.changed:
            return self.changed.wait_for(lambda: ready() or self.ended is not None, seconds)

    def wait_packet(self, wanted: Callable[[Any], bool], seconds: float) -> Any:
        """Return the first wanted PacketIn, or a StreamError; None when time is up or the stream ended.

        Packets that are not wanted are dropped.
        """
        deadline = time.monotonic() + seconds
        while self.wait(lambda: bool(self._packets or self._errors), deadline - time.monotonic()):
            with self.changed:
                if self._errors:
                    return self._errors.popleft()
                while self._packets:
                    packet = self._packets.popleft()
                    if wanted(packet):
                        return packet
                if self.ended is not None:
                    return None
        return None

    def wait_news(self, seconds: float) -> list[tuple[float, Any]] | None:
        """Wait until, since the last call, the switch told who is primary, digests came or the stream ended.

        Returns (Unix time, DigestList) of each digest; None when time is up. For one reader.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: self._standing() != self._told or self._digests, seconds):
                return None
            self._told = self._standing()
            found = list(self._digests)
            self._digests.clear()
            return found

    def tear_down(self) -> None:
        """End the stream, its thread and the channel, whatever state they are in.

        A thread does it, and goes on where the caller is interrupted: the interpreter could not end with a
        channel that is half closed, as gRPC would then wait for the other half without limit.
        """
        closing = threading.Thread(target=self._tear_down, name="p4runtime-close")
        closing.start()
        closing.join()

    def _tear_down(self) -> None:
        self.stream_out_q.put(None)
        if self._receiver is not None:
            self._receiver.join(GRACE_SECONDS)
            if self._receiver.is_alive():
                self.stream.cancel()
                self._receiver.join(GRACE_SECONDS)
        self.channel.close()

    def _standing(self) -> tuple[object, ...]:
        return self.answers, self.ended

    def _receive(self) -> None:
        why = "the switch ended the stream"
        try:
            for message in self.stream:
                with self.changed:
                    self._take(message)
                    self.changed.notify_all()
        except grpc.RpcError as error:
            why = f"{error.code().name}: {error.details()}"
        finally:
            with self.changed:
                self.ended = why
                self.changed.notify_all()

    def _take(self, message: Any) -> None:
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            update = message.arbitration
            self.answers += 1
            self.primary = update.status.code == code_pb2.OK
            self.primary_id = (
                (update.election_id.high, update.election_id.low) if update.HasField("election_id") else None
            )
            self.arbitration_text = update.status.message or code_pb2.Code.Name(update.status.code)
        elif kind == "packet":
            self._packets.append(message.packet)
        elif kind == "error":
            self._errors.append(message.error)
        elif kind == "digest":
            # Unacknowledged, a server would not send the same sample again for a while.
            ack = p4runtime_pb2.StreamMessageRequest()
            ack.digest_ack.digest_id = message.digest.digest_id
            ack.digest_ack.list_id = message.digest.list_id
            self.stream_out_q.put(ack)
            self.lost += len(self._digests) == DIGESTS
            self._digests.append((time.time(), message.digest))
