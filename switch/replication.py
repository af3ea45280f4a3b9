# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions of a device."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

from switch.errors import BadIndex, DeviceError, NoSuchObject
from switch.library import Replica


class Replication:
    """What simple_switch calls the packet replication engine."""

    def __init__(self, lib: ctypes.CDLL, handle: Callable[[], int], lock: threading.RLock) -> None:
        self._lib = lib
        self._sw = handle
        self._lock = lock
        self._multicast: dict[int, list[tuple[int, int]]] = {}
        self._sessions: dict[int, tuple[list[tuple[int, int]], int]] = {}

    def restart(self) -> None:
        """No groups and no sessions. The C side is empty."""
        with self._lock:
            self._multicast.clear()
            self._sessions.clear()

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace group 1..65535: (port, replication id) each, sent in this order."""
        if not 1 <= group <= 65535:
            raise BadIndex(f"multicast group {group} is not in 1..65535")
        with self._lock:
            self._fanout(self._lib.sw_multicast_set, group, replicas, (), present=True)
            self._multicast[group] = [(p, r) for p, r in replicas]

    def multicast_delete(self, group: int) -> None:
        """Remove a group; packets sent to it are dropped from then on. Raises NoSuchObject."""
        with self._lock:
            if self._multicast.pop(group, None) is None:
                raise NoSuchObject(f"no multicast group {group}")
            self._fanout(self._lib.sw_multicast_set, group, (), (), present=False)

    def multicast_groups(self) -> dict[int, list[tuple[int, int]]]:
        """All groups."""
        with self._lock:
            return {g: list(r) for g, r in self._multicast.items()}

    def clone_session_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        """Create or replace a clone session 0..32767; `truncate` > 0 keeps that many bytes of each clone."""
        if not 0 <= session <= 32767:
            raise BadIndex(f"clone session {session} is not in 0..32767")
        if not 0 <= truncate < 1 << 32:
            raise BadIndex(f"clone session {session}: cannot truncate to {truncate} bytes")
        with self._lock:
            self._fanout(self._lib.sw_session_set, session, replicas, (truncate,), present=True)
            self._sessions[session] = ([(p, r) for p, r in replicas], truncate)

    def clone_session_delete(self, session: int) -> None:
        """Remove a session; clones to it are lost from then on. Raises NoSuchObject."""
        with self._lock:
            if self._sessions.pop(session, None) is None:
                raise NoSuchObject(f"no clone session {session}")
            self._fanout(self._lib.sw_session_set, session, (), (0,), present=False)

    def clone_sessions(self) -> dict[int, tuple[list[tuple[int, int]], int]]:
        """All sessions: replicas and truncation length."""
        with self._lock:
            return {s: (list(r), t) for s, (r, t) in self._sessions.items()}

    def _fanout(
        self,
        call: Callable[..., int],
        number: int,
        replicas: Sequence[tuple[int, int]],
        extra: tuple[int, ...],
        *,
        present: bool,
    ) -> None:
        for port, rid in replicas:
            if not (0 <= port < 1 << 32 and 0 <= rid < 1 << 16):
                raise BadIndex(f"replica (port {port}, id {rid}): ports have 32 bits, ids 16")
        array = (Replica * max(len(replicas), 1))(*(Replica(p, r) for p, r in replicas))
        if call(self._sw(), number, array, len(replicas), *extra, int(present)) != 0:
            raise DeviceError("no memory for the replicas")
