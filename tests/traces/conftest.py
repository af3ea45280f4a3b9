# SPDX-License-Identifier: Apache-2.0
"""Made once: the compiled program in an in-process switch; who uses it resets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switch.device import SwitchDevice
from tests.dataplane.rig import load
from tests.worker.world import ELEMENTS
from wire.constants import FEW_SLOTS


@pytest.fixture(scope="session")
def device() -> Iterator[SwitchDevice]:
    with load(ELEMENTS, FEW_SLOTS) as loaded:
        yield loaded
