# SPDX-License-Identifier: Apache-2.0
"""Looking at a slot through a PacketOut and the PacketIn that answers it (p4src/slots.p4, answer_peek)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from controller.entities import Switch
from controller.errors import FieldError
from controller.p4info import P4Info

PEEK = 1
COOKIE_BYTES = 8


@dataclass(frozen=True)
class SlotState:
    """One version of one slot at the time of the look; all 0 if it was never used."""

    epoch: int
    tag: int
    """Chunk number (mod 2^32) whose sum it holds."""
    seen: int
    """Bits of the workers that have contributed."""
    done: bool
    """Whether the result is complete."""


class Peek:
    """Asks by packet, as P4Runtime reads no registers on bmv2."""

    def __init__(self, p4info: P4Info) -> None:
        self._p4info = p4info

    def question(self, slot: int, version: int, cookie: bytes) -> Any:
        """Return the p4.v1.PacketOut that asks for a slot of the whole switch (a job's base included)."""
        if version not in (0, 1):
            raise FieldError("version", version, "a slot has the versions 0 and 1")
        return self._p4info.packet_out({"operation": PEEK, "version": version, "slot": slot}, cookie)

    def answer(self, packet: Any) -> SlotState:
        """Read the p4.v1.PacketIn."""
        fields = self._p4info.packet_in(packet)
        return SlotState(fields["epoch"], fields["tag"], fields["seen"], fields["done"] == 1)

    def slot(self, switch: Switch, slot: int, version: int) -> SlotState:
        """Ask a switch; the answer is told by a random cookie, which comes back as the payload.

        Raises TimedOutError, also for a slot beyond the program's: the switch drops that question.
        """
        cookie = secrets.token_bytes(COOKIE_BYTES)
        packet = switch.exchange(self.question(slot, version, cookie), lambda p: bytes(p.payload) == cookie)
        return self.answer(packet)
