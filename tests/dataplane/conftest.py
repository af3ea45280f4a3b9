# SPDX-License-Identifier: Apache-2.0
"""The switch is loaded once for each size; every test gets it reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from switch.device import SwitchDevice
from tests.dataplane.rig import Rig, load
from wire.constants import FEW_SLOTS


@pytest.fixture(scope="session", params=[64, 256], ids=lambda e: f"{e}-elements")
def device(request: pytest.FixtureRequest) -> Iterator[tuple[SwitchDevice, int]]:
    with load(request.param, FEW_SLOTS) as loaded:
        yield loaded, request.param


@pytest.fixture
def make_rig(device: tuple[SwitchDevice, int]) -> Callable[..., Rig]:
    loaded, elements = device
    return lambda **kw: Rig(loaded, elements, FEW_SLOTS, **kw)


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()
