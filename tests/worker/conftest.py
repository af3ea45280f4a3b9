# SPDX-License-Identifier: Apache-2.0
"""Made once: the compiled program in an in-process switch (who uses it resets it), and the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switch.device import SwitchDevice
from tests.dataplane.rig import load
from tests.worker.world import ELEMENTS
from wire.constants import FEW_SLOTS
from worker.kernels import Kernels, NumpyKernels
from worker.native import NativeKernels


@pytest.fixture(scope="session")
def device() -> Iterator[SwitchDevice]:
    with load(ELEMENTS, FEW_SLOTS) as loaded:
        yield loaded


@pytest.fixture(scope="session", params=["numpy", "C"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return NumpyKernels() if request.param == "numpy" else NativeKernels()
