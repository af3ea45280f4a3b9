# SPDX-License-Identifier: Apache-2.0
"""How long a switch process takes to load a program: SetForwardingPipelineConfig, from call to answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from controller.p4info import P4Info
from controller.p4runtime import SwitchClient
from p4src.forms import Form
from topologies.targets import Bmv2Target, EmbeddedTarget, SwitchProcess, Target

DEVICE_ID = 1


class _WithCache(EmbeddedTarget):
    """The embedded switch with a compiler's cache of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def program(self) -> list[str]:
        return ["env", f"XDG_CACHE_HOME={self._folder}", *super().program()]


def load_times(form: Form, say: Callable[[str], None]) -> dict[str, float]:
    """Return seconds: `embedded_cold` (an empty cache), `embedded_cached` and, where it is here, `bmv2`.

    Each in a new process without ports; needs no root. Raises TargetError and the errors of the controller.
    """
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as name:
        folder = Path(name)
        embedded = _WithCache(folder / "cache")
        runs: list[tuple[str, Target]] = [("embedded_cold", embedded), ("embedded_cached", embedded)]
        if Bmv2Target().available():
            runs.append(("bmv2", Bmv2Target()))
        found = {}
        for what, target in runs:
            say(f"loading {form.name} into a new switch process ({what.replace('_', ', ')})")
            found[what] = _load(target, form, folder)
        return found


def _load(target: Target, form: Form, folder: Path) -> float:
    p4info, program = P4Info.from_file(form.p4info_path), form.json_path.read_bytes()
    child = SwitchProcess(
        target, name="s1", device_id=DEVICE_ID, ports={}, log=folder / f"{target.name}.log", directory=folder
    )
    try:
        child.wait_ready()
        with SwitchClient("s1", DEVICE_ID, child.grpc) as client:
            start = perf_counter()
            client.push_pipeline(p4info, program)
            return perf_counter() - start
    finally:
        child.stop()
