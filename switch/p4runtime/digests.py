# SPDX-License-Identifier: Apache-2.0
"""DigestEntry and DigestList (spec 1.4, 9.8): samples of digest() are gathered and sent to the primary.

Times are kept to the millisecond or so, where simple_switch_grpc's sweeps double them at worst. Without
max_timeout_ns each sample goes alone. The lists are numbered from 1 for each digest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from p4.v1 import p4data_pb2, p4runtime_pb2

from switch.device import SwitchDevice
from switch.p4runtime import codec
from switch.p4runtime.errors import already_exists, invalid, not_found, unimplemented
from switch.p4runtime.p4info import Digest, P4InfoView

INSERT, MODIFY = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY

POLL_NS = 5_000_000
"""How often the device's queue is looked at while any digest is wanted."""
QUEUE = 4096
"""Samples that a device keeps, and that one look takes at most: packets may bring more as fast as we read."""
LONGEST_LIST = 1024
"""Samples in a list whose max_list_size sets no limit."""
MAX_UNACKNOWLEDGED = 1 << 16
"""Samples of one digest; beyond, the oldest lists count as acknowledged."""

Sample = tuple[int, ...]


@dataclass
class _State:
    """One digest that is wanted."""

    digest: Digest
    config: p4runtime_pb2.DigestEntry.Config
    number: int = 1
    """Of the next list."""
    waiting: dict[Sample, None] = field(default_factory=dict)
    """The next list, in order."""
    since_ns: int = 0
    sent: deque[tuple[int, int, list[Sample]]] = field(default_factory=deque)
    """(list id, when, samples) not acknowledged, oldest first."""
    unacknowledged: set[Sample] = field(default_factory=set)


class Digests:
    """The digests of one loaded program."""

    def __init__(self, view: P4InfoView, device: SwitchDevice) -> None:
        self._view = view
        self._device = device
        self._states: dict[int, _State] = {}
        self._numbers: dict[int, int] = {}
        """Where the lists of a digest that is not wanted any more would go on."""

    def write(self, kind: int, entry: p4runtime_pb2.DigestEntry) -> None:
        """Begin, change or end the sending of a digest."""
        digest = self._view.digest(entry.digest_id)
        state, config = self._states.get(digest.id), entry.config
        if kind == INSERT and state is not None:
            raise already_exists(f"Digest {digest.name} is configured already, use MODIFY")
        if kind != INSERT and state is None:
            raise not_found(f"Digest {digest.name} is not configured, use INSERT")
        if kind not in (INSERT, MODIFY):
            assert state is not None
            self._numbers[digest.id] = state.number
            del self._states[digest.id]
            return
        if config.max_timeout_ns < 0 or config.max_list_size < 0 or config.ack_timeout_ns < 0:
            raise invalid(f"Digest {digest.name}: negative times or sizes")
        if digest.kinds is None:
            raise unimplemented(f"Digest {digest.name}: only bits, bools and serializable enums can be sent")
        kept = p4runtime_pb2.DigestEntry.Config()
        kept.CopyFrom(config)
        if state is not None:
            state.config = kept
            return
        if not self._states:
            self._device.digests(QUEUE)  # what nobody wanted
        self._states[digest.id] = _State(digest, kept, self._numbers.get(digest.id, 1))

    def read(self, wanted: p4runtime_pb2.DigestEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Yield one configured digest, or all. NOT_FOUND if the one is not configured."""
        if wanted.digest_id:
            digest = self._view.digest(wanted.digest_id)
            if digest.id not in self._states:
                raise not_found(f"Digest {digest.name} is not configured")
        for number, state in self._states.items():
            if wanted.digest_id in (0, number):
                entry = p4runtime_pb2.DigestEntry(digest_id=number, config=state.config)
                yield p4runtime_pb2.Entity(digest_entry=entry)

    def acknowledge(self, ack: p4runtime_pb2.DigestListAck) -> None:
        """Let the samples of a list be sent when they come again. INVALID_ARGUMENT for no digest's id."""
        state = self._states.get(self._view.digest(ack.digest_id).id)
        for sent in state.sent if state else ():
            if state and sent[0] == ack.list_id:
                state.sent.remove(sent)
                state.unacknowledged.difference_update(sent[2])
                return

    def poll(self, now_ns: int) -> tuple[list[p4runtime_pb2.DigestList], int | None]:
        """Return the lists that are due and the nanoseconds until the next look, None if none is wanted."""
        if not self._states:
            return [], None
        lists = []
        by_name = {state.digest.name: state for state in self._states.values()}
        for state in by_name.values():
            while state.sent and now_ns - state.sent[0][1] >= state.config.ack_timeout_ns:
                state.unacknowledged.difference_update(state.sent.popleft()[2])
        for sample in self._device.digests(QUEUE):
            if sample.name in by_name and self._gather(by_name[sample.name], sample.values, now_ns):
                lists.append(self._list(by_name[sample.name], now_ns))
        for state in by_name.values():
            if state.waiting and now_ns - state.since_ns >= state.config.max_timeout_ns:
                lists.append(self._list(state, now_ns))
        return lists, POLL_NS

    @staticmethod
    def _gather(state: _State, sample: Sample, now_ns: int) -> bool:
        """Put a sample into the next list, unless it is known; whether the list is complete."""
        if sample in state.unacknowledged or sample in state.waiting:
            return False
        if not state.waiting:
            state.since_ns = now_ns
        state.waiting[sample] = None
        longest = state.config.max_list_size or LONGEST_LIST
        return state.config.max_timeout_ns == 0 or len(state.waiting) >= longest

    @staticmethod
    def _list(state: _State, now_ns: int) -> p4runtime_pb2.DigestList:
        message = p4runtime_pb2.DigestList(
            digest_id=state.digest.id, list_id=state.number, timestamp=time.time_ns()
        )
        for sample in state.waiting:
            _encode(state.digest, sample, message.data.add())
        if state.config.ack_timeout_ns > 0:
            state.sent.append((state.number, now_ns, list(state.waiting)))
            state.unacknowledged.update(state.waiting)
            while len(state.unacknowledged) > MAX_UNACKNOWLEDGED:
                state.unacknowledged.difference_update(state.sent.popleft()[2])
        state.number += 1
        state.waiting = {}
        return message


def _encode(digest: Digest, sample: Sample, data: p4data_pb2.P4Data) -> None:
    for kind, value in zip(digest.kinds or (), sample, strict=True):
        one = data
        if digest.shape is not None:
            one = getattr(data, digest.shape).members.add()
        if kind == "bool":
            one.bool = bool(value)
        else:
            setattr(one, kind, codec.encode(value))
