# SPDX-License-Identifier: Apache-2.0
"""Who may write: clients of StreamChannel ranked by election id, as simple_switch_grpc's server ranks them.

The highest election id is primary. When it leaves, the next highest becomes primary (the spec would have
none). Roles, which simple_switch_grpc ignores, are the spec's (1.4, 5): each role has a primary of its own,
and a write names role and election id of one. Without a role.config, and this switch knows none, every role
has access to the full pipeline: its primary writes anything, sends packets and gets a copy of every message.
Messages to a client wait in a bounded queue: a client that does not read loses packets, which are counted,
and never holds up the switch.
"""

from __future__ import annotations

import collections
import threading

import grpc
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from switch.p4runtime.errors import RpcError, exhausted, invalid, precondition

MAX_CLIENTS = 64
"""Streams served at once; simple_switch_grpc has 16."""
QUEUE_LIMIT = 4096
"""Messages that may wait for one client."""

ElectionId = tuple[int, int]


def election_id(message: p4runtime_pb2.Uint128) -> ElectionId:
    """Return a Uint128 as a (high, low) pair, which orders as the number does."""
    return (message.high, message.low)


def role_of(message: p4runtime_pb2.Role) -> str:
    """Return a role's name, "" for the default one; older clients number roles instead."""
    return message.name or (f"#{message.id}" if message.id else "")


class Client:
    """One StreamChannel: its election id once it has one, and the messages that wait for it."""

    def __init__(self, limit: int = QUEUE_LIMIT) -> None:
        self.election: ElectionId | None = None
        self.role = p4runtime_pb2.Role()
        self.lost = 0
        """Messages dropped because the queue was full."""
        self._limit = limit
        self._waiting: collections.deque[p4runtime_pb2.StreamMessageResponse] = collections.deque()
        self._ready = threading.Condition()
        self._closed = False
        self._error: RpcError | None = None

    def put(self, message: p4runtime_pb2.StreamMessageResponse, *, droppable: bool = True) -> bool:
        """Queue a message; False if it was dropped. Arbitration messages are never dropped."""
        with self._ready:
            if self._closed or (droppable and len(self._waiting) >= self._limit):
                self.lost += 1
                return False
            self._waiting.append(message)
            self._ready.notify()
            return True

    def close(self, error: RpcError | None = None) -> None:
        """End the stream after what is queued, with the error as its status; the first call counts."""
        with self._ready:
            if not self._closed:
                self._closed = True
                self._error = error
                self._ready.notify_all()

    def get(self) -> p4runtime_pb2.StreamMessageResponse | None:
        """Wait for the next message, None when the stream has ended.

        The wait ends with close(), which the server calls when the client is gone or the server stops.

        Raises:
            RpcError: the stream was closed with this error.
        """
        with self._ready:
            while not self._waiting and not self._closed:
                self._ready.wait()
            if self._waiting:
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None


class Arbiter:
    """The clients of one device, ranked; thread-safe."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._lock = threading.RLock()
        self._roles: dict[str, list[Client]] = {}
        """The clients of each role that has any, the primary first."""
        self._joined: set[Client] = set()
        self._stopped = False

    def open(self, client: Client) -> None:
        """Note a stream that has not arbitrated yet, so that stop() reaches it.

        Raises:
            RpcError: RESOURCE_EXHAUSTED beyond MAX_CLIENTS streams; UNAVAILABLE once stopped.
        """
        with self._lock:
            if self._stopped:
                raise RpcError(grpc.StatusCode.UNAVAILABLE, "the switch is stopping")
            if len(self._joined) >= MAX_CLIENTS:
                raise exhausted(f"Too many connections: {MAX_CLIENTS} streams are open; close one")
            self._joined.add(client)

    def arbitrate(self, client: Client, update: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        """Give a client its election id, or a new one, and tell whom it concerns.

        Raises:
            RpcError: INVALID_ARGUMENT if another client of the role has the id, or the role has a config,
                FAILED_PRECONDITION if the client has another role; the stream is then to be closed.
        """
        wanted, role = election_id(update.election_id), role_of(update.role)
        if update.role.HasField("config"):
            raise invalid(f"Role {role!r}: role.config must be unset; this switch knows none")
        with self._lock:
            if client.election is not None and role != role_of(client.role):
                raise precondition("Role cannot change: open another stream for another role")
            if client.election == wanted:
                return
            ranked = self._roles.setdefault(role, [])
            if any(other.election == wanted for other in ranked):
                already = (
                    "New election id already exists" if client.election else "Election id already exists"
                )
                raise invalid(f"{already}: {wanted}; take another one")
            was_primary = bool(ranked) and ranked[0] is client
            if client in ranked:
                ranked.remove(client)
            client.election = wanted
            client.role.CopyFrom(update.role)
            ranked.append(client)
            ranked.sort(key=lambda c: c.election or (0, 0), reverse=True)
            if was_primary != (ranked[0] is client):
                self._notify(ranked, ranked)
            else:
                self._notify(ranked, [client])

    def leave(self, client: Client) -> None:
        """Forget a client; if it was primary, the next one becomes it and all are told."""
        with self._lock:
            self._joined.discard(client)
            role = role_of(client.role)
            ranked = self._roles.get(role, [])
            if client in ranked:
                was_primary = ranked[0] is client
                ranked.remove(client)
                if was_primary:
                    self._notify(ranked, ranked)
                if not ranked:
                    del self._roles[role]

    def stop(self) -> None:
        """End every stream and take no more."""
        with self._lock:
            self._stopped = True
            for client in list(self._joined):
                client.close(RpcError(grpc.StatusCode.UNAVAILABLE, "the switch is stopping"))

    def is_primary(self, client: Client) -> bool:
        """Say whether this stream's client is the primary of its role."""
        with self._lock:
            return any(ranked[0] is client for ranked in self._roles.values() if ranked)

    def check_writer(self, request: p4runtime_pb2.WriteRequest) -> None:
        """Refuse a Write or SetForwardingPipelineConfig that does not come from its role's primary.

        While there is no client at all, a request without election id is accepted, as by simple_switch_grpc.

        Raises:
            RpcError: PERMISSION_DENIED "Not primary".
        """
        role = request.role or (f"#{request.role_id}" if request.role_id else "")
        with self._lock:
            if not self._roles:
                allowed = not request.HasField("election_id")
            else:
                ranked = self._roles.get(role, [])
                allowed = bool(ranked) and ranked[0].election == election_id(request.election_id)
        if not allowed:
            raise RpcError(grpc.StatusCode.PERMISSION_DENIED, "Not primary")

    def send_to_primary(self, message: p4runtime_pb2.StreamMessageResponse) -> bool:
        """Queue a message for each role's primary; False if there is none or all their queues are full."""
        with self._lock:
            primaries = [ranked[0] for ranked in self._roles.values() if ranked]
        taken = [primary.put(message) for primary in primaries]
        return any(taken)

    def _notify(self, ranked: list[Client], clients: list[Client]) -> None:
        primary = ranked[0] if ranked else None
        for client in clients:
            message = p4runtime_pb2.StreamMessageResponse()
            update = message.arbitration
            update.device_id = self._device_id
            if role_of(client.role):
                update.role.CopyFrom(client.role)
            if primary is not None and primary.election is not None:
                update.election_id.high, update.election_id.low = primary.election
            if client is primary:
                update.status.code, update.status.message = code_pb2.OK, "Is primary"
            else:
                update.status.code, update.status.message = code_pb2.ALREADY_EXISTS, "Is backup"
            client.put(message, droppable=False)
