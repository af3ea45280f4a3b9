# SPDX-License-Identifier: Apache-2.0
"""The worlds of tests/worker, with a capture at both ends of every link."""

from __future__ import annotations

from typing import Any

from switch.device import SwitchDevice
from tests.traces.captures import Capture, Captured, epoch_of
from tests.worker.world import Tensors, World


class CapturedWorld(World):
    """A World whose links are captured. `duplicate` is on the way up, `double` on the way down.

    What is lost, repeated, held back or spoilt on a link is so after its sender's end, before the other.
    """

    def __init__(
        self, device: SwitchDevice, seed: int, *, double: float = 0.0, corrupt: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(device, seed, **kwargs)
        self.double, self.corrupt = double, corrupt
        self.capture = Capture()
        self._stamps = 0
        for name in ("add_job", "new_epoch"):
            self._note_epochs(name)

    def _note_epochs(self, name: str) -> None:
        change = getattr(self.jobs, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            members = change(*args, **kwargs)
            self.capture.epochs.append(epoch_of(members, self.stamp()))
            return members

        setattr(self.jobs, name, noting)

    def stamp(self) -> int:
        """The time in ns; no two are the same."""
        self._stamps += 1
        return int(self.now * 1e9) + self._stamps

    def see(self, end: str, frame: bytes) -> None:
        result = frame[42] >> 4 == 2
        self.capture.packets.append(Captured(end, self.stamp(), frame, 1 if result == (end[0] == "h") else 2))

    def put(self, link: list[Any], frame: tuple[int, bytes]) -> None:
        port, data = frame
        up = link is self.up
        repeated = self.random.random() < (self.duplicate if up else self.double)
        # A copy that the sender's own queue made is seen at its end, as one that the fault table made.
        for _ in range(2 if repeated else 1):
            self.see(f"h{port}-s1" if up else f"s1-h{port}", data)
            if self.random.random() >= self.loss:
                spoilt = bytearray(data)
                if self.random.random() < self.corrupt:
                    spoilt[self.random.randrange(52, len(data))] ^= 1 << self.random.randrange(8)
                link.append((port, bytes(spoilt)))

    def take(self, link: list[Any]) -> Any:
        taken = super().take(link)
        if link is self.up or link is self.down:
            port, data = taken
            self.see(f"s1-h{port}" if link is self.up else f"h{port}-s1", data)
        return taken


def captured_run(
    device: SwitchDevice,
    *,
    seed: int = 1,
    n: int = 3,
    calls: int = 4,
    longest: int = 6,
    window: int = 4,
    g0: int = 0,
    **kwargs: Any,
) -> Capture:
    """The capture of a run of one epoch."""
    world = CapturedWorld(device, seed, **{"loss": 0.0, "duplicate": 0.0, **kwargs})
    world.start(3, Tensors(seed, n, longest), n, calls, window=window, lead=1, g0=g0)
    world.run()
    return world.capture
