# SPDX-License-Identifier: Apache-2.0
"""The gRPC server around the P4Runtime service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switch.errors import SwitchError
from switch.p4runtime.arbitration import MAX_CLIENTS
from switch.p4runtime.service import MAX_READS, P4RuntimeService

MAX_MESSAGE = 256 * 1024 * 1024
"""Bytes of the largest request, as in simple_switch_grpc."""
SPARE_THREADS = 8
"""For the calls that neither are streams nor read; each of those holds a thread."""


class ServeError(SwitchError):
    """The address cannot be listened on."""

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(
            f"cannot serve gRPC on {address}: {why}; choose another address with --grpc-server-addr"
        )


class P4RuntimeServer:
    """Serves a service on one address (`host:port`; port 0 picks a free one) from start to stop."""

    def __init__(self, service: P4RuntimeService, address: str) -> None:
        """Listen; calls are answered from start() on.

        Raises:
            ServeError: the address is taken or not of this machine.
        """
        self._service = service
        self._pool = ThreadPoolExecutor(
            MAX_CLIENTS + MAX_READS + SPARE_THREADS, thread_name_prefix="p4runtime"
        )
        # Without so_reuseport = 0 a second switch would silently share a busy port.
        self._server = grpc.server(
            self._pool, options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE)]
        )
        # The first handler of a name is taken. This one has no serializer: Read does that itself.
        read = grpc.unary_stream_rpc_method_handler(
            service.Read, request_deserializer=p4runtime_pb2.ReadRequest.FromString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("p4.v1.P4Runtime", {"Read": read}),)
        )
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(service, self._server)
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._pool.shutdown()
            raise ServeError(address, "it is in use, or no address of this machine")

    def start(self) -> None:
        """Answer calls."""
        self._server.start()

    def stop(self, limit: float = 0.2) -> None:
        """End the streams and the server; calls under way get `limit` seconds."""
        self._service.stop()
        self._server.stop(limit).wait(limit + 0.3)
        self._pool.shutdown(wait=False)
