# SPDX-License-Identifier: Apache-2.0
"""The usual turn in C (turn.c): what the engine's steps do while nothing is out of the ordinary."""

from __future__ import annotations

import ctypes

import numpy as np

from wire.packet import Packets

from .flow import Flow
from .kernels import address
from .operation import Operation
from .recovery import Recovery
from .ring import Ring
from .timer import RetransmissionTimer


class Why:
    """Why C gives the turn back, as bits; the enum of turn.c. Plain numbers: this is asked at every turn."""

    DUE = 1
    """A deadline has passed: of a packet, or of an operation."""
    HELD = 2
    """The exponent of the next values is not known."""
    COMPLETE = 4
    """The first operation has all results."""
    DIFFERENT = 8
    """The ranks' calls differ."""
    UNSENT = 16
    """The kernel did not take all packets."""
    UNREAD = 32
    """The kernel reports an error."""
    TIME = 64
    """The time is up, or somebody asks for the engine."""


class Turn(ctypes.Structure):
    """Of one epoch's ring. C sees a struct turn.

    `run` does all by itself, with a socket; `poll` and `on_results` are its halves, without I/O or a clock.
    """

    wanted: int
    """Set while another thread waits for the engine: `run` comes back."""
    unsent: int
    """The least chunk that is filled and was not sent."""
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("_ring", "_timer", "_recovery", "_flow")),
        *((name, ctypes.c_void_p) for name in ("_running", "_unfilled")),
        ("unsent", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("_picked", "_offsets")),
        ("wanted", ctypes.c_int32),
    )

    def __init__(
        self,
        library: ctypes.CDLL,
        ring: Ring,
        timer: RetransmissionTimer,
        recovery: Recovery,
        flow: Flow,
    ) -> None:
        self._c, self._kept = library, (ring, timer, recovery, flow)
        self._found = np.empty((2, len(ring.packets)), np.int64)
        super().__init__(
            *(ctypes.addressof(of) for of in self._kept),
            _picked=address(self._found[0]),
            _offsets=address(self._found[1]),
        )

    def take_up(self, running: Operation, unfilled: Operation | None) -> None:
        """Go on with these: the first that is not done, and the first that has packets never filled."""
        self._running = ctypes.addressof(running)
        self._unfilled = None if unfilled is None else ctypes.addressof(unfilled)

    def poll(self, now: float) -> int:
        """Fill the packets that can be sent now: chunks `unsent` to `flow.next` - 1."""
        why: int = self._c.turn_poll(ctypes.byref(self), now)
        return why

    def on_results(self, packets: Packets, now: float) -> int:
        """Take received payloads."""
        why: int = self._c.turn_results(ctypes.byref(self), packets.ctypes.data, len(packets), now)
        return why

    def run(self, socket: ctypes.Structure, until: float) -> int:
        """Send and receive by a struct socket until `until` (time.monotonic), or until there is cause."""
        why: int = self._c.turn(ctypes.byref(self), ctypes.byref(socket), until)
        return why
